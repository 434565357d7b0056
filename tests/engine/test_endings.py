"""How runs end: each way with its verdict, its steps, and the cluster as it was before."""

from __future__ import annotations

import json
import os
import signal
import socket
from collections import Counter
from pathlib import Path

import anyio
import pytest

from chaosrunner.analysis import Live
from chaosrunner.cli import main
from chaosrunner.engine import run as engine
from chaosrunner.faults.evict import Evict
from chaosrunner.probes.run import run_probe
from chaosrunner.timeline import rows
from chaosrunner.timeline.reader import Recording
from tests.engine import drills
from tests.engine.drills import BASELINE, hold
from tests.engine.lab import Lab
from tests.engine.proxy import Proxy

pytestmark = pytest.mark.lab

CORDON = {"cordon": {"nodes": 1, "of": "workload"}}


def cordoned(row: rows.Row) -> bool:
    return isinstance(row, rows.Action) and row.event == "answered" and row.action == "cordon"


def cordon_ended(row: rows.Row) -> bool:
    return isinstance(row, rows.Step) and (row.step, row.event) == ("cordon", "ended")


def closed_port() -> str:
    with socket.create_server(("127.0.0.1", 0)) as server:
        return f"http://127.0.0.1:{server.getsockname()[1]}"


async def mortal(*args: object, **kwargs: object) -> None:
    """A probe that ends by itself, which none should."""
    with anyio.move_on_after(1.2):
        await run_probe(*args, **kwargs)  # type: ignore[arg-type]


def test_a_probes_worker_that_dies_aborts_the_run_and_the_others_end_their_requests(lab: Lab, tmp_path: Path) -> None:
    probe = {"load": {"closed": {"concurrency": 4}}, "workers": 2}
    wait = {"wait": {"until": "pods_ready >= 50", "timeout": "20s"}}
    limits = {"max_nodes": 3, "deadline": "1h"}
    drill = drills.write(tmp_path, lab, [BASELINE, CORDON, wait, hold(1)], probe=probe, limits=limits)
    before = lab.nodes()
    seen: list[rows.Row] = []

    def on_row(row: rows.Row) -> None:
        seen.append(row)
        if cordon_ended(row):
            os.kill(next(row.pid for row in seen if isinstance(row, rows.Worker)), signal.SIGKILL)

    ran = drills.run(drill, lab, tmp_path, on_row=on_row)

    reason = "probe chat: worker 1 of 2 was killed by signal 9 (Killed)"
    assert (ran.facts.verdict, ran.facts.exit_code, ran.facts.reason) == ("aborted", 4, reason)
    assert ran.steps() == [("baseline", "ok"), ("cordon", "ok"), ("wait", "aborted"), ("hold", "skipped")]
    assert lab.nodes() == before
    sent = {row.request for row in ran.of(rows.RequestSent)}
    outcomes = Counter(row.outcome for row in ran.of(rows.Request))
    assert sum(outcomes.values()) == len(sent)
    assert outcomes.keys() <= {"complete", "prober_fault"}
    assert outcomes["prober_fault"] <= 2
    began = next(row.id for row in ran.of(rows.Step))
    assert [row.worker for row in ran.of(rows.Worker) if row.id < began] == [1, 2], "the baseline waits for its traffic"
    assert [(row.worker, row.event) for row in ran.of(rows.Worker)] == [
        (1, "began"), (2, "began"), (1, "died"), (2, "ended"),
    ]  # fmt: skip


