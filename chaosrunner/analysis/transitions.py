"""What happened to whom, in the words of roles: the form in which recordings of different clusters can be compared.

Names, addresses and ids differ from run to run; roles and transitions do not. A *role* says what an object is in the
drill, a *transition* what became of it:

- `fault k`, `dry run k`, `undo k`: our calls, a number for each target, in the order of sending. Repeated answers count
  once.
- `victim k`, `replacement k`: Pods that accepted calls took, in the order of sending, and the Pods in their place.
- `survivor k`, `newcomer k`: other Pods of the workload, from before the first fault or after it; `neighbour k`: Pods
  of others. Numbered in the order in which something is seen of them.
- `endpoint of <Pod>`, `requests on <Pod>` (`requests` where nobody knows which Pod served).
- `node k`, `budget k`, `controller`, `service`, `alert <name>`, `watch of <resource>`.

What the first list of a watch shows is a state, no transition.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import NamedTuple

import msgspec
import numpy as np

from chaosrunner.analysis import outages, recovery
from chaosrunner.analysis.facts import Milestone
from chaosrunner.analysis.folds.pods import DISRUPTION, PodState, died, is_ready, terminated
from chaosrunner.analysis.picture import Picture
from chaosrunner.analysis.placement import UNPLACED
from chaosrunner.analysis.requests import OUTCOMES
from chaosrunner.playbook.selectors import read_selector
from chaosrunner.timeline import rows
from chaosrunner.timeline.rows import Row

DELIVERY = 0.25
"""Seconds for which a watch event may be on its way. Where a reported time tells of more, that counts."""

NOTABLE_EVENTS = frozenset({"Killing", "Preempted", "Evicted", "TaintManagerEviction"})
"""Reasons of Kubernetes Events that are transitions although their type is Normal; those of type Warning all are."""


class Transition(msgspec.Struct, kw_only=True, frozen=True):
    """Something became of somebody. Two of one recording are in a known order only if their windows are apart."""

    role: str
    what: str
    at: float | None
    """Seconds on the recording's clock: when it was received (of requests and calls: when it was). None where it fell
    into a watch gap."""
    window: tuple[float, float]
    """Earliest and latest instant: a point for what the runner saw itself, `DELIVERY` or what the owner's clock says
    for what a watch brought, else the gap."""
    row: int
    detail: str | None = None
    """What may differ without being another transition: an exit code, a status."""

    @property
    def when(self) -> float:
        """`at`, or the end of the window where only that is known."""
        return self.window[1] if self.at is None else self.at


class _Seen(NamedTuple):
    """A transition whose Pod has no role yet."""

    subject: str
    """Role, or what stands before the Pod's: empty for the Pod itself."""
    pod: str | None
    """UID."""
    what: str
    at: float | None
    window: tuple[float, float]
    row: int
    detail: str | None


def transitions(picture: Picture, events: Iterable[Row]) -> list[Transition]:
    """All transitions of a recording by their time. `events` are the rows from which the picture was made, but for
    those of requests."""
    walk = _Walk(picture)
    for row in events:
        walk.feed(row)
    found = [*walk.found, *_requests(picture), *_service(picture)]
    found.sort(key=lambda seen: (seen.window[1] if seen.at is None else seen.at, seen.row))
    roles = _Roles(picture)
    return [
        Transition(
            role=roles.of(seen),
            what=seen.what,
            at=seen.at,
            window=seen.window,
            row=seen.row,
            detail=seen.detail,
        )
        for seen in found
    ]


