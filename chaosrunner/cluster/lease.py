"""One drill per target at a time: a coordination Lease per target, held while the drill lasts.

A Lease is *lost* only when somebody else is seen holding it. While that cannot be asked it is *unconfirmed*: no new
fault may start then, but nothing is aborted for that alone (an API server that is away for a while is what drills
are about).
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from email.utils import parsedate_to_datetime
from hashlib import sha256
from typing import Any, Literal

import anyio
import structlog

from chaosrunner.cluster.resources import LEASES, meta
from chaosrunner.cluster.session import Answer, ApiError, Cluster, Unreachable, delete_options

log = structlog.get_logger()

RELEASING = 5.0
"""How long the release waits for an API server that is away, seconds."""

State = Literal["free", "held", "unconfirmed", "lost"]

GRACE = 15.0
"""Seconds beyond its duration after which a Lease that nobody renews may be taken: room for skewed clocks."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Taken:
    """Somebody else holds it."""

    holder: str
    renewed: str | None
    """renewTime as reported by the holder."""
    since: str | None = None
    """acquireTime as reported by the holder."""
    until: str | None = None
    """When it may be taken if nobody renews it any more (RFC 3339, to the second)."""

    def __str__(self) -> str:
        """Who holds it, since when and until when."""
        said = f"run {self.holder} holds its lease"
        said += f" since {self.since}" if self.since else ""
        said += f", renewed it at {self.renewed}" if self.renewed else ""
        return said + (f", and loses it at {self.until} if it does not again" if self.until else "")


@dataclass(slots=True, kw_only=True)
class Lease:
    """A Lease for one target. `holder` is our identity (the run id); `duration` in seconds."""

    cluster: Cluster
    namespace: str
    name: str
    holder: str
    duration: float = 15.0
    state: State = "free"
    confirmed: float | None = None
    """When (recording's clock) it was last confirmed to be ours."""
    taken_by: Taken | None = None
    _object: dict[str, Any] = field(default_factory=dict)

    async def acquire(self) -> Taken | None:
        """Take it; who holds it if somebody else does. Raises Unreachable, and RuntimeError for an answer that is
        neither (403, for one)."""
        for _ in range(3):
            answer = await self.cluster.get(LEASES, self.name, self.namespace)
            if answer.status == 404:
                answer = await self.cluster.create(LEASES, self._fresh(), self.namespace)
            elif answer.ok:
                if taken := self._taken(answer):
                    return taken
                answer = await self.cluster.replace(LEASES, self._ours(answer.body, fresh=True), self.namespace)
            if answer.ok:
                self._confirm(answer)
                return None
            if answer.status != 409:
                raise RuntimeError(f"lease {self.namespace}/{self.name}: {answer.status} {answer.message}")
        return Taken(holder="somebody who was faster three times", renewed=None)

    async def renew(self) -> State:
        """Confirm that it is ours still. Never raises for what the cluster does."""
        try:
            self.state = await self._renew()
        except Unreachable as error:
            log.warning("lease cannot be confirmed", lease=self.name, error=str(error))
            self.state = "unconfirmed"
        return self.state

    async def keep(self) -> None:
        """Renew three times a duration, until it is lost (or this is cancelled)."""
        while True:
            if await self.renew() == "lost":
                return
            await anyio.sleep(self.duration / 3)

    async def release(self) -> None:
        """Remove it, if it is ours still; a cluster that is away is waited for a little. Never raises for what the
        cluster does: it expires by itself."""
        if self.state in ("free", "lost"):
            return
        try:
            answer = await self.cluster.patiently(self._release, RELEASING)
        except Unreachable as error:
            log.warning("lease cannot be released and expires by itself", lease=self.name, error=str(error))
            self.state = "free"
            return
        if not answer.ok and answer.status != 404:
            log.warning("lease was not released", lease=self.name, status=answer.status, message=answer.message)
        self.state = "free"

    async def _release(self) -> Answer:
        answer = await self._delete(self._object)
        if answer.status == 409:  # a renewal of ours that was cancelled on its way may have come through
            now = await self._ask("GET")
            if now.ok and _spec(now).get("holderIdentity") == self.holder:
                answer = await self._delete(now.body)
        return answer

    async def _ask(self, method: str, body: dict[str, Any] | None = None) -> Answer:
        """About the Lease. Within two thirds of its duration: an answer that comes later confirms nothing."""
        path = LEASES.path(self.namespace, None if method == "POST" else self.name)
        timeout = min(max(1.0, self.duration * 2 / 3), self.cluster.config.request_timeout or self.duration)
        return await self.cluster.request(method, path, body=body, timeout=timeout)

    async def _delete(self, body: dict[str, Any]) -> Answer:
        """Deletes the Lease if it still is as `body` says."""
        uid, version = meta(body).get("uid"), meta(body).get("resourceVersion")
        options = {"kind": "DeleteOptions", "apiVersion": "v1", **delete_options(uid=uid, version=version)}
        return await self._ask("DELETE", options)

    async def _renew(self) -> State:
        answer = await self._ask("PUT", self._ours(self._object))
        if answer.status in (404, 409):
            # Somebody changed or removed it: only who holds it now tells whether it is lost.
            answer = await self._ask("GET")
            if answer.ok:
                holder = _spec(answer).get("holderIdentity") or ""
                if holder not in ("", self.holder):
                    self.taken_by = self._seen(answer)
                    return "lost"
                answer = await self._ask("PUT", self._ours(answer.body))
            elif answer.status == 404:
                answer = await self._ask("POST", self._fresh())
        if answer.ok:
            self._confirm(answer)
            return "held"
        return "unconfirmed"

    def _taken(self, answer: Answer) -> Taken | None:
        spec = _spec(answer)
        holder, renewed = spec.get("holderIdentity") or "", spec.get("renewTime")
        if holder in ("", self.holder) or renewed is None:
            return None
        age = _age(answer.body, _server_time(answer, self.cluster))
        if age > _duration(answer.body, self.duration) + GRACE:
            log.warning("lease of a dead holder is taken over", lease=self.name, holder=holder, renewed=renewed)
            return None
        return self._seen(answer)

    def _seen(self, answer: Answer) -> Taken:
        spec = _spec(answer)
        renewed, until = spec.get("renewTime"), None
        if renewed is not None:
            end = datetime.fromisoformat(renewed) + timedelta(seconds=_duration(answer.body, self.duration) + GRACE)
            until = end.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
        return Taken(
            holder=spec.get("holderIdentity") or "", renewed=renewed, since=spec.get("acquireTime"), until=until
        )

    def _confirm(self, answer: Answer) -> None:
        self._object = answer.body
        self.state, self.confirmed = "held", answer.received

    def _fresh(self) -> dict[str, Any]:
        body = {
            "apiVersion": LEASES.api_version,
            "kind": LEASES.kind,
            "metadata": {"name": self.name, "namespace": self.namespace},
        }
        return self._ours(body, fresh=True)

    def _ours(self, body: dict[str, Any], *, fresh: bool = False) -> dict[str, Any]:
        now = datetime.fromtimestamp(self.cluster.clock.wall(self.cluster.clock.now()), UTC)
        stamp = now.strftime("%Y-%m-%dT%H:%M:%S.%fZ")
        spec = {
            **(body.get("spec") or {}),
            "holderIdentity": self.holder,
            "leaseDurationSeconds": max(1, round(self.duration)),
            "renewTime": stamp,
        }
        if fresh:
            spec["acquireTime"] = stamp
        return {**body, "spec": spec}


