"""What only a real cluster shows: rows of a real Kubernetes 1.37, and requests laid over them, with the right answer.

The recording has no requests; those here are ours, at the times and on the Pods at which a probe would have had them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec
import pytest

from chaosrunner.analysis import AnalysisContext, Facts
from chaosrunner.analysis.facts import Finding
from chaosrunner.playbook.selectors import parse_selector
from chaosrunner.reports.lines import News
from chaosrunner.timeline import rows
from chaosrunner.timeline.rows import Row
from tests.analysis.captures import CONVERTERS, DATA, kubernetes, number
from tests.analysis.tape import Tape, codes, facts, live, replay, time

ANCHOR = 1795969129.065

SETTINGS = AnalysisContext(anchor=ANCHOR, service="chat", selector=parse_selector("app=chat"))

KILLED = "chat-df8ff699f-mkdnf"
KILLED_AT = 36.933
FORCED = "chat-df8ff699f-q5lxx"
FORCED_GONE = 42.979
CUT = ("chat-df8ff699f-4vv8g", "chat-df8ff699f-mbk7n")
"""Pods of node2, which was cut at 67.08 and healed at 83.09."""


def request(sent: float, ended: float, pod: str | None, outcome: str = "complete", **fields: Any) -> rows.Request:
    if outcome == "complete":
        fields = {"status": 200, "first_token": sent + 0.05, "last_token": ended, "tokens": 10} | fields
    name = f"chat-{sent:.3f}"
    return rows.Request(at=ended, request=name, probe="chat", outcome=outcome, sent=sent, pod=pod, **fields)


def read(*more: Row, selector: str = "app=chat", begin: float = 0.0, end: float = 118.2) -> Facts:
    """The recording with these rows among its own. Between `begin` and `end` calls of ours count."""
    kept = [row for row in kubernetes() if not isinstance(row, rows.Action) or begin <= row.at <= end]
    settings = AnalysisContext(anchor=ANCHOR, service="chat", selector=parse_selector(selector))
    ordered = number([*kept, *more])
    found = replay(ordered, settings)
    assert msgspec.to_builtins(live(ordered, settings).facts()) == msgspec.to_builtins(found)
    return found


def only(found: Facts, code: str, about: str = "") -> Finding:
    (finding,) = [item for item in found.findings if item.code == code and about in item.text]
    return finding


def test_a_failed_precondition_holds_the_budget_for_two_minutes() -> None:
    # case "a failed precondition burns the budget": recorded, not reported
    until = 13.39  # then somebody deleted the budget
    kept = [row for row in kubernetes() if row.at < until]
    kept.append(rows.Run(at=until, event="ended"))
    ordered = number(kept)
    found = replay(ordered, SETTINGS)
    held = only(found, "budget_held_by_our_eviction")
    failed = next(item for item in found.evictions if item.answer == "precondition_failed")
    assert failed.answered is not None
    assert f"until {failed.answered + 120:.0f} s (two minutes)" in held.text
    assert "after chat had been charged" in held.text
    (charged,) = [row for row in ordered if row.id in held.evidence and isinstance(row, rows.Pdb)]
    assert (charged.allowed, list(charged.disrupted_times)) == (0, [FORCED])
    # The 429 that follows is our own doing, and no finding about the workload.
    refused = [item for item in found.evictions if item.status == 429 and item.at > failed.at]
    assert [item.self_inflicted for item in refused] == [True]
    assert "self_inflicted_429" in codes(found)
    assert not [
        item for item in found.findings if item.code == "blocked_by_budget" and item.evidence[0] > failed.evidence[0]
    ]


def test_a_budget_that_was_let_go_is_not_held_any_longer() -> None:
    found = read()
    texts = [item.text for item in found.findings if item.code == "budget_held_by_our_eviction"]
    assert ["until 13.4 s" in texts[0], "until 14.9 s" in texts[1]] == [True, True]
    # Held by us when it was asked, free again when it was asked later.
    late = rows.Target(kind="Pod", name=FORCED, namespace="demo", uid="e2dae5d2-3068-477a-8472-d012e142cfb6")
    more = [
        rows.Action(at=20.0, event="sent", call=900, action="evict", target=late),
        rows.Action(
            at=20.01, event="answered", call=900, action="evict", target=late, answer="blocked_by_budget", status=429,
            ok=False, expected=False,
        ),
    ]  # fmt: skip
    again = read(*more)
    assert not next(item for item in again.evictions if item.at == 20.0).self_inflicted
    assert "blocked_by_budget" in codes(again)


def test_a_budget_that_a_later_eviction_charged_was_not_held_by_the_failed_one() -> None:
    tape = Tape()
    tape.pod(0.0, "a", "LISTED", ready=True)
    budget: dict[str, Any] = {"name": "chat", "uid": "u", "namespace": "demo", "selector": {}, "allowed": 1}
    tape.add(rows.Pdb(at=0.0, seen="LISTED", version="1", **budget))
    tape.evict(10.0, "a", "precondition_failed")
    tape.evict(11.0, "a")
    tape.add(rows.Pdb(at=11.02, seen="MODIFIED", version="2", disrupted_times={"a": time(11)}, **budget))
    tape.end(20.0)
    assert "may be held" in only(facts(tape), "budget_held_by_our_eviction").text


def test_a_failed_precondition_without_a_row_of_the_budget_is_a_may_be() -> None:
    kept = [row for row in kubernetes(until=13.39) if not isinstance(row, rows.Pdb)]
    held = only(replay(number(kept), SETTINGS), "budget_held_by_our_eviction")
    assert "may be held" in held.text


def test_requests_lost_while_a_dead_container_was_still_an_endpoint() -> None:
    other = "chat-df8ff699f-gxjws"
    cut = request(35.9, KILLED_AT + 0.02, KILLED, "cut_stream", status=200, first_token=36.0)
    refused = [
        request(sent, sent + 0.01, KILLED, "connect_refused", error="connection refused") for sent in (37.0, 37.4, 37.8)
    ]
    fine = [request(sent, sent + 1, pod) for sent, pod in ((35.0, other), (37.1, other), (38.5, other), (41.0, KILLED))]
    unplaced = request(37.5, 37.51, None, "http_error", status=503)
    found = read(cut, *refused, *fine, unplaced, begin=200.0)
    died = only(found, "container_died")
    # finishedAt 16:19:25Z, one second wide, a second of skew either way; our own cut stream ends the window.
    assert f"container engine on {KILLED} died between 34.9 and {cut.at:.1f} s" in died.text
    assert "exit 137: SIGKILL; who sent it is not known" in died.text
    assert "its endpoint stayed ready until 37.9 s; 3 requests sent to it in that time were lost" in died.text
    assert "1 stream in flight on it was lost" in died.text
    assert "1 more lost then was on no known Pod" in died.text
    assert "Ready again at 40.8 s" in died.text
    assert {cut.id, *(row.id for row in refused)} <= set(died.evidence)
    assert not {row.id for row in (*fine, unplaced)} & set(died.evidence)
    assert died.advice is not None


def test_requests_that_a_gateway_sent_to_a_dead_container_when_its_endpoint_was_out_already() -> None:
    sent = (37.4, 38.2, 38.8)  # out of the endpoints at 37.9, Ready again at 40.8
    lost = [request(at, at + 0.01, KILLED, "http_error", status=503) for at in sent]
    died = only(read(*lost, request(41.0, 41.5, KILLED, "http_error", status=500), begin=200.0), "container_died")
    assert "1 request sent to it in that time was lost; 2 requests sent to it up to 0.9 s after that were lost too" in (
        died.text
    )
    assert {row.id for row in lost} <= set(died.evidence)


def test_the_kubelets_clock_narrows_the_second_in_which_a_container_died() -> None:
    near = rows.Skew(at=30.0, owner="kubelet", reported=ANCHOR + 30.0, resolution=0.0, sent=29.999, received=30.001)
    # 16:19:25Z is 35.935 s of the recording: it died in the second from there on.
    assert "died between 35.9 and 36.9 s" in only(read(near), "container_died").text


def test_a_liveness_probe_that_killed_is_named() -> None:
    event = rows.Event(
        at=36.9, seen="ADDED", name="e", uid="e", version="e1", namespace="demo", reason="Killing", type="Normal",
        message="Container engine failed liveness probe, will be restarted", object_kind="Pod", object_name=KILLED,
        object_uid="4d493fb3-4fce-440d-8bd2-c4d1767dd577", component="kubelet", host="node1",
    )  # fmt: skip
    died = only(read(event), "container_died")
    assert "its kubelet killed it: Container engine failed liveness probe" in died.text
    assert event.id in died.evidence


@pytest.mark.parametrize(
    ("requests", "said"),
    [
        ([], "the process may run on, and streams on it may still complete"),
        (
            [request(41.0, 46.2, FORCED), request(42.0, 45.0, FORCED), request(42.5, 47.0, FORCED, "cut_stream")],
            "its process ran on; 2 requests on it completed up to 3.2 s after the object was gone; 1 on it were lost",
        ),
    ],
    ids=["nothing proves it", "two streams prove it"],
)
def test_the_process_of_a_pod_deleted_by_force_runs_on(requests: list[rows.Request], said: str) -> None:
    found = read(*requests, begin=42.0, end=43.0)
    forced = only(found, "deleted_by_force")
    assert forced.text.startswith(f"{FORCED} was deleted with grace 0, and its object was gone at once")
    assert said in forced.text
    assert {row.id for row in requests} <= set(forced.evidence)
    # Asked politely, a Pod is never called so, not even for the kubelet's own last delete with grace 0.
    assert len([item for item in found.findings if item.code == "deleted_by_force"]) == 1


def test_the_pods_of_a_cut_node_are_not_gone() -> None:
    ran_on = [request(66.0, 79.0, CUT[0]), request(66.5, 78.0, CUT[1])]
    lost = request(68.0, 78.0, CUT[0], "connect_timeout")
    found = read(*ran_on, lost, begin=200.0)
    node = only(found, "node_unreachable")
    assert node.text.startswith("node node2 was not heard of from 76.1 s to 89.2 s (Ready=Unknown, NodeStatusUnknown")
    assert "last heartbeat between 65.9 and 68.9 s" in node.text  # cut at 67.08
    assert f"{', '.join(sorted(CUT, reverse=True))}: marked not Ready, not deleted" in node.text
    assert "out of the endpoints at 76.2 s, Ready again at 92.3 s without being replaced" in node.text
    assert "their processes ran on: 2 requests open meanwhile completed; 1 request on them lost" in node.text
    assert {row.id for row in (*ran_on, lost)} <= set(node.evidence)
    # Neither terminated, nor taken away, nor replaced.
    during = [item for item in found.terminations if item.pod in CUT and (item.requested.high or 0) < 92.4]
    assert during == []
    assert not [item for item in found.disruptions if item.pod in CUT and item.high < 92.4]
    assert found.replacements == []
    # Endpoints went from three to one, and came back.
    assert [point.ready for point in found.ready_endpoints if 75 < point.at < 93] == [2, 1, 2, 3]


def test_a_node_that_stays_cut_is_told_to_the_end() -> None:
    kept = [row for row in kubernetes(until=85.0) if not isinstance(row, rows.Action)]
    node = only(replay(number(kept), SETTINGS), "node_unreachable")
    assert "from 76.1 s to the end of the recording" in node.text
    assert "their processes may have run on" in node.text
    assert "Ready again" not in node.text


def test_a_node_that_was_lost_before_is_said_to_have_been_so() -> None:
    kept = [row for row in kubernetes() if not isinstance(row, rows.Node) or row.name != "node2" or row.at > 76.0]
    node = only(replay(number(kept), SETTINGS), "node_unreachable")
    assert "not heard of from before it was first seen to 89.2 s" in node.text


def test_a_healed_pod_replaces_nobody() -> None:
    # kubelet gives the Ready condition of a healed Pod its old transition time; the Pods were older than the fault.
    target = rows.Target(kind="Pod", name=KILLED, namespace="demo", uid="4d493fb3-4fce-440d-8bd2-c4d1767dd577")
    call: dict[str, Any] = {"call": 900, "action": "evict", "target": target}
    fault = [
        rows.Action(at=75.0, event="sent", **call),
        rows.Action(at=75.01, event="answered", answer="accepted", status=201, ok=True, **call),
    ]
    kept = [row for row in kubernetes(until=92.6) if not isinstance(row, rows.Action)]
    found = replay(number([*kept, *fault]), SETTINGS)
    assert found.replacements == []
    assert found.recovery.missing == [KILLED]


def test_heartbeats_are_no_news() -> None:
    every: list[Row] = []
    lines = (DATA / "k8s-1.37" / "watch-nodes.jsonl").read_text().splitlines()[1:]
    for line in map(msgspec.json.decode, lines):
        if line.get("type", "BOOKMARK") != "BOOKMARK":
            every.append(CONVERTERS["nodes"](line["object"], seen=line["type"], at=line["at"]))
    kept = [row for row in kubernetes() if isinstance(row, rows.Node)]
    assert (len(every), len(kept)) == (176, 20)

    # A recording that has them all shows the same news, but for the first row of each node.
    def news(found: Sequence[Row]) -> list[tuple[str, str | None, bool]]:
        follower = News()
        return [
            (row.name, row.ready, row.unschedulable)
            for row in found
            if isinstance(row, rows.Node) and follower.has(row)
        ]

    assert news([row for row in every if isinstance(row, rows.Node)])[3:] == news(kept)
    whole = [row for row in kubernetes() if not isinstance(row, rows.Node)]
    outage = only(replay(number([*whole, *every]), SETTINGS), "node_unreachable")
    assert outage.text == only(read(), "node_unreachable").text


def test_terminating_pods_that_a_budget_counts_are_no_drift() -> None:
    budgets = [row for row in kubernetes() if isinstance(row, rows.Pdb) and row.name == "chat"]
    most = max(row.expected or 0 for row in budgets)
    assert most > 3  # with an integer minAvailable, expectedPods counts terminating Pods too
    found = read(begin=6.0, end=6.31)
    # The eviction was accepted when the budget allowed one: nothing about budgets is a finding.
    assert not [item for item in found.findings if "budget" in item.code]
    assert found.verdict == "passed"


def test_a_prestop_hook_beyond_the_grace_period() -> None:
    first, second = "slow-d6dc9cbff-4hkpt", "slow-d6dc9cbff-sks7p"
    cut = request(58.9, 65.9, first, "cut_stream", status=200, first_token=59.0)
    found = read(cut, selector="app in (chat, slow)")
    exceeded = only(found, "grace_exceeded", first)
    assert exceeded.severity == "warning"
    # asked at 59.24, grace 3 s; finishedAt 16:19:54Z
    assert (
        "exceeded its grace period of 3 s: engine got SIGKILL (exit 137) 4.7 to 6.8 s after the deletion"
        in exceeded.text
    )
    assert "its preStop hook had not ended by then (FailedPreStopHook)" in exceeded.text
    assert "1 request on it was lost then" in exceeded.text
    assert exceeded.advice == "set terminationGracePeriodSeconds above preStop + drain"
    kinds = {type(row) for row in number(kubernetes()) if row.id in exceeded.evidence}
    assert {rows.Pod, rows.Event} <= kinds
    assert "FailedPreStopHook" in only(found, "grace_exceeded", second).text


def test_without_events_the_cause_of_a_kill_at_the_deadline_is_left_open() -> None:
    pod = "slow-d6dc9cbff-4hkpt"
    kept = [row for row in kubernetes() if not isinstance(row, rows.Event)]
    exceeded = only(replay(number(kept), SETTINGS), "grace_exceeded", pod)
    assert "no Event tells whether its preStop hook or what follows SIGTERM took the time" in exceeded.text
    # With Events, and none about a hook, it was what followed SIGTERM.
    kept = [row for row in kubernetes() if not isinstance(row, rows.Event) or row.reason != "FailedPreStopHook"]
    exceeded = only(replay(number(kept), SETTINGS), "grace_exceeded", pod)
    assert "what was left after SIGTERM was too short" in exceeded.text


def test_a_prestop_hook_that_fails_early_is_another_matter() -> None:
    # The eviction at 6.292 with a hook that fails at once: the Pod ended with exit 0 long before its deadline.
    victim = next(row for row in kubernetes() if isinstance(row, rows.Action) and row.answer == "accepted").target
    event = rows.Event(
        at=6.4, seen="ADDED", name="e", uid="e", version="e1", namespace="demo", reason="FailedPreStopHook",
        type="Warning", object_kind="Pod", object_name=victim.name, object_uid=victim.uid, component="kubelet",
        host="node3", last_time="2026-11-29T16:18:55Z",
    )  # fmt: skip
    found = read(event, begin=6.28, end=6.4)
    failed = only(found, "prestop_failed")
    assert (
        f"the preStop hook of {victim.name} failed 0.1 s after the deletion, long before its grace period"
        in failed.text
    )
    assert event.id in failed.evidence
    assert "grace_exceeded" not in {item.code for item in found.findings if victim.name in item.text}
