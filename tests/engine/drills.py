"""Small drills on the lab: in this process, or as the process that a user starts."""

from __future__ import annotations

import io
import json
import os
import subprocess
import sys
from collections.abc import Callable
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeVar

import anyio
import psutil

from chaosrunner.analysis import Facts, Live
from chaosrunner.cli import main
from chaosrunner.cluster import ClusterConfig
from chaosrunner.engine import Options, run_drill
from chaosrunner.playbook import load_drill
from chaosrunner.timeline import rows
from chaosrunner.timeline.reader import Recording
from tests.engine.lab import Lab, wait_for

Step = dict[str, Any]
Some = TypeVar("Some")

BASELINE: Step = {"baseline": {"for": "300ms", "until": "success_rate >= 0.9", "timeout": "5s"}}


def hold(seconds: float) -> Step:
    return {"hold": {"for": f"{seconds}s"}}


def write(
    folder: Path,
    lab: Lab,
    steps: list[Step],
    *,
    playbook: dict[str, Any] | None = None,
    probe: dict[str, Any] | None = None,
    max_tokens: int = 16,
    **drill: Any,
) -> Path:
    """Writes a playbook with these steps and its drill (JSON, which is YAML); returns the drill's path."""
    api = {"apiVersion": "chaosrunner.dev/v1"}
    openai = {"max_tokens": max_tokens, "ignore_eos": True, "prompt": "Count from {{ nonce }}."}
    chat = {"name": "chat", "openai": openai, "load": {"closed": {"concurrency": 2}}} | (probe or {})
    made = api | {"kind": "Playbook", "metadata": {"name": "small"}, "probes": [chat], "steps": steps}
    (folder / "playbook.yaml").write_text(json.dumps(made | (playbook or {})))
    made = api | {
        "kind": "Drill",
        "metadata": {"name": "small"},
        "playbook": "./playbook.yaml",
        "context": lab.context,
        "namespace": lab.namespace,
        "workload": {"selector": "app=model", "controller": "deployment/model", "service": "model"},
        "endpoint": {"url": lab.url, "pod_header": "x-served-by"},
        "limits": {"max_pods": 2, "max_nodes": 3},
    }
    path = folder / "drill.yaml"
    path.write_text(json.dumps(made | drill))
    return path


@dataclass(frozen=True)
class Ran:
    facts: Facts
    folder: Path
    rows: list[rows.Row]
    live: Facts
    """From the folds that were fed while the run lasted."""

    def of(self, kind: type[Some]) -> list[Some]:
        return [row for row in self.rows if isinstance(row, kind)]

    def steps(self) -> list[tuple[str, str | None]]:
        return [(row.step, row.result) for row in self.of(rows.Step) if row.event == "ended"]

    def journal(self) -> list[str]:
        return [row.event for row in self.of(rows.Journal)]


def run(
    drill: Path,
    lab: Lab,
    timelines: Path,
    *,
    kubeconfig: str | None = None,
    on_row: Callable[[rows.Row], None] | None = None,
    beside: Callable[[], Any] | None = None,
    request_timeout: float = 5.0,
    follow: Callable[[Path, Live], rows.Emit] | None = None,
    **options: Any,
) -> Ran:
    """Runs a drill in this process. `beside` is an async function that runs beside it until it ends."""
    bound = load_drill(str(drill))
    config = ClusterConfig(
        kubeconfig=kubeconfig or lab.kubeconfig,
        context=lab.context,
        namespace=lab.namespace,
        request_timeout=request_timeout,
    )
    failed: list[Exception] = []

    def hear(row: rows.Row) -> None:
        try:
            if on_row:
                on_row(row)
        except Exception as error:  # the engine goes on without a listener that fails; a test must not
            failed.append(error)
            raise

    kept: list[Live] = []

    def look_on(folder: Path, live: Live) -> rows.Emit:
        kept.append(live)
        return follow(folder, live) if follow else hear

    wanted = replace(Options(timelines=timelines, signals=False, follow=look_on), **options)

    async def both() -> Ran:
        async with anyio.create_task_group() as group:
            if beside:
                group.start_soon(beside)
            finished = await run_drill(bound, config, wanted)
            group.cancel_scope.cancel()
        assert not failed
        recording = Recording.open(finished.folder)
        return Ran(finished.facts, finished.folder, list(recording.rows()), kept[0].facts())

    return anyio.run(both)


_started: list[subprocess.Popen[str]] = []


def command(*arguments: str, **options: Any) -> subprocess.Popen[str]:
    """Starts `chaosrunner` as a user does."""
    process = subprocess.Popen(
        [sys.executable, "-m", "chaosrunner", *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=os.environ | options.pop("env", {}),
        **options,
    )
    _started.append(process)
    return process


def invoke(*arguments: str) -> tuple[int, str, str]:
    """Runs `chaosrunner` in this process: exit code, standard output, standard error."""
    out, err = io.StringIO(), io.StringIO()
    with redirect_stdout(out), redirect_stderr(err):
        try:
            main(list(arguments))
        except SystemExit as ended:
            code = ended.code
    assert isinstance(code, int)
    return code, out.getvalue(), err.getvalue()


def guardian_of(process: subprocess.Popen[str]) -> psutil.Process:
    """The guardian of a run that goes on, once it is there."""

    def found() -> list[psutil.Process]:
        return [p for p in psutil.Process(process.pid).children() if "chaosrunner.journal.guardian" in p.cmdline()]

    (guardian,) = wait_for(found)
    return guardian  # type: ignore[no-any-return]


def kill_with_guardian(process: subprocess.Popen[str]) -> None:
    """SIGKILLs a run with its guardian, the guardian first, as the loss of the machine would."""
    guardian = guardian_of(process)
    guardian.kill()
    process.kill()
    process.wait()


def kill_started() -> None:
    """Ends what `command` started and what still runs."""
    for process in _started:
        process.kill()
        process.communicate()
    _started.clear()


def start(drill: Path, kubeconfig: str, timelines: Path, *flags: str, **options: Any) -> subprocess.Popen[str]:
    """Starts `chaosrunner run` on a drill."""
    where = ["--kubeconfig", kubeconfig, "--timelines", str(timelines), "--yes"]
    return command("run", str(drill), *where, *flags, **options)


def recorded(timelines: Path) -> list[rows.Row]:
    """Rows that are on the disk so far."""
    folders = sorted(timelines.glob("small/*/manifest.json"))
    return list(Recording.open(folders[-1].parent).rows()) if folders else []
