"""What clusters do to Pods and endpoints while a drill runs, and what follows for streams and recovery."""

from __future__ import annotations

from typing import Any

import pytest

from chaosrunner.analysis import Live
from chaosrunner.observers import endpoints, pods
from chaosrunner.timeline import rows
from tests.analysis.tape import Tape, context, facts, time


def leave(tape: Tape, at: float, pod: str, **fields: Any) -> None:
    tape.pod(at, pod, deletion_time=time(at + 30), deletion_grace=30.0, **fields)


def workload(tape: Tape, *names: str) -> None:
    for name in names:
        tape.pod(0.0, name, "LISTED", ready=True)
    ready: dict[str, Any] = {name.replace("-", "_"): True for name in names}
    tape.endpoints(0.0, "LISTED", **ready)


# --- endpoints --------------------------------------------------------------------------------------------


def a_slice(name: str, family: str, *items: dict[str, Any], version: str = "1") -> dict[str, Any]:
    return {
        "metadata": {
            "name": name,
            "uid": f"u-{name}",
            "resourceVersion": version,
            "labels": {"kubernetes.io/service-name": "chat"},
        },
        "addressType": family,
        "endpoints": list(items),
    }


def endpoint(pod: str, address: str, **conditions: bool | None) -> dict[str, Any]:
    return {
        "addresses": [address],
        "conditions": conditions,
        "targetRef": {"kind": "Pod", "name": pod, "uid": f"u-{pod}"},
    }


def counts(*slices: tuple[float, rows.Seen, dict[str, Any]]) -> list[int | None]:
    """Ready endpoints after each of these."""
    analysis = Live(context())
    found = []
    for number, (at, seen, obj) in enumerate(slices, start=1):
        row = endpoints.to_row(obj, seen=seen, at=at)
        row.id = number
        analysis.feed(row)
        found.append(analysis.observations.endpoints.ready)
    return found


def test_a_dual_stack_service_has_each_pod_once() -> None:
    # kubernetes/kubernetes#126004, kubernetes/enhancements#1679: a slice per address family
    four = a_slice("chat-4", "IPv4", endpoint("a", "10.0.0.1", ready=True), endpoint("b", "10.0.0.2", ready=True))
    six = a_slice("chat-6", "IPv6", endpoint("a", "fd00::1", ready=True), endpoint("b", "fd00::2", ready=True))
    later = a_slice("chat-4", "IPv4", endpoint("a", "10.0.0.1", ready=False), version="2")
    gone = a_slice("chat-6", "IPv6", version="2")
    assert counts((0.0, "LISTED", four), (0.0, "LISTED", six))[-1] == 2
    assert counts((0.0, "ADDED", four), (1.0, "ADDED", six), (2.0, "MODIFIED", later), (3.0, "MODIFIED", gone)) == [
        2, 2, 1, 0,
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("conditions", "ready"),
    [
        ({}, 1),
        ({"ready": None, "serving": None, "terminating": None}, 1),
        ({"ready": True}, 1),
        ({"ready": False, "serving": True, "terminating": True}, 0),
        # kubernetes/kubernetes#116285, #118952: publishNotReadyAddresses says ready of what is neither
        ({"ready": True, "serving": False, "terminating": False}, 0),
        ({"ready": True, "serving": True, "terminating": True}, 0),
    ],
)
def test_which_endpoints_count_as_ready(conditions: dict[str, bool | None], ready: int) -> None:
    assert counts((0.0, "LISTED", a_slice("chat-x", "IPv4", endpoint("a", "10.0.0.1", **conditions)))) == [ready]


def test_endpoints_of_a_reused_name_are_two() -> None:
    # ansible-collections/kubernetes.core#792: a StatefulSet's Pod comes back under its name
    old, new = endpoint("web-0", "10.0.0.1", ready=False), endpoint("web-0", "10.0.0.9", ready=True)
    new["targetRef"]["uid"] = "u-new"
    assert counts((0.0, "LISTED", a_slice("chat-x", "IPv4", old, new))) == [1]


# --- which Pod served -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "label",
    [
        "chat-a",
        " chat-a ",
        '"chat-a"',
        "demo/chat-a",
        "chat-a:8000",
        "chat-a.demo",
        "chat-a.chat.demo.svc.cluster.local",
        "10.0.0.1",
        "10.0.0.1:8000",
        "http://10.0.0.1:8000",
        "http://10.0.0.1:8000/",
        "::ffff:10.0.0.1",
        "fd00::1",
        "[fd00::1]:8000",
        "edge-7, chat-a",
        "chat-a, chat-a",
        "10.9.9.9:80, 10.0.0.1:8000",
    ],
)
def test_spellings_of_the_serving_pod(label: str) -> None:
    tape = Tape()
    tape.pod(0.0, "chat-a", "LISTED", ready=True, ip="10.0.0.1", addresses=["10.0.0.1", "fd00::1"])
    tape.pod(0.0, "chat-b", "LISTED", ready=True, ip="10.0.0.2")
    tape.evict(10.0, "chat-a")
    leave(tape, 10.1, "chat-a")
    tape.request(9.0, 12.0, pod=label, headers=9.1)
    tape.end(20.0)
    assert facts(tape).exposure.exposed == 1


