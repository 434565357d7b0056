"""Every shipped lab drill on a real Kubernetes, held against what its nodes say themselves."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from datetime import datetime
from itertools import pairwise

import pytest

from chaosrunner.analysis.facts import Milestone
from chaosrunner.cli import lab_process
from chaosrunner.timeline import rows
from tests.drills.rehearsal import Rehearsal, Some, rehearse
from tests.drills.shipped import DRILLS, TAKING, Rehearse, ShippedDrills
from tests.labs import RealLab
from tests.real.truth import Truth

pytestmark = [pytest.mark.real, pytest.mark.timeout(400)]

AT_ONCE = 2
"""Drills that run side by side, each in namespaces of its own."""

ALONE = "lab-drain-node"
"""It would evict what others have on its node, and the plan refuses to."""

PARAMETERS = {"lab-evict-one-replica": {"max_tokens": "240"}}
"""A busy kubelet may take seconds until it sends SIGTERM: short streams would have ended by then."""

RELIST = 1.0
"""Seconds between two looks of a kubelet at its containers (genericPlegRelistPeriod)."""

TICK = 1.0
"""Resolution of metav1.Time, seconds."""

SLACK = 1.0
"""Seconds that a busy machine may keep back what everybody agrees on."""

NEAR = 0.2
"""Seconds by which two programs of one node may note the same instant apart."""


@pytest.fixture(scope="module")
def rehearsed(real_lab: RealLab, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Rehearse]:
    timelines = tmp_path_factory.mktemp("timelines")

    def lab(spec: dict[str, object]) -> object:
        return lab_process.on_real_lab(spec, real_lab.state, lambda doing: None)

    def run(drill: str, after: Sequence[Future[Rehearsal]] = ()) -> Rehearsal:
        wait(after)
        return rehearse(drill, timelines, lab=lab, **PARAMETERS.get(drill, {}))

    with ThreadPoolExecutor(AT_ONCE) as pool:
        runs = {drill: pool.submit(run, drill) for drill in DRILLS if drill != ALONE}
        runs[ALONE] = pool.submit(run, ALONE, list(runs.values()))
        yield lambda drill: runs[drill].result()


class TestOnTheRealLab(ShippedDrills):
    pass


# --- stages, held against the programs of the node -------------------------------------------------------------------


def seconds(time: str | None) -> float:
    """A reported time as unix seconds."""
    assert time is not None
    return datetime.fromisoformat(time).timestamp()


def first(found: Rehearsal, uid: str | None, condition: str) -> float:
    """Transition time of a condition on the row that first shows it True, unix seconds."""
    times = [
        one.transition_time
        for row in found.of(rows.Pod)
        if row.uid == uid
        for one in row.conditions
        if (one.type, one.status) == (condition, "True")
    ]
    return seconds(times[0])


def within(stage: Milestone, instant: float, most: float) -> None:
    """A stage's window holds the instant at which it came to pass, and was known `most` seconds later."""
    assert stage.at is not None
    assert stage.low is not None
    assert stage.high is not None
    assert stage.low - NEAR <= instant <= stage.high, stage
    assert stage.at - instant <= most, stage


@pytest.mark.parametrize("drill", TAKING)
def test_the_way_to_service_agrees_with_the_node(rehearsed: Rehearse, real_lab: RealLab, drill: str) -> None:
    found, truth = rehearsed(drill), Truth(real_lab.state)
    anchor = found.recording.manifest.anchor
    assert len(found.facts.replacements) == 1
    for replacement in found.facts.replacements:
        stages = replacement.milestones
        mine = [row for row in found.of(rows.Pod) if row.uid == replacement.uid]
        (container,) = {one.container_id for row in mine for one in row.containers if one.container_id}
        within(stages.started, truth.started(container) - anchor, RELIST + SLACK)
        (ready,) = truth.probed(f"{mine[0].namespace}/{replacement.pod}", "readiness", "ready")
        within(stages.ready, ready - anchor, SLACK)
        for stage, reported in (
            (stages.created, seconds(mine[0].created_time)),
            (stages.scheduled, first(found, replacement.uid, "PodScheduled")),
            (stages.initialized, first(found, replacement.uid, "Initialized")),
            (stages.ready, first(found, replacement.uid, "Ready")),
        ):
            within(stage, reported - anchor, TICK + RELIST + SLACK)
        in_order = (stages.created, stages.scheduled, stages.started, stages.ready, stages.endpoint_ready)
        assert [stage.at for stage in in_order] == sorted(stage.at for stage in in_order)


