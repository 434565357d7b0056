"""Probes of single replicas in whole drills on the lab, beside the gateway's."""

from __future__ import annotations

import json
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from chaosrunner.timeline import manifest, rows
from chaosrunner.timeline.outcomes import SUCCESSES
from tests.engine import drills
from tests.engine.lab import Lab

OPENAI = {"max_tokens": 16, "ignore_eos": True, "prompt": "Count from {{ nonce }}."}
CHAT = {"name": "chat", "openai": OPENAI, "load": {"closed": {"concurrency": 3}}}
DIRECT = {
    "name": "direct",
    "target": "replicas",
    "openai": OPENAI,
    "load": {"closed": {"concurrency": 1, "pause": "50ms"}},
    "connection": "new",
}
EVICT: drills.Step = {"evict": {"pods": 1, "when": "in_flight(target) >= 1"}}
PROPAGATION_DELAY = 0.1
"""Of the lab's gateway, seconds."""
KEPT_BACK = 0.5
"""Seconds that a busy machine may keep back what everybody agrees on."""


def said(lab: Lab, anchor: float) -> dict[tuple[str, str], float]:
    """By UID and what happened: when the lab's own log says it first, on the recording's clock."""
    found: dict[tuple[str, str], float] = {}
    for line in Path(lab.log).read_text().splitlines():
        row = json.loads(line)
        found.setdefault((row.get("uid"), row["what"]), row["wall"] - anchor)
    return found


def run(lab: Lab, tmp_path: Path, steps: list[drills.Step], *checks: Any, **direct: Any) -> drills.Ran:
    playbook = {"probes": [CHAT, DIRECT | direct], "checks": list(checks)}
    ran = drills.run(drills.write(tmp_path, lab, steps, playbook=playbook), lab, tmp_path)
    assert ran.facts == ran.live
    return ran


@pytest.mark.parametrize("workers", [pytest.param(1, marks=pytest.mark.slow), 2])
def test_a_replacement_joins_and_the_victim_leaves(lab: Lab, tmp_path: Path, workers: int) -> None:
    before = lab.pods()
    load = {"closed": {"concurrency": workers, "pause": "50ms"}}
    ran = run(
        lab, tmp_path,
        [{"baseline": {"for": "3s"}}, EVICT, {"wait": {"until": "replacement.warm", "timeout": "30s"}}, drills.hold(1)],
        "success_rate >= 50%", "routing_delay <= 20s",
        {"check": "incomplete_200 == 0", "probe": "direct"},
        workers=workers, load=load,
    )  # fmt: skip
    (probe,) = ran.facts.direct
    by_role = {replica.role: replica for replica in probe.replicas}
    victim, fresh = by_role["victim"], by_role["replacement"]
    assert {replica.uid for replica in probe.replicas} == {*before.values(), fresh.uid}
    requests = ran.of(rows.Request)
    direct = [row for row in requests if row.probe == "direct"]
    # The lab's own log: the replacement's first request was one that no gateway sent, and the gateway came after it had
    # heard of the endpoint, and not before.
    log = said(lab, manifest.read(ran.folder).anchor)
    assert fresh.served.at is not None
    assert fresh.routed.at is not None
    assert fresh.served.at == pytest.approx(log[fresh.uid, "first_request"], abs=KEPT_BACK)
    acted = log[fresh.uid, "endpoint_ready"] + PROPAGATION_DELAY
    assert acted - 0.05 <= fresh.routed.at <= acted + 2 * KEPT_BACK
    assert fresh.routing_delay.value == fresh.routed.at - fresh.served.at
    # No request before it listened, though it had an address: the port is closed until then.
    mine = [row for row in direct if row.replica == fresh.uid]
    assert {row.outcome for row in mine} <= SUCCESSES
    assert min(row.sent for row in mine) >= log[fresh.uid, "started"]
    # The victim is asked until it is gone, and nothing is sent to it after that.
    gone = log[victim.uid, "deleted"]
    last = max(row.sent for row in direct if row.replica == victim.uid)
    assert log[victim.uid, "terminated"] - KEPT_BACK <= last <= gone + KEPT_BACK
    assert {row.outcome for row in direct if row.replica == victim.uid} - SUCCESSES <= {
        "connect_refused", "connect_reset", "no_response", "http_error",
    }  # fmt: skip
    # None of it is the service's, but for the requests that found a replica by the gateway.
    assert ran.facts.success_rate["all"].total == len([row for row in requests if row.probe == "chat" and not row.once])
    assert sum(probe.outcomes["all"].values()) + probe.early == len(direct)
    assert {check.verdict for check in ran.facts.checks} == {"passed"}
    assert len({row.request for row in direct}) == len(direct)
    if workers == 2:
        assert {row.probe for row in ran.of(rows.Worker)} == {"direct"}
    events = [(row.replica, row.event) for row in ran.of(rows.Replica)]
    assert len(events) == len(set(events)) == 9
    _, text, _ = drills.invoke("report", str(ran.folder))
    assert "Replicas, asked directly by direct" in text
    assert "routing delay" in text