@pytest.mark.parametrize("label", ["edge-7", "chat-a, chat-b", "10.9.9.9", "", ","])
def test_a_name_that_is_no_single_pods_places_nothing(label: str) -> None:
    # a gateway that adds its own hop, or names both tries of a retry
    tape = Tape()
    workload(tape, "chat-a", "chat-b")
    tape.evict(10.0, "chat-a")
    leave(tape, 10.1, "chat-a")
    tape.request(9.0, 12.0, pod=label, headers=9.1)
    tape.end(20.0)
    exposure = facts(tape).exposure
    assert (exposure.exposed, exposure.unplaced) == (0, 1)


def test_addresses_of_both_families_are_recorded() -> None:
    obj = {
        "metadata": {"name": "a", "uid": "u"},
        "status": {"podIP": "10.0.0.1", "podIPs": [{"ip": "10.0.0.1"}, {"ip": "fd00::1"}]},
    }
    assert pods.to_row(obj, seen="LISTED", at=0.0).addresses == ["10.0.0.1", "fd00::1"]
    assert pods.to_row({"status": {"podIPs": None}}, seen="LISTED", at=0.0).addresses == []


def test_a_pod_that_comes_back_under_its_name() -> None:
    # folio-pro/kdashboard#61, kubernetes/kubernetes#64923
    tape = Tape()
    workload(tape, "web-0", "web-1")
    tape.request(8.0, 10.2, "cut_stream", status=200, headers=8.1, pod="web-0")
    tape.evict(10.0, "web-0")
    leave(tape, 10.1, "web-0")
    tape.pod(14.0, "web-0", "DELETED", deletion_time=time(40), deletion_grace=30.0)
    tape.pod(14.1, "web-0", "ADDED", uid="u-new", phase="Pending")
    tape.pod(20.0, "web-0", uid="u-new", ready=True)
    for sent in (21.0, 22.0, 23.0):
        tape.request(sent, sent + 0.5, headers=sent + 0.1, pod="web-0", largest_gap=0.1)
    tape.request(1.0, 2.0, headers=1.1, pod="web-0", largest_gap=0.1)
    tape.end(30.0)
    found = facts(tape)
    assert (found.exposure.exposed, found.exposure.lost, found.exposure.victims[0].routed_after) == (1, 1, 0)
    (replacement,) = found.replacements
    assert (replacement.uid, replacement.milestones.warm.at) == ("u-new", 21.0)


# --- replacements -----------------------------------------------------------------------------------------


def serve(tape: Tape, begin: float, pod: str) -> None:
    for sent in (begin, begin + 1, begin + 2):
        tape.request(sent, sent + 0.5, headers=sent + 0.1, pod=pod, largest_gap=0.1)


@pytest.mark.parametrize("end", ["evicted", "deleted", "gone"])
def test_a_replacement_that_is_itself_replaced(end: str) -> None:
    # kubernetes/kubernetes#116965 and every node under pressure: the first replacement is refused or thrown out
    tape = Tape()
    workload(tape, "a", "b")
    serve(tape, 1.0, "b")
    tape.evict(10.0, "a")
    leave(tape, 10.1, "a")
    tape.pod(10.2, "r1", "ADDED", phase="Pending")
    if end == "evicted":
        tape.pod(15.0, "r1", phase="Failed", reason="Evicted")
    elif end == "deleted":
        leave(tape, 15.0, "r1")
    else:
        tape.pod(15.0, "r1", "DELETED")
    tape.pod(15.1, "r2", "ADDED", phase="Pending")
    tape.pod(30.0, "r2", ready=True)
    tape.endpoints(10.1, a=False, b=True)
    tape.endpoints(30.0, b=True, r2=True)
    serve(tape, 31.0, "r2")
    tape.end(50.0)
    found = facts(tape, context("replacement.warm", "time_to_serve <= 21s"))
    assert [one.pod for one in found.replacements] == ["r2"]
    assert found.recovery.time_to_serve.value == 21.0
    assert [check.verdict for check in found.checks] == ["passed", "passed"]