@pytest.mark.parametrize("drill", TAKING)
def test_the_way_to_service_agrees_with_the_servers(rehearsed: Rehearse, drill: str) -> None:
    """The model server's own log tells of its first request; of endpoints, another watch."""
    found = rehearsed(drill)
    said = found.said_by_the_lab()
    for replacement in found.facts.replacements:
        stages = replacement.milestones
        for what, seen in (
            ("endpoint_ready", stages.endpoint_ready.at),
            ("first_request", stages.first_routed.at),
            ("first_complete", stages.first_complete.at),
        ):
            assert seen == pytest.approx(said[replacement.uid, what], abs=SLACK), what


@pytest.mark.parametrize("drill", TAKING)
def test_the_end_of_the_victim_agrees_with_the_node(rehearsed: Rehearse, real_lab: RealLab, drill: str) -> None:
    found, truth = rehearsed(drill), Truth(real_lab.state)
    (gone,) = found.facts.terminations
    mine = [row for row in found.of(rows.Pod) if row.uid == gone.uid]
    (container,) = {one.container_id for row in mine for one in row.containers if one.container_id}
    ended, code = truth.ended(container)
    assert gone.exit_codes == {"model": code}
    within(gone.containers_terminated, ended - found.recording.manifest.anchor, RELIST + SLACK)
    finished = [one.finished_time for row in mine for one in row.containers if one.finished_time]
    assert -NEAR <= ended - seconds(finished[0]) < TICK + NEAR


# --- the merged timeline of an eviction -------------------------------------------------------------------------------


class Milestones:
    """Rows of an eviction by what they show: the first such row after the fault was sent."""

    def __init__(self, found: Rehearsal) -> None:
        facts = found.facts
        (victim,) = facts.exposure.victims
        (self.replacement,) = facts.replacements
        self.victim = victim
        self.rows = [row for row in found.rows if row.id >= victim.action]

    def first(self, kind: type[Some], holds: Callable[[Some], bool]) -> Some:
        return next(row for row in self.rows if isinstance(row, kind) and holds(row))

    def pod(self, uid: str | None, holds: Callable[[rows.Pod], bool]) -> rows.Pod:
        return self.first(rows.Pod, lambda row: row.uid == uid and holds(row))

    def endpoint(self, uid: str | None, *state: bool) -> rows.EndpointSlice:
        """(ready, serving, terminating); none where it is gone."""

        def shows(row: rows.EndpointSlice) -> bool:
            mine = [(one.ready, one.serving, one.terminating) for one in row.endpoints if one.uid == uid]
            return mine == ([state] if state else [])

        return self.first(rows.EndpointSlice, shows)


def is_true(row: rows.Pod, condition: str) -> bool:
    return any((one.type, one.status) == (condition, "True") for one in row.conditions)


def is_running(row: rows.Pod) -> bool:
    return any(one.state == "running" for one in row.containers)


def check_order(*chains: Iterable[rows.Observed]) -> None:
    """Each chain is in the order of the store's versions, which are one sequence for all kinds in etcd; and, as far as
    watches of different kinds have an order among each other, in the order of receipt."""
    for chain in chains:
        found = list(chain)
        for earlier, later in pairwise(found):
            assert int(earlier.version) < int(later.version), (earlier, later)
            patience = 0.0 if type(earlier) is type(later) else SLACK
            assert earlier.at <= later.at + patience, (earlier, later)


