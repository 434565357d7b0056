"""What stands between the probe and the service: buffers and time limits, told apart from what the fault did."""

from __future__ import annotations

from typing import Any

import pytest

from chaosrunner.analysis.context import CheckContext, ProbeContext, Slo
from chaosrunner.playbook.expressions import parse
from chaosrunner.timeline import rows
from tests.analysis.tape import Tape, codes, context, facts, finding


def settled(*pods: str) -> Tape:
    tape = Tape()
    for pod in pods:
        tape.pod(0.0, pod, "LISTED", ready=True)
    tape.endpoints(0.0, "LISTED", **dict.fromkeys(pods, True))
    return tape


def stream(tape: Tape, sent: float, seconds: float, chunks: int, at_once: int, **fields: Any) -> rows.Request:
    """A stream that ended well, its last chunk after so many seconds."""
    times: dict[str, Any] = {"last_token": sent + seconds, "last_byte": sent + seconds, "headers": sent + 0.5}
    told = {"content_chunks": chunks, "content_reads": chunks - at_once, "at_once": at_once}
    return tape.request(sent, sent + seconds, **times | told | fields)


def cut(tape: Tape, sent: float, silent: float, silence: float, outcome: str = "cut_stream", **fields: Any) -> None:
    """A stream that told nothing after `silent` and was cut `silence` later."""
    times = {"headers": sent + 0.1, "first_token": sent + 0.2, "last_token": silent, "last_byte": silent}
    tape.request(sent, silent + silence, outcome, **{"status": 200, "pod": "b"} | times | fields)


def test_a_gateway_that_holds_everything_back() -> None:
    # dstackai/dstack#4269, maximhq/bifrost#4542: 65 chunks made every 0.25 s, all received in one read at 16.5 s
    tape = Tape()
    for sent in range(0, 100, 20):
        stream(tape, sent, 16.5, 65, 64, first_token=sent + 16.5, probe="gateway")
        stream(tape, sent, 16.5, 65, 0, first_token=sent + 0.5, probe="direct")
    tape.end(120.0)
    told = facts(tape, context("p95(ttft) < 20s", "p95(e2e) < 20s"))
    found = finding(told, "buffered_path")
    assert found.severity == "warning"
    assert found.text.startswith("5 of 5 streams of gateway came in lumps: 65 chunks in 1 over 16.5 s")
    assert len(found.evidence) == 5
    notes = [check.notes for check in told.checks]
    assert notes[0]["p95(ttft)"].endswith("; 5 came in lumps: this tells of the way there")
    assert "lumps" not in notes[1]["p95(e2e)"], "the last chunk was not late"
    assert [item.code for item in facts(tape).findings].count("buffered_path") == 1, "the direct probe has none"


def test_times_that_a_buffer_made_prove_nothing() -> None:
    # The same reports: TTFT and gaps between tokens are invalid, whether streams were complete is not.
    tape = Tape()
    for sent in range(0, 100, 20):
        stream(tape, sent, 16.5, 65, 64, first_token=sent + 16.5, probe="gateway")
        stream(tape, sent, 16.5, 65, 0, first_token=sent + 0.5, probe="direct")
    tape.end(120.0)
    texts = (
        "p95(ttft) < 20s", "p95(chunk_gap) > 1s", "p95(e2e) < 20s", "success_rate == 100%",
        "p95(ttft) < 20s and success_rate < 50%",
    )  # fmt: skip
    checks = facts(tape, context(*texts)).checks
    assert [check.verdict for check in checks] == ["skipped", "skipped", "passed", "passed", "failed"]
    assert checks[0].reason == "5 streams of gateway came in lumps: ttft tells of the way there"
    assert checks[0].values == {"p95(ttft)": 16.5}, "what was measured is told"
    direct = CheckContext(expression=parse("p95(ttft) < 1s"), probe="direct")
    told = facts(tape, context(checks=[direct]))
    assert [check.verdict for check in told.checks] == ["passed"]


@pytest.mark.parametrize(("slo", "verdict"), [(Slo(ttft=20.0), "skipped"), (Slo(e2e=20.0), "passed")])
def test_a_limit_on_times_that_a_buffer_made_proves_nothing(slo: Slo, verdict: str) -> None:
    tape = Tape()
    for sent in range(0, 100, 20):
        stream(tape, sent, 16.5, 65, 64, first_token=sent + 16.5, probe="chat")
    tape.end(120.0)
    probes = (ProbeContext(name="chat", slo=slo),)
    wanted = context("good_share == 100%", "goodput > 0", "success_rate == 100%", probes=probes)
    checks = facts(tape, wanted).checks
    assert [check.verdict for check in checks] == [verdict, verdict, "passed"]


def test_blocks_of_a_buffer_are_lumps_too() -> None:
    tape = Tape()
    stream(tape, 0, 40.0, 640, 630, first_token=4.0)
    tape.end(50.0)
    found = finding(facts(tape), "buffered_path")
    assert (found.severity, found.text.split(";")[0]) == (
        "info",
        "1 of 1 stream of chat came in lumps: 640 chunks in 10 over 40.0 s (medians)",
    )