def test_one_of_two_replacements_fails() -> None:
    tape = Tape()
    workload(tape, "a", "b", "c")
    for victim in ("a", "b"):
        tape.evict(10.0, victim)
        leave(tape, 10.1, victim)
    tape.pod(10.2, "r1", "ADDED", phase="Pending")
    tape.pod(10.3, "r2", "ADDED", phase="Pending")
    tape.pod(12.0, "r1", phase="Failed", reason="OutOfcpu")
    tape.pod(20.0, "r2", ready=True)
    tape.end(30.0)
    found = facts(tape)
    assert [one.pod for one in found.replacements] == ["r2"]
    assert len(found.recovery.missing) == 1
    tape.pod(25.0, "r3", "ADDED", phase="Pending")
    assert {one.pod for one in facts(tape).replacements} == {"r2", "r3"}


def test_a_replacement_that_served_and_was_scaled_down_later_stays_the_replacement() -> None:
    tape = Tape()
    workload(tape, "a", "b")
    serve(tape, 1.0, "b")
    tape.evict(10.0, "a")
    leave(tape, 10.1, "a")
    tape.pod(10.2, "r1", "ADDED", phase="Pending")
    tape.pod(20.0, "r1", ready=True)
    serve(tape, 21.0, "r1")
    leave(tape, 40.0, "r1")
    tape.pod(41.0, "r2", "ADDED", phase="Pending")
    tape.end(50.0)
    found = facts(tape)
    assert [one.pod for one in found.replacements] == ["r1"]
    assert found.recovery.time_to_serve.value == 11.0


def test_no_replacement_comes_after_a_scale_down() -> None:
    tape = Tape()
    workload(tape, "a", "b")
    tape.evict(10.0, "a")
    leave(tape, 10.1, "a")
    tape.endpoints(10.2, b=True)
    tape.end(60.0)
    found = facts(tape, context("replacement.warm", "time_to_serve <= 60s"))
    assert found.recovery.missing == ["a"]
    # Nothing came: that is no unknown. How long it would have taken is.
    assert [check.verdict for check in found.checks] == ["failed", "skipped"]


def test_a_replacement_that_was_there_before_the_answer() -> None:
    # recorded on 1.37: the 201 may come after the watch events that it caused
    tape = Tape()
    workload(tape, "a", "b")
    tape.evict(10.0, "a")
    tape.pod(10.002, "a", deletion_time=time(40), deletion_grace=30.0)
    tape.pod(10.005, "r1", "ADDED", phase="Pending")
    tape.end(20.0)
    assert [one.pod for one in facts(tape).replacements] == ["r1"]


@pytest.mark.parametrize(
    ("reason", "status", "kind"),
    [
        ("EvictionByEvictionAPI", None, "eviction"),
        ("PreemptionByScheduler", None, "preemption"),
        # the same, before 1.26
        ("PreemptionByKubeScheduler", None, "preemption"),
        ("DeletionByTaintManager", None, "taint"),
        ("DeletionByDeviceTaintManager", None, "taint"),
        ("DeletionByPodGC", None, "garbage_collection"),
        ("TerminationByKubelet", "Evicted", "node_pressure"),
        ("TerminationByKubelet", "Terminated", "node_shutdown"),
        ("TerminationByKubelet", "Preempting", "preemption"),
        (None, "Evicted", "node_pressure"),
    ],
)
def test_who_took_the_pod(reason: str | None, status: str | None, kind: str) -> None:
    # kubernetes.io, "Disruptions": Pod disruption conditions; kubernetes/kubernetes#109998
    tape = Tape()
    workload(tape, "a", "b")
    said = [rows.Condition(type="DisruptionTarget", status="True", reason=reason)] if reason else []
    if status is None:
        leave(tape, 10.0, "a", conditions=said)
    else:
        tape.pod(10.0, "a", conditions=said, phase="Failed", reason=status)
    tape.end(20.0)
    (disruption,) = facts(tape).disruptions
    assert (disruption.type, disruption.ours) == (kind, False)


def test_a_grace_period_that_is_shortened_later() -> None:
    # a second delete with a shorter grace moves the deadline, not the request
    tape = Tape()
    workload(tape, "a")
    tape.pod(10.0, "a", deletion_time=time(310), deletion_grace=300.0)
    tape.pod(20.0, "a", deletion_time=time(25), deletion_grace=5.0)
    tape.pod(26.0, "a", "DELETED", deletion_time=time(25), deletion_grace=0.0)
    tape.end(30.0)
    (termination,) = facts(tape).terminations
    assert (termination.requested.at, termination.gone.at) == (10.0, 26.0)
