"""Load shapes in a whole drill on the lab: what the cap forbids counts, what we cancel does not."""

from __future__ import annotations

import json
import resource
from pathlib import Path

import pytest

from chaosrunner.errors import UserError
from chaosrunner.playbook import load_drill
from chaosrunner.probes.descriptors import make_room
from chaosrunner.timeline import manifest, rows
from tests.engine import drills
from tests.engine.lab import Lab

# 64 tokens at 200 a second take 0.3 s: 10 a second have 3 in flight, and 40 a second would have 13.
SLOW = {"max_tokens": 64, "ignore_eos": True, "prompt": "Count from {{ nonce }}."}


def test_what_the_cap_forbids_counts_against_the_service(lab: Lab, tmp_path: Path) -> None:
    stages = [{"rps": 10, "for": "1500ms"}, {"rps": 40, "for": "1s"}]
    load = {"open": {"stages": stages, "arrivals": "constant", "max_in_flight": 6}}
    probe = {"openai": SLOW, "load": load}
    drill = drills.write(
        tmp_path, lab, [{"baseline": {"for": "1s", "until": "success_rate >= 0.9"}}, drills.hold(2)],
        probe=probe, playbook={"checks": ["success_rate >= 99%", "outcome(not_sent) == 0"]},
    )  # fmt: skip
    ran = drills.run(drill, lab, tmp_path)
    assert ran.facts == ran.live
    chat = ran.facts.scheduled["chat"]
    assert chat.not_sent >= 10
    refused = [row for row in ran.of(rows.Request) if row.outcome == "not_sent"]
    assert len(refused) == chat.not_sent == ran.facts.outcomes["all"]["not_sent"]
    sent = {row.request for row in ran.of(rows.RequestSent)}
    assert not sent & {row.request for row in refused}
    assert chat.planned == len(sent) + len(refused)
    assert ran.facts.success_rate["all"].total == len(sent) + len(refused)
    assert ran.facts.success_rate["all"].successes == len(sent)
    assert ran.facts.throughput.in_flight_max <= 6
    assert ran.facts.verdict in ("failed", "inconclusive")  # the latter where this machine stood still meanwhile
    assert [check.verdict for check in ran.facts.checks] == ["failed", "failed"]
    assert "in_flight_cap" in {finding.code for finding in ran.facts.findings}
    # The last rate goes on until the steps are over, and nothing is sent later.
    schedule = [row.scheduled for row in ran.of(rows.Request) if row.scheduled is not None]
    draining = next(row.at for row in ran.of(rows.Run) if row.event == "draining")
    assert draining - 0.5 < max(schedule) <= draining
    assert all(row.scheduled is not None and row.at >= row.scheduled for row in ran.of(rows.RequestSent))
    (described,) = manifest.read(ran.folder).probes
    assert described.load == (
        "open loop, at equal distances: 10/s for 1.5s, 40/s for 1s, then on at 40/s; at most 6 in flight"
    )
    assert ran.facts.recovery.measured_under == f"chat: {described.load}"
    _, said, _ = drills.invoke("report", str(ran.folder))
    assert "ttft, ttft_answer and e2e of chat count from the scheduled time (open loop)" in said
    assert f"{chat.not_sent} of {chat.planned} planned requests of chat" in " ".join(said.split())


def test_cancelled_streams_are_in_no_rate(lab: Lab, tmp_path: Path) -> None:
    probe = {"openai": SLOW, "cancel_after": {"chunks": 5, "share": "50%"}, "load": {"closed": {"concurrency": 3}}}
    steps = [{"baseline": {"for": "1s", "until": "success_rate >= 0.9"}}, drills.hold(1.5)]
    ran = drills.run(drills.write(tmp_path, lab, steps, probe=probe), lab, tmp_path)
    requests = ran.of(rows.Request)
    cancelled = [row for row in requests if row.outcome == "cancelled"]
    assert len(cancelled) >= 3
    assert all(row.cancel_planned and row.content_chunks >= 5 and row.tokens is None for row in cancelled)
    assert {row.outcome for row in requests if not row.cancel_planned} == {"complete"}
    assert ran.facts.success_rate["all"].total == len(requests) - len(cancelled)
    assert ran.facts.verdict == "passed"


def test_the_plan_tells_the_load(lab: Lab, tmp_path: Path) -> None:
    load = {"open": {"stages": [{"rps": 0, "to": 8, "for": "1m"}, {"rps": 0, "for": "5s"}]}}
    probe = {"load": load, "cancel_after": {"time": "2s"}}
    drill = drills.write(tmp_path, lab, [drills.BASELINE], probe=probe)
    code, out, _ = drills.invoke("plan", str(drill), "--kubeconfig", lab.kubeconfig, "-o", "json")
    assert code == 0
    text = "open loop, Poisson arrivals: 0/s to 8/s for 1m, 0/s for 5s; at most 256 in flight; 100 % cancelled after 2s"
    assert json.loads(out)["probes"] == [{"name": "chat", "text": text}]
    _, out, _ = drills.invoke("plan", str(drill), "--kubeconfig", lab.kubeconfig)
    assert f"chat: {text}" in " ".join(out.split())
    assert load_drill(str(drill)).playbook.probes[0].load.most_in_flight == 256


def test_descriptors_are_asked_for_before_anything_is_sent() -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (256, hard))
        make_room(64)
        assert resource.getrlimit(resource.RLIMIT_NOFILE)[0] == 256
        make_room(400)
        assert resource.getrlimit(resource.RLIMIT_NOFILE)[0] == 528
        with pytest.raises(UserError, match=f"allows this process {hard}; raise the limit"):
            make_room(10 * hard)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
