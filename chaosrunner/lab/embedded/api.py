"""The API server's HTTP side: authenticates, authorizes, dispatches to verbs, writes answers and streams."""

from __future__ import annotations

import asyncio
import contextlib
import uuid
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import aclosing, asynccontextmanager
from typing import Protocol

import msgspec
from aiohttp import web

from chaosrunner.lab.embedded import discovery, errors, verbs
from chaosrunner.lab.embedded.access import TOKEN_PATH, Access, Account, require, require_path, split_token
from chaosrunner.lab.embedded.errors import ApiError
from chaosrunner.lab.embedded.requests import ListOptions, Target, flag, log_options, number, read_object
from chaosrunner.lab.embedded.selectors import matcher
from chaosrunner.lab.embedded.store import Store
from chaosrunner.lab.embedded.tables import table
from chaosrunner.lab.embedded.watching import Watch
from chaosrunner.lab.objects import Json

WATCH_TIMEOUT = 1800.0
"""Seconds after which a watch ends that names no timeout."""
VERSION_PATIENCE = 3.0
"""Seconds that a list waits for a resourceVersion that is still to come, as the real server does."""


class LogReader(Protocol):
    """Reads a container's log; the node agent provides it. Chunks are raw bytes; an ApiError becomes the answer."""

    def __call__(
        self,
        namespace: str,
        pod: str,
        container: str,
        *,
        follow: bool,
        previous: bool,
        timestamps: bool,
        tail_lines: int | None,
        since_seconds: int | None,
        limit_bytes: int | None,
    ) -> AsyncIterator[bytes]: ...


