"""A drill with one network fault on one replica, made for looking at what a probe sees of it."""

from __future__ import annotations

import statistics
from dataclasses import dataclass
from pathlib import Path

from chaosrunner.timeline import rows
from tests.drills.rehearsal import Rehearsal

DRILL = """
apiVersion: chaosrunner.dev/v1
kind: Drill
metadata: {{name: seen}}
playbook: {playbook}
workload: {{selector: app=model, controller: deployment/model, service: model}}
endpoint: {{pod_header: x-served-by}}
drivers: {{network: {driver}}}
limits: {{max_pods: 1, max_nodes: 1, deadline: 5m}}
lab: {{}}
"""

PLAYBOOK = """
apiVersion: chaosrunner.dev/v1
kind: Playbook
metadata: {{name: seen}}
probes:
  - name: chat
    openai: {{api: completions, max_tokens: {max_tokens}, ignore_eos: true, prompt: "Count from {{{{ nonce }}}}."}}
    load: {{closed: {{concurrency: {concurrency}}}}}
    timeouts: {{first_byte: {silence}, idle: {silence}, token_idle: {silence}}}
steps:
  - baseline: {{for: 3s, until: "success_rate >= 0.99"}}
  - name: fault
    network: {{pods: 1, when: "in_flight(target) >= 1", within: 20s, peer: gateway, {effect}, for: 60s}}
  - name: stand
    hold: {{for: {stand}}}
  - name: heal
    heal: {{step: fault}}
  - hold: {{for: 4s}}
checks:
  - "restarts == 0"
  - "endpoints_back"
"""


@dataclass(frozen=True)
class Asked:
    """`effect`: what the step `network` shall do. `stand`: how long that it stands is looked at, in the step `stand`.
    `silence`: after which a stream counts as lost."""

    effect: str
    driver: str = "ephemeral-container"
    stand: str = "6s"
    concurrency: int = 4
    max_tokens: int = 16
    silence: str = "3s"


def write(folder: Path, asked: Asked) -> Path:
    """Writes the drill and its playbook; returns the drill's path."""
    playbook, drill = folder / "playbook.yaml", folder / "drill.yaml"
    playbook.write_text(PLAYBOOK.format(**vars(asked)))
    drill.write_text(DRILL.format(playbook=playbook, driver=asked.driver))
    return drill


@dataclass
class Seen:
    """Such a drill that has ended."""

    found: Rehearsal

    @property
    def victim(self) -> str:
        """The Pod that was hit."""
        (name,) = {row.target.name for row in self.found.of(rows.Effect)}
        return name

    def span(self, name: str) -> tuple[float, float]:
        """When a step began and ended."""
        at = {row.event: row.at for row in self.found.of(rows.Step) if row.name == name}
        return at["started"], at["ended"]

    def sent(self, since: float, until: float, *, victim: bool) -> list[rows.Request]:
        """Requests sent in a time to the victim, or to all others."""
        some = [row for row in self.found.of(rows.Request) if since <= row.sent < until]
        assert all(row.pod for row in some), "nobody says at whom some were aimed"
        return [row for row in some if (row.pod == self.victim) == victim]

    def before(self, *, victim: bool) -> list[rows.Request]:
        return self.sent(0, self.span("fault")[0], victim=victim)

    def during(self, *, victim: bool) -> list[rows.Request]:
        return self.sent(*self.span("stand"), victim=victim)

    def after(self, *, victim: bool) -> list[rows.Request]:
        return self.sent(self.span("heal")[1], float("inf"), victim=victim)

    def check_added_latency(self, seconds: float) -> None:
        """Holds the median time to first token to what it was before and what was asked for on top, give or take a step
        of the engine (40 tokens a second), as a first token waits for the one that runs, and a few ms for timers."""
        before, during = self.before(victim=True), self.during(victim=True)
        assert min(len(before), len(during)) >= 10
        added = _ttft(during) - _ttft(before)
        assert abs(added - seconds) <= 1 / 40 + 0.005


def _ttft(some: list[rows.Request]) -> float:
    return statistics.median(row.first_token - row.sent for row in some if row.first_token is not None)
