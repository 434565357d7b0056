"""What a run leaves behind that is killed, interrupted, or can no longer write: nothing, at the latest by recover."""

from __future__ import annotations

import json
import os
import re
import resource
import signal
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path

import anyio
import pytest

from chaosrunner.cluster import Cluster, ClusterConfig, connect
from chaosrunner.cluster.resources import NODES
from chaosrunner.timeline import rows
from chaosrunner.timeline.clock import Clock
from tests.engine import drills
from tests.engine.drills import BASELINE, hold
from tests.engine.lab import Lab, wait_for
from tests.engine.proxy import Proxy
from tests.engine.test_endings import CORDON, cordon_ended, cordoned

pytestmark = pytest.mark.lab


@pytest.fixture
def operators_node(lab: Lab) -> Iterator[str]:
    """A node of the workload that an operator has cordoned before."""
    node = lab.workload_nodes()[0]
    lab.cordon(node)
    yield node
    lab.cordon(node, False)


def cordon_recorded(timelines: Path) -> bool:
    return any(cordon_ended(row) for row in drills.recorded(timelines))


def test_recover_restores_what_a_killed_run_left_and_only_that(lab: Lab, tmp_path: Path, operators_node: str) -> None:
    # litmuschaos/litmus-go#520, chaostoolkit/chaostoolkit#176: a node stays cordoned when the tool goes first.
    baseline = {"baseline": {"for": "200ms", "until": "requests >= 2 and in_flight >= 2", "timeout": "5s"}}
    cordon = {"cordon": {"nodes": "all", "of": "workload"}}
    drill = drills.write(tmp_path, lab, [baseline, cordon, hold(60)], max_tokens=200)
    before = lab.nodes()
    process = drills.start(drill, lab.kubeconfig, tmp_path)
    wait_for(lambda: cordon_recorded(tmp_path))
    drills.kill_with_guardian(process)
    left = lab.cordoned()
    assert operators_node in left
    assert len(left) == 2
    (lease,) = lab.leases()

    code, out, err = drills.invoke("recover", "--yes", "--timelines", str(tmp_path), "-o", "json")
    assert (code, err) == (0, "")
    assert [(result["state"], result["target"]["name"]) for result in json.loads(out)] == [
        *(("undone", name) for name in left if name != operators_node),
        ("undone", lease["metadata"]["name"]),
    ]
    assert lab.leases() == []
    assert lab.nodes() == before
    assert lab.cordoned() == [operators_node]

    code, out, _ = drills.invoke("recover", "--yes", "--timelines", str(tmp_path), "-o", "json")
    assert (code, json.loads(out)) == (0, [])
    assert lab.nodes() == before

    code, out, _ = drills.invoke("report", "latest", "--timelines", str(tmp_path), "-o", "json")
    facts = json.loads(out)
    assert code == 0
    assert facts["run"]["state"] == "crashed"
    assert facts["verdict"] == "inconclusive"
    assert len(facts["unfinished"]) == 2  # both users' streams, cut by our own death
    rate = facts["success_rate"]["all"]
    assert rate["total"] == rate["successes"] == sum(facts["outcomes"]["all"].values()) - 2

    code, out, _ = drills.invoke("runs", "list", "--timelines", str(tmp_path), "-o", "json")
    assert [(run["state"], run["verdict"]) for run in json.loads(out)] == [("crashed", None)]


def test_sigterm_aborts_undoes_and_still_reports(lab: Lab, tmp_path: Path) -> None:
    # chaostoolkit/chaostoolkit#195, #258: SIGTERM ended the tool without its rollbacks.
    drill = drills.write(tmp_path, lab, [BASELINE, CORDON, hold(60)])
    before = lab.nodes()
    process = drills.start(drill, lab.kubeconfig, tmp_path, "-o", "json")
    wait_for(lambda: cordon_recorded(tmp_path))
    process.terminate()
    out, err = process.communicate(timeout=60)
    assert process.returncode == 4, err
    assert "Traceback" not in err
    facts = json.loads(out)
    assert (facts["verdict"], facts["reason"]) == ("aborted", "signal SIGTERM")
    assert facts["unfinished"] == []
    assert facts["success_rate"]["all"]["value"] == 1
    assert len(list(tmp_path.glob("small/*/report.json"))) == 1
    assert lab.nodes() == before
    assert lab.leases() == []


