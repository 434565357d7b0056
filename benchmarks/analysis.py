"""How long the analysis of a long recording takes, and how much memory.

    python benchmarks/analysis.py [--sizes 100000,300000,1000000] [--keep FOLDER]

Makes synthetic recordings of N requests and N/10 other rows (a drill of 64 closed-loop streams on 16 Pods, one of
them evicted in the middle; Pods, slices and Events that change all the time), as JSON lines and as Parquet, and times
reading and analysing each in a process of its own. Prints seconds, peak resident memory and microseconds a request;
the last must stay the same while N grows. Aim: 1 million requests under 5 s and 1 GB. JSON lines, which only the
recordings of killed runs are read from, take three to four times as long as Parquet: their text has to be parsed.
"""

from __future__ import annotations

import argparse
import json
import random
import resource
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import msgspec

from chaosrunner.analysis import AnalysisContext, analyse
from chaosrunner.timeline import manifest as manifests
from chaosrunner.timeline import rows, tables
from chaosrunner.timeline.files import ROWS
from chaosrunner.timeline.reader import Recording

PODS = 16
STREAMS = 64
ANCHOR = 1_795_971_600.0
CHECKS = ["loss_on_victim == 0", "success_rate >= 99.9%", "p99(ttft) < 1s", "time_to_serve <= 600s", "endpoints_back"]


def pod(at: float, number: int, seen: rows.Seen, version: int, *, ready: bool = True) -> rows.Pod:
    return rows.Pod(
        at=at,
        seen=seen,
        name=f"chat-{number}",
        uid=f"uid-{number}",
        version=str(version),
        namespace="demo",
        phase="Running",
        node=f"node-{number % 4}",
        ip=f"10.0.0.{number}",
        labels={"app": "chat"},
        root=rows.Owner(kind="Deployment", name="chat", uid="root"),
        conditions=[rows.Condition(type="Ready", status=str(ready), transition_time="2026-11-29T17:00:00Z")],
        containers=[rows.ContainerState(name="engine", ready=ready, state="running")],
    )


def endpoints(at: float, ready: list[int], version: int) -> rows.EndpointSlice:
    return rows.EndpointSlice(
        at=at,
        seen="LISTED" if version == 0 else "MODIFIED",
        name="chat-x",
        uid="slice",
        version=str(version),
        namespace="demo",
        service="chat",
        endpoints=[
            rows.Endpoint(ready=True, serving=True, terminating=False, pod=f"chat-{n}", uid=f"uid-{n}") for n in ready
        ],
    )


def others(count: int, length: float) -> Iterator[rows.Row]:
    """Everything but requests, by time: the drill itself, and news of Pods, slices and Events in between."""
    for number in range(PODS):
        yield pod(0.0, number, "LISTED", 0)
    yield endpoints(0.0, list(range(PODS)), 0)
    half = length / 2
    target = rows.Target(kind="Pod", name="chat-0", namespace="demo", uid="uid-0")
    drill: list[rows.Row] = [
        rows.Action(at=half, event="sent", call=1, action="evict", target=target),
        rows.Action(
            at=half + 0.01, event="answered", call=1, action="evict", target=target, answer="accepted", ok=True
        ),
        msgspec.structs.replace(
            pod(half + 0.02, 0, "MODIFIED", 1), deletion_time="2026-11-29T18:00:00Z", deletion_grace=30.0
        ),
        endpoints(half + 0.05, list(range(1, PODS)), 1),
        pod(half + 0.1, PODS, "ADDED", 0, ready=False),
        pod(half + 20, PODS, "MODIFIED", 1),
        endpoints(half + 20, list(range(1, PODS + 1)), 2),
    ]
    for number in range(count):
        at = length * (number + 1) / (count + 1)
        while drill and drill[0].at <= at:
            yield drill.pop(0)
        match number % 4:
            case 0:
                yield pod(at, 1 + number % (PODS - 1), "MODIFIED", number + 10)
            case 1:
                yield endpoints(at, list(range(1 if at > half else 0, PODS + (at > half + 20))), number + 10)
            case 2:
                yield rows.Event(at=at, seen="ADDED", name=f"e{number}", uid=f"e{number}", version="1", reason="Pulled")
            case _:
                yield rows.Prober(at=at, loop_lag=0.001)
    yield rows.Run(at=length, event="ended")


