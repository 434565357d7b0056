"""Builds recordings row by row, and reads their facts in both ways: live, and from the files of a real writer."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import msgspec

from chaosrunner.analysis import AnalysisContext, CheckContext, Facts, Live, analyse
from chaosrunner.analysis.facts import CheckResult, Finding
from chaosrunner.playbook.expressions import parse
from chaosrunner.timeline import rows
from chaosrunner.timeline.manifest import Manifest, Workload
from chaosrunner.timeline.reader import Recording
from chaosrunner.timeline.rows import Row
from chaosrunner.timeline.writer import Writer

ANCHOR = 1_795_971_600.0
"""Wall time of every tape's zero: 2026-11-29T17:00:00Z."""

ROOT = rows.Owner(kind="Deployment", name="chat", uid="root")


def time(at: float) -> str:
    """`at` as Kubernetes reports it: RFC 3339, truncated to seconds."""
    seconds = int(ANCHOR - 1_795_971_600 + at)
    return f"2026-11-29T{17 + seconds // 3600:02}:{seconds // 60 % 60:02}:{seconds % 60:02}Z"


def conditions(**states: bool) -> list[rows.Condition]:
    return [rows.Condition(type=type_, status=str(state)) for type_, state in states.items()]


class Tape:
    """Rows in the order of their `at`, whatever the order of the calls."""

    def __init__(self) -> None:
        self._rows: list[Row] = []
        self._calls = 0
        self._versions = 0
        self.numbers: dict[str, int] = {}

    def add(self, row: Row) -> Row:
        self._rows.append(row)
        return row

    @property
    def rows(self) -> list[Row]:
        ordered = sorted(self._rows, key=lambda row: row.at)
        for number, row in enumerate(ordered, start=1):
            row.id = number
        return ordered

    def _version(self) -> str:
        self._versions += 1
        return str(self._versions)

    def pod(self, at: float, name: str, seen: rows.Seen = "MODIFIED", **fields: Any) -> rows.Pod:
        """A Pod `name` with the UID `u-<name>`; `ready=True` and `ready=False` set its condition."""
        ready = fields.pop("ready", None)
        if ready is not None:
            fields["conditions"] = conditions(Ready=ready, PodScheduled=True, Initialized=True)
        row = rows.Pod(
            at=at,
            seen=seen,
            name=name,
            **{"uid": f"u-{name}", "version": self._version(), "namespace": "demo", "root": ROOT, "phase": "Running"}
            | fields,
        )
        self.add(row)
        return row

    def endpoints(self, at: float, seen: rows.Seen = "MODIFIED", name: str = "chat-x", **pods: bool) -> None:
        """A slice whose endpoints are the named Pods, with their readiness (`_` in a keyword stands for `-`)."""
        self.add(
            rows.EndpointSlice(
                at=at,
                seen=seen,
                name=name,
                uid=f"u-{name}",
                version=self._version(),
                namespace="demo",
                service="chat",
                endpoints=[
                    rows.Endpoint(ready=ready, serving=ready, terminating=False, pod=pod, uid=f"u-{pod}")
                    for pod, ready in ((key.replace("_", "-"), ready) for key, ready in pods.items())
                ],
            )
        )

    def evict(self, at: float, pod: str, answer: str = "accepted", **fields: Any) -> None:
        """An eviction sent at `at` and answered 10 ms later."""
        self._calls += 1
        call = self._calls
        statuses = {"accepted": 201, "blocked_by_budget": 429, "precondition_failed": 409, "already_terminating": 201}
        target = rows.Target(kind="Pod", name=pod, namespace="demo", uid=f"u-{pod}")
        common: dict[str, Any] = {"call": call, "action": "evict", "target": target}
        common["dry_run"] = fields.pop("dry_run", False)
        self.add(rows.Action(at=at, event="sent", **common))
        ok = statuses[answer] < 300
        self.add(
            rows.Action(
                at=at + 0.01, event="answered", answer=answer, status=statuses[answer], ok=ok, **common, **fields
            )
        )

    def request(self, sent: float, ended: float, outcome: str = "complete", **fields: Any) -> rows.Request:
        """A finished request; a success gets a first token 0.1 s after its sending, unless told otherwise."""
        probe = fields.pop("probe", "chat")
        number = self.numbers[probe] = self.numbers.get(probe, 0) + 1
        if outcome == "complete":
            fields = {"status": 200, "first_token": sent + 0.1, "last_token": ended, "tokens": 10} | fields
        row = rows.Request(at=ended, request=f"{probe}-{number}", probe=probe, outcome=outcome, sent=sent, **fields)
        self.add(
            rows.RequestSent(
                at=sent, request=row.request, probe=probe, shape=row.shape, once=row.once, replica=row.replica
            )
        )
        if row.headers is not None and row.status is not None:
            self.add(
                rows.RequestHeaders(
                    at=row.headers, request=row.request, status=row.status, pod=row.pod, remote=row.remote
                )
            )
        self.add(row)
        return row

    def watch(self, at: float, resource: str, event: str, **fields: Any) -> rows.Watch:
        row = msgspec.convert({"at": at, "resource": resource, "event": event} | fields, rows.Watch)
        self.add(row)
        return row

    def end(self, at: float) -> None:
        self.add(rows.Run(at=at, event="ended"))


def context(*checks: str, **fields: Any) -> AnalysisContext:
    wanted = tuple(CheckContext(expression=parse(check)) for check in checks)
    return AnalysisContext(**{"anchor": ANCHOR, "service": "chat", "checks": wanted} | fields)


def replay(ordered: list[Row], settings: AnalysisContext, *, close: bool = True) -> Facts:
    """Facts of a recording that a real writer wrote; `close=False`: of one whose run died."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "run"
        manifest = Manifest(
            run="r", drill="d", playbook="p", anchor=ANCHOR, workload=Workload(namespace="demo", selector="app=chat")
        )
        writer = Writer(path, manifest)
        for row in ordered:
            writer.emit(row)
        if close:
            writer.close()
        return analyse(Recording.open(path), settings)


def live(ordered: list[Row], settings: AnalysisContext) -> Live:
    analysis = Live(settings)
    for row in ordered:
        analysis.feed(row)
    return analysis


def facts(tape: Tape, settings: AnalysisContext | None = None) -> Facts:
    """The facts of a tape; live and replayed ones must be the same."""
    settings = settings or context()
    ordered = tape.rows
    replayed = replay(ordered, settings)
    assert msgspec.to_builtins(live(ordered, settings).facts()) == msgspec.to_builtins(replayed)
    return replayed


def codes(found: Facts) -> set[str]:
    return {finding.code for finding in found.findings}


def finding(found: Facts, code: str) -> Finding:
    return next(item for item in found.findings if item.code == code)


def checked(found: Facts) -> dict[str, CheckResult]:
    return {check.check: check for check in found.checks}
