"""A session with one API server: raw requests and streams over the official client's transport.

Objects stay plain dictionaries. An answer is never turned into an exception for its status; only the lack of an
answer is (`Unreachable`). A 401 is answered by renewing the credentials and sending the request once more, which is
safe for any method, since a request that failed authentication was not carried out.
"""

from __future__ import annotations

import itertools
import os
import socket
import ssl
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from email.utils import parsedate_to_datetime
from functools import partial
from typing import Any, Literal
from urllib.parse import urlencode

import aiohttp
import anyio
import msgspec
import structlog
from kubernetes.aio.client.rest import RESTClientObject
from multidict import CIMultiDict
from yarl import URL

from chaosrunner.cluster.answers import passing
from chaosrunner.cluster.config import ClusterConfig, Loaded, load
from chaosrunner.cluster.patience import Backoff
from chaosrunner.cluster.resources import Resource
from chaosrunner.errors import UserError
from chaosrunner.timeline import rows
from chaosrunner.timeline.clock import Clock
from chaosrunner.timeline.rows import Emit

log = structlog.get_logger()

PAGE = 500
"""Items asked for in one page of a list, as kubectl does."""

DEAD_AFTER = 5
"""Seconds without a sign of the other end after which the kernel breaks a connection (where it can be told to): a
path that swallows packets must not keep a request, or the next one on that connection, for its whole time limit.
Where a connection may take longer to come, the path is known to be slow, and it may stay silent for as long."""

UNSTEADY = 30.0
"""Seconds after the last sign of an API server in trouble in which its denials prove nothing: it may have been started
anew, and authorises by what its caches of RBAC objects hold so far."""

JSON_PATCH = "application/json-patch+json"

Cause = Literal["dns", "refused", "connect", "tls", "proxy", "timeout", "closed"]


class Unreachable(Exception):
    """No answer came. `cause` says where it broke; `sent` whether the server may have carried the request out."""

    def __init__(self, server: str, cause: Cause, detail: str, *, sent: bool) -> None:
        said = _CAUSES[cause]
        super().__init__(f"{server}: {said}" + ("" if detail.lower() == said else f": {detail}"))
        self.server = server
        self.cause = cause
        self.detail = detail
        self.sent = sent

    @property
    def told(self) -> str:
        """For a person: who is away, and why."""
        return f"the cluster cannot be reached: {self}"


_CAUSES: dict[Cause, str] = {
    "dns": "its name cannot be resolved",
    "refused": "connection refused",
    "connect": "no connection",
    "tls": "TLS failed",
    "proxy": "the proxy failed",
    "timeout": "no answer in time",
    "closed": "the connection broke",
}


class ApiError(Exception):
    """An answer with an error status, where a helper promised more than an answer."""

    def __init__(self, what: str, answer: Answer, *, server: str = "the API server") -> None:
        super().__init__(f"{what}: {answer.status} {answer.message}")
        self.answer = answer
        self.server = server
        """Who answered, in words."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """One HTTP answer. `sent` and `received` (its last byte) are seconds on the recording's clock."""

    status: int
    body: dict[str, Any]
    headers: Mapping[str, str]
    sent: float
    received: float
    text: str = ""
    """The body where it is no JSON object (`404 page not found`, `ok`)."""

    @property
    def ok(self) -> bool:
        return 200 <= self.status < 300

    @property
    def reason(self) -> str | None:
        """The machine-readable reason of a Status; some errors have none (a Pod under two budgets)."""
        return self.body.get("reason") if self.body.get("kind") == "Status" else None

    @property
    def message(self) -> str:
        if self.body.get("kind") == "Status":
            return str(self.body.get("message") or "")
        return self.text.strip()

    @property
    def retry_after(self) -> float | None:
        """Seconds, from the header; HTTP dates, which the API server does not send, are passed over."""
        value = self.headers.get("Retry-After", "")
        return float(value) if value.isdigit() else None


