"""What the probe costs and how true its times are, side by side with other clients.

    python -m benchmarks probe
    python -m benchmarks.probe [--scenarios S64,S256] [--clients product,aiohttp] [--runs 3] [--json FILE]

A server on one core (`benchmarks.probe.server`) notes when it sends each chunk; a client on another core records when
each arrived. The error is the difference, both on CLOCK_MONOTONIC, so it has the kernel's way through loopback in it:
some 7 us, which nobody can take away. The client `product` is the probe itself by its public entry, with its rows
recorded; its times are read back from the recording. The others do the same work on top of plain httpx and aiohttp;
aiperf and guidellm are run as they are where they are installed.

As root, server and client run with real-time priority, so that other processes disturb little; what they used of the
two cores is in each row. Every figure is the median of the runs, every maximum the largest of them.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
from pathlib import Path

import msgspec

from benchmarks.probe import machine, peers, table
from benchmarks.probe.clients import CLIENTS
from benchmarks.probe.measure import Figures, Scenario, measure

SCENARIOS = {
    scenario.name: scenario
    for scenario in (
        Scenario("S1", "1 stream, 50 chunks/s each", streams=1, gap=0.02),
        Scenario("S64", "64 streams, 50 chunks/s each", streams=64, gap=0.02),
        Scenario("S256", "256 streams, 50 chunks/s each", streams=256, gap=0.02),
        Scenario("L1000", "1000 streams, 4 chunks/s each", streams=1000, gap=0.25, chunks=16),
        Scenario("S1000", "1000 streams, 50 chunks/s each: more than a core can read", streams=1000, gap=0.02),
        Scenario("T0", "64 streams as fast as they go", streams=64, first=0, gap=0),
        Scenario("O300", "open loop, 300 answers a second of 8 chunks", streams=256, gap=0.02, chunks=8, rate=300),
        Scenario("R1", "64 users, answers of one token", streams=64, first=0, gap=0, chunks=1),
        Scenario("R2", "the same from two processes", streams=64, first=0, gap=0, chunks=1, workers=2),
    )
}


def run(scenario: Scenario, client: str, runs: int, seconds: float, where: machine.Cores, fast: bool) -> list[Figures]:
    how = peers.measure_peer if client in peers.PEERS else measure
    return [how(scenario, client, seconds, where, fast) for _ in range(runs)]


def missing(scenario: Scenario, client: str, where: machine.Cores) -> str | None:
    """Why a client is not run under a scenario; None if it is."""
    if client in peers.PEERS:
        return peers.missing(client, scenario)
    if scenario.workers == 1:
        return None
    if client != "product":
        return f"{client} has one process"
    if 1 + len(where.clients) < 4:
        return f"takes 4 cores: the server's, the system's, and two for the client; here are {1 + len(where.clients)}"
    return None


def middle(found: list[Figures]) -> Figures:
    """The median of each figure over the runs; of each maximum the largest."""
    merged = {}
    for name in Figures.__struct_fields__:
        values = [value for figures in found if (value := getattr(figures, name)) is not None]
        join = max if name in ("first_max", "chunk_max", "late_max", "foreign", "wrong") else statistics.median
        merged[name] = join(values) if values else None
    return msgspec.convert(merged, Figures)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    known = [*CLIENTS, *peers.PEERS]
    parser.add_argument("--scenarios", default=",".join(SCENARIOS), help="of %(default)s")
    parser.add_argument("--clients", default=",".join(known), help="of %(default)s")
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=4.0, help="length of each measurement")
    parser.add_argument("--json", type=Path, help="write every run's figures here too")
    options = parser.parse_args()
    scenarios, clients = options.scenarios.split(","), options.clients.split(",")
    if unknown := (set(scenarios) - set(SCENARIOS)) | (set(clients) - set(known)):
        sys.exit(f"unknown: {', '.join(sorted(unknown))}")
    where, fast = machine.cores(), machine.real_time()
    print(f"server on core {where.server}, client on core {where.client}, "
          f"{'real-time priority' if fast else 'no real-time priority (needs root): expect disturbed figures'}, "
          f"{options.runs} runs of {options.seconds:g} s")  # fmt: skip
    kept = []
    print(table.header())
    for name in scenarios:
        print(f"{name}: {SCENARIOS[name].text}")
        for client in clients:
            if (reason := missing(SCENARIOS[name], client, where)) is not None:
                print(f"  {client:<9} skipped: {reason}", flush=True)
                continue
            try:
                found = run(SCENARIOS[name], client, options.runs, options.seconds, where, fast)
            except peers.Failed as failure:
                print(f"  {client:<9} failed: {failure}", flush=True)
                continue
            kept += [{"scenario": name, "client": client, **msgspec.to_builtins(figures)} for figures in found]
            print(table.line(client, middle(found)), flush=True)
    print(table.NOTES)
    if options.json is not None:
        options.json.write_text(json.dumps(kept, indent=1))


if __name__ == "__main__":
    main()