class _Roles:
    """Names the Pods: victims and replacements by the picture, the others as they turn up."""

    def __init__(self, picture: Picture) -> None:
        self._picture = picture
        self._known: dict[str, str] = {}
        self._counts: dict[str, int] = {}
        for number, victim in enumerate(picture.victims, start=1):
            if victim.pod is not None:
                self._known[victim.pod.uid] = f"victim {number}"
        for number, pair in enumerate(picture.pairs, start=1):
            if pair.replacement is not None:
                self._known.setdefault(pair.replacement.uid, f"replacement {number}")

    def of(self, seen: _Seen) -> str:
        if seen.pod is None:
            return seen.subject
        return f"{seen.subject} {self._pod(seen.pod)}".strip()

    def _pod(self, uid: str) -> str:
        if uid not in self._known:
            kind = self._kind(self._picture.pods.by_uid[uid])
            self._counts[kind] = self._counts.get(kind, 0) + 1
            self._known[uid] = f"{kind} {self._counts[kind]}"
        return self._known[uid]

    def _kind(self, pod: PodState) -> str:
        if pod.last is not None and not self._picture.context.selector.matches(pod.labels):
            return "neighbour"
        created, fault = pod.created, self._picture.fault_at
        new = created is not None and created.at is not None and (fault is None or created.at > fault)
        return "newcomer" if new else "survivor"


