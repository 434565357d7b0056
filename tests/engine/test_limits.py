"""What a plan excluded stays excluded when a step fires, whatever the step includes."""

from __future__ import annotations

from pathlib import Path

import pytest

from chaosrunner.cluster import Cluster
from chaosrunner.cluster.resources import PODS
from chaosrunner.plan.limits import Guard
from chaosrunner.playbook.limits import Limits
from chaosrunner.timeline import rows
from tests.engine import drills
from tests.engine.lab import Lab


def test_a_pod_that_the_limits_exclude_is_not_taken_as_a_replacement(lab: Lab, tmp_path: Path) -> None:
    async def mark(cluster: Cluster) -> list[str]:
        pods = sorted((await cluster.list(PODS, lab.namespace, label_selector="app=model")).items, key=_age)
        names = [str(pod["metadata"]["name"]) for pod in pods]
        for name, tier in zip(names, ("forbidden", "allowed"), strict=True):
            body = {"metadata": {"labels": {"tier": tier}}}
            await cluster.request(
                "PATCH", PODS.path(lab.namespace, name), body=body, content_type="application/merge-patch+json"
            )
        return names

    forbidden, allowed = lab.ask(mark)
    evict = {"evict": {"pods": 1, "including": "replacements", "pick": "oldest"}}
    limits = {"max_pods": 2, "labels": "tier!=forbidden"}
    drill = drills.write(tmp_path, lab, [drills.BASELINE, evict], limits=limits)
    ran = drills.run(drill, lab, tmp_path)
    sent = [row.target.name for row in ran.of(rows.Action) if row.event == "sent"]
    assert forbidden not in sent
    assert sent == [allowed]


def _age(pod: dict[str, dict[str, str]]) -> tuple[str, str]:
    return pod["metadata"]["creationTimestamp"], pod["metadata"]["name"]


@pytest.mark.parametrize(
    ("nodes", "over"), [({"n1"}, False), ({"n1", "n2"}, False), ({"n1", "n2", "n3"}, True)], ids=["one", "two", "three"]
)
def test_nodes_cordoned_at_once_are_limited(nodes: set[str], over: bool) -> None:
    guard = Guard(Limits(max_nodes=2), "demo", 3)
    assert (guard.too_many_nodes(nodes) is not None) == over