def test_a_second_signal_does_not_wait_for_the_streams(lab: Lab, tmp_path: Path) -> None:
    baseline = {"baseline": {"for": "200ms", "until": "in_flight >= 2", "timeout": "5s"}}
    drill = drills.write(tmp_path, lab, [baseline, CORDON, hold(60)], max_tokens=1900)
    before = lab.nodes()
    process = drills.start(drill, lab.kubeconfig, tmp_path, "-o", "json")
    wait_for(lambda: cordon_recorded(tmp_path))
    process.send_signal(signal.SIGHUP)  # the terminal is gone: an abort as well
    wait_for(lambda: any(isinstance(r, rows.Run) and r.event == "draining" for r in drills.recorded(tmp_path)))
    assert lab.nodes() == before  # undone before the streams have ended
    assert process.poll() is None
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=60)
    assert process.returncode == 4, err
    facts = json.loads(out)
    assert facts["outcomes"]["all"] == {"cancelled": 2}
    assert facts["success_rate"]["all"]["total"] == 0
    assert facts["unfinished"] == []


def test_a_second_signal_does_not_wait_for_an_api_server_that_is_away(lab: Lab, proxy: Proxy, tmp_path: Path) -> None:
    """The first one would wait until the drill's deadline, an hour from now."""
    drill = drills.write(tmp_path, lab, [BASELINE, CORDON, hold(60)])
    assert proxy.kubeconfig is not None
    process = drills.start(drill, proxy.kubeconfig, tmp_path, "-o", "json")
    wait_for(lambda: cordon_recorded(tmp_path))
    (node,) = lab.cordoned()
    proxy.cut()
    process.terminate()
    wait_for(lambda: any(isinstance(r, rows.Run) and r.event == "aborting" for r in drills.recorded(tmp_path)))
    with pytest.raises(subprocess.TimeoutExpired):
        process.communicate(timeout=2)
    process.terminate()
    out, err = process.communicate(timeout=60)
    assert process.returncode == 5, err
    assert f"patch node {node} --type=merge" in err
    assert json.loads(out)["reason"] == f"cordon of {node} could not be undone"


def test_an_abort_in_the_middle_of_a_change_waits_for_its_answer(lab: Lab, proxy: Proxy, tmp_path: Path) -> None:
    """The patch is on its way for half a second: an undo that looked in between would find nothing to do."""
    drill = drills.write(tmp_path, lab, [BASELINE, CORDON, hold(20)])
    proxy.delays.append(("PATCH", "/nodes/", 0.6))
    stop = tmp_path / "stop"
    before = lab.nodes()

    def on_row(row: rows.Row) -> None:
        if isinstance(row, rows.Action) and row.event == "sent" and row.action == "cordon":
            stop.touch()

    ran = drills.run(drill, lab, tmp_path, kubeconfig=proxy.kubeconfig, on_row=on_row, stop_file=stop)
    wait_for(lambda: lab.nodes() == before, 2)
    assert ran.facts.verdict == "aborted"
    assert ran.steps() == [("baseline", "ok"), ("cordon", "aborted"), ("hold", "skipped")]
    assert ran.journal() == ["intent", "applied", "undone"]
    calls = [(row.action, row.event, row.ok) for row in ran.of(rows.Action)]
    assert calls == [("cordon", "sent", None), ("cordon", "answered", True),
                     ("undo_cordon", "sent", None), ("undo_cordon", "answered", True)]  # fmt: skip


def test_a_node_that_is_gone_counts_as_undone(lab: Lab, tmp_path: Path) -> None:
    # chaos-mesh/chaos-mesh#4827: the target vanished before the rollback.
    async def add(cluster: Cluster) -> None:
        taint = {"key": "nobody", "effect": "NoSchedule"}
        body = {"apiVersion": "v1", "kind": "Node", "metadata": {"name": "brief"}, "spec": {"taints": [taint]}}
        assert (await cluster.create(NODES, body)).ok

    async def remove(cluster: Cluster) -> None:
        await cluster.delete(NODES, "brief")

    async def remove_cordoned() -> None:
        while not done.is_set():  # noqa: ASYNC110  a threading event, set by a row
            await anyio.sleep(0.02)
        async with connect(ClusterConfig(kubeconfig=lab.kubeconfig, context=lab.context), Clock()) as cluster:
            await remove(cluster)

    done = threading.Event()
    lab.ask(add)
    try:
        drill = drills.write(tmp_path, lab, [BASELINE, {"cordon": {"node": "brief"}}, hold(0.5)])
        ran = drills.run(
            drill, lab, tmp_path, on_row=lambda row: done.set() if cordon_ended(row) else None, beside=remove_cordoned
        )
    finally:
        lab.ask(remove)
    assert ran.facts.verdict == "passed"
    assert ran.journal() == ["intent", "applied", "already_undone"]
    assert "undone_by_removal" in (ran.of(rows.Journal)[-1].detail or "")