class _Walk:
    """One pass over the rows: for each object, what differs from its row before."""

    def __init__(self, picture: Picture) -> None:
        self.found: list[_Seen] = []
        self._picture = picture
        self._pods: dict[str, rows.Pod] = {}
        self._reached: dict[str, set[str]] = {}
        """Pod UID -> what happens once and has."""
        self._slices: dict[str, dict[str, str]] = {}
        """Slice, in the order of their last writing -> Pod UID -> state of its endpoint."""
        self._nodes: dict[str, rows.Node] = {}
        self._node_roles: dict[str, str] = {}
        self._pdbs: dict[str, rows.Pdb] = {}
        self._budget_roles: dict[str, str] = {}
        self._calls: dict[tuple[str, str, str], str] = {}
        self._call_kinds: dict[str, int] = {}
        self._once: set[tuple[str, str | None, str]] = set()
        self._alerts: dict[str, str] = {}
        self._polled: float | None = None
        self._previous: dict[str, float] = {}
        """UID -> `at` of its row before."""

    def feed(self, row: Row) -> None:
        match row:
            case rows.Action():
                self._action(row)
            case rows.Pod():
                self._pod(row)
            case rows.EndpointSlice():
                self._slice(row)
            case rows.Node():
                self._node(row)
            case rows.Pdb():
                self._pdb(row)
            case rows.Event():
                self._event(row)
            case rows.Alerts():
                self._poll(row)
            case rows.Watch(event="gap_opened" | "gap_closed"):
                self._own(f"watch of {row.resource}", row.event.replace("_", " "), row, row.reason)

    # --- instants ---

    def _own(self, subject: str, what: str, row: rows.Base, detail: str | None = None) -> None:
        """Something that the runner did or noticed itself."""
        self.found.append(_Seen(subject, None, what, row.at, (row.at, row.at), row.id, detail))

    def _watched(
        self,
        subject: str,
        pod: str | None,
        what: str,
        row: rows.Observed,
        *,
        time: str | None = None,
        owner: str = "apiserver",
        node: str | None = None,
        detail: str | None = None,
    ) -> None:
        """Something that a watch brought; `time` is when it was by its owner's clock."""
        if row.gap is not None or row.seen in ("RELISTED", "VANISHED"):
            begin = self._picture.observations.watches.begin_of(row.gap, row.at)
            self.found.append(_Seen(subject, pod, what, None, (begin, row.at), row.id, detail))
            return
        low = row.at - DELIVERY
        if time is not None:
            reported = self._picture.observations.clocks.interval(time, owner, node)
            low = reported.low if reported.high < low else max(low, min(row.at, reported.low))
        # Not before the object's row that did not show it; a healed node's Pods get a Ready condition of long ago.
        low = max(low, self._previous.get(row.uid, low) - DELIVERY)
        self.found.append(_Seen(subject, pod, what, row.at, (low, row.at), row.id, detail))

    # --- our calls ---

    def _action(self, row: rows.Action) -> None:
        kind = "undo" if row.undo else "dry run" if row.dry_run else "fault"
        key = (kind, row.action, row.target.uid or row.target.name)
        if key not in self._calls:
            self._call_kinds[kind] = self._call_kinds.get(kind, 0) + 1
            self._calls[key] = f"{kind} {self._call_kinds[kind]}"
        role = self._calls[key]
        what = f"{row.action} {'sent' if row.event == 'sent' else row.answer or 'not answered'}"
        if self._first(role, None, what):
            self._own(role, what, row, str(row.status) if row.status else None)

    def _first(self, subject: str, pod: str | None, what: str) -> bool:
        key = (subject, pod, what)
        if key in self._once:
            return False
        self._once.add(key)
        return True

    # --- Pods ---

    def _pod(self, row: rows.Pod) -> None:
        before = self._pods.get(row.uid)
        state = self._picture.pods.by_uid.get(row.uid)
        if state is None or (before is not None and before.seen in ("DELETED", "VANISHED")):
            return
        reached = self._reached.setdefault(row.uid, set())
        fresh = before is None and row.seen in ("ADDED", "RELISTED")
        if fresh:
            self._watched("", row.uid, "created", row, time=row.created_time)
        if before is not None or fresh:
            for what, time, owner, detail in _pod_news(before, row, reached):
                self._watched("", row.uid, what, row, time=time, owner=owner, node=row.node, detail=detail)
        else:
            reached.update(what for what, *_ in _pod_news(None, row, set()))
        if row.seen in ("DELETED", "VANISHED"):
            self._watched("", row.uid, "gone", row)
        self._pods[row.uid] = row
        self._previous[row.uid] = row.at

    # --- endpoints ---

    def _slice(self, row: rows.EndpointSlice) -> None:
        service = self._picture.context.service
        if service is not None and row.service is not None and row.service != service:
            return
        new = {uid: _endpoint(e) for e in row.endpoints if (uid := self._uid(e)) is not None}
        before = {uid: self._endpoint_state(uid) for uid in self._slices.get(row.uid, {}) | new}
        self._slices.pop(row.uid, None)
        if row.seen not in ("DELETED", "VANISHED"):
            self._slices[row.uid] = new
        if row.seen != "LISTED":
            for uid, state in before.items():
                now = self._endpoint_state(uid)
                if now != state:
                    self._watched("endpoint of", uid, now, row)
        self._previous[row.uid] = row.at

    def _endpoint_state(self, uid: str) -> str:
        """By the slice that was written last among those that have the Pod."""
        return next((states[uid] for states in reversed(self._slices.values()) if uid in states), "gone")

    def _uid(self, endpoint: rows.Endpoint) -> str | None:
        if endpoint.uid is not None:
            return endpoint.uid if endpoint.uid in self._picture.pods.by_uid else None
        named = self._picture.pods.named(endpoint.pod) if endpoint.pod else ()
        return named[-1].uid if named else None

    # --- nodes, budgets ---

    def _node(self, row: rows.Node) -> None:
        before = self._nodes.get(row.name)
        self._nodes[row.name] = row
        if before is not None:
            for what, time, detail in _node_news(before, row):
                self._watched(self._node_role(row.name), None, what, row, time=time, detail=detail)
        if row.seen in ("DELETED", "VANISHED"):
            self._watched(self._node_role(row.name), None, "gone", row)
        self._previous[row.uid] = row.at

    def _node_role(self, name: str) -> str:
        return self._node_roles.setdefault(name, f"node {len(self._node_roles) + 1}")

    def _pdb(self, row: rows.Pdb) -> None:
        before = self._pdbs.get(row.uid)
        role = self._budget_role(row)
        if role is None:
            return
        self._pdbs[row.uid] = row
        if before is not None:
            for what in _budget_news(before, row):
                self._watched(role, None, what, row)
        self._previous[row.uid] = row.at

    def _budget_role(self, row: rows.Pdb) -> str | None:
        """Budgets of the workload have a role, others none."""
        if row.uid not in self._budget_roles:
            selector = read_selector(row.selector)
            workload = self._picture.context.selector
            labels = [pod.labels for pod in self._picture.pods.all if pod.last and workload.matches(pod.labels)]
            if selector is None or not any(map(selector.matches, labels)):
                return None
            self._budget_roles[row.uid] = f"budget {len(self._budget_roles) + 1}"
        return self._budget_roles[row.uid]

    # --- Events, alerts ---

    def _event(self, row: rows.Event) -> None:
        if row.seen == "LISTED" or (row.type != "Warning" and row.reason not in NOTABLE_EVENTS):
            return
        subject: str = "controller"
        pod: str | None = None
        if row.object_kind == "Pod":
            if row.object_uid not in self._picture.pods.by_uid:
                return
            subject, pod = "", row.object_uid
        elif row.object_kind == "Node":
            subject = self._node_role(row.object_name or "")
        elif row.object_kind == "PodDisruptionBudget":
            subject = self._budget_roles.get(row.object_uid or "", "budget of others")
        what = f"Event {row.reason}"
        if self._first(subject, pod, what):
            self._watched(subject, pod, what, row, time=row.last_time, owner=row.component or "", node=row.host)

    def _poll(self, row: rows.Alerts) -> None:
        if not row.ok:
            return
        states: dict[str, str] = {}
        for alert in row.alerts:
            if states.get(alert.name) != "firing":
                states[alert.name] = alert.state
        if self._polled is not None:
            window = (self._polled, row.at)
            for name in sorted(self._alerts.keys() | states.keys()):
                now = states.get(name, "over")
                if now != self._alerts.get(name, "over"):
                    self.found.append(_Seen(f"alert {name}", None, now, row.at, window, row.id, None))
        self._alerts, self._polled = states, row.at


