"""Whole load generators, run as they are, where they are installed: what they say of a server that knows better.

Throughput is the server's own count. The error is theirs: the time to the first token as the tool reports it, minus
the server's (request received to first chunk sent). A tool has the client's core to itself, as every client here.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import msgspec

from benchmarks.probe import machine
from benchmarks.probe.measure import Figures, Scenario, records_of, serving, share

START = 120.0
"""Seconds that a tool may take beside its load: it starts its processes, makes its prompts and writes its report."""
LEAST = 15.0
"""Seconds of load at least: the tools take some for getting into stride."""


def _tokenizer() -> dict[str, object]:
    """One token a byte in the format of Hugging Face's tokenizers, so that none is downloaded.

    Byte-level BPE without merges; bytes that are not printable are written as the characters from 256 on.
    """
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = [byte for byte in range(256) if byte not in printable]
    vocabulary = [chr(byte) for byte in printable] + [chr(256 + number) for number in range(len(others))]
    level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}
    model = {"type": "BPE", "vocab": {word: number for number, word in enumerate(vocabulary)}, "merges": []}
    return {"version": "1.0", "added_tokens": [], "pre_tokenizer": level, "decoder": level, "model": model}


class Failed(Exception):
    """A tool did not do its work; says why."""


class Claim(msgspec.Struct):
    """What a tool reports of its run. Seconds."""

    answers: int
    first_p50: float
    first_p99: float


def _aiperf(url: str, streams: int, chunks: int, seconds: float, folder: Path) -> list[str]:
    return [
        "aiperf", "profile", "-m", "m", "--url", url, "--endpoint-type", "completions", "--streaming",
        "--tokenizer", str(folder / "tokenizer"), "--use-server-token-count", "--no-server-metrics",
        "--no-gpu-telemetry", "--isl", "16", "--osl", str(chunks), "--ui", "none", "--num-dataset-entries", "100",
        "--concurrency", str(streams), "--benchmark-duration", str(seconds), "--artifact-dir", str(folder / "report"),
    ]  # fmt: skip


def _aiperf_report(folder: Path) -> Claim:
    report: dict[str, Any] = json.loads((folder / "report" / "profile_export_aiperf.json").read_text())
    first = report["time_to_first_token"]
    return Claim(int(report["request_count"]["avg"]), first["p50"] / 1e3, first["p99"] / 1e3)


def _guidellm(url: str, streams: int, chunks: int, seconds: float, folder: Path) -> list[str]:
    return [
        "guidellm", "run", "--backend", f"kind=openai_http,target={url},model=m,request_format=/v1/completions",
        "--profile", f"kind=concurrent,streams={streams}", "--constraint", f"kind=max_duration,seconds={seconds}",
        "--data", f"kind=synthetic_text,prompt_tokens=16,output_tokens={chunks}",
        "--tokenizer", f"kind=hf_auto,model={folder / 'tokenizer'}",
        "--output", f"kind=json,path={folder / 'report.json'}",
    ]  # fmt: skip


def _guidellm_report(folder: Path) -> Claim:
    report: dict[str, Any] = json.loads((folder / "report.json").read_text())
    found = report["benchmarks"][0]["metrics"]
    first = found["time_to_first_token_ms"]["successful"]
    return Claim(first["count"], first["percentiles"]["p50"] / 1e3, first["percentiles"]["p99"] / 1e3)


PEERS: dict[str, tuple[Callable[[str, int, int, float, Path], list[str]], Callable[[Path], Claim]]] = {
    "aiperf": (_aiperf, _aiperf_report),
    "guidellm": (_guidellm, _guidellm_report),
}


def missing(client: str, scenario: Scenario) -> str | None:
    """Why a tool is not run; None if it is."""
    if shutil.which(client) is None:
        return f"{client} is not installed"
    if scenario.rate is not None or scenario.workers > 1 or not 64 <= scenario.streams <= 256:
        return "whole tools run in the closed loops of 64 and 256 streams only"
    return None


def measure_peer(scenario: Scenario, client: str, seconds: float, where: machine.Cores, fast: bool) -> Figures:
    """Runs a tool under the load of `scenario`. Raises Failed."""
    make, read = PEERS[client]
    seconds = max(seconds, LEAST)
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        (folder / "tokenizer").mkdir()
        (folder / "tokenizer" / "tokenizer.json").write_text(json.dumps(_tokenizer()))
        settings = {"tokenizer_class": "PreTrainedTokenizerFast"}
        (folder / "tokenizer" / "tokenizer_config.json").write_text(json.dumps(settings))
        with serving(scenario, folder / "log", where.server, 11 if fast else None) as (server, url):
            command = make(url, scenario.streams, scenario.chunks, seconds, folder)
            before = machine.used(server, server, where)
            placed = ["taskset", "-c", str(where.client), *(["chrt", "-r", "10"] if fast else []), *command]
            _run(placed, folder, START + seconds)
            after = machine.used(server, server, where)
        claim = read(folder)
        records = [record for record in records_of(folder / "log") if record.stamps]
    begin, length = records[0].received, seconds * 1e9
    truth = sorted((record.stamps[0] - record.received) / 1e9 for record in records)
    first_p50, first_p99 = (_at(truth, part) for part in (0.5, 0.99))
    ended = sum(begin <= record.ended < begin + length for record in records)
    return Figures(
        requests=ended / seconds,
        chunks=sum(begin <= stamp < begin + length for record in records for stamp in record.stamps) / seconds,
        server=(after - before).server / seconds,
        first_p50=claim.first_p50 - first_p50,
        first_p99=claim.first_p99 - first_p99,
    )


def _run(command: list[str], folder: Path, limit: float) -> None:
    """Runs a command to its end; ends what it may have left behind."""
    with (folder / "output").open("w+") as output:
        process = subprocess.Popen(command, cwd=folder, stdout=output, stderr=output, start_new_session=True)
        try:
            code = process.wait(limit)
        except subprocess.TimeoutExpired:
            raise Failed(f"did not end within {limit:.0f} s") from None
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        if code:
            output.seek(0)
            raise Failed(output.read().strip().splitlines()[-1])


def _at(values: Sequence[float], part: float) -> float:
    found = share(values, part)
    assert found is not None
    return found
