"""From a change in the cluster to its row in the recording, in a lab with 200 Pods.

Pods get a label, one after the other, at a steady rate. For each change: t0 = the patch is sent, t1 = its answer is
here, t2 = the row with the answer's resourceVersion has been written. t2 - t0 includes the API server's own work;
t2 - t1 may be negative, since a watch event may come before the answer of the call that caused it.
"""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path

import anyio

from chaosrunner.cli.lab_process import running_lab
from chaosrunner.cluster import ClusterConfig, connect
from chaosrunner.cluster.resources import PODS, meta
from chaosrunner.observers import ObserveScope, observe
from chaosrunner.timeline import rows
from chaosrunner.timeline.clock import Clock
from chaosrunner.timeline.manifest import Manifest, Workload
from chaosrunner.timeline.writer import Writer

PODS_IN_ALL = 200


async def measure(changes: int, rate: float) -> dict[str, list[float]]:
    """Seconds, sorted: `sent` (t2 - t0) and `answered` (t2 - t1)."""
    written: dict[str, float] = {}
    clock = Clock()
    spec = {"replicas": 1, "startup": 0, "sleepers": PODS_IN_ALL - 1}
    async with running_lab(spec) as (ready, _):
        config = ClusterConfig(kubeconfig=ready.kubeconfig, context=ready.context, namespace=ready.namespace)
        with tempfile.TemporaryDirectory() as folder:
            manifest = Manifest(
                run="r", drill="d", playbook="p", anchor=clock.anchor_wall, workload=Workload(namespace="", selector="")
            )
            writer = Writer(Path(folder) / "recording", manifest)

            def note(row: rows.Row) -> None:
                if isinstance(row, rows.Pod):
                    written[row.version] = clock.now()

            writer.subscribe(note)
            async with connect(config, clock) as cluster, anyio.create_task_group() as tasks:
                seen = anyio.Event()
                pods = (await cluster.list(PODS, ready.namespace)).items
                scope = ObserveScope(namespace=ready.namespace, selector="", service="model")

                async def watch() -> None:
                    await observe(cluster, scope, writer.emit, ready=seen)

                tasks.start_soon(watch)
                await seen.wait()
                calls = []
                due = clock.now()
                for number in range(changes):
                    due += 1 / rate
                    await anyio.sleep(max(0.0, due - clock.now()))
                    name = pods[number % len(pods)]["metadata"]["name"]
                    answer = await cluster.request(
                        "PATCH",
                        PODS.path(ready.namespace, name),
                        body={"metadata": {"labels": {"bench": str(number)}}},
                        content_type="application/merge-patch+json",
                    )
                    calls.append((answer.sent, answer.received, str(meta(answer.body)["resourceVersion"])))
                await anyio.sleep(1)
                tasks.cancel_scope.cancel()
    missing = [version for _, _, version in calls if version not in written]
    if missing:
        raise SystemExit(f"{len(missing)} of {changes} changes have no row")
    return {
        "sent": sorted(written[version] - sent for sent, _, version in calls),
        "answered": sorted(written[version] - received for _, received, version in calls),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--changes", type=int, default=2000)
    parser.add_argument("--rate", type=float, default=100.0, help="changes a second")
    options = parser.parse_args()
    found = anyio.run(measure, options.changes, options.rate)
    print(f"{PODS_IN_ALL} Pods, {options.changes} changes at {options.rate:g}/s, milliseconds")
    for name, text in (("sent", "change sent to row written"), ("answered", "answer received to row written")):
        values = found[name]
        at = [values[min(len(values) - 1, int(len(values) * p))] * 1000 for p in (0.5, 0.99, 1.0)]
        print(f"  {text:32} p50 {at[0]:7.2f}   p99 {at[1]:7.2f}   max {at[2]:7.2f}")


if __name__ == "__main__":
    main()