class ApiServer:
    """One API server on a store. `bookmarks`: seconds between the bookmarks of a watch (about 60 on a real one).

    `audit` hears of every request for a resource before it is authorised, in the fields of an `audit.k8s.io` event.
    """

    def __init__(
        self,
        store: Store,
        access: Access,
        *,
        log_reader: LogReader | None = None,
        bookmarks: float = 60.0,
        audit: Callable[[Json], object] | None = None,
    ) -> None:
        self.store = store
        self.audit = audit
        self.access = access
        self.log_reader = log_reader
        self.bookmarks = bookmarks
        self.url = ""

    async def handle(self, request: web.BaseRequest) -> web.StreamResponse:
        """Answer any request; an ApiError becomes its Status."""
        try:
            token, path = split_token(request.path)
            authorization = request.headers.get("Authorization") or (f"Bearer {token}" if token else "")
            account = self.access.account(
                authorization,
                request.headers.get("Impersonate-User", ""),
                request.headers.getall("Impersonate-Group", ()),
            )
            target = Target.parse(path)
            if target is not None and target.name and target.resource.namespaced and target.namespace is None:
                raise errors.no_such_resource()
            if target is None:
                return self._plain_path(request, path, account)
            _check_form(request, target)
            return await self._resource(request, target, account)
        except ApiError as error:
            answer = _json(error.status, error.body)
            if isinstance(error, errors.Denied):
                answer.headers["X-Content-Type-Options"] = "nosniff"
            return answer

    def url_of(self, token: str) -> str:
        """The address for a kubeconfig: on plain HTTP kubectl keeps a bearer token to itself, so it is in the path."""
        return f"{self.url}{TOKEN_PATH}{token}"

    def _plain_path(self, request: web.BaseRequest, path: str, account: Account) -> web.Response:
        """Health, version and discovery."""
        require_path(account, path)
        aggregated = "g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList" in request.headers.get("Accept", "")
        answer: Json | None = None
        match path.strip("/").split("/"):
            case ["readyz" | "livez" | "healthz"]:
                return _text(200, "ok")
            case ["version"]:
                answer = discovery.VERSION
            case ["api" | "apis" as root] if aggregated:
                return _json(200, discovery.aggregated(core=root == "api"), discovery.AGGREGATED)
            case ["api"]:
                answer = discovery.versions(self.url.removeprefix("http://"))
            case ["apis"]:
                answer = discovery.groups()
            case ["api", version]:
                answer = discovery.resources("", version)
            case ["apis", group]:
                answer = discovery.group(group)
            case ["apis", group, version]:
                answer = discovery.resources(group, version)
            case ["openapi", "v3"]:
                answer = discovery.openapi_index()
            case ["openapi", "v3", *rest]:
                answer = discovery.openapi("/".join(rest))
        if answer is None and discovery.knows(path):
            raise errors.no_such_resource()
        return _text(404, "404 page not found\n") if answer is None else _json(200, answer)

    async def _resource(self, request: web.BaseRequest, target: Target, account: Account) -> web.StreamResponse:
        query = request.query
        verb = _verb(request.method, target, query)
        namespace = target.namespace or (target.name if target.resource.plural == "namespaces" else None)
        self._note(target, account, verb)
        require(self.store, account, verb, target.resource, namespace, target.name, target.subresource)
        body = await request.read()
        content_type = request.headers.get("Content-Type", "").partition(";")[0].strip()
        store = self.store
        match verb:
            case "get" if target.subresource == "log":
                return await self._log(request, target)
            case "get":
                await self._await_version(number(query, "resourceVersion"))
                return self._shown(request, target, verbs.read(store, target))
            case "list":
                options = ListOptions.parse(target.resource, query)
                await self._await_version(options.version)
                return self._listed(request, target, *verbs.list_objects(store, target, options))
            case "watch":
                return await self._watch(request, target)
            case "create" if target.subresource == "token":
                found = store.get("serviceaccounts", target.name, target.namespace)
                return _json(201, self.access.issue(found, read_object(body, content_type)))
            case "create":
                return _json(*verbs.create(store, target, account, body, content_type, query))
            case "update":
                return _json(*verbs.replace(store, target, body, content_type, query, _manager(request)))
            case "patch":
                return _json(*verbs.patch(store, target, body, content_type, query, _manager(request)))
            case "delete":
                return _json(*verbs.delete(store, target, body, content_type, query))
            case _:
                return self._listed(request, target, *verbs.delete_collection(store, target, body, content_type, query))

    def _note(self, target: Target, account: Account, verb: str) -> None:
        if self.audit is None:
            return
        resource = target.resource
        reference = {
            "resource": resource.plural,
            "namespace": target.namespace,
            "name": target.name,
            "apiGroup": resource.group,
            "subresource": target.subresource,
        }
        self.audit(
            {
                "stage": "RequestReceived",
                "verb": verb,
                "user": {"username": account.user},
                "objectRef": {key: value for key, value in reference.items() if value},
            }
        )

    # -- answers ---------------------------------------------------------------------------------------------------

    def _shown(self, request: web.BaseRequest, target: Target, obj: Json) -> web.Response:
        if _wants(request, "PartialObjectMetadata"):
            return _json(200, _partial(obj))
        if target.subresource or not _wants_table(request):
            return _json(200, obj)
        answer = table(target.resource, [obj], self.store.now(), request.query.get("includeObject", "Metadata"))
        answer["metadata"] = {"resourceVersion": obj["metadata"]["resourceVersion"]}
        return _json(200, answer)

    def _listed(self, request: web.BaseRequest, target: Target, meta: Json, objects: list[Json]) -> web.Response:
        if _wants_table(request):
            answer = table(target.resource, objects, self.store.now(), request.query.get("includeObject", "Metadata"))
            return _json(200, answer | {"metadata": meta})
        if _wants(request, "PartialObjectMetadataList"):
            head = {"kind": "PartialObjectMetadataList", "apiVersion": "meta.k8s.io/v1", "metadata": meta}
            return _json(200, head | {"items": [_partial(obj) for obj in objects]})
        bare = ("kind", "apiVersion")
        items = [{key: value for key, value in obj.items() if key not in bare} for obj in objects]
        resource = target.resource
        head = {"kind": f"{resource.kind}List", "apiVersion": resource.api_version, "metadata": meta}
        return _json(200, head | {"items": items})

    async def _await_version(self, version: int | None) -> None:
        """Wait a while for a version that is still to come. ApiError 504."""
        if version is None or version <= self.store.resource_version:
            return
        end = asyncio.get_running_loop().time() + VERSION_PATIENCE
        while version > self.store.resource_version:
            if asyncio.get_running_loop().time() >= end:
                raise errors.version_too_large(version, self.store.resource_version)
            await asyncio.sleep(0.02)

    # -- streams ---------------------------------------------------------------------------------------------------

    async def _watch(self, request: web.BaseRequest, target: Target) -> web.StreamResponse:
        options = ListOptions.parse(target.resource, request.query)
        initial: list[Json] = []
        after = options.version or 0
        if options.initial_events is False:
            after = after or self.store.resource_version
        elif not after or options.initial_events:
            after = self.store.resource_version
            plural = target.resource.plural
            initial = self.store.list(plural, target.namespace, labels=options.labels, fields=options.fields)
        only = (("metadata.name", True, target.name),) if target.name else ()
        watch = Watch(
            store=self.store,
            resource=target.resource,
            namespace=target.namespace,
            matches=matcher(options.labels, (*options.fields, *only)),
            after=after,
            timeout=options.timeout or WATCH_TIMEOUT,
            initial=tuple(initial),
            bookmarks=self.bookmarks if options.bookmarks else None,
            announce_end=bool(options.initial_events) and options.bookmarks,
            show=self._viewer(request, target),
        )
        response = web.StreamResponse(headers=_headers("application/json"))
        await response.prepare(request)
        # A client that goes away ends its watch; there is nobody left to tell.
        with contextlib.suppress(ConnectionError):
            async with aclosing(watch.lines()) as lines:
                async for line in lines:
                    await response.write(line)
            await response.write_eof()
        return response

    def _viewer(self, request: web.BaseRequest, target: Target) -> Callable[[Json], Json] | None:
        """How a watch shows objects: as they are, in the group's own form, or as rows of a Table."""
        if not _wants_table(request):
            if target.resource.group == "events.k8s.io":
                return lambda obj: verbs.shown(target, obj)
            return None
        include = request.query.get("includeObject", "Metadata")
        first = True

        def row(obj: Json) -> Json:
            nonlocal first
            answer = table(target.resource, [obj], self.store.now(), include)
            answer["metadata"] = {"resourceVersion": obj["metadata"]["resourceVersion"]}
            # Only the first Table of a stream names the columns.
            if not first:
                answer["columnDefinitions"] = None
            first = False
            return answer

        return row

    async def _log(self, request: web.BaseRequest, target: Target) -> web.StreamResponse:
        pod = self.store.get("pods", target.name, target.namespace)
        container = _container(pod, request.query.get("container", ""))
        if self.log_reader is None:
            raise errors.failure(500, "InternalError", f"no node agent serves the logs of pod {target.name}", {})
        namespace = pod["metadata"]["namespace"]
        chunks = self.log_reader(namespace, target.name, container, **log_options(request.query))
        first = await anext(chunks, b"")
        response = web.StreamResponse(headers=_headers("text/plain"))
        await response.prepare(request)
        with contextlib.suppress(ConnectionError):
            await response.write(first)
            async for chunk in chunks:
                await response.write(chunk)
            await response.write_eof()
        return response


