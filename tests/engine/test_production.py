"""What a drill in production needs beyond a yes, and what no drill touches by accident."""

from __future__ import annotations

import os
import pty
from pathlib import Path
from typing import Any

import pytest

from chaosrunner.plan.limits import Guard, protected
from chaosrunner.playbook.limits import Limits
from tests.engine import drills
from tests.engine.drills import BASELINE, hold
from tests.engine.lab import Lab
from tests.engine.test_endings import CORDON

ALLOWED = {"max_nodes": 3, "allow_until_undone": ["cordon"]}


@pytest.mark.lab
def test_a_production_drill_runs_only_where_somebody_names_its_cluster(lab: Lab, tmp_path: Path) -> None:
    drill = drills.write(tmp_path, lab, [BASELINE, CORDON, hold(0.2)], production=True, limits=ALLOWED)
    flags = ["--kubeconfig", lab.kubeconfig, "--timelines", str(tmp_path / "t"), "--yes"]
    code, _, err = drills.invoke("run", str(drill), *flags)
    assert (code, err.splitlines()[-1].endswith("nobody is there to name its cluster: give --cluster NAME")) == (
        6,
        True,
    )
    code, _, err = drills.invoke("run", str(drill), *flags, "--cluster", "staging")
    assert code == 6
    assert "this is a production drill on cluster lab, not on staging" in err
    assert not (tmp_path / "t").exists()
    assert lab.leases() == []
    code, _, err = drills.invoke("run", str(drill), *flags, "--cluster", "lab")
    assert code == 0, err


@pytest.mark.lab
@pytest.mark.parametrize(("typed", "code"), [pytest.param(b"lab\n", 0, marks=pytest.mark.slow), (b"staging\n", 6)])
def test_the_clusters_name_can_be_typed(typed: bytes, code: int, lab: Lab, tmp_path: Path) -> None:
    drill = drills.write(tmp_path, lab, [BASELINE, hold(0.2)], production=True)
    mine, theirs = pty.openpty()
    process = drills.start(drill, lab.kubeconfig, tmp_path, stdin=theirs)
    os.write(mine, typed)
    _, said = process.communicate(timeout=60)
    os.close(mine)
    os.close(theirs)
    assert (process.returncode, "Name its cluster to run it:" in said) == (code, True), said


@pytest.mark.lab
@pytest.mark.parametrize(("limits", "refused"), [({"max_nodes": 3}, True), (ALLOWED, False)])
def test_in_production_what_stays_until_undone_is_allowed_by_name(
    limits: dict[str, Any], refused: bool, lab: Lab, tmp_path: Path
) -> None:
    drill = drills.write(tmp_path, lab, [BASELINE, CORDON, hold(0.2)], production=True, limits=limits)
    code, out, _ = drills.invoke("plan", str(drill), "--kubeconfig", lab.kubeconfig)
    assert (code, "name cordon in limits.allow_until_undone" in out) == (6 if refused else 0, refused)


@pytest.mark.parametrize(
    ("namespace", "named", "off_limits"),
    [
        ("kube-system", None, True),
        ("kube-public", ["demo"], True),
        ("openshift-monitoring", None, True),
        ("kube-system", ["kube-system"], False),
        ("demo", None, False),
    ],
)
def test_namespaces_of_the_cluster_itself_are_protected_unless_they_are_named(
    namespace: str, named: list[str] | None, off_limits: bool
) -> None:
    limits = Limits(namespaces=named)
    pod = {"metadata": {"name": "p", "namespace": namespace}}
    assert (protected(namespace, limits) is not None) == off_limits
    assert (Guard(limits, namespace, 1).off_limits(pod) is not None) == off_limits
