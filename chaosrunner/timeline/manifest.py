"""The manifest of a recording: what ran, on what, with which settings; everything that rows alone cannot say."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path
from typing import Any, Literal

import msgspec

from chaosrunner.timeline.rows import FORMAT

NAME = "manifest.json"


class Workload(msgspec.Struct, kw_only=True, omit_defaults=True):
    """The workload under test, as resolved by the plan."""

    namespace: str
    selector: str
    service: str | None = None
    controller: str | None = None
    """`deployment/chat`, as the drill or the plan gave it."""
    controller_uid: str | None = None
    replicas: int | None = None
    """Pods wanted by the controller when the run began."""


class TargetPod(msgspec.Struct, kw_only=True, omit_defaults=True):
    """A candidate, frozen by UID when the run was planned, with what every explanation will need."""

    name: str
    uid: str
    node: str | None = None
    ip: str | None = None
    root: str | None = None
    """UID of the root controller."""
    spec: dict[str, Any] = {}
    """Grace period, preStop hooks, commands, arguments and probes of the containers."""


class Probe(msgspec.Struct, kw_only=True, omit_defaults=True):
    """What the analysis must know of a probe. Limits in seconds."""

    name: str
    dialect: str
    target: Literal["endpoint", "replicas"] = "endpoint"
    """`replicas`: its requests went to each replica by its own address, and are none of the service's."""
    stream: bool = True
    shapes: list[str] = msgspec.field(default_factory=lambda: [""])
    """Classes of the request mix; each must have been seen warm."""
    slo: dict[str, float] = {}
    """ttft, ttft_answer, tpot, e2e, chunk_gap: seconds."""
    warm_streams: int = 3
    """N of the warm rule."""
    concurrency: int | None = None
    """Requests in flight of a closed loop."""
    load: str | None = None
    """How much was sent, in words."""
    workers: int = 1
    """Processes that shared the load."""
    connection: Literal["new", "reused", "fixed"] | None = None
    """Whether each request opens a connection, or an idle one is used again; None where a recording does not say."""
    pod_header: str | None = None


class Check(msgspec.Struct, kw_only=True, omit_defaults=True):
    """A pass criterion: an expression of the playbook, resolved."""

    expression: str
    name: str | None = None
    confidence: int | None = None
    probe: str | None = None


class StepInfo(msgspec.Struct, kw_only=True, omit_defaults=True):
    index: int
    step: str
    name: str


class Host(msgspec.Struct, kw_only=True, omit_defaults=True):
    hostname: str
    pid: int
    started: str | None = None
    """Start time of the process as the system tells it; with the pid it names the process for good."""
    platform: str = ""


class Manifest(msgspec.Struct, kw_only=True, omit_defaults=True):
    """One JSON file beside the rows; written when the run begins and again when it ends."""

    format: int = FORMAT
    run: str
    drill: str
    playbook: str
    anchor: float
    """Unix seconds at the recording's zero."""
    state: Literal["running", "ended"] = "running"
    ended: float | None = None
    """When the run ended, on the recording's clock."""
    verdict: str | None = None
    exit_code: int | None = None
    lab: str | None = None
    """For a rehearsal the lab that stood in, `embedded` or `real`; absent otherwise."""
    versions: dict[str, str] = {}
    host: Host | None = None
    context: str | None = None
    server: str | None = None
    url: str | None = None
    load: str | None = None
    """Of a probe that ran alone, without a cluster: its load in words; absent for a drill."""
    workload: Workload
    candidates: list[TargetPod] = []
    ready_endpoints: int | None = None
    """Ready endpoints of the Service when the run began."""
    parameters: dict[str, Any] = {}
    tags: list[str] = []
    probes: list[Probe] = []
    steps: list[StepInfo] = []
    checks: list[Check] = []
    sources: dict[str, str] = {}
    """Text of the playbook and the drill, by file name; secrets redacted."""
    plan: dict[str, Any] = {}
    """The plan that was shown before the run."""
    rows: dict[str, int] = {}
    """Rows by kind."""
    files: dict[str, str] = {}
    """SHA-256 of the recording's other files."""


def write(folder: Path, manifest: Manifest) -> None:
    """Writes the manifest; a reader sees the old one or the new one, never a part."""
    part = folder / f".{NAME}.part"
    with part.open("wb") as file:
        file.write(msgspec.json.format(msgspec.json.encode(manifest), indent=1) + b"\n")
        file.flush()
        os.fsync(file.fileno())
    part.replace(folder / NAME)


def read(folder: Path) -> Manifest:
    """Reads the manifest.

    Raises FileNotFoundError where there is none, msgspec.DecodeError where it is not one.
    """
    return msgspec.json.decode((folder / NAME).read_bytes(), type=Manifest)


def sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