def requests(count: int, length: float, chance: random.Random) -> Iterator[rows.Row]:
    """Requests in the order of their ends, each preceded by the rows of its sending and its headers."""
    took = length * STREAMS / count
    half = length / 2
    for number in range(count):
        sent = length * number / count
        ended = sent + took * chance.uniform(0.5, 1.0)
        served = PODS if sent > half + 20 and number % PODS == 0 else 1 + number % (PODS - 1)
        if sent < half:
            served = number % PODS
        lost = served == 0 and sent < half < ended
        name = f"chat-{number}"
        yield rows.RequestSent(at=sent, request=name, probe="chat")
        yield rows.RequestHeaders(at=sent + 0.02, request=name, status=200, pod=f"chat-{served}")
        yield rows.Request(
            at=ended,
            request=name,
            probe="chat",
            outcome="error_in_stream" if lost else "complete",
            sent=sent,
            connected=sent + 0.001,
            headers=sent + 0.02,
            first_byte=sent + 0.02,
            first_token=sent + chance.uniform(0.05, 0.2),
            last_token=ended,
            tokens=128,
            usage=rows.Usage(prompt_tokens=20, completion_tokens=128),
            finish_reason=None if lost else "length",
            done=True,
            ended_properly=True,
            status=200,
            pod=f"chat-{served}",
            remote="10.96.0.1:80",
            connection=f"c{number % STREAMS}",
            opened=1.0,
            reused=True,
            size=30_000,
            events=130,
            largest_gap=chance.uniform(0.01, 0.05),
        )


def make(folder: Path, count: int) -> None:
    """Writes the recording, in both forms."""
    length = count / 200
    rest = others(count // 10, length)
    ahead = next(rest, None)
    encoder = msgspec.json.Encoder()
    number = 0
    folder.mkdir(parents=True)
    with (folder / ROWS).open("wb") as file:
        for row in requests(count, length, random.Random(1)):
            while ahead is not None and ahead.at <= row.at:
                number += 1
                ahead.id = number
                file.write(encoder.encode(ahead) + b"\n")
                ahead = next(rest, None)
            number += 1
            row.id = number
            file.write(encoder.encode(row) + b"\n")
    tables.convert(folder / ROWS, folder)
    manifest = manifests.Manifest(
        run="synthetic",
        drill="synthetic",
        playbook="synthetic",
        anchor=ANCHOR,
        state="ended",
        workload=manifests.Workload(namespace="demo", selector="app=chat", service="chat"),
        probes=[manifests.Probe(name="chat", dialect="openai", concurrency=STREAMS, pod_header="x-pod")],
        checks=[manifests.Check(expression=check) for check in CHECKS],
    )
    manifests.write(folder, manifest)


def child(folder: Path) -> None:
    """Reads and analyses one recording; prints what it took as JSON."""
    begin = time.perf_counter()
    recording = Recording.open(folder)
    facts = analyse(recording, AnalysisContext.of(recording.manifest))
    seconds = time.perf_counter() - begin
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)
    print(json.dumps({"seconds": seconds, "peak": peak, "verdict": facts.verdict, "exposed": facts.exposure.exposed}))


def measure(folder: Path) -> dict[str, float]:
    command = [sys.executable, __file__, "--child", str(folder)]
    found: dict[str, float] = json.loads(subprocess.run(command, check=True, capture_output=True).stdout)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sizes", default="100000,300000,1000000")
    parser.add_argument("--keep", type=Path, help="make the recordings here, and leave them")
    parser.add_argument("--child", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.child is not None:
        child(options.child)
        return
    with tempfile.TemporaryDirectory() as scratch:
        root = options.keep or Path(scratch)
        print(f"{'requests':>9} {'form':>8} {'seconds':>8} {'peak MB':>8} {'us/request':>11}")
        for size in map(int, options.sizes.split(",")):
            columnar = root / f"{size}-parquet"
            lines = root / f"{size}-lines"
            if not columnar.exists():
                make(columnar, size)
            if not lines.exists():
                lines.mkdir()
                for name in (ROWS, manifests.NAME):
                    (lines / name).hardlink_to(columnar / name)
            for form, folder in (("parquet", columnar), ("lines", lines)):
                found = measure(folder)
                print(
                    f"{size:>9} {form:>8} {found['seconds']:>8.2f} {found['peak'] / 1e6:>8.0f} "
                    f"{found['seconds'] / size * 1e6:>11.2f}",
                    flush=True,
                )
            if options.keep is None:
                shutil.rmtree(columnar)
                shutil.rmtree(lines)


if __name__ == "__main__":
    main()
