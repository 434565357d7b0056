"""What the rows of a request cost: its three rows through the writer, and through each of those that look on.

    python -m benchmarks rows

CPU time of one core for requests of one token, each with its chunk times, the least of several rounds. A probe pays
the first two for each request of a kept recording, `--metrics` the third beside.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import anyio

from chaosrunner.analysis import AnalysisContext, Live
from chaosrunner.metrics import Fold
from chaosrunner.probes.self_check import Tally
from chaosrunner.timeline import rows
from chaosrunner.timeline.manifest import Manifest, Probe, Workload
from chaosrunner.timeline.redact import Redactor
from chaosrunner.timeline.rows import Emit, Row
from chaosrunner.timeline.writer import Writer

MANIFEST = Manifest(
    run="bench",
    drill="bench",
    playbook="bench",
    anchor=0.0,
    workload=Workload(namespace="", selector=""),
    probes=[Probe(name="chat", dialect="completions", stream=True, shapes=[""], slo={}, concurrency=64)],
)
SECRET = "sk-0123456789abcdef0123456789abcdef"


def requests(count: int, chunks: int) -> list[Row]:
    """The rows of so many requests."""
    found: list[Row] = []
    for number in range(count):
        sent, name = number * 1e-4, f"chat-{number}"
        times = [sent + 0.01 + 0.02 * chunk for chunk in range(chunks)]
        found += [
            rows.RequestSent(at=sent, request=name, probe="chat"),
            rows.RequestHeaders(at=sent + 0.005, request=name, status=200, pod="chat-7", remote="127.0.0.1:8000"),
            rows.Request(
                at=times[-1], request=name, probe="chat", outcome="complete", sent=sent, headers=sent + 0.005,
                first_byte=times[0], last_byte=times[-1], first_token=times[0], first_token_exact=True,
                first_answer=times[0], last_token=times[-1], tokens=chunks,
                usage=rows.Usage(prompt_tokens=16, completion_tokens=chunks), finish_reason="length", done=True,
                ended_properly=True, status=200, pod="chat-7", remote="127.0.0.1:8000", connection="127.0.0.1:40000",
                opened=0.5, reused=True, size=200 * chunks, events=chunks + 2, chunks=times, content_chunks=chunks,
                content_reads=chunks, largest_gap=0.02, exact=True,
            ),
        ]  # fmt: skip
    return found


def least(rounds: int, make: Callable[[], Emit], given: list[Row]) -> float:
    """CPU seconds of all rows through what `make` makes anew each time."""

    async def once() -> float:
        emit = make()
        begin = time.process_time()
        for row in given:
            emit(row)
        return time.process_time() - begin

    return min(anyio.run(once) for _ in range(rounds))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--requests", type=int, default=20_000)
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        folders = (Path(scratch) / str(number) for number in range(10_000))
        sinks: dict[str, Callable[[], Emit]] = {
            "recording (a secret masked)": lambda: Writer(next(folders), MANIFEST, Redactor([SECRET])).emit,
            "live analysis": lambda: Live(AnalysisContext.of(MANIFEST)).feed,
            "--metrics": lambda: Fold({"chat": {}}).feed,
            "own tally": lambda: Tally().feed,
        }
        for chunks in (1, 64):
            given = requests(options.requests, chunks)
            print(f"answers of {chunks} chunk{'s' if chunks > 1 else ''}, us a request (three rows):")
            for name, make in sinks.items():
                print(f"  {name:<28} {least(options.rounds, make, given) / options.requests * 1e6:6.1f}", flush=True)


if __name__ == "__main__":
    main()
