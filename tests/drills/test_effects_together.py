"""Two effects of one drill on the network of one replica, in a whole run on the embedded lab."""

from __future__ import annotations

from pathlib import Path

import pytest

from chaosrunner.timeline import rows
from tests.drills.rehearsal import rehearse

DRILL = """
apiVersion: chaosrunner.dev/v1
kind: Drill
metadata: {name: together}
playbook: ./playbook.yaml
workload: {selector: app=model, controller: deployment/model, service: model}
endpoint: {pod_header: x-served-by}
drivers: {network: toxiproxy}
limits: {max_pods: 1, deadline: 2m}
lab: {nodes: 1, replicas: 1, startup: 200ms}
"""

PLAYBOOK = """
apiVersion: chaosrunner.dev/v1
kind: Playbook
metadata: {name: together}
probes:
  - name: chat
    openai: {api: completions, max_tokens: 8, prompt: "Count from {{ nonce }}."}
steps:
  - baseline: {for: 1s}
  - name: delay
    network: {pods: 1, latency: 100ms, for: 60s}
  - name: narrow
    network: {pods: 1, rate: 1mbit, for: 60s}
  - hold: {for: 1s}
  - heal: {step: delay}
  - hold: {for: 1s}
"""


@pytest.mark.lab
def test_each_bites_and_each_is_ended_by_itself(tmp_path: Path) -> None:
    (tmp_path / "playbook.yaml").write_text(PLAYBOOK)
    (tmp_path / "drill.yaml").write_text(DRILL)
    found = rehearse(str(tmp_path / "drill.yaml"), tmp_path / "timelines")
    assert found.facts.verdict == "passed", found.facts.reason
    answered = [row for row in found.of(rows.Action) if row.event == "answered" and "toxic" in row.action]
    added = ["add_toxic_latency", "add_toxic_bandwidth", "add_toxic_bandwidth"]  # a rate is for both directions
    assert [row.action for row in answered] == [*added, *["remove_toxic"] * 3]
    assert [row.event for row in found.of(rows.Effect)] == ["bitten", "bitten", "healed", "healed"]