@dataclass(frozen=True, slots=True, kw_only=True)
class Listing:
    """A whole list. `version` is the list's own resourceVersion, the only one from which a watch may start."""

    items: list[dict[str, Any]]
    version: str
    received: float


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerVersion:
    git: str
    major: int
    minor: int
    """Managed clusters append a plus sign, which is dropped."""


class Stream:
    """An open answer whose body is read as it comes."""

    def __init__(self, cluster: Cluster, response: Any, sent: float, authorization: str | None) -> None:
        self.status: int = response.status
        self.headers: Mapping[str, str] = response.headers
        self.opened = cluster.clock.now()
        self.sent = sent
        self.authorization = authorization
        """What was presented; `Cluster.renew` wants it, to renew only once for many that got a 401."""
        self._cluster = cluster
        self._response = response

    async def read(self) -> bytes:
        """The next bytes; empty at the proper end of the body. Raises Unreachable (cause `timeout`: silence)."""
        with self._cluster.transport_errors():
            chunk: bytes = await self._response.content.readany()
        return chunk

    async def answer(self) -> Answer:
        """The rest of the body as one answer: for error statuses."""
        with self._cluster.transport_errors():
            raw = await self._response.read()
        return _answer(self.status, self.headers, raw, self.sent, self._cluster.clock.now())