@pytest.mark.parametrize(
    ("seconds", "chunks", "at_once"),
    [
        (16.5, 65, 40),  # a server that sends some tokens by twos
        (0.3, 65, 64),  # all at once, but soon
        (0.9, 400, 390),  # a model of 400 tokens a second or more
        (16.5, 7, 6),  # too few to tell
    ],
)
def test_streams_that_only_look_so(seconds: float, chunks: int, at_once: int) -> None:
    tape = Tape()
    for sent in range(0, 100, 20):
        stream(tape, sent, seconds, chunks, at_once)
    tape.end(120.0)
    assert "buffered_path" not in codes(facts(tape))


def test_lumps_that_a_slow_prober_made_itself() -> None:
    tape = Tape()
    for sent in range(0, 100, 20):
        stream(tape, sent, 10.0, 200, 180)
    tape.add(rows.Prober(at=1.0, loop_lag=0.4))
    tape.end(120.0)
    assert "buffered_path" not in codes(facts(tape))


def test_an_idle_timeout_that_overlaps_the_eviction() -> None:
    # BerriAI/litellm#34819, #31865: six streams without a byte for 60.0 +- 0.1 s, then a reset; two of them began
    # before the eviction. Their Pods are untouched.
    tape = settled("a", "b")
    tape.evict(100.0, "a")
    for number, silence in enumerate((60.0, 59.93, 60.1, 60.02, 59.98, 60.05)):
        cut(tape, 80.0 + 15 * number, 85.0 + 15 * number, silence)
    tape.end(250.0)
    found = finding(facts(tape), "idle_timeout")
    assert found.severity == "warning"
    assert found.text == (
        "6 requests cut after 60.0 s of silence (59.93 to 60.10 s), 2 of them sent before the fault; that is the "
        "default of nginx (proxy_read_timeout) and AWS application load balancers: a limit on the way, not the "
        "fault's doing"
    )
    assert len(found.evidence) == 6
    assert facts(tape).exposure.loss_on_victim in (None, 0), "no loss of the victim's"


def test_an_idle_timeout_shows_before_the_headers_too() -> None:
    tape = Tape()
    for sent in (0.0, 70.0, 140.0):
        tape.request(sent, sent + 60.01, "http_error", status=504, headers=sent + 60.0, last_byte=sent + 60.01)
        tape.request(sent + 5, sent + 65.02, "connect_reset")
    tape.end(250.0)
    assert finding(facts(tape), "idle_timeout").text.startswith("6 requests cut after 60.0 s of silence")


@pytest.mark.parametrize(("cases", "severity"), [(1, None), (2, "info"), (3, "warning")])
def test_the_grade_follows_the_number_of_cases(cases: int, severity: str | None) -> None:
    """Cases that end at the same moment are one: a gateway that restarted has cut them all."""
    tape = Tape()
    for number in range(cases):
        for user in range(3):
            cut(tape, 100.0 * number, 100.0 * number + 20, 45.0 + 0.01 * user, "unterminated_stream")
    tape.end(400.0)
    found = [item for item in facts(tape).findings if item.code == "idle_timeout"]
    assert [item.severity for item in found] == ([severity] if severity else [])


def test_ends_that_are_no_limit_of_the_way() -> None:
    tape = settled("a", "b")
    tape.evict(100.0, "a")
    tape.pod(100.1, "a", deletion_time="2026-11-29T17:02:10Z", deletion_grace=30.0)
    for number in range(4):
        at = 10.0 * number
        cut(tape, 50.0 + at, 60.0 + at, 60.0 + at, pod="b")  # another silence each
        cut(tape, 90.0 + at, 101.0 + at, 30.0, pod="a")  # hung on the Pod that left
        cut(tape, at, at + 20, 30.0, "stalled_stream", limit="byte_idle")  # our own limit
        cut(tape, at, at + 20, 30.0, "no_response", limit="first_byte")
        cut(tape, at + 2, at + 3, 1.0 + 0.001 * number)  # a gateway that notices a death after a second
    tape.end(400.0)
    assert not {"idle_timeout", "time_limit"} & codes(facts(tape))


def test_a_cap_on_the_whole_request() -> None:
    # voidmind-io/voidllm#224; Envoy's route timeout of 15 s, as recorded at a real Envoy Gateway
    tape = Tape()
    for sent in (0.0, 3.0, 6.0, 9.0):
        cut(tape, sent, sent + 14.98, 0.02, "cut_stream")
    tape.end(60.0)
    found = finding(facts(tape, context()), "time_limit")
    assert found.text.startswith(
        "4 requests cut after 15.0 s in all, data flowing (15.00 to 15.00 s); that is the default"
    )
    assert "idle_timeout" not in codes(facts(tape))