@pytest.mark.parametrize("way", ["stop file", "deadline", "abort condition", "probe"])
def test_an_abort_undoes_ends_the_requests_and_says_why(
    way: str, lab: Lab, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    limits = {"max_nodes": 3, "deadline": "2500ms" if way == "deadline" else "1h"}
    playbook = {"abort": "requests >= 30"} if way == "abort condition" else {}
    wait = {"wait": {"until": "pods_ready >= 50", "timeout": "20s"}}
    drill = drills.write(tmp_path, lab, [BASELINE, CORDON, wait, hold(1)], playbook=playbook, limits=limits)
    if way == "probe":
        monkeypatch.setattr(engine, "run_probe", mortal)
    stop = tmp_path / "stop"
    before = lab.nodes()

    def on_row(row: rows.Row) -> None:
        if way == "stop file" and cordon_ended(row):
            stop.touch()

    ran = drills.run(drill, lab, tmp_path, on_row=on_row, stop_file=stop)

    assert (ran.facts.verdict, ran.facts.exit_code) == ("aborted", 4)
    assert {"stop file": "stop file", "deadline": "deadline of 2.5 s", "abort condition": "requests >= 30",
            "probe": "probe chat ended by itself"}[way] in ran.facts.reason  # fmt: skip
    assert ran.steps() == [("baseline", "ok"), ("cordon", "ok"), ("wait", "aborted"), ("hold", "skipped")]
    assert ran.journal() == ["intent", "applied", "undone"]
    assert lab.nodes() == before
    sent = {row.request for row in ran.of(rows.RequestSent)}
    ended = {row.request: row.outcome for row in ran.of(rows.Request)}
    assert sent == ended.keys()
    assert set(ended.values()) - ({"cancelled"} if way == "probe" else set()) == {"complete"}  # drained, not dropped
    assert [row.event for row in ran.of(rows.Run)][-3:] == ["aborting", "draining", "ended"]
    assert lab.leases() == []


def test_an_endpoint_that_is_gone_is_no_dead_probe(lab: Lab, tmp_path: Path) -> None:
    baseline = {"baseline": {"for": "200ms", "until": "requests >= 3", "timeout": "5s"}}
    drill = drills.write(
        tmp_path,
        lab,
        [baseline, hold(0.3)],
        playbook={"checks": ["success_rate >= 0.9"]},
        endpoint={"url": closed_port()},
    )
    ran = drills.run(drill, lab, tmp_path)
    assert set(ran.facts.outcomes["all"]) == {"connect_refused"}
    assert ran.facts.run.state == "ended"
    assert (ran.facts.verdict, ran.facts.exit_code) == ("failed", 1)


def test_an_unhealthy_baseline_changes_nothing(lab: Lab, proxy: Proxy, tmp_path: Path) -> None:
    # litmuschaos/litmus-go#667: the steady-state check failed before any fault; chaostoolkit/chaostoolkit#168:
    # a rollback ran although nothing had been done.
    baseline = {"baseline": {"for": "200ms", "until": "success_rate >= 0.9", "timeout": "500ms"}}
    drill = drills.write(tmp_path, lab, [baseline, CORDON, {"evict": {"pods": 1}}], endpoint={"url": closed_port()})
    before, pods = lab.nodes(), lab.pods()

    ran = drills.run(drill, lab, tmp_path, kubeconfig=proxy.kubeconfig)

    assert (ran.facts.verdict, ran.facts.exit_code) == ("inconclusive", 3)
    assert "the baseline is not healthy" in ran.facts.reason
    assert ran.steps() == [("baseline", "inconclusive"), ("cordon", "skipped"), ("evict", "skipped")]
    assert ran.of(rows.Action) == []
    assert ran.journal() == []
    assert {path.rpartition("/leases")[1] for _, path in proxy.mutating()} == {"/leases"}
    assert (lab.nodes(), lab.pods()) == (before, pods)


def test_exposure_that_does_not_come_ends_inconclusive_and_takes_nothing(
    lab: Lab, proxy: Proxy, tmp_path: Path
) -> None:
    evict = {"evict": {"pods": 1, "when": "in_flight(target) >= 50", "within": "400ms"}}
    drill = drills.write(tmp_path, lab, [BASELINE, evict, hold(1)])
    pods = lab.pods()
    ran = drills.run(drill, lab, tmp_path, kubeconfig=proxy.kubeconfig)
    assert (ran.facts.verdict, ran.facts.exit_code) == ("inconclusive", 3)
    assert "exposure not reached" in ran.facts.reason
    assert ran.steps() == [("baseline", "ok"), ("evict", "inconclusive"), ("hold", "skipped")]
    assert [path for _, path in proxy.mutating() if "/leases" not in path] == []
    assert lab.pods() == pods


@pytest.mark.parametrize(
    ("header", "why"),
    [(None, "no response header names it"), ("x-nobody", "named a known Pod in x-nobody")],
)
def test_exposure_that_cannot_be_known_says_what_to_change(
    header: str | None, why: str, lab: Lab, tmp_path: Path
) -> None:
    evict = {"evict": {"pods": 1, "when": "in_flight(target) >= 1", "within": "400ms"}}
    endpoint = {"url": lab.url} | ({"pod_header": header} if header else {})
    ran = drills.run(drills.write(tmp_path, lab, [BASELINE, evict], endpoint=endpoint), lab, tmp_path)
    assert ran.facts.verdict == "inconclusive"
    assert why in ran.facts.reason
    assert "pod_header" in ran.facts.reason


@pytest.mark.parametrize("connection", ["reused", "new"])
def test_exposure_on_a_pod_that_no_connection_leads_to_says_so(connection: str, lab: Lab, tmp_path: Path) -> None:
    """As behind the address of a Service, whose connections each lead to one Pod."""
    (_, address), (there, _) = lab.model_addresses().items()
    evict = {"evict": {"pods": 2, "when": "in_flight(target) >= 1", "within": "400ms"}}
    endpoint = {"url": f"http://{address}", "pod_header": "x-served-by"}
    drill = drills.write(tmp_path, lab, [BASELINE, evict], endpoint=endpoint, probe={"connection": connection})
    ran = drills.run(drill, lab, tmp_path)
    assert ran.facts.verdict == "inconclusive"
    assert f"requests seen meanwhile was on {there}" in ran.facts.reason
    assert ("set connection: new" in ran.facts.reason) == (connection == "reused")


def test_a_wait_that_times_out_fails_skips_the_rest_and_undoes(lab: Lab, tmp_path: Path) -> None:
    wait = {"wait": {"until": "pods_ready >= 50", "timeout": "300ms"}}
    drill = drills.write(tmp_path, lab, [BASELINE, CORDON, wait, hold(1)])
    before = lab.nodes()
    ran = drills.run(drill, lab, tmp_path)
    assert (ran.facts.verdict, ran.facts.exit_code) == ("failed", 1)
    assert ran.steps() == [("baseline", "ok"), ("cordon", "ok"), ("wait", "failed"), ("hold", "skipped")]
    assert ran.journal()[-1] == "undone"
    assert lab.nodes() == before


def test_an_eviction_that_is_answered_otherwise_fails(lab: Lab, tmp_path: Path) -> None:
    evict = {"evict": {"pods": 1, "dry_run": True, "expect": 429}}
    drill = drills.write(tmp_path, lab, [BASELINE, evict, hold(1)])
    ran = drills.run(drill, lab, tmp_path)
    assert (ran.facts.verdict, ran.facts.exit_code) == ("failed", 1)
    assert "expected 429, got accepted" in ran.facts.reason
    assert ran.steps() == [("baseline", "ok"), ("evict", "failed"), ("hold", "skipped")]


def test_a_request_beside_the_load_is_judged_and_stays_out_of_the_rates(lab: Lab, tmp_path: Path) -> None:
    def once(status: int) -> drills.Step:
        return {"probe-once": {"probe": "chat", "max_tokens": 1_000_000, "expect": {"status": status}}}

    drill = drills.write(tmp_path, lab, [BASELINE, once(400), once(200)], playbook={"checks": ["success_rate == 1"]})
    ran = drills.run(drill, lab, tmp_path)
    assert ran.steps() == [("baseline", "ok"), ("probe-once", "ok"), ("probe-once", "failed")]
    assert [(one.status, one.expected) for one in ran.facts.once] == [(400, True), (400, False)]
    assert ran.facts.success_rate["all"].value == 1
    assert set(ran.facts.outcomes["all"]) == {"complete"}
    assert (ran.facts.verdict, ran.facts.exit_code) == ("failed", 1)
    assert "expected HTTP 200, got http_error, HTTP 400" in ran.facts.reason


# --- what breaks inside ---------------------------------------------------------------------------------------


def test_a_bug_in_a_step_is_undone_drained_analysed_and_exits_70(
    lab: Lab, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    async def broken(*_: object) -> None:
        raise RuntimeError("broken on purpose")

    monkeypatch.setattr(Evict, "apply", broken)
    drill = drills.write(tmp_path, lab, [BASELINE, CORDON, {"evict": {"pods": 1}}, hold(1)])
    before, pods = lab.nodes(), lab.pods()

    with pytest.raises(SystemExit) as ended:
        main(["run", str(drill), "--kubeconfig", lab.kubeconfig, "--timelines", str(tmp_path), "--yes"])

    assert ended.value.code == 70
    assert "broken on purpose" in capsys.readouterr().err
    assert (lab.nodes(), lab.pods()) == (before, pods)
    (report,) = tmp_path.glob("small/*/report.json")
    recording = Recording.open(report.parent)
    assert (recording.manifest.state, recording.manifest.verdict) == ("ended", "aborted")
    assert json.loads(report.read_bytes())["unfinished"] == []
    steps = [(row.step, row.result) for row in recording.rows() if isinstance(row, rows.Step) and row.event == "ended"]
    assert steps == [("baseline", "ok"), ("cordon", "ok"), ("evict", "aborted"), ("hold", "skipped")]


def test_a_bug_in_a_probe_while_it_drains_is_not_lost(
    lab: Lab, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def broken(*args: object) -> None:
        await run_probe(*args)  # type: ignore[arg-type]
        raise RuntimeError("broken on purpose")

    monkeypatch.setattr(engine, "run_probe", broken)
    drill = drills.write(tmp_path, lab, [BASELINE])
    with pytest.raises(BaseException, match=r"broken on purpose|unhandled errors"):
        drills.run(drill, lab, tmp_path)
    (report,) = tmp_path.glob("small/*/report.json")
    assert json.loads(report.read_bytes())["verdict"] == "aborted"


def test_a_bug_in_the_live_analysis_does_not_keep_the_undo_from_its_work(
    lab: Lab, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    feed = Live.feed
    seen: list[rows.Row] = []

    def broken(live: Live, row: rows.Row) -> None:
        if cordoned(row) or seen:
            seen.append(row)
            raise RuntimeError("broken on purpose")
        feed(live, row)

    monkeypatch.setattr(Live, "feed", broken)
    drill = drills.write(tmp_path, lab, [BASELINE, CORDON, hold(5)])
    before = lab.nodes()
    with pytest.raises(BaseException, match=r"broken on purpose|unhandled errors"):
        drills.run(drill, lab, tmp_path)
    assert len(seen) == 1  # it is not asked again
    assert lab.nodes() == before
    (report,) = tmp_path.glob("small/*/report.json")
    assert json.loads(report.read_bytes())["verdict"] == "aborted"


def test_a_display_that_fails_does_not_disturb_the_run(lab: Lab, tmp_path: Path) -> None:
    def on_row(row: rows.Row) -> None:
        raise BrokenPipeError(32, "Broken pipe")  # the terminal is gone: no full disk

    drill = drills.write(tmp_path, lab, [BASELINE, CORDON, hold(0.2)])
    before = lab.nodes()
    ran = drills.run(drill, lab, tmp_path, follow=lambda _folder, _live: on_row)
    assert (ran.facts.verdict, ran.steps()[-1]) == ("passed", ("hold", "ok"))
    assert lab.nodes() == before


def test_a_run_that_is_cancelled_from_outside_still_undoes(lab: Lab, tmp_path: Path) -> None:
    drill = drills.write(tmp_path, lab, [BASELINE, CORDON, hold(20)])
    before = lab.nodes()
    done = anyio.Event()

    def on_row(row: rows.Row) -> None:
        if cordoned(row):
            done.set()

    async def cancelling() -> None:
        await done.wait()
        raise KeyError("somebody else's trouble")

    with pytest.raises(BaseExceptionGroup):
        drills.run(drill, lab, tmp_path, on_row=on_row, beside=cancelling)
    assert done.is_set()
    assert lab.nodes() == before
    assert lab.leases() == []