def name_for(target: str) -> str:
    """The Lease's name for a target: its controller where there is one, else its selector."""
    readable = re.sub(r"[^a-z0-9]+", "-", target.lower()).strip("-")[:40].strip("-")
    return f"{PREFIX}{readable}-{sha256(target.encode()).hexdigest()[:8]}"


PREFIX = "chaosrunner-"
"""How the names of our Leases begin."""


async def expired(cluster: Cluster, namespace: str | None = None) -> list[dict[str, Any]]:
    """Our Leases that nobody renews any more; of all namespaces, or of those that may be seen: the one given.

    Raises Unreachable and ApiError.
    """
    try:
        listed = await cluster.list(LEASES)
    except ApiError as error:
        if error.answer.status != 403 or namespace is None:
            raise
        listed = await cluster.list(LEASES, namespace)
    now = cluster.clock.wall(cluster.clock.now())
    return [
        lease
        for lease in listed.items
        if str(meta(lease).get("name")).startswith(PREFIX) and _age(lease, now) > _duration(lease) + GRACE
    ]


def _age(lease: dict[str, Any], now: float) -> float:
    """Seconds since its last renewal; a Lease that was never renewed is as old as can be."""
    renewed = (lease.get("spec") or {}).get("renewTime")
    return float("inf") if renewed is None else now - datetime.fromisoformat(renewed).timestamp()


def _duration(lease: dict[str, Any], default: float = 15.0) -> float:
    return float((lease.get("spec") or {}).get("leaseDurationSeconds") or default)


async def holds(cluster: Cluster, namespace: str, name: str, holder: str) -> bool:
    """Whether there is such a Lease, and it is this holder's. Raises Unreachable."""
    answer = await cluster.get(LEASES, name, namespace)
    return answer.ok and _spec(answer).get("holderIdentity") == holder


async def remove(cluster: Cluster, namespace: str, name: str, holder: str) -> bool:
    """Remove the Lease of a holder that is known to be dead; false where it is not (or no longer) that holder's, or
    the server refuses, which harms nothing: it expires by itself. Raises Unreachable."""
    answer = await cluster.get(LEASES, name, namespace)
    if answer.ok and _spec(answer).get("holderIdentity") != holder:
        return False
    if answer.ok:
        found = meta(answer.body)
        answer = await cluster.delete(LEASES, name, namespace, uid=found["uid"], version=found["resourceVersion"])
    if not answer.ok and answer.status != 404:
        log.warning("lease of a dead holder was not removed", lease=name, status=answer.status, message=answer.message)
    return answer.ok


def _spec(answer: Answer) -> dict[str, Any]:
    return answer.body.get("spec") or {}


def _server_time(answer: Answer, cluster: Cluster) -> float:
    """Unix seconds on the API server's clock where it tells, else on ours."""
    date = answer.headers.get("Date")
    return parsedate_to_datetime(date).timestamp() if date else cluster.clock.wall(answer.received)