class Cluster:
    """One API server, as one user. Made by `connect`."""

    def __init__(self, loaded: Loaded, config: ClusterConfig, clock: Clock, emit: Emit | None) -> None:
        self.config = config
        self.context, self.name = loaded.context, loaded.cluster
        self.namespace = loaded.namespace
        self.server: str = loaded.configuration.host
        self.clock = clock
        self.calls: Iterator[int] = itertools.count(1)
        """Numbers of the calls that change the cluster; one sequence for a run."""
        self.held: dict[tuple[str, str], float] = {}
        """Budgets (namespace, name) that a failed eviction of ours holds, and until when (recording's clock)."""
        self._configuration = loaded.configuration
        self._credentials = loaded.credentials
        self._impersonate = loaded.impersonate
        self._emit = emit
        self._trouble = float("-inf")
        self._renewing = anyio.Lock()
        self._transports: list[Any] = []
        self._certificate: tuple[str | None, str | None] | None = None

    # --- requests ---------------------------------------------------------------------------------------

    async def request(
        self,
        method: str,
        path: str,
        *,
        query: Mapping[str, str] | None = None,
        body: Any = None,
        content_type: str | None = None,
        timeout: float | None = None,
    ) -> Answer:
        """One request, one answer, whatever its status.

        `path` starts with a slash, `body` is anything that JSON can say, `timeout` is in seconds for the whole of it
        (default: the configuration's). Raises Unreachable where no whole answer came.
        """
        total = self.config.request_timeout if timeout is None else timeout
        patience = self.config.connect_timeout
        limit = aiohttp.ClientTimeout(total=total, sock_connect=min(patience, total or patience))
        for attempt in (1, 2):
            async with self._open(method, path, query, body, content_type, limit) as stream:
                answer = await stream.answer()
            if answer.status != 401 or attempt == 2 or not await self.renew(stream.authorization):
                break
        if passing(answer.status, answer.body):
            self._trouble = answer.received
        return answer

    def passing(self, answer: Answer) -> bool:
        """Whether `answer` is an error that tells of the server's state, not of the request: it goes by itself.

        A denial counts as one while the server is in trouble, or was moments ago (`UNSTEADY`): a right that is not
        known yet is not a missing one.
        """
        details = answer.body.get("details") or {}
        denied = answer.status == 403 and details.get("kind") != "poddisruptionbudget" and not details.get("causes")
        return passing(answer.status, answer.body) or (denied and self.unsteady)

    @property
    def unsteady(self) -> bool:
        """Whether the server was in trouble within the last `UNSTEADY` seconds, as far as this session saw."""
        return self.clock.now() - self._trouble < UNSTEADY

    async def patiently(self, ask: Callable[[], Awaitable[Answer]], patience: float) -> Answer:
        """The answer to a read that is asked again for `patience` seconds while none comes, or a `passing` one.

        Raises Unreachable where even the last try got none.
        """
        until = anyio.current_time() + patience
        backoff = Backoff()
        while True:
            try:
                answer = await ask()
            except Unreachable:
                pause = backoff.next()
                if anyio.current_time() + pause > until:
                    raise
            else:
                pause = backoff.next(answer.retry_after)
                if not self.passing(answer) or anyio.current_time() + pause > until:
                    return answer
            await anyio.sleep(pause)

    @asynccontextmanager
    async def stream(self, path: str, query: Mapping[str, str], silence: float) -> AsyncIterator[Stream]:
        """Open a GET whose body comes in pieces. No attempt to authenticate anew: the caller wants to know.

        `silence` is the longest time in seconds between two reads. Raises Unreachable where no headers come within
        the configuration's request timeout.
        """
        connect = min(self.config.connect_timeout, silence)
        limit = aiohttp.ClientTimeout(total=None, sock_connect=connect, sock_read=silence)
        async with self._open("GET", path, query, None, None, limit) as stream:
            yield stream

    @asynccontextmanager
    async def _open(
        self,
        method: str,
        path: str,
        query: Mapping[str, str] | None,
        body: Any,
        content_type: str | None,
        limit: aiohttp.ClientTimeout,
    ) -> AsyncIterator[Stream]:
        authorization, transport = await self._authenticated()
        headers: CIMultiDict[str] = CIMultiDict(self._impersonate)
        headers["Accept"] = "application/json"
        headers["User-Agent"] = "chaosrunner"
        headers["Content-Type"] = content_type or "application/json"
        if authorization:
            headers["Authorization"] = authorization
        url = URL(self.server + path + (f"?{urlencode(query)}" if query else ""), encoded=True)
        sent = self.clock.now()
        with self.transport_errors():
            with anyio.fail_after((self.config.request_timeout or None) if limit.total is None else None):
                send = partial(transport.request, method, url, headers, body, _request_timeout=limit)
                response = (await (_again(send) if method == "GET" else send())).response
        try:
            stream = Stream(self, response, sent, authorization)
            self._sample(stream)
            yield stream
        finally:
            # A body read to its end has given its connection back already; any other cannot be used again.
            response.close()

    async def _authenticated(self) -> tuple[str | None, Any]:
        """The Authorization header and the transport with the current client certificate."""
        async with self._renewing:
            authorization = await self._credentials.authorization()
            self._use_certificate()
            return authorization, self._transports[-1]

    async def renew(self, presented: str | None) -> bool:
        """After a 401 to a request that presented `presented`: True if there are other credentials to try now."""
        async with self._renewing:
            try:
                if presented != await self._credentials.authorization():
                    return True  # somebody else's 401 has already led to new ones
                renewed = await self._credentials.renew()
            except UserError as error:
                log.warning("credentials cannot be renewed", error=str(error))
                return False
            log.info("credentials renewed after 401", changed=renewed)
            return renewed

    def _use_certificate(self) -> None:
        certificate = (self._configuration.cert_file, self._configuration.key_file)
        if certificate == self._certificate and self._transports:
            return
        try:
            self._transports.append(_Transport(self._configuration, self.config.connect_timeout))
        except (ssl.SSLError, OSError, ValueError) as error:
            raise UserError(f"kubeconfig: certificates of context {self.context!r}: {error}") from error
        self._certificate = certificate

    @contextmanager
    def transport_errors(self) -> Iterator[None]:
        """Turns the transport's exceptions into `Unreachable`."""
        try:
            yield
        except (aiohttp.ClientError, OSError) as error:
            self._trouble = self.clock.now()
            cause, sent = _cause(error)
            raise Unreachable(self.server, cause, _reason(error), sent=sent) from error

    def _sample(self, stream: Stream) -> None:
        """The API server's clock beside ours, from the Date header (one second's resolution, RFC 9110 section 6.6.1).

        A proxy in between may have written the header; an interval that fits no other says so.
        """
        date = stream.headers.get("Date")
        if self._emit is None or date is None:
            return
        try:
            reported = parsedate_to_datetime(date).timestamp()
        except ValueError:
            return
        self._emit(
            rows.Skew(
                at=stream.opened,
                owner="apiserver",
                reported=reported,
                resolution=1.0,
                sent=stream.sent,
                received=stream.opened,
            )
        )

    # --- thin helpers -----------------------------------------------------------------------------------

    async def get(
        self, resource: Resource, name: str, namespace: str | None = None, *, patience: float = 0.0
    ) -> Answer:
        """`patience`: as `patiently` has it."""
        return await self.patiently(lambda: self.request("GET", resource.path(namespace, name)), patience)

    async def list(
        self,
        resource: Resource,
        namespace: str | None = None,
        *,
        label_selector: str | None = None,
        field_selector: str | None = None,
        patience: float = 0.0,
    ) -> Listing:
        """All objects, page by page; of all namespaces where none is given. `patience` is for each page, as
        `patiently` has it. Raises ApiError and Unreachable."""
        path = resource.path(namespace)
        query = selectors(label_selector, field_selector)
        page: dict[str, str] = {"limit": str(PAGE)}
        items: list[dict[str, Any]] = []
        while True:
            answer = await self.patiently(partial(self.request, "GET", path, query=query | page), patience)
            if answer.status == 410 and "continue" in page:
                # The version that the pages are of has been compacted away: all at once, then.
                page, items = {}, []
                continue
            if not answer.ok:
                raise ApiError(f"list {resource.plural}", answer)
            items += answer.body.get("items") or []
            metadata = answer.body.get("metadata") or {}
            if not metadata.get("continue"):
                version = str(metadata.get("resourceVersion") or "")
                return Listing(items=items, version=version, received=answer.received)
            page["continue"] = metadata["continue"]

    async def create(self, resource: Resource, body: dict[str, Any], namespace: str | None = None) -> Answer:
        return await self.request("POST", resource.path(namespace), body=body)

    async def replace(self, resource: Resource, body: dict[str, Any], namespace: str | None = None) -> Answer:
        """PUT; with a resourceVersion in the body it fails with 409 if somebody was faster."""
        return await self.request("PUT", resource.path(namespace, body["metadata"]["name"]), body=body)

    async def delete(
        self,
        resource: Resource,
        name: str,
        namespace: str | None = None,
        *,
        uid: str | None = None,
        version: str | None = None,
        grace_period: float | None = None,
        dry_run: bool = False,
    ) -> Answer:
        """Delete, with preconditions on UID and resourceVersion where given (409 if they do not hold)."""
        options = delete_options(uid=uid, version=version, grace_period=grace_period, dry_run=dry_run)
        body = {"kind": "DeleteOptions", "apiVersion": "v1", **options}
        return await self.request("DELETE", resource.path(namespace, name), body=body)

    async def version(self) -> ServerVersion:
        """What the server says it is. Raises ApiError and Unreachable."""
        answer = await self.request("GET", "/version")
        if not answer.ok:
            raise ApiError("version", answer)
        body = answer.body
        major, minor = (int(str(body.get(key, "0")).rstrip("+") or 0) for key in ("major", "minor"))
        return ServerVersion(git=str(body.get("gitVersion", "")), major=major, minor=minor)

    # --- life -------------------------------------------------------------------------------------------

    async def open(self) -> None:
        await self._credentials.prepare()
        self._use_certificate()

    async def close(self) -> None:
        for transport in self._transports:
            await transport.close()