@asynccontextmanager
async def serve(
    store: Store,
    host: str,
    port: int,
    *,
    access: Access,
    log_reader: LogReader | None = None,
    bookmarks: float = 60.0,
    audit: Callable[[Json], object] | None = None,
) -> AsyncIterator[ApiServer]:
    """Serve a store over plain HTTP/1.1 while the context lasts; `.url` has the port that port 0 was given."""
    server = ApiServer(store, access, log_reader=log_reader, bookmarks=bookmarks, audit=audit)
    runner = web.ServerRunner(
        web.Server(server.handle, handler_cancellation=True, access_log=None), shutdown_timeout=0.1
    )
    await runner.setup()
    try:
        site = web.TCPSite(runner, host, port)
        await site.start()
        server.url = f"http://{host}:{runner.addresses[0][1]}"
        yield server
    finally:
        await runner.cleanup()


_HEADERS = {"Cache-Control": "no-cache, private"}


def _headers(content_type: str) -> dict[str, str]:
    """What every answer has: the real server's log of requests is searched by the id."""
    return _HEADERS | {"Content-Type": content_type, "Audit-Id": str(uuid.uuid4())}


def _json(status: int, body: Json, content_type: str = "application/json") -> web.Response:
    headers = _headers(content_type)
    if retry := body.get("details", {}).get("retryAfterSeconds"):
        headers["Retry-After"] = str(retry)
    return web.Response(status=status, body=msgspec.json.encode(body), headers=headers)


