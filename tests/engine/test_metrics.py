"""Live metrics of a drill: the same counts as in its recording, and no part in how it ends."""

from __future__ import annotations

import urllib.request
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families

from chaosrunner.analysis import Live
from chaosrunner.cli.metrics import Measured
from chaosrunner.metrics import Metrics
from chaosrunner.timeline import rows
from tests.engine import drills
from tests.engine.drills import BASELINE, hold
from tests.engine.lab import Lab

pytestmark = pytest.mark.lab

EVICT = {"evict": {"pods": 1}}


def test_they_count_what_the_recording_holds(lab: Lab, tmp_path: Path) -> None:
    drill = drills.write(tmp_path, lab, [BASELINE, EVICT, hold(0.5)])
    with Metrics.at("0") as metrics:
        ran = drills.run(drill, lab, tmp_path, measure=Measured(metrics).follow)
        with urllib.request.urlopen(metrics.url, timeout=5) as answer:
            families = {family.name: family for family in text_string_to_metric_families(answer.read().decode())}
    counts = {s.labels["outcome"]: s.value for s in families["chaosrunner_requests"].samples if s.value}
    assert counts == ran.facts.outcomes["all"]
    (ttft,) = (s.value for s in families["chaosrunner_ttft_seconds"].samples if s.name.endswith("_count"))
    assert ttft == ran.facts.latency["ttft"]["all"].n
    (gaps,) = (s.value for s in families["chaosrunner_chunk_gap_seconds"].samples if s.name.endswith("_count"))
    assert gaps == ran.facts.latency["chunk_gap"]["all"].n
    (info,) = families["chaosrunner_run_info"].samples
    assert info.labels == {"drill": ran.facts.run.drill, "run": ran.facts.run.id}
    (evicted,) = families["chaosrunner_actions"].samples
    assert (evicted.labels["action"], evicted.labels["answer"], evicted.value) == ("evict", "accepted", 1)


def test_metrics_that_fail_do_not_disturb_the_run(lab: Lab, tmp_path: Path) -> None:
    def measure(live: Live) -> rows.Emit:
        def fail(row: rows.Row) -> None:
            raise RuntimeError("a bug")

        return fail

    drill = drills.write(tmp_path, lab, [BASELINE, hold(0.2)])
    ran = drills.run(drill, lab, tmp_path, measure=measure)
    assert (ran.facts.verdict, ran.steps()[-1]) == ("passed", ("hold", "ok"))
