"""What became of whom: the same sequence whatever things are called, with the order that was recorded on a real one."""

from __future__ import annotations

import pytest

from chaosrunner.analysis.reading import Reading, transitions
from chaosrunner.analysis.transitions import DELIVERY, Transition
from chaosrunner.timeline import rows
from tests.analysis.sides import of_kubernetes, of_real_drill, of_reference, reading
from tests.analysis.tape import Tape, time


def sequence(read: Reading, *roles: str) -> list[tuple[str, str]]:
    return [(one.role, one.what) for one in read.transitions if not roles or one.role in roles]


def find(read: Reading, role: str, what: str) -> Transition:
    return next(one for one in read.transitions if (one.role, one.what) == (role, what))


def test_an_eviction_on_a_real_cluster_in_the_order_that_was_counted_by_hand() -> None:
    read = of_kubernetes(begin=6.29, until=12.8)
    expected = {
        ("budget 1", "charged"): 0.019,
        ("victim 1", "disruption target"): 0.020,
        ("victim 1", "deletion requested"): 0.024,
        ("endpoint of victim 1", "terminating, serving"): 0.049,
        ("victim 1", "Event Killing"): 0.054,
        ("replacement 1", "created"): 0.067,
        ("replacement 1", "scheduled"): 0.11,
        ("replacement 1", "containers started"): 0.68,
        ("endpoint of replacement 1", "not ready"): 0.69,
        ("replacement 1", "Ready"): 3.51,
        ("endpoint of replacement 1", "ready"): 3.52,
        ("budget 1", "allows again"): 3.52,
        ("victim 1", "containers ended"): 5.40,
        ("endpoint of victim 1", "gone"): 5.41,
        ("victim 1", "deadline rewritten"): 5.51,
        ("victim 1", "gone"): 5.52,
    }
    after = [one for one in read.transitions if one.when >= read.zero and (one.role, one.what) in expected]
    assert [(one.role, one.what) for one in after] == list(expected)
    for transition, at in zip(after, expected.values(), strict=True):
        assert transition.when - read.zero == pytest.approx(at, abs=0.01), transition
    assert find(read, "victim 1", "containers ended").detail == "exit 0"
    assert find(read, "victim 1", "deletion requested").detail == "grace 20 s"
    # A refusal of the same eviction, asked a second time, is another transition of another target.
    assert ("fault 2", "evict blocked_by_budget") in sequence(read)
    assert ("dry run 1", "evict blocked_by_budget") in sequence(read)


CORE = [
    ("fault 1", "evict sent"),
    ("victim 1", "deletion requested"),
    ("endpoint of victim 1", "terminating, serving"),
    ("replacement 1", "containers started"),
    ("endpoint of replacement 1", "not ready"),
    ("victim 1", "containers ended"),
    ("endpoint of victim 1", "gone"),
    ("victim 1", "deadline rewritten"),
    ("victim 1", "gone"),
    ("replacement 1", "Ready"),
    ("endpoint of replacement 1", "ready"),
    ("budget 1", "allows again"),
]


@pytest.mark.parametrize("read", [of_real_drill, of_reference], ids=["vLLM on a real cluster", "embedded lab"])
def test_both_labs_tell_an_eviction_in_the_same_words(read: object) -> None:
    found = read()  # type: ignore[operator]
    assert [pair for pair in sequence(found) if pair in CORE] == CORE


def test_a_killed_container_and_a_cut_node_are_told_by_role() -> None:
    read = of_kubernetes(begin=200.0)
    killed = find(read, "newcomer 4", "container died")
    assert (killed.detail, killed.when) == ("exit 137", pytest.approx(37.876, abs=0.001))
    story = [pair for pair in sequence(read, "newcomer 4", "endpoint of newcomer 4") if pair[1] != "Event Unhealthy"]
    start = story.index(("newcomer 4", "container died"))
    assert story[start : start + 6] == [
        ("newcomer 4", "container died"),
        ("newcomer 4", "not Ready"),
        ("endpoint of newcomer 4", "not ready"),
        ("newcomer 4", "container restarted"),
        ("newcomer 4", "Ready"),
        ("endpoint of newcomer 4", "ready"),
    ]
    assert sequence(read, "node 2") == [
        ("node 2", "Ready=Unknown"),
        ("node 2", "tainted node.kubernetes.io/unreachable:NoSchedule"),
        ("node 2", "tainted node.kubernetes.io/unreachable:NoExecute"),
        ("node 2", "Ready=True"),
        ("node 2", "rid of node.kubernetes.io/unreachable:NoSchedule"),
        ("node 2", "rid of node.kubernetes.io/unreachable:NoExecute"),
    ]
    # A healed Pod's Ready condition says that it has been so since long before the cut: not believed.
    healed = [one for one in read.transitions if one.what == "Ready" and 92 < one.when < 93]
    assert len(healed) == 2
    assert all(one.window[0] > 75 for one in healed)


