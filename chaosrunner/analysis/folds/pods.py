"""Pods: their state, their milestones, how they were taken away, and which of them a name or address meant when."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from chaosrunner.analysis.clocks import Clocks, Interval
from chaosrunner.analysis.context import KnownPod
from chaosrunner.analysis.folds.watches import Watches
from chaosrunner.timeline.rows import Condition, ContainerState, Pod

STAGES = ("scheduled", "initialized", "started", "ready")
_CONDITIONS = {"scheduled": "PodScheduled", "initialized": "Initialized", "ready": "Ready"}
DISRUPTION = "DisruptionTarget"


@dataclass(frozen=True)
class Moment:
    """An instant known to lie in [low, high]; `at` is None where only the window is known (inside a gap)."""

    at: float | None
    low: float
    high: float
    row: int


@dataclass(frozen=True)
class Readiness:
    """The Ready condition changed; known by its arrival (a healed node's Pods get one that says long ago)."""

    ready: bool
    moment: Moment


@dataclass(frozen=True)
class Dead:
    """A container ended although nobody asked its Pod to leave."""

    container: str
    exit_code: int | None
    reason: str | None
    time: str | None
    """When, by the kubelet's clock."""


@dataclass(frozen=True)
class Death:
    dead: Dead
    moment: Moment


@dataclass
class PodState:
    """One Pod, by UID: its latest row and what was first seen when."""

    uid: str
    name: str
    node: str | None = None
    labels: dict[str, str] = field(default_factory=dict)
    roots: frozenset[str] = frozenset()
    """UIDs of its controllers: the root where it was looked up, and the direct owner."""
    last: Pod | None = None
    """None while only the plan knows it."""
    created: Moment | None = None
    """None where it was there before the recording began and its creation time is not known."""
    first_row: int | None = None
    listed: bool = False
    """Its first row is of the first list: what that shows happened before the recording began."""
    milestones: dict[str, Moment] = field(default_factory=dict)
    deletion: Pod | None = None
    """The first row with a deletionTimestamp."""
    gone: Moment | None = None
    failed: Moment | None = None
    """Phase Failed without a deletionTimestamp."""
    disrupted: Moment | None = None
    disruption: Condition | None = None
    terminated: Moment | None = None
    """All containers terminated after the deletion was seen, or with phase Failed."""
    left: float | None = None
    """Since when its address may belong to somebody else: gone, Failed or Succeeded."""
    named_from: float | None = None
    addressed_from: dict[str, float | None] = field(default_factory=dict)
    """Address -> since when it had it; None: from the beginning."""
    restarts: dict[str, int] = field(default_factory=dict)
    """Container -> restarts since the recording began."""
    readiness: list[Readiness] = field(default_factory=list)
    """Changes, oldest first."""
    deaths: list[Death] = field(default_factory=list)
    _restarts_base: dict[str, int] = field(default_factory=dict)
    versions: set[str] = field(default_factory=set)

    @property
    def terminating(self) -> bool:
        return self.deletion is not None

    @property
    def ready(self) -> bool:
        return self.gone is None and is_ready(self.last)

    @property
    def phase(self) -> str | None:
        return None if self.last is None else self.last.phase

    @property
    def candidate(self) -> bool:
        """Running, not terminating, not gone: what a fault may be aimed at."""
        return self.gone is None and not self.terminating and self.phase == "Running"


class Pods:
    """All Pods ever seen, in the order in which they became known."""

    def __init__(self, clocks: Clocks, watches: Watches, known: Sequence[KnownPod] = ()) -> None:
        self._clocks = clocks
        self._watches = watches
        self.all: list[PodState] = []
        self.by_uid: dict[str, PodState] = {}
        self._by_name: dict[str, list[PodState]] = {}
        self._by_address: dict[str, list[PodState]] = {}
        for pod in known:
            state = self._add(pod.uid, pod.name)
            state.node = pod.node
            state.roots = frozenset({pod.root} if pod.root else ())
            if pod.ip:
                self._address(state, pod.ip, None)

    def _add(self, uid: str, name: str) -> PodState:
        state = PodState(uid, name)
        self.all.append(state)
        self.by_uid[uid] = state
        self._by_name.setdefault(name, []).append(state)
        return state

    def _address(self, state: PodState, ip: str, since: float | None) -> None:
        state.addressed_from[ip] = since
        self._by_address.setdefault(ip, []).append(state)

    def feed(self, row: Pod) -> None:
        """Takes a row in. A row seen before (same UID and version), or one of a Pod that is gone, is a replay."""
        leaving = row.seen in ("DELETED", "VANISHED")
        state = self.by_uid.get(row.uid)
        if state is not None and (
            state.gone is not None or (row.version != "" and row.version in state.versions and not leaving)
        ):
            return
        if state is None:
            state = self._add(row.uid, row.name)
        state.versions.add(row.version)
        if state.first_row is None:
            self._first(state, row)
        before = state.last
        state.last = row
        state.node = row.node or state.node
        state.labels = row.labels or state.labels
        state.roots |= {owner.uid for owner in (row.root, row.owner) if owner is not None}
        for address in (row.ip, *row.addresses):
            if address and address not in state.addressed_from:
                self._address(state, address, None if row.seen == "LISTED" else row.at)
        self._restarts(state, row)
        if is_ready(before) != is_ready(row):
            state.readiness.append(Readiness(is_ready(row), self._moment(state, row)))
        for dead in died(before, row):
            state.deaths.append(Death(dead, self._moment(state, row, dead.time, "kubelet")))
        self._milestones(state, row)
        self._ending(state, row)
        if leaving:
            state.gone = self._moment(state, row)
            state.left = row.at if state.left is None else state.left

    def _moment(self, state: PodState, row: Pod, reported: str | None = None, owner: str = "apiserver") -> Moment:
        """The instant that a row shows, with the time that its owner reports for it."""
        window = None if reported is None else self._clocks.interval(reported, owner, row.node)
        return self.moment(state, row, window)

    def moment(self, state: PodState, row: Pod, window: Interval | None) -> Moment:
        """The instant that a row shows: received at `row.at`, not before the reported window nor before the gap.

        What a list shows, or the first change of a Pod that was there before, happened before it was seen.
        """
        precise, low, high = True, row.at, row.at
        if row.seen in ("RELISTED", "VANISHED") or row.gap is not None:
            precise, low = False, self._watches.begin_of(row.gap, row.at)
        elif row.seen == "LISTED" or (row.seen == "MODIFIED" and state.first_row == row.id):
            precise, low = False, float("-inf")
        if window is not None:
            low = min(high, window.low if precise else max(low, window.low))
            if not precise:
                high = max(low, min(high, window.high))
        return Moment(row.at if precise else None, low, high, row.id)

    def _first(self, state: PodState, row: Pod) -> None:
        state.first_row = row.id
        state.listed = row.seen == "LISTED"
        if row.seen in ("ADDED", "RELISTED"):
            state.named_from = row.at
            state.created = self._moment(state, row, row.created_time)
        elif row.created_time is not None:
            window = self._clocks.interval(row.created_time, "apiserver")
            state.created = Moment(None, min(window.low, row.at), min(window.high, row.at), row.id)

    def _restarts(self, state: PodState, row: Pod) -> None:
        # One that came in a gap came after the recording began as well: its restarts all count.
        fresh = not state.listed and state.created is not None and state.created.high > 0
        for container in row.containers:
            if container.init:
                continue
            base = state._restarts_base.setdefault(container.name, 0 if fresh else container.restarts)
            state.restarts[container.name] = max(state.restarts.get(container.name, 0), container.restarts - base)

    def _milestones(self, state: PodState, row: Pod) -> None:
        if len(state.milestones) == len(STAGES):
            return
        conditions = {condition.type: condition for condition in row.conditions}
        for stage, type_ in _CONDITIONS.items():
            condition = conditions.get(type_)
            if stage not in state.milestones and condition is not None and condition.status == "True":
                owner = "apiserver" if stage == "scheduled" else "kubelet"
                state.milestones[stage] = self._moment(state, row, condition.transition_time, owner)
        main = [container for container in row.containers if not container.init]
        if "started" not in state.milestones and main and all(c.state == "running" for c in main):
            times = [c.started_time for c in main if c.started_time is not None]
            state.milestones["started"] = self._moment(state, row, max(times, default=None), "kubelet")

    def _ending(self, state: PodState, row: Pod) -> None:
        if row.deletion_time is not None and state.deletion is None:
            state.deletion = row
        for condition in row.conditions:
            if condition.type == DISRUPTION and condition.status == "True" and state.disrupted is None:
                state.disruption = condition
                state.disrupted = self._moment(state, row, condition.transition_time, "apiserver")
        if row.phase in ("Failed", "Succeeded") and state.left is None:
            state.left = row.at
        if row.phase == "Failed" and row.deletion_time is None and state.failed is None:
            state.failed = self._moment(state, row)
        ended = terminated(row.containers)
        if state.terminated is None and ended and (state.deletion is not None or row.phase in ("Failed", "Succeeded")):
            times = [c.finished_time for c in ended if c.finished_time is not None]
            state.terminated = self._moment(state, row, max(times, default=None), "kubelet")

    def requested(self, state: PodState) -> tuple[Interval, float] | None:
        """When the deletion was asked for: first seen deletionTimestamp - grace, to the second, as an interval and
        taken at its word. None where it was first seen with grace 0 after a gap or a list (a later rewrite)."""
        row = state.deletion
        if row is None or row.deletion_time is None or row.deletion_grace is None:
            return None
        if row.deletion_grace == 0 and (row.seen in ("LISTED", "RELISTED", "VANISHED") or row.gap is not None):
            return None
        window = self._clocks.interval(row.deletion_time, "apiserver")
        grace = row.deletion_grace
        return Interval(window.low - grace, window.high - grace), self._clocks.at(row.deletion_time) - grace

    def named(self, name: str) -> Sequence[PodState]:
        return self._by_name.get(name, ())

    def addressed(self, address: str) -> Sequence[PodState]:
        return self._by_address.get(address, ())


def terminated(containers: Sequence[ContainerState]) -> list[ContainerState]:
    """The containers, where there are some and all of them (init containers apart) have terminated; else none."""
    main = [container for container in containers if not container.init]
    return main if main and all(container.state == "terminated" for container in main) else []


def is_ready(row: Pod | None) -> bool:
    return row is not None and any(c.type == "Ready" and c.status == "True" for c in row.conditions)


def died(before: Pod | None, row: Pod) -> Iterator[Dead]:
    """Containers (init containers apart) of a Pod that nobody asked to leave which a row shows ended, or restarted
    since the row before."""
    if before is None or row.deletion_time is not None:
        return
    earlier = {container.name: container for container in before.containers}
    for now in row.containers:
        was = earlier.get(now.name)
        if now.init or was is None:
            continue
        restarted = now.restarts > was.restarts
        if now.state == "terminated" and (restarted or was.state != "terminated"):
            yield Dead(now.name, now.exit_code, now.reason, now.finished_time)
        elif restarted and was.state == "running":  # what lay between the rows was not seen
            yield Dead(now.name, now.last_exit_code, now.last_reason, now.last_finished_time)