@pytest.mark.parametrize("drill", ["lab-evict-one-replica", "lab-evict-one-replica-graceful"])
def test_the_merged_timeline_has_the_order_of_an_eviction(rehearsed: Rehearse, drill: str) -> None:
    found = rehearsed(drill)
    at = Milestones(found)
    victim, fresh = at.victim.uid, at.replacement.uid
    charged = at.first(rows.Pdb, lambda row: row.allowed == 0 and at.victim.pod in row.disrupted_times)
    marked = at.pod(victim, lambda row: is_true(row, "DisruptionTarget"))
    asked = at.pod(victim, lambda row: row.deletion_time is not None)
    leaving = at.endpoint(victim, False, True, True)
    killing = at.first(rows.Event, lambda row: row.reason == "Killing" and row.object_uid == victim)
    created = at.pod(fresh, lambda row: True)
    scheduled = at.pod(fresh, lambda row: row.node is not None)
    started = at.pod(fresh, is_running)
    present = at.endpoint(fresh, False, False, False)
    ready = at.pod(fresh, lambda row: is_true(row, "Ready"))
    serving = at.endpoint(fresh, True, True, False)
    allowed = at.first(rows.Pdb, lambda row: row.at > charged.at and row.allowed == 1)
    ended = at.pod(victim, lambda row: any(one.state == "terminated" for one in row.containers))
    out = at.endpoint(victim)
    final = at.pod(victim, lambda row: row.deletion_grace == 0)
    deleted = at.pod(victim, lambda row: row.seen == "DELETED")
    check_order(
        (charged, marked, asked, leaving),
        (asked, killing),
        (asked, created, scheduled, started, present, ready, serving),
        (ready, allowed),
        (killing, ended, out, final, deleted),
    )
    sent = next(row for row in found.of(rows.Action) if row.id == at.victim.action)
    answered = next(row for row in found.of(rows.Action) if row.call == sent.call and row.event == "answered")
    assert answered.status == 201
    # The budget is charged and the Pod marked before the answer; it may reach us after the news of both.
    assert all(sent.at <= row.at <= answered.at + SLACK for row in (charged, marked, asked))
    assert (killing.component, killing.host) == ("kubelet", asked.node)
    condition = next(one for one in marked.conditions if one.type == "DisruptionTarget")
    assert condition.reason == "EvictionByEvictionAPI"
    # deletionTimestamp is a deadline, and the kubelet's last delete rewrites it: only the first one tells the request.
    anchor = found.recording.manifest.anchor
    assert asked.deletion_grace == 30
    assert abs(seconds(asked.deletion_time) - 30 - (sent.at + anchor)) <= TICK + SLACK
    assert seconds(final.deletion_time) < seconds(asked.deletion_time)
    (gone,) = found.facts.terminations
    assert gone.grace == 30
    assert gone.requested.low - NEAR <= sent.at + SLACK
    assert gone.requested.high >= sent.at
    assert next(one.exit_code for one in ended.containers) == 0


def test_heartbeats_are_no_rows(rehearsed: Rehearse) -> None:
    """Nodes are written every two seconds; only the cordon of the drain, and its end, are news."""
    found = rehearsed("lab-drain-node")
    assert found.facts.run.end - found.facts.run.begin > 5
    kept: dict[str, list[rows.Node]] = {}
    for row in found.of(rows.Node):
        kept.setdefault(row.name, []).append(row)
    assert len(kept) == 4
    assert sorted(len(history) for history in kept.values())[:3] == [1, 1, 1]
    (drained,) = [history for history in kept.values() if len(history) > 1]
    # The scheduler's view follows as a taint, in a change of its own.
    states = [(row.unschedulable, bool(row.taints)) for row in drained]
    assert states[0] == states[-1] == (False, False)
    assert len(states) <= 5