News = Iterator[tuple[str, str | None, str, str | None]]
"""What, its time by its owner, the owner, a detail."""


def _pod_news(before: rows.Pod | None, row: rows.Pod, reached: set[str]) -> News:
    """What a Pod's row shows that its row before did not. What happens once is kept in `reached`."""

    def once(what: str) -> bool:
        if what in reached:
            return False
        reached.add(what)
        return True

    conditions = {condition.type: condition for condition in row.conditions}
    for type_, what, owner in (("PodScheduled", "scheduled", "apiserver"), ("Initialized", "initialized", "kubelet")):
        condition = conditions.get(type_)
        if condition is not None and condition.status == "True" and once(what):
            yield what, condition.transition_time, owner, None
    main = [container for container in row.containers if not container.init]
    if main and all(container.state == "running" for container in main) and once("containers started"):
        times = [container.started_time for container in main if container.started_time is not None]
        yield "containers started", max(times, default=None), "kubelet", None
    yield from _container_news(before, row)
    disruption = conditions.get(DISRUPTION)
    if disruption is not None and disruption.status == "True" and once("disruption target"):
        yield "disruption target", disruption.transition_time, "apiserver", disruption.reason
    if row.deletion_time is not None and once("deletion requested"):
        # deletionTimestamp is a deadline: the row's own arrival tells best when it was asked for.
        yield "deletion requested", None, "apiserver", f"grace {row.deletion_grace or 0:g} s"
    elif before is not None and before.deletion_grace and row.deletion_grace == 0 and once("deadline rewritten"):
        yield "deadline rewritten", row.deletion_time, "apiserver", None
    was, now = is_ready(before), is_ready(row)
    if was != now:
        condition = conditions.get("Ready")
        yield "Ready" if now else "not Ready", condition.transition_time if condition else None, "kubelet", None
    ended = terminated(row.containers)
    if ended and (row.deletion_time is not None or row.phase in ("Failed", "Succeeded")) and once("containers ended"):
        times = [container.finished_time for container in ended if container.finished_time is not None]
        codes = ", ".join(f"exit {container.exit_code}" for container in ended)
        yield "containers ended", max(times, default=None), "kubelet", codes
    if row.phase in ("Failed", "Succeeded") and once(f"phase {row.phase}"):
        yield f"phase {row.phase}", None, "kubelet", row.reason


def _container_news(before: rows.Pod | None, row: rows.Pod) -> News:
    """Deaths and restarts of the containers of a Pod that nobody asked to leave."""
    for dead in died(before, row):
        yield "container died", dead.time, "kubelet", f"exit {dead.exit_code}"
    if before is not None and row.deletion_time is None:
        earlier = {container.name: container.restarts for container in before.containers}
        for container in row.containers:
            if not container.init and container.restarts > earlier.get(container.name, container.restarts):
                yield "container restarted", container.started_time, "kubelet", None


