"""Toxics of a Toxiproxy, and how they are taken away: over its HTTP API, which asks for no credentials."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from urllib.parse import quote

import anyio
import msgspec

from chaosrunner.cluster.actions import answered, sent
from chaosrunner.cluster.session import Answer, ApiError, Cause, Cluster, Unreachable
from chaosrunner.http.errors import (
    ConnectRefused,
    ConnectTimeout,
    FirstByteTimeout,
    LocalFault,
    TlsError,
    TransportError,
)
from chaosrunner.http.toxiproxy import Refused, Toxiproxy
from chaosrunner.http.toxiproxy import Toxic as Setting
from chaosrunner.journal import fields
from chaosrunner.journal.journal import Connection, Entry, State, Toxic
from chaosrunner.journal.process import Process
from chaosrunner.timeline import rows
from chaosrunner.timeline.clock import Clock
from chaosrunner.timeline.rows import Emit

PREFIX = "chaosrunner-"
"""Our toxics are called this, the entry's id, and the direction."""

ON_ITS_WAY = 1.0
"""Seconds after which a call whose sender died has been carried out, or never will be."""


class ProxyAway(Unreachable):
    """No answer came from a Toxiproxy."""

    def __init__(self, url: str, cause: Cause, detail: str, *, sent: bool) -> None:
        super().__init__(f"Toxiproxy at {url}", cause, detail, sent=sent)

    @property
    def told(self) -> str:
        return f"cannot reach {self}; see that its API answers there (toxics end with Toxiproxy's process)"


def name(entry: str, stream: str) -> str:
    """Name of the toxic that an entry adds to one direction, upstream or downstream."""
    return f"{PREFIX}{entry}-{stream}"


def entry_of(name: str) -> str | None:
    """The entry that added the toxic of this name; None where it is none of ours."""
    return name.removeprefix(PREFIX).rpartition("-")[0] if name.startswith(PREFIX) else None


def settings(entry: Entry) -> list[Setting]:
    """The toxics of an entry, as they were sent."""
    assert isinstance(entry.made, Toxic)
    return [msgspec.convert(toxic, Setting) for toxic in entry.made.toxics]


def same(found: Setting, ours: Setting) -> bool:
    """Whether a toxic is as we sent it; the proxy adds attributes that it knows and we do not."""
    attributes = {name: found.attributes.get(name) for name in ours.attributes}
    return (found.type, found.stream, found.toxicity, attributes) == (
        ours.type,
        ours.stream,
        ours.toxicity,
        ours.attributes,
    )


async def undo(cluster: Cluster, entry: Entry, state: State, emit: Emit) -> fields.Decision:
    """Takes an entry's toxics away, but for those that somebody changed since.

    Raises Unreachable and ApiError, both of the proxy.
    """
    made = entry.made
    assert isinstance(made, Toxic)
    removed, left = [], []
    with reaching(made.url, cluster.clock):
        async with Toxiproxy(made.url, cluster.clock) as client:
            there = await _there(client, entry)
            if state == "intent" and len(there) < len(made.toxics):
                await anyio.sleep(ON_ITS_WAY)
                there = await _there(client, entry)
            for ours in settings(entry):
                found = there.get(ours.name)
                if found is None:
                    continue
                if not same(found, ours):
                    left.append(f"{ours.name} is now {found.type} {found.attributes} at toxicity {found.toxicity:g}")
                    continue
                row = sent(cluster, emit, "remove_toxic", entry.target, undo=True)
                gone = await client.remove(made.proxy, ours.name)
                answer = "accepted" if gone else "not_found"
                answered(emit, row, cluster.clock.now(), answer=answer, ok=True)
                if gone:
                    removed.append(ours.name)
    if left:
        return fields.Decision(state="changed_by_others", detail=f"left as others want it: {'; '.join(left)}")
    if removed:
        return fields.Decision(state="undone")
    return fields.Decision(state="not_applied" if state == "intent" else "already_undone")


async def _there(client: Toxiproxy, entry: Entry) -> dict[str, Setting]:
    assert isinstance(entry.made, Toxic)
    proxy = await client.proxy(entry.made.proxy)
    names = {ours.name for ours in settings(entry)}
    return {toxic.name: toxic for toxic in proxy.toxics if toxic.name in names} if proxy is not None else {}


def command(entry: Entry) -> str:
    """The commands by which a person can do what undo could not."""
    made = entry.made
    assert isinstance(made, Toxic)
    proxy = f"{made.url.rstrip('/')}/proxies/{quote(made.proxy, safe='')}"
    return "; ".join(f"curl -X DELETE {proxy}/toxics/{quote(ours.name, safe='')}" for ours in settings(entry))


async def left(url: str, clock: Clock, connection: Connection) -> list[Entry]:
    """Entries as the names of the toxics on a Toxiproxy tell them: of which run they are, nobody can say there.

    Raises Unreachable, ApiError, and UserError for a bad URL.
    """
    found: dict[tuple[str, str], list[Setting]] = {}
    with reaching(url, clock):
        async with Toxiproxy(url, clock) as client:
            for proxy in await client.proxies():
                for toxic in proxy.toxics:
                    if (entry := entry_of(toxic.name)) is not None:
                        found.setdefault((entry, proxy.name), []).append(toxic)
    return [
        Entry(
            entry=entry,
            run="unknown",
            drill="unknown",
            fault="network",
            target=rows.Target(kind="Proxy", name=proxy),
            resource="",
            made=Toxic(url=url, proxy=proxy, toxics=tuple(msgspec.to_builtins(toxic) for toxic in toxics)),
            connection=connection,
            owner=Process(pid=0, started=None, host="unknown"),
            wall=0.0,
        )
        for (entry, proxy), toxics in found.items()
    ]


@contextmanager
def reaching(url: str, clock: Clock) -> Iterator[None]:
    """Turns what a client of Toxiproxy raises into what a session with a cluster does."""
    try:
        yield
    except TransportError as error:
        match error:
            case ConnectRefused():
                raise ProxyAway(url, "refused", "connection refused", sent=False) from error
            case ConnectTimeout() | LocalFault():
                raise ProxyAway(url, "connect", str(error), sent=False) from error
            case TlsError():
                raise ProxyAway(url, "tls", str(error), sent=False) from error
            case FirstByteTimeout():
                raise ProxyAway(url, "timeout", str(error), sent=True) from error
            case _:
                raise ProxyAway(url, "closed", str(error), sent=True) from error
    except Refused as error:
        now = clock.now()
        body = {"kind": "Status", "message": error.text}
        answer = Answer(status=error.status, body=body, headers={}, sent=now, received=now)
        raise ApiError(error.what, answer, server=f"Toxiproxy at {url}") from error