@asynccontextmanager
async def connect(config: ClusterConfig, clock: Clock, emit: Emit | None = None) -> AsyncIterator[Cluster]:
    """A session for the cluster that `config` names. Sends nothing yet (an exec plugin is run).

    `emit` gets a `Skew` row for each answer. Raises UserError for a bad configuration.
    """
    cluster = Cluster(load(config), config, clock, emit)
    await cluster.open()
    try:
        yield cluster
    finally:
        with anyio.CancelScope(shield=True):
            await cluster.close()


class _Transport(RESTClientObject):  # type: ignore[misc]  # the client's classes have no types
    """The official client's transport, on sockets that notice a dead path."""

    def __init__(self, configuration: Any, connect: float) -> None:
        super().__init__(configuration)
        self._silence = max(DEAD_AFTER, connect)

    def _create_connector(self) -> aiohttp.TCPConnector:
        return aiohttp.TCPConnector(
            limit=self.maxsize, ssl=self.ssl_context, socket_factory=partial(_socket, self._silence)
        )

    def _create_pool_manager(self) -> aiohttp.ClientSession:
        session: aiohttp.ClientSession = super()._create_pool_manager()
        # Else a PUT or DELETE whose connection breaks is sent twice, and what is told is the second one's answer: 404
        # for a Pod that the first one took.
        session._retry_connection = False
        return session