def test_an_open_loop_for_each_replica(lab: Lab, tmp_path: Path) -> None:
    load = {"open": {"stages": [{"rps": 10, "for": "10s"}], "arrivals": "constant"}}
    ran = run(lab, tmp_path, [drills.BASELINE, drills.hold(1)], load=load)
    (probe,) = ran.facts.direct
    assert len(probe.replicas) == 2
    planned = [row for row in ran.of(rows.RequestSent) if row.probe == "direct"]
    for replica in probe.replicas:
        mine = [row.scheduled for row in planned if row.replica == replica.uid]
        assert len(mine) == replica.requests >= 8
        gaps = {round(late - early, 3) for early, late in pairwise(mine) if early and late}
        assert gaps == {0.1}
    assert ran.facts.scheduled.keys() == {"direct"}
    assert ran.facts.throughput.in_flight_max <= 3  # the service's own


def test_the_manifest_and_the_plan_tell_whom_a_probe_asks(lab: Lab, tmp_path: Path) -> None:
    drill = drills.write(tmp_path, lab, [drills.BASELINE], playbook={"probes": [CHAT, DIRECT]})
    code, out, _ = drills.invoke("plan", str(drill), "--kubeconfig", lab.kubeconfig, "-o", "json")
    assert code == 0
    each = "each replica: closed loop, 1 in flight, 50ms between an answer and the next request"
    assert json.loads(out)["probes"][1] == {"name": "direct", "text": each}
    ran = drills.run(drill, lab, tmp_path)
    assert [probe.target for probe in manifest.read(ran.folder).probes] == ["endpoint", "replicas"]


def test_a_port_that_no_replica_listens_on_is_told_before_the_run(lab: Lab, tmp_path: Path) -> None:
    endpoint = {"url": lab.url, "pod_header": "x-served-by", "replicas": {"port": "grpc"}}
    drill = drills.write(tmp_path, lab, [drills.BASELINE], playbook={"probes": [CHAT, DIRECT]}, endpoint=endpoint)
    code, _, errors = drills.invoke("run", str(drill), "--yes", "--kubeconfig", lab.kubeconfig)
    assert code == 6
    assert "Service model has no port named grpc; it has http" in " ".join(errors.split())


def test_a_probe_alone_has_no_replicas(lab: Lab, tmp_path: Path) -> None:
    drill = drills.write(tmp_path, lab, [drills.BASELINE], playbook={"probes": [CHAT, DIRECT]})
    code, _, errors = drills.invoke("probe", "--drill", str(drill), "--probe", "direct", "-d", "1s")
    assert code == 2
    assert "probe direct goes to the replicas, whose addresses only a cluster tells" in " ".join(errors.split())
