"""A whole drill in a lab with 200 Pods: what the runner costs, and how long the report takes.

Prints, for one eviction with 4 streams of 40 tokens a second: the runner's CPU in percent of a core while the drill
lasts (from its own `prober` rows), the time of the eviction call, the time from the last row to the finished report,
and the sizes. The lab is another process and not in the runner's figures.

The aim for the CPU is 5 %. `python -m benchmarks probe` has the share of the streams; polling the alerts each second
and evaluating the condition of the `wait` step come next.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from pathlib import Path

import anyio

from chaosrunner import logs
from chaosrunner.cli.lab_process import lab_spec, running_lab, towards
from chaosrunner.engine import Finished, Options, run_drill
from chaosrunner.playbook import load_drill
from chaosrunner.timeline import rows
from chaosrunner.timeline.reader import Recording

PODS_IN_ALL = 200


async def drill(timelines: Path, hold: str) -> tuple[Finished, float]:
    """The finished run, and the monotonic time at which its last row was written."""
    values = {"baseline": "10s", "hold": hold, "lab.startup": "2s", "lab.sleepers": str(PODS_IN_ALL - 3)}
    bound = load_drill("lab-evict-one-replica-graceful", values)
    last = [0.0]

    def note(_: rows.Row) -> None:
        last[0] = time.monotonic()

    async with running_lab(lab_spec(bound)) as (ready, _):
        aimed, config = towards(bound, ready)
        options = Options(timelines=timelines, lab="embedded", signals=False, follow=lambda *_: note)
        return await run_drill(aimed, config, options), last[0]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--hold", default="20s", help="how long the load goes on after recovery")
    options = parser.parse_args()
    logs.configure()
    with tempfile.TemporaryDirectory() as folder:
        finished, last = anyio.run(drill, Path(folder), options.hold)
        done = time.monotonic()
        recording = Recording.open(finished.folder)
        kept = list(recording.rows())
        size = sum(path.stat().st_size for path in finished.folder.iterdir())
    samples = [(row.at, row.cpu) for row in kept if isinstance(row, rows.Prober) and row.cpu is not None]
    (first, before), (end, after) = samples[0], samples[-1]
    eviction = finished.facts.evictions[0]
    print(f"{PODS_IN_ALL} Pods, 4 streams of 40 tokens/s, {end:.0f} s, verdict {finished.facts.verdict}")
    print(f"  runner's CPU                     {(after - before) / (end - first) * 100:7.1f} % of a core")
    print(f"  eviction sent to answered        {((eviction.answered or 0) - eviction.at) * 1000:7.1f} ms")
    print(f"  eviction sent to first Pod row   {_first_sight(kept, eviction.at) * 1000:7.1f} ms")
    print(f"  last row to report written       {(done - last) * 1000:7.1f} ms (includes stopping the lab)")
    print(f"  recording                        {len(kept):7d} rows, {size / 1e6:.1f} MB")


def _first_sight(kept: list[rows.Row], sent: float) -> float:
    return next(row.at - sent for row in kept if isinstance(row, rows.Pod) and row.at >= sent and row.deletion_time)


if __name__ == "__main__":
    main()
