"""The command that runs a probe alone, as a user runs it, against a model server of the lab."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import anyio
import pytest
from anyio.from_thread import start_blocking_portal
from click.testing import CliRunner, Result
from prometheus_client.parser import text_string_to_metric_families

from chaosrunner.cli.main import cli
from chaosrunner.timeline import rows
from chaosrunner.timeline.reader import Recording
from tests.cli.command import ROOT
from tests.http.scripted import LAST_CHUNK, OK_SSE, Conversation, Script, chunk, serve
from tests.lab.workload.harness import Program


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Program]:
    arguments = ["--startup", "0", "--tokens-per-second", "400", "--max-sequences", "16"]
    program = Program("model_server", tmp_path_factory.mktemp("model"), arguments)
    yield program
    program.kill()


@pytest.fixture(scope="module")
def url(model: Program) -> str:
    return f"http://127.0.0.1:{anyio.run(model.listening)}"


def parts(text: str) -> dict[str, list[str]]:
    """Titles of the report, and the lines below each."""
    blocks = [block.splitlines() for block in text.strip().split("\n\n")]
    return {block[0]: block[1:] for block in blocks}


def figures(line: str) -> list[str]:
    return re.split(r"\s{2,}", line.strip())


def chaosrunner(*arguments: str | Path, **environ: str) -> Result:
    """The command in this process: each start of its own would take longer than what it does here."""
    return CliRunner().invoke(cli, list(map(str, arguments)), env={"COLUMNS": "200"} | environ, catch_exceptions=False)


def start(*arguments: str, **options: Any) -> subprocess.Popen[bytes]:
    """The command in a process of its own."""
    return subprocess.Popen(
        [sys.executable, "-m", "chaosrunner", "probe", *arguments],
        env=os.environ | {"PYTHONPATH": str(ROOT)},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        **options,
    )


# --- load -------------------------------------------------------------------------------------------------


def test_it_prints_what_a_load_test_prints(url: str) -> None:
    done = chaosrunner(
        "probe",
        url,
        "-n",
        "12",
        "-c",
        "3",
        "--max-tokens",
        "16",
        "--slo",
        "ttft=30s,tpot=10s",
        "--check",
        "success_rate == 1",
    )
    assert done.exit_code == 0, done.stderr
    shown = parts(done.stdout)
    assert done.stdout.startswith("PASSED: all 1 checks passed\n")
    requests = [figures(line) for line in shown[f"Requests to {url}"]]
    assert ["load", "3 users"] in requests
    assert ["complete", "12", "100 %"] in requests
    latency = {line[0]: line[1:] for line in map(figures, shown["Latency of successful requests"][1:])}
    assert {"TTFT", "TPOT", "chunk gap", "E2E"} <= latency.keys()
    assert latency["TTFT"][0] == "12"
    rates = dict(figures(line)[:2] for line in shown["Throughput"])
    assert rates["in flight"].endswith("3 at most")
    assert "12 of 12" in rates["goodput"]
    if sys.platform == "linux":
        assert "100 % of the answers timed by the kernel" in shown["Prober"][-1]
    assert "#" not in done.stdout  # no row is named that nobody kept


def test_its_figures_are_those_of_the_server(model: Program, url: str) -> None:
    before = len(model.rows("request"))
    done = chaosrunner("probe", url, "-n", "5", "--max-tokens", "8", "--fixed-length", "-o", "json")
    facts = json.loads(done.stdout)
    served = model.rows("request")[before:]
    assert facts["outcomes"]["all"] == {"complete": 5}
    assert len(served) == 5
    assert facts["throughput"]["tokens"] * facts["throughput"]["seconds"] == pytest.approx(5 * 8)


def test_a_check_that_fails_is_exit_code_1(url: str) -> None:
    done = chaosrunner("probe", url, "-n", "2", "--max-tokens", "4", "--check", "p50(ttft) <= 1ms")
    assert done.exit_code == 1
    assert done.stdout.startswith("FAILED: p50(ttft) <= 1ms\n")


def test_what_was_lost_and_why(tmp_path: Path) -> None:
    done = chaosrunner("probe", "http://127.0.0.1:9", "-n", "3", "--record", "--timelines", tmp_path)
    assert done.exit_code == 0  # nothing was asked of it
    shown = parts(done.stdout)
    assert ["connect_refused", "3", "100 %"] in [figures(line) for line in shown["Requests to http://127.0.0.1:9"]]
    assert "  3 × connect_refused: ECONNREFUSED: Connection refused" in done.stdout
    lost = [figures(line) for line in shown["Lost requests"]]
    (recording,) = tmp_path.glob("probe/*")
    by_id = {row.id: row for row in Recording.open(recording).rows()}
    for request, outcome, *_, row, _error in lost[1:]:
        found = by_id[int(row.removeprefix("#"))]
        assert isinstance(found, rows.Request)
        assert (found.request, found.outcome) == (request, outcome)


def test_a_recording_gives_the_same_report_again(url: str, tmp_path: Path) -> None:
    done = chaosrunner("probe", url, "-n", "6", "-c", "2", "--max-tokens", "8", "--record", "--timelines", tmp_path)
    again = chaosrunner("report", "--timelines", tmp_path)
    assert again.stdout == done.stdout
    as_json = json.loads(chaosrunner("report", "--timelines", tmp_path, "-o", "json").stdout)
    (folder,) = tmp_path.glob("probe/*")
    assert as_json == json.loads((folder / "report.json").read_bytes())
    listed = json.loads(chaosrunner("runs", "list", "--timelines", tmp_path, "-o", "json").stdout)
    assert [(run["drill"], run["state"], run["requests"]) for run in listed] == [("probe", "ended", 6)]
    assert "probe-1: complete" in chaosrunner("timeline", "--timelines", tmp_path).stdout


def test_nothing_is_written_unless_asked(url: str, tmp_path: Path) -> None:
    process = start(url, "-n", "1", "--max-tokens", "2", cwd=tmp_path)
    out, error = process.communicate(timeout=60)
    assert (process.returncode, error) == (0, b"")
    assert out.startswith(b"Requests to ")
    assert list(tmp_path.iterdir()) == []


def test_load_by_a_schedule_counts_from_it(url: str) -> None:
    done = chaosrunner(
        "probe", url, "--stage", "1s:20", "--arrivals", "constant", "--max-in-flight", "1", "--max-tokens", "40",
        "--check", "outcome(not_sent) >= 1", "-o", "json",
    )  # fmt: skip
    facts = json.loads(done.stdout)
    assert done.exit_code == 0, facts["reason"]
    planned = facts["scheduled"]["probe"]
    assert planned["planned"] in (19, 20, 21)
    assert planned["not_sent"] == facts["outcomes"]["all"]["not_sent"]
    assert facts["prober"]["send_lag_max"] is not None
    assert facts["throughput"]["in_flight_max"] == 1


def test_a_probe_of_a_drill_is_sent_where_it_is_told(url: str) -> None:
    done = chaosrunner(
        "probe",
        url,
        "--drill",
        "lab-evict-one-replica",
        "--probe",
        "chat",
        "-n",
        "2",
        "--max-tokens",
        "4",
        "-o",
        "json",
    )
    facts = json.loads(done.stdout)
    assert facts["outcomes"]["all"] == {"complete": 2}
    assert {lost["probe"] for lost in facts["lost_requests"]} <= {"chat"}
    assert facts["run"]["drill"] == "probe-chat"
    assert facts["good_share"]["all"] is not None  # its SLO came with it


def test_parameters_of_a_playbook_hold(url: str) -> None:
    done = chaosrunner(
        "probe", url, "--playbook", "evict-one-replica", "-p", "concurrency=2", "-n", "4", "--max-tokens", "4"
    )
    assert "2 users" in done.stdout


def test_credentials_are_sent_and_not_kept(tmp_path: Path) -> None:
    secret = "sesame-0815"
    seen: list[str] = []

    async def script(conversation: Conversation) -> None:
        seen.append(conversation.headers["authorization"])
        body = f'{{"error": "no such key: {secret}"}}'.encode()
        await conversation.write(b"HTTP/1.1 401 Unauthorized\r\ncontent-length: %d\r\n\r\n%s" % (len(body), body))

    done = served(
        script, "-n", "1", "--api-key-env", "KEY", "--record", "--timelines", str(tmp_path), "-o", "json", KEY=secret
    )
    assert seen == [f"Bearer {secret}"]
    assert json.loads(done.stdout)["outcomes"]["all"] == {"http_error": 1}
    written = b"".join(path.read_bytes() for path in tmp_path.rglob("*") if path.is_file())
    assert b"[redacted]" in written
    assert secret.encode() not in written
    assert secret not in done.stdout + done.stderr


@pytest.mark.parametrize("number", [signal.SIGINT, pytest.param(signal.SIGTERM, marks=pytest.mark.slow)])
def test_a_signal_ends_it_with_what_there_is(number: signal.Signals, url: str) -> None:
    process = start(url, "-d", "60s", "-c", "2", "--max-tokens", "8", "--metrics", "0")
    assert process.stderr is not None
    address = process.stderr.readline().decode().removeprefix("metrics: ").strip()
    while counted(address) < 4:
        assert process.poll() is None
        time.sleep(0.1)
    process.send_signal(number)
    out, _ = process.communicate(timeout=60)
    assert process.returncode == 4
    assert out.decode().startswith(f"ABORTED: signal {number.name}\n")
    (complete,) = [figures(line) for line in out.decode().splitlines() if line.strip().startswith("complete ")]
    assert int(complete[1]) >= 4


def counted(address: str) -> float:
    """Successes so far, by the live metrics."""
    with urllib.request.urlopen(address, timeout=5) as answer:
        families = text_string_to_metric_families(answer.read().decode())
    found = [sample for family in families for sample in family.samples]
    return sum(
        sample.value
        for sample in found
        if sample.name == "chaosrunner_requests_total" and sample.labels["outcome"] == "complete"
    )


# --- a single request -------------------------------------------------------------------------------------


def served(script: Script, *arguments: str, **environ: str) -> Result:
    """What the command says of a server that does what the script says."""
    with start_blocking_portal() as portal, portal.wrap_async_context_manager(serve(script)) as server:
        return chaosrunner("probe", server.url, *arguments, **environ)


CHUNK = '{"choices":[{"index":0,"text":"%s","finish_reason":%s}]}'


def test_once_shows_frame_by_frame_what_came(url: str) -> None:
    done = chaosrunner("probe", url, "--once", "--max-tokens", "6")
    assert done.exit_code == 0, done.stderr
    lines = done.stdout.splitlines()
    kinds = [figures(line)[2].split()[0] for line in lines if re.match(r"\s*≤?[\d.]+ (µs|ms|s) ", line)]
    assert (kinds[0], kinds[-4:]) == ("HTTP", ["finish", "usage", "done", "end"])
    assert "answer" in kinds
    assert lines[-4].startswith("complete: ")
    assert "finish_reason length, usage: 6 tokens, [DONE], proper end of the body" in lines[-3]
    assert "x-served-by: local" in done.stdout
    assert "\x1b" not in done.stdout


def test_once_tells_how_a_stream_was_cut() -> None:
    async def script(conversation: Conversation) -> None:
        await conversation.write(OK_SSE)
        await conversation.events(CHUNK % ("one", "null"), CHUNK % (" two", "null"), gap=0.05)
        await conversation.reset()

    done = served(script, "--once")
    assert done.exit_code == 1
    assert "'one'" in done.stdout
    assert re.search(r"cut +reset: ", done.stdout)
    assert "\ncut_stream: the body did not end as HTTP says it must\n" in done.stdout


def test_once_knows_errors_comments_and_what_nobody_knows() -> None:
    async def script(conversation: Conversation) -> None:
        await conversation.write(OK_SSE)
        await conversation.write(b"7\r\n: ping\n\r\n")
        await conversation.events("garbage", '{"error": {"message": "engine died", "code": 500}}', "[DONE]", gap=0.02)
        await conversation.write(LAST_CHUNK)

    done = served(script, "--once", "-o", "json")
    answer = json.loads(done.stdout)
    assert [frame["kind"] for frame in answer["frames"]] == ["comment", "malformed", "error", "done"]
    assert answer["request"]["outcome"] == "error_in_stream"
    assert answer["headers"]["content-type"] == "text/event-stream"
    times = [frame["at"] for frame in answer["frames"]]
    assert times == sorted(times)
    assert [frame["gap"] for frame in answer["frames"][1:]] == pytest.approx(
        [later - earlier for earlier, later in pairwise(times)]
    )


def test_once_shows_the_body_of_an_error() -> None:
    async def script(conversation: Conversation) -> None:
        await conversation.write(b"HTTP/1.1 503 Busy\r\nretry-after: 7\r\ncontent-length: 9\r\n\r\noverload\n")

    done = served(script, "--once")
    assert done.exit_code == 1
    assert "HTTP 503" in done.stdout
    assert "retry-after: 7" in done.stdout
    assert "overload" in done.stdout
    assert "\nrejected: the server asks to come back later\n" in done.stdout


def test_once_gives_no_server_power_over_the_terminal() -> None:
    async def script(conversation: Conversation) -> None:
        await conversation.write(OK_SSE)
        await conversation.events("\x1b]0;title\x07\x1b[2J", gap=0.02)
        await conversation.write(LAST_CHUNK)

    done = served(script, "--once")
    assert "malformed ·]0;title··[2J" in done.stdout
    assert "\x1b" not in done.stdout


@pytest.mark.parametrize(("rule", "outcome"), [(None, "unterminated_stream"), ("event=end", "complete")])
def test_the_end_of_a_plain_stream_is_what_the_rule_says(rule: str | None, outcome: str) -> None:
    async def script(conversation: Conversation) -> None:
        assert (conversation.method, conversation.path) == ("GET", "/ticks?n=1")
        await conversation.write(OK_SSE)
        await conversation.write(chunk(b"data: 1\n\nevent: end\ndata: 2\n\n") + LAST_CHUNK)

    with start_blocking_portal() as portal, portal.wrap_async_context_manager(serve(script)) as server:
        rules = ["--terminal", rule] if rule else []
        done = chaosrunner("probe", f"{server.url}/ticks?n=1", "--dialect", "sse", "--once", *rules, "-o", "json")
    assert json.loads(done.stdout)["request"]["outcome"] == outcome


def test_raw_writes_the_bytes_and_nothing_else() -> None:
    body = b"data: \xff\x00 odd\r\n\r\ndata: [DONE]\n\n"

    async def script(conversation: Conversation) -> None:
        head = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ncontent-length: %d\r\n\r\n"
        await conversation.write(head % len(body) + body)

    done = served(script, "--once", "--raw")
    assert done.stdout_bytes == body
    assert done.stderr.startswith("unterminated_stream: ")


def test_once_that_is_interrupted_tells_what_came() -> None:
    async def script(conversation: Conversation) -> None:
        await conversation.write(OK_SSE)
        await conversation.events(CHUNK % ("one", "null"))
        await anyio.sleep(60)

    with start_blocking_portal() as portal, portal.wrap_async_context_manager(serve(script)) as server:
        process = start(server.url, "--once")
        assert process.stdout is not None
        while b"'one'" not in process.stdout.readline():
            assert process.poll() is None
        process.send_signal(signal.SIGINT)
        out, _ = process.communicate(timeout=60)
    assert process.returncode == 4
    assert b"\ncancelled: we ended it\n" in out