async def _again(send: Callable[[], Awaitable[Any]]) -> Any:
    """Sends a read, once more if its connection breaks: one that lay idle may have been closed, which only its use
    shows."""
    try:
        return await send()
    except aiohttp.ClientConnectorError:
        raise
    except (aiohttp.ClientOSError, aiohttp.ServerDisconnectedError):
        return await send()


def _socket(silence: float, address: tuple[Any, ...]) -> socket.socket:
    """A socket of which the kernel checks every few seconds that the other end is there, and which it breaks after
    `silence` seconds without a sign of it, also where it is not connected yet; it knows how, on Linux."""
    family, kind, protocol, *_ = address
    made = socket.socket(family, kind, protocol)
    made.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    if sys.platform == "linux":
        made.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, 2)
        made.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, 1)
        made.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, int(silence * 1000))
    return made


def selectors(label_selector: str | None, field_selector: str | None) -> dict[str, str]:
    pairs = (("labelSelector", label_selector), ("fieldSelector", field_selector))
    return {key: value for key, value in pairs if value}


def delete_options(
    *, uid: str | None = None, version: str | None = None, grace_period: float | None = None, dry_run: bool = False
) -> dict[str, Any]:
    """The fields of DeleteOptions that are set; grace periods are whole seconds, rounded up."""
    options: dict[str, Any] = {}
    preconditions = {key: value for key, value in (("uid", uid), ("resourceVersion", version)) if value}
    if preconditions:
        options["preconditions"] = preconditions
    if grace_period is not None:
        options["gracePeriodSeconds"] = int(-(-grace_period // 1))
    if dry_run:
        options["dryRun"] = ["All"]
    return options


def _answer(status: int, headers: Mapping[str, str], raw: bytes, sent: float, received: float) -> Answer:
    try:
        body = msgspec.json.decode(raw) if raw else {}
    except msgspec.DecodeError:
        body = None
    if not isinstance(body, dict):
        return Answer(
            status=status, body={}, headers=headers, sent=sent, received=received, text=raw.decode(errors="replace")
        )
    return Answer(status=status, body=body, headers=headers, sent=sent, received=received)


def _reason(error: Exception) -> str:
    """Why, without the address that aiohttp and asyncio put into their texts: the server is named anyway."""
    match error:
        case aiohttp.ClientConnectorCertificateError():
            return str(error.certificate_error)
        case aiohttp.ClientConnectorError(os_error=OSError(errno=int(number))) if "Connect call failed" in str(error):
            return os.strerror(number)
        case aiohttp.ClientConnectorError(os_error=found):
            return found.strerror or str(found) or type(found).__name__
        case _:
            return str(error) or type(error).__name__


def _cause(error: Exception) -> tuple[Cause, bool]:
    """What broke, and whether the request may have reached the server before it did."""
    match error:
        case aiohttp.ClientConnectorDNSError():
            return "dns", False
        case aiohttp.ClientProxyConnectionError() | aiohttp.ClientHttpProxyError():
            return "proxy", False
        case aiohttp.ClientSSLError() | ssl.SSLError():
            return "tls", False
        case aiohttp.ClientConnectorError(os_error=ConnectionRefusedError()):
            return "refused", False
        case aiohttp.ClientConnectorError() | aiohttp.ConnectionTimeoutError() | aiohttp.InvalidURL():
            return "connect", False
        case TimeoutError():
            return "timeout", True
        case _:
            return "closed", True