def _endpoint(endpoint: rows.Endpoint) -> str:
    if endpoint.terminating:
        return "terminating, serving" if endpoint.serving else "terminating"
    return "ready" if endpoint.ready else "not ready"


def _node_news(before: rows.Node, row: rows.Node) -> Iterator[tuple[str, str | None, str | None]]:
    if before.ready != row.ready:
        condition = next((c for c in row.conditions if c.type == "Ready"), None)
        time, reason = (None, None) if condition is None else (condition.transition_time, condition.reason)
        yield f"Ready={row.ready}", time, reason
    if before.unschedulable != row.unschedulable:
        yield "cordoned" if row.unschedulable else "uncordoned", None, None
    old, new = ({f"{taint.key}:{taint.effect}" for taint in of.taints} for of in (before, row))
    for taint in sorted(new - old):
        yield f"tainted {taint}", None, None
    for taint in sorted(old - new):
        yield f"rid of {taint}", None, None


def _budget_news(before: rows.Pdb, row: rows.Pdb) -> Iterator[str]:
    if row.disrupted_times.keys() - before.disrupted_times.keys():
        yield "charged"
    if before.disrupted_times and not row.disrupted_times:
        yield "settled"
    if before.allowed and row.allowed == 0:
        yield "exhausted"
    if before.allowed == 0 and row.allowed:
        yield "allows again"


def _requests(picture: Picture) -> Iterator[_Seen]:
    """What requests show: the way of the replacements, the last request on each victim, what was lost where."""
    requests = picture.requests
    for pod in picture.replacements:
        way = recovery.milestones(picture, pod)
        for what, milestone in (
            ("first request routed", way.first_routed),
            ("first stream complete", way.first_complete),
            ("warm", way.warm),
        ):
            yield from _milestone("", pod.uid, what, milestone)
    for victim in picture.taken:
        if victim.pod is not None:
            late = np.flatnonzero(picture.on(victim.pod) & requests.in_service & (requests.sent > victim.at))
            if len(late):
                last = late[np.argmax(requests.sent[late])]
                at, row = float(requests.sent[last]), int(requests.id[last])
                yield _request("", victim.pod.uid, "last request routed", at, row)
    lost = requests.counted & ~requests.success
    groups: dict[tuple[int, int, int], list[int]] = {}
    for position in np.flatnonzero(lost).tolist():
        key = (int(picture.placed[position]), int(requests.outcome[position]), int(requests.status[position]))
        groups.setdefault(key, []).append(position)
    for (placed, outcome, status), positions in groups.items():
        uid = None if placed == UNPLACED else picture.pods.all[placed].uid
        what = OUTCOMES[outcome] + (f" {status}" if status >= 0 else "")
        subject = "requests" if uid is None else "requests on"
        ordered = sorted(positions, key=lambda position: float(requests.ended[position]))
        edges = [("first", ordered[0])] + ([("last", ordered[-1])] if len(ordered) > 1 else [])
        for which, position in edges:
            at, row = float(requests.ended[position]), int(requests.id[position])
            yield _request(subject, uid, f"{which} {what}", at, row)


def _request(subject: str, pod: str | None, what: str, at: float, row: int) -> _Seen:
    return _Seen(subject, pod, what, at, (at, at), row, None)


def _milestone(subject: str, pod: str, what: str, milestone: Milestone) -> Iterator[_Seen]:
    if milestone.at is not None:
        yield _request(subject, pod, what, milestone.at, milestone.evidence[0])


def _service(picture: Picture) -> Iterator[_Seen]:
    for begin, end, windows in (
        ("no ready endpoint", "ready endpoint again", outages.zero_ready(picture)),
        ("nobody served", "served again", outages.outages(picture)),
    ):
        for window in windows:
            if window.begin > 0:
                span, row = (window.begin_low, window.begin), window.evidence[0]
                yield _Seen("service", None, begin, window.begin, span, row, None)
            if not window.open:
                span, row = (window.end, window.end_high), window.evidence[-1]
                yield _Seen("service", None, end, window.end, span, row, None)
    whole = picture.whole
    if whole.at is not None and whole.rows:
        yield _Seen("service", None, "whole again", whole.at, (whole.at, whole.at), whole.rows[0], None)