def test_an_undo_that_is_refused_is_told_with_the_command_that_does_it(
    lab: Lab, proxy: Proxy, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # chaos-mesh/chaos-mesh#1884: an undo that failed three times was not told apart from a failed check.
    monkeypatch.setattr("chaosrunner.journal.undo.PAUSE", 0.1)
    monkeypatch.setattr("chaosrunner.engine.run.UNDO_PATIENCE", 0.3)
    monkeypatch.setattr("chaosrunner.engine.run.PATIENCE", 0.3)
    limits = {"max_nodes": 3, "deadline": "8s"}  # until then the undo is tried
    drill = drills.write(tmp_path, lab, [BASELINE, CORDON, hold(0.2)], limits=limits)

    def on_row(row: rows.Row) -> None:
        if cordoned(row):
            proxy.cut()

    before = lab.nodes()
    ran = drills.run(drill, lab, tmp_path, kubeconfig=proxy.kubeconfig, on_row=on_row)
    assert (ran.facts.verdict, ran.facts.exit_code) == ("rollback_failed", 5)
    (node,) = lab.cordoned()
    assert ran.facts.reason == f"cordon of {node} could not be undone"
    assert ran.journal() == ["intent", "applied", "undo_failed"]

    # Where the run's own way to the cluster stays closed, recover says what to type, and fails too.
    (journal,) = tmp_path.glob("small/*/journal.jsonl")
    text = journal.read_text()
    journal.write_text(re.sub(r'("owner":\{"pid":)\d+', r"\g<1>2147483647", text))  # as after the process' end
    code, out, _ = drills.invoke(
        "recover", "--yes", "--timelines", str(tmp_path), "-o", "json", "--request-timeout", "2s"
    )
    (result,) = json.loads(out)
    assert (code, result["state"]) == (5, "undo_failed")
    assert re.search(rf"kubectl .*patch node {node} ", result["command"])

    proxy.restore()
    assert drills.invoke("recover", "--yes", "--timelines", str(tmp_path))[0] == 0
    assert lab.nodes() == before


# --- a full disk ----------------------------------------------------------------------------------------------


def test_a_full_disk_aborts_undoes_and_shows_no_traceback(lab: Lab, tmp_path: Path) -> None:
    load = {"load": {"closed": {"concurrency": 8}}}  # fills it soon
    drill = drills.write(tmp_path, lab, [BASELINE, CORDON, hold(60)], probe=load)
    before = lab.nodes()

    def limit() -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (200_000, 200_000))  # more than what is there at the start

    process = drills.start(drill, lab.kubeconfig, tmp_path, "-o", "json", preexec_fn=limit)
    out, err = process.communicate(timeout=90)
    assert process.returncode == 4, err
    assert "Traceback" not in err
    facts = json.loads(out)
    assert facts["reason"].startswith("the recording cannot be written: ")
    assert [step["result"] for step in facts["run"]["steps"]] == ["ok", "ok", "aborted"]
    assert lab.nodes() == before
    assert lab.leases() == []
    code, out, _ = drills.invoke("report", "latest", "--timelines", str(tmp_path), "-o", "json")
    assert (code, json.loads(out)["run"]["state"]) == (0, "crashed")  # what could be written is a recording


@pytest.mark.parametrize("when", ["before the change", "after the change"])
def test_a_journal_that_cannot_be_written_stops_changes_and_not_the_undo(
    when: str, lab: Lab, proxy: Proxy, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write = os.write
    full = False

    def refuse(file: int, data: bytes) -> int:
        if full and b'"line":' in data:
            raise OSError(28, os.strerror(28))
        return write(file, data)

    def on_row(row: rows.Row) -> None:
        nonlocal full
        before = isinstance(row, rows.Step) and (row.step, row.event) == ("cordon", "started")
        full = full or (before if when == "before the change" else cordoned(row))

    monkeypatch.setattr("chaosrunner.journal.journal.os.write", refuse)
    drill = drills.write(tmp_path, lab, [BASELINE, {"cordon": {"nodes": "all", "of": "workload"}}, hold(20)])
    before = lab.nodes()
    ran = drills.run(drill, lab, tmp_path, kubeconfig=proxy.kubeconfig, on_row=on_row)
    assert (ran.facts.verdict, ran.facts.exit_code) == ("aborted", 4)
    assert "the journal cannot be written: " in ran.facts.reason
    assert "No space left" in ran.facts.reason
    assert ran.steps() == [("baseline", "ok"), ("cordon", "aborted"), ("hold", "skipped")]
    patches = [call for call in proxy.mutating() if call[0] == "PATCH"]
    assert len(patches) == (0 if when == "before the change" else 2)  # the cordon and its undo
    assert lab.nodes() == before


def test_a_recording_that_cannot_be_closed_is_no_pass(lab: Lab, tmp_path: Path) -> None:
    drill = drills.write(tmp_path, lab, [BASELINE, CORDON, hold(0.2)])
    before = lab.nodes()

    def finish(folder: Path) -> None:
        (folder / "requests.parquet").mkdir()  # what cannot be written at the very end

    ran = drills.run(drill, lab, tmp_path, finish=finish)
    assert (ran.facts.verdict, ran.facts.exit_code) == ("aborted", 4)
    assert "the recording cannot be written" in ran.facts.reason
    assert lab.nodes() == before
