"""Recordings on disk for what reads whole ones, written by the real writer."""

from __future__ import annotations

import gzip
import tempfile
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from chaosrunner.analysis.reading import Reading
from chaosrunner.timeline.manifest import Manifest, Probe, Workload
from chaosrunner.timeline.reader import Recording
from chaosrunner.timeline.rows import Row
from chaosrunner.timeline.writer import Writer
from tests.analysis.captures import DATA, kubernetes, number, real_drill
from tests.analysis.tape import ANCHOR

REFERENCE = Path(__file__).parents[2] / "timelines" / "reference" / "lab-evict-one-replica" / "20261129-200920-0673"
"""A drill on the embedded lab."""


def reading(rows: Iterable[Row], **fields: Any) -> Reading:
    """A recording with these rows; `fields` are of the manifest. The files are gone when this returns."""
    settings: dict[str, Any] = {
        "run": "r",
        "drill": "d",
        "playbook": "p",
        "anchor": ANCHOR,
        "workload": Workload(namespace="demo", selector="", service="chat"),
        "probes": [Probe(name="chat", dialect="completions", pod_header="x-pod")],
    }
    with tempfile.TemporaryDirectory() as folder:
        writer = Writer(Path(folder) / "run", Manifest(**(settings | fields)))
        for row in rows:
            writer.emit(row)
        writer.close()
        read = Reading(Recording.open(Path(folder) / "run"))
        assert read.transitions is not None  # they are read from the files, once
        return read


def of_reference() -> Reading:
    return Reading(Recording.open(REFERENCE))


def of_kubernetes(begin: float = 0.0, until: float = float("inf")) -> Reading:
    """The recording of a real 1.37; calls before `begin` are left out, what was seen before it is listed then."""
    kept = [row for row in kubernetes(until) if getattr(row, "call", None) is None or row.at >= begin]
    workload = Workload(namespace="demo", selector="app=chat", service="chat")
    return reading(number(kept), anchor=1795969129.065, workload=workload)


def of_real_drill() -> Reading:
    data, ordered, _ = real_drill()
    workload = Workload(namespace="demo", selector="app=vllm", service="vllm")
    probe = Probe(name="drill", dialect="completions", pod_header="x-pod")
    return reading(ordered, anchor=data["unix0"], workload=workload, probes=[probe], ready_endpoints=2)


def of_lab(lab: str, kind: str) -> Reading:
    """A drill on the `embedded` or the `real` lab: `default` loses streams, `graceful` does not."""
    with tempfile.TemporaryDirectory() as folder:
        for name in ("manifest.json", "rows.jsonl"):
            packed = (DATA / "both-labs" / f"{lab}-{kind}.{name}.gz").read_bytes()
            (Path(folder) / name).write_bytes(gzip.decompress(packed))
        read = Reading(Recording.open(Path(folder)))
        assert read.transitions is not None  # they are read from the files, once
        return read
