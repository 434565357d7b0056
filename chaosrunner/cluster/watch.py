"""List, then watch, for as long as it takes: what is known, since when nothing is, and what was missed.

The rules come from https://kubernetes.io/docs/reference/using-api/api-concepts/#efficient-detection-of-changes and
from recorded streams:

- A watch starts from the **list's** resourceVersion. Versions are opaque: they are compared for equality only.
- A version that is too old is answered by HTTP 410, or by HTTP 200 and one ERROR event with code 410. Then the list
  is read again and compared with what was known.
- A proper end of the stream (the server's time limit) loses nothing: the next watch resumes where it ended.
- A drill cannot wait for the minute that bookmarks usually take. So each watch is asked for a few seconds only
  (`timeoutSeconds`): its proper end proves that all was told, a server sends a bookmark two seconds before it, and
  silence beyond it means that the stream is dead, whatever TCP says.
- A server that was started anew knows no version from before: 410 for every watch at once. Until it has filled its
  caches it answers 429, 503, 401, or denies what it will allow: none of these is the end of a watch.
- A watch without a version, or with a wrong one, replays history; what was seen already is dropped by UID and version.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import anyio
import msgspec
import structlog

from chaosrunner.cluster.patience import Backoff
from chaosrunner.cluster.resources import Object, Resource, meta
from chaosrunner.cluster.session import Answer, ApiError, Cluster, Listing, Stream, Unreachable, selectors
from chaosrunner.timeline import rows
from chaosrunner.timeline.rows import Emit

log = structlog.get_logger()


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """One object, as it was seen. `at` is when its bytes came (seconds on the recording's clock).

    `gap` is the id of the row that opened the gap in which the change may have happened: always with RELISTED and
    VANISHED, and with watch events that the server had kept back and delivered when the watch was resumed.
    """

    seen: rows.Seen
    object: Object
    at: float
    gap: int | None = None


OnChange = Callable[[Change], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Timing:
    """Seconds. The defaults suit a real API server."""

    silence: float = 7.0
    """Longest silence of a living watch: more than `server_timeout`, so that its end, or its bookmark, breaks it."""
    server_timeout: int = 5
    """When the server shall end a watch properly."""
    backoff: float = 0.1
    """First pause before a new attempt; it doubles from time to time."""
    longest_backoff: float = 2.0
    refused_pause: float = 30.0
    """Pause after an answer that will not change by itself soon (403, 404, 400)."""
    denied: float = 30.0
    """How long a denial (403) of what was allowed before, or by a server in trouble, counts as one that goes by
    itself: a server that was started anew does not know its RBAC objects at once."""
    backlog: float = 1.0
    """Events that come within this time after a watch was resumed after a gap may have happened in the gap."""
    settle: float = 0.25
    """How long to wait after a resumed watch was accepted for the ERROR event that says that it was not."""
    catch_up: float = 1.0
    """How long after a list a living watch may take to tell what the list shows."""


class Known:
    """The objects that exist as far as we know, and every version of them that we have seen."""

    def __init__(self) -> None:
        self.objects: dict[str, Object] = {}
        self.before_recording: set[str] = set()
        """UIDs of objects whose deletion was replayed although they were gone before the first list."""
        self.listed = False
        self._seen: dict[str, set[str]] = {}

    def replace(self, items: list[Object]) -> list[tuple[rows.Seen, Object]]:
        """Take over a list: the first one as it is, a later one as its difference to what was known."""
        listed = {uid: item for item in items if (uid := str(meta(item).get("uid")))}
        changes: list[tuple[rows.Seen, Object]] = []
        if self.listed:
            changes += [("VANISHED", gone) for uid, gone in self.objects.items() if uid not in listed]
        for uid, item in listed.items():
            before = self.objects.get(uid)
            if before is None or meta(before).get("resourceVersion") != meta(item).get("resourceVersion"):
                changes.append(("RELISTED" if self.listed else "LISTED", item))
                self._remember(uid, item)
        self.objects = listed
        self.listed = True
        return changes

    def tells_all_of(self, items: list[Object], before: set[str]) -> bool:
        """Whether what a list shows has been seen: every version in it, and that what is not in it is gone, as far as
        it was known `before` the list was asked for (UIDs)."""
        listed = {str(meta(item).get("uid")): str(meta(item).get("resourceVersion")) for item in items}
        shown = all(version in self._seen.get(uid, ()) for uid, version in listed.items())
        return shown and before & self.objects.keys() <= listed.keys()

    def apply(self, kind: str, obj: Object) -> rows.Seen | None:
        """Take over a watch event. None for a replay, and for the deletion of an object never seen."""
        uid, version = str(meta(obj).get("uid")), str(meta(obj).get("resourceVersion"))
        seen, known = self._seen.get(uid, set()), self.objects.get(uid)
        if kind == "DELETED":
            if known is None:
                if not seen:
                    self.before_recording.add(uid)
                return None
            if version in seen and version != str(meta(known).get("resourceVersion")):
                return None
            del self.objects[uid]
        elif version in seen or (kind == "ADDED" and known):
            return None  # a server adds a known object only when it tells history again
        else:
            self.objects[uid] = obj
        self._remember(uid, obj)
        return "DELETED" if kind == "DELETED" else "MODIFIED" if known else "ADDED"

    def _remember(self, uid: str, obj: Object) -> None:
        self._seen.setdefault(uid, set()).add(str(meta(obj).get("resourceVersion")))


class Lines:
    """Splits a byte stream into lines; a last one that never ended is not a line."""

    def __init__(self) -> None:
        self._rest = b""

    def feed(self, chunk: bytes) -> Iterator[bytes]:
        *lines, self._rest = (self._rest + chunk).split(b"\n")
        return (line for line in lines if line.strip())


class _Failed(Exception):
    """The watch was answered by an error, as an event or as a status; handled inside the watcher."""

    def __init__(self, answer: Answer) -> None:
        self.answer = answer


@dataclass(slots=True, kw_only=True)
class Watcher:
    """Follows one collection until it is cancelled; transport trouble becomes rows, never an exception.

    `name` is the `resource` of its `Watch` rows; each object's change goes to `on_change`, whose exceptions do end
    the watcher, since they are bugs. Rows of the first list come before the row `listed`; rows that a relist
    recovered come before the row `gap_closed`.
    """

    cluster: Cluster
    resource: Resource
    on_change: OnChange
    emit: Emit
    name: str
    namespace: str | None = None
    label_selector: str | None = None
    field_selector: str | None = None
    timing: Timing = field(default_factory=Timing)
    known: Known = field(default_factory=Known)
    answered: anyio.Event = field(default_factory=anyio.Event)
    """Set once the first list has come, or an answer that says that it will not (403, 404)."""
    _version: str | None = None
    _last_alive: float | None = None
    _gap: int | None = None
    _in_gap: bool = False
    _backlog_until: float = 0.0
    _backlog_gap: int | None = None
    _forbidden: bool = False
    _denied: float | None = None
    """Since when the server denies what it is asked."""
    _renewed: bool = False
    """Whether the last answer was a 401 for which credentials were renewed."""
    _backoff: Backoff = field(init=False)
    _reading: anyio.CancelScope = field(default_factory=anyio.CancelScope)
    _news: anyio.Event = field(default_factory=anyio.Event)
    """Set, and replaced, when something was told or a gap was closed."""

    def __post_init__(self) -> None:
        self._backoff = Backoff(self.timing.backoff, self.timing.longest_backoff)

    async def run(self) -> None:
        try:
            while True:
                try:
                    pause = await (self._list() if self._version is None else self._follow())
                except Unreachable as error:
                    pause = self._broken(error)
                except ApiError as error:
                    pause = await self._refused(error.answer, None)
                except _Failed as error:
                    pause = await self._refused(error.answer, None)
                    if error.answer.status >= 500:
                        # The same version may fail in the same way for ever: only a list leads on.
                        self._version = None
                except msgspec.DecodeError as error:
                    self._open_gap("garbled", str(error))
                    pause = self._backoff.next()
                await anyio.sleep(pause)
        finally:
            self._row("stopped", last_alive=self._last_alive)

    async def confirm(self) -> None:
        """Find out whether all was told up to now: what a list shows must have come, or come soon; else the watch is
        dead, and the list is read again for what it kept back. Returns when no gap is open; the caller sets a limit.

        For the end of a recording: a watch that died in its last seconds has not been silent for long enough.
        """
        if not self.known.listed:
            return
        while True:
            while self._in_gap:
                await self._news.wait()
            before = set(self.known.objects)
            try:
                items = (await self._everything()).items
            except Unreachable as error:
                self._stale(error.cause, str(error))
                continue
            except ApiError as error:
                self._stale(f"http_{error.answer.status}", str(error))
                continue
            with anyio.move_on_after(self.timing.catch_up):
                while not self.known.tells_all_of(items, before):
                    await self._news.wait()
                return
            self._stale("silent", "a list shows what the watch does not tell")

    def _stale(self, reason: str, detail: str) -> None:
        """Nothing that the watch does not tell can be excluded: give it up, and list."""
        self._open_gap(reason, detail)
        self._version = None
        self._reading.cancel()

    # --- the two states ---------------------------------------------------------------------------------

    async def _list(self) -> float:
        listing = await self._everything()
        self._backoff.failures, self._denied, self._renewed = 0, None, False
        self._last_alive = listing.received
        first = not self.known.listed
        self._version = listing.version
        self._forbidden = False
        for seen, obj in self.known.replace(listing.items):
            gap = self._gap if seen in ("RELISTED", "VANISHED") else None
            self.on_change(Change(seen=seen, object=obj, at=listing.received, gap=gap))
        if first:
            self._row("listed", at=listing.received, version=listing.version, items=len(listing.items))
            self.answered.set()
        self._close_gap("relisted", listing)
        return 0.0

    async def _everything(self) -> Listing:
        return await self.cluster.list(
            self.resource, self.namespace, label_selector=self.label_selector, field_selector=self.field_selector
        )

    async def _follow(self) -> float:
        query = selectors(self.label_selector, self.field_selector) | {
            "watch": "true",
            "allowWatchBookmarks": "true",
            "resourceVersion": str(self._version),
            "timeoutSeconds": str(self.timing.server_timeout),
        }
        path = self.resource.path(self.namespace)
        async with self.cluster.stream(path, query, self.timing.silence) as stream:
            if stream.status != 200:
                return await self._refused(await stream.answer(), stream)
            self._denied, self._renewed = None, False
            events, self._reading = 0, anyio.CancelScope()
            with self._reading:
                events = await self._read(stream)
        # Servers that end watches at once, again and again, are not worth a busy loop.
        return 0.0 if events or self.cluster.clock.now() - stream.opened >= 1.0 else self._backoff.next()

    async def _read(self, stream: Stream) -> int:
        """Read to the proper end of the stream; the number of events that came."""
        lines, events, chunk = Lines(), 0, b""
        clock, alive = self.cluster.clock, self._last_alive
        try:
            if self._in_gap:
                self._backlog_gap = self._gap
                self._backlog_until = stream.opened + self.timing.backlog
                with anyio.move_on_after(self.timing.settle) as waiting:
                    chunk = await stream.read()
                    events += self._take(lines.feed(chunk), clock.now())
                self._last_alive = clock.now() if chunk else stream.opened
                self._close_gap("resumed")
                if not waiting.cancelled_caught and not chunk:
                    return events
            while chunk := await stream.read():
                now = clock.now()
                events += self._take(lines.feed(chunk), now)
                self._last_alive = now
        except _Failed:
            if not events:  # the version is not known here: nothing was told since the stream before
                self._last_alive = alive
            raise
        self._last_alive = clock.now()  # a server that ends the stream properly has told all until then
        return events

    def _take(self, lines: Iterator[bytes], at: float) -> int:
        count = 0
        for line in lines:
            count += 1
            self._event(line, at)
        if count:
            self._backoff.failures = 0
        return count

    def _event(self, line: bytes, at: float) -> None:
        event = msgspec.json.decode(line)
        kind, obj = event.get("type"), event.get("object") or {}
        if kind == "ERROR":
            raise _Failed(_as_answer(obj, at))
        version = meta(obj).get("resourceVersion")
        if kind == "BOOKMARK":
            self._version = str(version) if version else self._version
            return
        seen = self.known.apply(str(kind), obj)
        if seen is None:
            log.debug("replayed event dropped", watch=self.name, type=kind, object=meta(obj).get("name"))
            return
        self._version = str(version)
        gap = self._backlog_gap if at < self._backlog_until else None
        self.on_change(Change(seen=seen, object=obj, at=at, gap=gap))
        self._tell()

    def _tell(self) -> None:
        self._news.set()
        self._news = anyio.Event()

    # --- what can go wrong ------------------------------------------------------------------------------

    def _broken(self, error: Unreachable) -> float:
        silent = error.cause == "timeout" and self._version is not None
        self._open_gap("silent" if silent else error.cause, str(error))
        if silent:
            # The server may be alive and its watch dead: only a list tells what is.
            self._version = None
            return 0.0
        return self._backoff.next()

    async def _refused(self, answer: Answer, stream: Stream | None) -> float:
        status = answer.status
        if status == 410:
            self._open_gap("expired", answer.message)
            self._version = None
            return 0.0
        if status == 401:
            first, self._renewed = not self._renewed, True
            renewed = stream is not None and await self.cluster.renew(stream.authorization)
            if first and renewed:
                return 0.0  # a token that ran out between two streams: nothing was missed
            self._open_gap("unauthorized", answer.message)
            return self._backoff.next(answer.retry_after)
        if status == 403:
            now = self.cluster.clock.now()
            self._denied = now if self._denied is None else self._denied
            if self._version is not None or self.known.listed:
                self._open_gap("forbidden", answer.message)
            if now - self._denied < self.timing.denied and (self.known.listed or self.cluster.passing(answer)):
                return self._backoff.next()
            if not self._forbidden:
                self._forbidden = True
                self._row("forbidden", reason=answer.message, last_alive=self._last_alive)
        else:
            self._open_gap(f"http_{status}", answer.message)
        if status == 429 or status >= 500:
            return self._backoff.next(answer.retry_after)
        self._version = None
        self.answered.set()
        return self.timing.refused_pause

    def _open_gap(self, reason: str, detail: str) -> None:
        if self._in_gap:
            return
        log.warning("watch interrupted", watch=self.name, reason=reason, detail=detail)
        self._in_gap = True
        self._gap = self._row("gap_opened", reason=reason, version=self._version, last_alive=self._last_alive)

    def _close_gap(self, how: str, listing: Listing | None = None) -> None:
        if not self._in_gap:
            return
        self._row(
            "gap_closed",
            at=listing.received if listing else None,
            reason=how,
            version=self._version,
            items=len(listing.items) if listing else None,
            gap=self._gap,
            last_alive=self._last_alive,
        )
        log.info("watch resumed", watch=self.name, how=how)
        self._in_gap, self._gap = False, None
        self._tell()

    def _row(
        self,
        event: Any,
        *,
        at: float | None = None,
        reason: str | None = None,
        version: str | None = None,
        last_alive: float | None = None,
        items: int | None = None,
        gap: int | None = None,
    ) -> int | None:
        row = rows.Watch(
            at=self.cluster.clock.now() if at is None else at,
            resource=self.name,
            event=event,
            reason=reason,
            version=version,
            last_alive=last_alive,
            items=items,
            gap=gap,
        )
        self.emit(row)
        return row.id or None  # the writer sets ids as it writes


def _as_answer(status: Object, at: float) -> Answer:
    return Answer(status=int(status.get("code") or 500), body=status, headers={}, sent=at, received=at)