def _text(status: int, text: str) -> web.Response:
    headers = _headers("text/plain; charset=utf-8") | {"X-Content-Type-Options": "nosniff"}
    return web.Response(status=status, body=text.encode(), headers=headers)


def _manager(request: web.BaseRequest) -> str:
    """Whose the changed fields are; who does not say goes by the program (apiserver/pkg/endpoints/handlers/create.go,
    managerOrUserAgent)."""
    return request.query.get("fieldManager") or request.headers.get("User-Agent", "").partition("/")[0] or "unknown"


def _wants(request: web.BaseRequest, kind: str) -> bool:
    return f"as={kind};" in f"{request.headers.get('Accept', '')};".replace(",", ";")


def _wants_table(request: web.BaseRequest) -> bool:
    return _wants(request, "Table")


_FORMS = ("application/json", "application/*", "*/*", "application/yaml", "application/vnd.kubernetes.protobuf")
_KINDS = ("Table", "PartialObjectMetadata", "PartialObjectMetadataList")


def _check_form(request: web.BaseRequest, target: Target) -> None:
    """ApiError 406 unless one of the forms that are asked for is one of the server's; 400 for Tables of nothing known.

    What comes is JSON in any case: the lab writes neither YAML nor protobuf.
    """
    accepted = [entry.split(";") for entry in request.headers.get("Accept", "*/*").replace(" ", "").split(",")]
    known = [parts for parts in accepted if parts[0] in _FORMS]
    if not known and target.subresource != "log":
        raise errors.failure(
            406, "NotAcceptable", f"406: Not Acceptable\n\nAvailable representations: {errors.READ_TYPES}", {}
        )
    asked = [[part.removeprefix("as=") for part in parts if part.startswith("as=")] for parts in known]
    if asked and all(kinds and kinds[0] not in _KINDS for kinds in asked):
        raise errors.not_acceptable()
    include = request.query.get("includeObject", "")
    if _wants_table(request) and include not in ("", "None", "Metadata", "Object"):
        why = f"includeObject: Invalid value: \"{include}\": must be 'Metadata', 'Object', 'None', or empty"
        raise errors.bad_request(f"Unable to convert to Table as requested: {why}")


def _partial(obj: Json) -> Json:
    return {"kind": "PartialObjectMetadata", "apiVersion": "meta.k8s.io/v1", "metadata": obj["metadata"]}


def _verb(method: str, target: Target, query: Mapping[str, str]) -> str:
    """The verb that RBAC knows a request by. ApiError 405."""
    named = bool(target.name)
    verb = {
        "GET": "get" if named else "watch" if flag(query, "watch") else "list",
        "POST": "create",
        "PUT": "update",
        "PATCH": "patch",
        "DELETE": "delete" if named else "deletecollection",
    }.get(method, "")
    allowed = target.resource.verbs
    match target.subresource:
        case "eviction" | "binding" | "token":
            allowed = ("create",)
        case "log":
            allowed = ("get",)
        case "ephemeralcontainers" | "scale" | "status":
            allowed = ("get", "patch", "update")
    needs_name = verb in ("update", "patch")
    everywhere = target.resource.namespaced and target.namespace is None
    if (
        verb not in allowed
        or (needs_name and not named)
        or (verb == "create" and named and not target.subresource)
        or (everywhere and verb in ("create", "deletecollection"))
    ):
        raise errors.method_not_allowed()
    return verb


def _container(pod: Json, asked: str) -> str:
    """The container whose log is meant. ApiError 400."""
    spec, meta = pod["spec"], pod["metadata"]
    kinds = ("containers", "initContainers", "ephemeralContainers")
    names = [entry["name"] for kind in kinds for entry in spec.get(kind, ())]
    if not asked:
        asked = (meta.get("annotations") or {}).get("kubectl.kubernetes.io/default-container", "")
    if not asked and len(spec["containers"]) > 1:
        choices = " ".join(entry["name"] for entry in spec["containers"])
        raise errors.bad_request(
            f"a container name must be specified for pod {meta['name']}, choose one of: [{choices}]"
        )
    asked = asked or names[0]
    if asked not in names:
        raise errors.bad_request(f"container {asked} is not valid for pod {meta['name']}")
    return asked
