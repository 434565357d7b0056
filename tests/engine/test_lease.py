"""One drill on a target at a time."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from typing import Any

import anyio
import pytest

from chaosrunner.cluster import ClusterConfig, connect
from chaosrunner.cluster.lease import Lease
from chaosrunner.cluster.resources import LEASES
from chaosrunner.engine import Options, prepare, run_drill
from chaosrunner.errors import Refused
from chaosrunner.playbook import load_drill
from chaosrunner.timeline import rows
from chaosrunner.timeline.clock import Clock
from tests.engine import drills
from tests.engine.drills import BASELINE, hold
from tests.engine.lab import Lab
from tests.engine.proxy import Proxy
from tests.engine.test_endings import CORDON

pytestmark = pytest.mark.lab


def held_by(holder: str, lease: dict[str, Any]) -> dict[str, Any]:
    """The Lease as somebody else has it who took it a moment ago."""
    later = datetime.now(UTC) + timedelta(seconds=1)
    spec = {"holderIdentity": holder, "renewTime": later.strftime("%Y-%m-%dT%H:%M:%S.%fZ")}
    return {**lease, "spec": {**lease["spec"], **spec}}


def test_a_second_runner_is_refused_and_told_who_holds_the_target(lab: Lab, tmp_path: Path) -> None:
    drill = drills.write(tmp_path, lab, [BASELINE, hold(1.5)])
    started = anyio.Event()
    refused: list[Refused] = []

    def on_row(row: rows.Row) -> None:
        if isinstance(row, rows.Run) and row.event == "baseline_accepted":
            started.set()

    async def second() -> None:
        await started.wait()
        config = ClusterConfig(kubeconfig=lab.kubeconfig, context=lab.context, namespace=lab.namespace)
        options = Options(timelines=tmp_path / "second", signals=False)
        with pytest.raises(Refused) as error:
            await run_drill(load_drill(str(drill)), config, options)
        refused.append(error.value)

    ran = drills.run(drill, lab, tmp_path, on_row=on_row, beside=second)
    assert ran.facts.verdict == "passed"
    (error,) = refused
    assert error.exit_code == 6
    said = str(error)
    assert f"another drill is running on this target: run {ran.folder.name} holds its lease since 2" in said
    assert re.search(r"renewed it at 2\S+Z, and loses it at 2\S+Z if it does not again \(chaosrunner-", said)
    assert not (tmp_path / "second").exists()
    assert lab.leases() == []  # released at the end, and not by the second runner


def test_a_lease_that_somebody_else_is_seen_holding_aborts(
    lab: Lab, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(prepare, "Lease", partial(Lease, duration=1.0))
    drill = drills.write(tmp_path, lab, [BASELINE, CORDON, hold(20)])
    before = lab.nodes()

    async def take() -> None:
        await anyio.sleep(1.0)
        async with connect(ClusterConfig(kubeconfig=lab.kubeconfig, context=lab.context), Clock()) as cluster:
            while True:
                (lease,) = (await cluster.list(LEASES, lab.namespace)).items
                if (await cluster.replace(LEASES, held_by("somebody", lease), lab.namespace)).ok:
                    return

    ran = drills.run(drill, lab, tmp_path, beside=take)
    assert (ran.facts.verdict, ran.facts.reason) == ("aborted", "lease lost: held by somebody")
    assert lab.nodes() == before
    assert [lease["spec"]["holderIdentity"] for lease in lab.leases()] == ["somebody"]  # theirs is left alone


def test_no_fault_starts_while_the_lease_cannot_be_confirmed(
    lab: Lab, proxy: Proxy, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its renewals hang, so nobody has said that it is lost: it is as good as not held all the same."""
    monkeypatch.setattr(prepare, "Lease", partial(Lease, duration=0.6))
    monkeypatch.setattr("chaosrunner.engine.run.PATIENCE", 1.0)
    drill = drills.write(tmp_path, lab, [BASELINE, hold(1), CORDON])
    before = lab.nodes()

    def on_row(row: rows.Row) -> None:
        if isinstance(row, rows.Run) and row.event == "baseline_accepted":
            proxy.delays.append(("PUT", "/leases/", 3.0))

    ran = drills.run(drill, lab, tmp_path, kubeconfig=proxy.kubeconfig, on_row=on_row, request_timeout=2.0)
    assert ran.facts.verdict == "inconclusive"
    assert "the lease on the target cannot be confirmed" in ran.facts.reason
    assert ran.of(rows.Action) == []
    assert lab.nodes() == before


def test_after_a_partition_only_one_of_two_runners_goes_on(
    lab: Lab, proxy: Proxy, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ours cannot be renewed, so it runs out and another takes it; when we are back we see that, undo, and leave it."""
    monkeypatch.setattr(prepare, "Lease", partial(Lease, duration=1.0))
    monkeypatch.setattr("chaosrunner.cluster.lease.GRACE", 0.5)
    drill = drills.write(tmp_path, lab, [BASELINE, CORDON, hold(1), {"evict": {"pods": 1}}])
    before, pods = lab.nodes(), lab.pods()
    cut = anyio.Event()

    def on_row(row: rows.Row) -> None:
        if isinstance(row, rows.Step) and (row.step, row.event) == ("hold", "started"):
            proxy.cut()
            cut.set()

    async def other() -> None:
        await cut.wait()
        async with connect(ClusterConfig(kubeconfig=lab.kubeconfig, context=lab.context), Clock()) as cluster:
            (held,) = (await cluster.list(LEASES, lab.namespace)).items
            theirs = Lease(
                cluster=cluster, namespace=lab.namespace, name=held["metadata"]["name"], holder="other", duration=1.0
            )
            while await theirs.acquire():  # noqa: ASYNC110  ours runs out, which nobody tells
                await anyio.sleep(0.1)
            proxy.restore()
            await theirs.keep()

    ran = drills.run(drill, lab, tmp_path, kubeconfig=proxy.kubeconfig, on_row=on_row, beside=other)
    assert (ran.facts.verdict, ran.facts.reason) == ("aborted", "lease lost: held by other")
    assert [row.action for row in ran.of(rows.Action) if row.event == "sent"] == ["cordon", "undo_cordon"]
    assert (lab.nodes(), lab.pods()) == (before, pods)
    assert [lease["spec"]["holderIdentity"] for lease in lab.leases()] == ["other"]