def test_windows() -> None:
    tape = Tape()
    tape.pod(0.1, "a", "LISTED", ready=True)
    tape.pod(0.1, "b", "LISTED", ready=True)
    tape.watch(0.1, "pods", "listed", items=2)
    tape.evict(10.0, "a")
    tape.pod(10.1, "a", ready=True, deletion_time=time(40), deletion_grace=30.0)
    tape.request(9.0, 10.5, "aborted", pod="a", status=200)
    opened = tape.watch(12.0, "pods", "gap_opened", reason="silent", last_alive=11.0)
    ordered = tape.rows
    tape.pod(20.0, "a", "VANISHED", ready=False, gap=opened.id)
    # The kubelet says that it was long ago: the event was late.
    late = tape.pod(30.0, "b", phase="Running")
    late.conditions = [rows.Condition(type="Ready", status="False", transition_time=time(25))]
    tape.end(31.0)
    assert opened.id == next(row.id for row in ordered if row is opened)
    read = reading(tape.rows)
    assert find(read, "fault 1", "evict sent").window == (10.0, 10.0)
    requested = find(read, "victim 1", "deletion requested")
    assert requested.window == (pytest.approx(10.1 - DELIVERY), 10.1)
    lost = find(read, "requests on victim 1", "first aborted 200")
    assert lost.window == (10.5, 10.5)
    gone = find(read, "victim 1", "gone")
    assert (gone.at, gone.window, gone.when) == (None, (11.0, 20.0), 20.0)
    unready = find(read, "survivor 1", "not Ready")
    assert (unready.at, unready.window) == (30.0, (pytest.approx(24.0), 30.0))


def test_several_victims_and_their_replacements_are_numbered_in_the_order_of_the_faults() -> None:
    tape = Tape()
    for name in ("x", "y", "z"):
        tape.pod(0.1, name, "LISTED", ready=True)
    tape.evict(10.0, "y")
    tape.pod(10.1, "y", ready=True, deletion_time=time(40), deletion_grace=30.0)
    tape.pod(10.2, "y-new", "ADDED", phase="Pending", created_time=time(10))
    tape.evict(11.0, "x", "blocked_by_budget")
    tape.evict(12.0, "x")
    tape.pod(12.1, "x", ready=True, deletion_time=time(42), deletion_grace=30.0)
    tape.pod(12.2, "x-new", "ADDED", phase="Pending", created_time=time(12))
    tape.pod(13.0, "z", ready=False)
    tape.end(20.0)
    read = reading(tape.rows)
    assert sequence(read) == [
        ("fault 1", "evict sent"),
        ("fault 1", "evict accepted"),
        ("victim 1", "deletion requested"),
        ("replacement 1", "created"),
        ("fault 2", "evict sent"),
        ("fault 2", "evict blocked_by_budget"),
        ("fault 2", "evict accepted"),
        ("victim 2", "deletion requested"),
        ("replacement 2", "created"),
        ("survivor 1", "not Ready"),
    ]


def test_an_endpoint_that_moves_between_slices_stays_what_it_is() -> None:
    tape = Tape()
    tape.pod(0.1, "a", "LISTED", ready=True)
    tape.endpoints(0.1, "LISTED", name="one", a=True)
    tape.endpoints(5.0, "ADDED", name="two", a=True)
    tape.endpoints(5.1, name="one")
    tape.endpoints(6.0, name="two", a=False)
    tape.endpoints(7.0, "DELETED", name="two")
    tape.end(8.0)
    found = [(one.what, one.when) for one in reading(tape.rows).transitions if one.role == "endpoint of survivor 1"]
    assert found == [("not ready", 6.0), ("gone", 7.0)]


def test_alerts_are_told_once_a_change_between_two_polls() -> None:
    def poll(at: float, *states: str) -> rows.Alerts:
        return rows.Alerts(at=at, ok=True, alerts=[rows.Alert(name="Burn", state=s, labels={"n": s}) for s in states])  # type: ignore[arg-type]

    tape = Tape()
    for row in (poll(1.0), poll(2.0, "pending"), poll(3.0, "pending", "firing"), poll(4.0, "firing"), poll(5.0)):
        tape.add(row)
    tape.add(rows.Alerts(at=6.0, ok=False, error="down"))
    tape.end(7.0)
    found = [(one.role, one.what, one.window) for one in reading(tape.rows).transitions]
    assert found == [
        ("alert Burn", "pending", (1.0, 2.0)),
        ("alert Burn", "firing", (2.0, 3.0)),
        ("alert Burn", "over", (4.0, 5.0)),
    ]


def test_the_machine_form_is_that_of_a_recording() -> None:
    read = of_reference()
    assert transitions(read.recording) == read.transitions
    assert [one.when for one in read.transitions] == sorted(one.when for one in read.transitions)
    ids = {row.id for row in read.recording.rows()}
    assert {one.row for one in read.transitions} <= ids
