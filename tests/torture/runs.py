"""One run that is killed, what undoes it, and what is left."""

from __future__ import annotations

import json
import os
import select
import signal
import sys
import time
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from random import Random
from typing import Any

import anyio
import msgspec

from chaosrunner.cli.options import CLUSTER
from chaosrunner.cli.recovering import recover_below
from chaosrunner.cluster import Cluster, ClusterConfig, connect
from chaosrunner.cluster.resources import DEPLOYMENTS, LEASES, NETWORK_POLICIES, NODES
from chaosrunner.engine import Options, run_drill
from chaosrunner.journal import journal as journals
from chaosrunner.playbook import load_drill
from chaosrunner.timeline import manifest as manifests
from chaosrunner.timeline.clock import Clock
from tests.torture.kinds import HOLD, MERGE_PATCH, REAL, Kind
from tests.torture.state import Snapshot, differences, residue, snapshot, toxiproxy, unsettled
from tests.torture.world import Lab

CALL = b'"kind":"action"'
"""In a row of a call that changes something."""
NEAR = 0.05
"""Seconds around a changing request in which half of the runs are killed."""
LEAVE = 2.0
"""Seconds after its own end at which a fault must be gone."""
RECOVERY_LIMIT = 90.0
"""Longest wait for a guardian, seconds."""
SETTLE_LIMIT = 60.0
"""Longest wait for what goes by itself, seconds."""


@dataclass(frozen=True)
class Plan:
    """What is done to one run; the same for the same seed and number."""

    number: int
    kind: Kind
    row: int | None
    """Killed after so many rows of calls that change something (two a call: sent, answered); None: at any instant."""
    delay: float
    """Seconds from that row; else the part of an ordinary run's length."""
    guardian: bool
    """Whether the guardian is killed with it."""
    guardian_first: bool
    foreign: int | None
    """Which of the kind's changes somebody else makes in between."""

    @classmethod
    def of(cls, seed: int, number: int, kinds: list[Kind]) -> Plan:
        random = Random(f"{seed}/{number}")
        kind = kinds[number % len(kinds)]
        foreign = random.randrange(len(kind.foreign)) if kind.foreign and random.random() < FOREIGN_SHARE else None
        near = random.random() < 0.5
        row = random.randint(1, 4) if near else None
        delay = random.uniform(0, NEAR) ** 2 / NEAR if near else random.random()  # to see a row takes time as well
        return cls(number, kind, row, delay, random.random() < 1 / 3, random.random() < 0.5, foreign)


FOREIGN_HOLD = 10.0
"""Seconds that a fault lasts in whose time somebody else comes."""

ABANDONED_HOLD = 4.0
"""Seconds after which a fault ends that nobody undoes."""

FOREIGN_SHARE = 0.16
"""Of the runs whose kind knows such a change; a tenth of all."""


@dataclass
class Came:
    """What became of it."""

    plan: Plan
    ended: bool = False
    """Whether it ended before it could be killed."""
    by: str = "nobody"
    """Who undid: the run itself, the guardian, recover."""
    states: list[str] = field(default_factory=list)
    """Last states of its journal's entries when it died."""
    died: float = 0.0
    """Unix seconds."""
    near: float | None = None
    """Seconds from the last call that changes something, sent or answered, to its death."""
    foreign: bool = False
    ends: float | None = None
    """Unix seconds at which the last of its faults ends by itself, where it was abandoned to that."""
    left: list[str] = field(default_factory=list)
    """What differs from before, and from what somebody else wanted."""
    late: list[str] = field(default_factory=list)
    """What did not go by itself."""
    seconds: float = 0.0
    recovery: float = 0.0

    @property
    def good(self) -> bool:
        return not self.left and not self.late


class Torture:
    """Runs on one lab, one after the other."""

    def __init__(self, lab: Lab, folder: Path, seed: int, kinds: list[str], *, abandon: bool = False) -> None:
        """`abandon`: each guardian dies with its run, and nobody recovers before the faults ended by themselves."""
        self.abandon = abandon
        self.lab = lab
        self.folder = folder
        self.seed = seed
        self.kinds = [REAL[name] for name in kinds]
        self.length = 4.0
        """Of an ordinary run, seconds; learned."""
        (folder / "marks").mkdir(parents=True, exist_ok=True)
        self.before = self._ask(self._snapshot)

    def one(self, number: int) -> Came:
        plan = Plan.of(self.seed, number, self.kinds)
        if self.abandon:
            plan = replace(plan, guardian=True, foreign=None)
        came = Came(plan)
        timelines = self.folder / f"run-{number}"
        timelines.mkdir()
        began = time.monotonic()
        runner = self._start(plan, timelines)
        wanted = dict(self.before)
        guardian = self._strike(plan, runner, timelines, came, wanted)
        came.seconds = time.monotonic() - began
        self._note(came, timelines)
        if came.ended:
            came.by = "the run"
            self.length += 0.2 * (came.seconds - self.length)
        else:
            if self.abandon:
                self._await_end(timelines, came)
            self._recover(plan, guardian, timelines, came)
        came.recovery = time.time() - came.died
        self._judge(came, wanted)
        if came.foreign or not came.good:
            self._ask(self._restore)
        return came

    # --- the run and its death --------------------------------------------------------------------------

    def _start(self, plan: Plan, timelines: Path) -> int:
        drill = self._write(plan, timelines)
        child = os.fork()
        if child:
            return child
        code = 70
        try:
            os.setsid()
            with (timelines / "log").open("wb") as log:
                os.dup2(log.fileno(), 1)
                os.dup2(log.fileno(), 2)
            config = ClusterConfig(
                kubeconfig=self.lab.kubeconfig, context=self.lab.context, namespace=self.lab.namespace
            )
            anyio.run(run_drill, load_drill(str(drill)), config, Options(timelines=timelines))
            code = 0
        except BaseException as error:
            print(repr(error), getattr(error, "exceptions", ""), file=sys.stderr, flush=True)
        finally:
            os._exit(code)

    def _write(self, plan: Plan, folder: Path) -> Path:
        api = {"apiVersion": "chaosrunner.dev/v1"}
        baseline = {"baseline": {"for": "100ms", "until": "requests >= 1", "timeout": "10s"}}
        probe = {
            "name": "chat",
            "openai": {"max_tokens": 16, "ignore_eos": True, "prompt": "Count from {{ nonce }}."},
            "load": {"closed": {"concurrency": 1, "pause": "50ms"}},
            "timeouts": {"total": "3s", "connect": "2s", "first_byte": "2s"},
        }
        seconds = ABANDONED_HOLD if self.abandon else HOLD if plan.foreign is None else FOREIGN_HOLD
        steps = [baseline, *plan.kind.steps(self.folder, seconds)]
        playbook = {"kind": "Playbook", "metadata": {"name": "torture"}, "probes": [probe], "steps": steps}
        (folder / "playbook.yaml").write_text(json.dumps(api | playbook))
        extra = json.loads(json.dumps(plan.kind.drill))
        if "drivers" in extra and self.lab.toxiproxy:
            extra["drivers"]["toxiproxy"] = {"url": self.lab.toxiproxy, "proxy": "{{ pod }}"}
        drill = {
            "kind": "Drill",
            "metadata": {"name": plan.kind.name},
            "playbook": "./playbook.yaml",
            "context": self.lab.context,
            "namespace": self.lab.namespace,
            "workload": {"selector": self.lab.selector, "controller": f"deployment/{self.lab.deployment}"},
            "endpoint": {"url": self.lab.url, "pod_header": "x-served-by"},
            "limits": {"max_pods": 8, "max_nodes": 4, "deadline": "30s"},
        }
        (folder / "drill.yaml").write_text(json.dumps(api | drill | extra))
        return folder / "drill.yaml"

    def _strike(self, plan: Plan, runner: int, timelines: Path, came: Came, wanted: Snapshot) -> int | None:
        """Waits for the instant and kills. A pidfd of the guardian that lives on, None where there is none."""
        file = os.pidfd_open(runner)
        limit = time.monotonic() + 60
        near = plan.row is not None or plan.foreign is not None
        at = None if near else time.monotonic() + plan.delay * self.length
        journal: Path | None = None
        rows = _Rows(timelines)
        guardian: int | None = None
        while time.monotonic() < limit:
            if select.select([file], [], [], 0.001)[0]:
                came.ended = True
                break
            if at is not None and time.monotonic() >= at:
                break
            journal = journal or next(iter(timelines.glob("*/*/journal.jsonl")), None)
            if journal is not None and guardian is None:
                guardian = _guardian(runner)
            if at is not None:
                continue
            if plan.foreign is None:
                if rows.calls() >= (plan.row or 0):
                    at = time.monotonic() + plan.delay
            elif journal is not None and b'"applied"' in journal.read_bytes():
                wanted |= self._ask(partial(self._change, plan.kind.foreign[plan.foreign]))
                came.foreign = True
                at = time.monotonic() + plan.delay
        guardian = None if came.ended else guardian or _guardian(runner)
        watched: int | None = None
        if guardian is not None and not plan.guardian:
            with suppress(ProcessLookupError):  # let go by a run that is all but over
                watched = os.pidfd_open(guardian)
        victims = [runner]
        if plan.guardian and guardian is not None:
            victims.insert(0 if plan.guardian_first else 1, guardian)
        for victim in victims:
            with suppress(ProcessLookupError):
                os.kill(victim, signal.SIGKILL)
        came.died = time.time()
        _, status = os.waitpid(runner, 0)
        os.close(file)
        if came.ended and status:
            came.left.append(f"the run ended with status {status}: {_last(timelines / 'log')}")
        return watched

    async def _change(self, change: Any, cluster: Cluster) -> Snapshot:
        return await change(cluster, self.lab, await self._snapshot(cluster))  # type: ignore[no-any-return]

    # --- what undoes it ---------------------------------------------------------------------------------

    def _recover(self, plan: Plan, guardian: int | None, timelines: Path, came: Came) -> None:
        if guardian is not None:
            came.by = "guardian"
            if not select.select([guardian], [], [], RECOVERY_LIMIT)[0]:
                came.left.append(f"the guardian did not end within {RECOVERY_LIMIT:g} s")
            os.close(guardian)
            if not list(timelines.glob("*/*/guardian.jsonl")):
                came.by = "the run"  # which had let it go, else something is left
            return
        came.by = "recover"
        flags: dict[str, Any] = dict.fromkeys(CLUSTER) | {"as_groups": ()}
        flags |= {"kubeconfig": self.lab.kubeconfig, "context": self.lab.context, "namespace": self.lab.namespace}
        for result in anyio.run(recover_below, timelines, flags):
            if not result.ok:
                came.left.append(f"recover: {result.target.name} {result.state}: {result.detail}")

    def _await_end(self, timelines: Path, came: Came) -> None:
        """Notes what is still there `LEAVE` seconds after the last fault's own end."""
        entries = [entry for path in timelines.glob("*/*/journal.jsonl") for entry, _ in journals.read(path)]
        ends = [entry.ends for entry in entries if entry.ends is not None]
        came.ends = max(ends, default=None)
        if came.ends is not None:
            time.sleep(max(0.0, came.ends + LEAVE - time.time()))
            left = {
                key: value for key, value in self._ask(self._unsettled).items() if key.startswith(("stopped", "rules"))
            }
            came.late += [
                f"{key}: {value}, {time.time() - came.ends:.1f} s after its end" for key, value in left.items()
            ]

    # --- looking ----------------------------------------------------------------------------------------

    def _note(self, came: Came, timelines: Path) -> None:
        for path in timelines.glob("*/*/journal.jsonl"):
            came.states = [state for _, state in journals.read(path)]
        for path in timelines.glob("*/*/rows.jsonl"):
            anchor = manifests.read(path.parent).anchor
            calls = [_decoded(line) for line in path.read_bytes().split(b"\n") if CALL in line]
            came.near = min((abs(came.died - anchor - call["at"]) for call in calls if call), default=None)

    def _judge(self, came: Came, wanted: Snapshot) -> None:
        """Compares; what the API server has to do by itself, and what a drill's own limits end, has time."""
        until = time.monotonic() + SETTLE_LIMIT
        found = self._ask(self._snapshot)
        while (left := differences(wanted, found)) and time.monotonic() < until and _may_pass(left):
            time.sleep(0.1)
            found = self._ask(self._snapshot)
        came.left += left
        while (late := self._ask(self._unsettled)) and time.monotonic() < until:
            time.sleep(0.05)
        came.late += [f"{key}: {value}" for key, value in late.items()]

    async def _snapshot(self, cluster: Cluster) -> Snapshot:
        return await snapshot(cluster, self.lab, self.folder / "marks")

    async def _unsettled(self, cluster: Cluster) -> Snapshot:
        return await unsettled(cluster, self.lab)

    def residue(self) -> int:
        """Terminated ephemeral containers."""

        async def count(cluster: Cluster) -> int:
            return await residue(cluster, self.lab)

        return self._ask(count)  # type: ignore[no-any-return]

    async def _restore(self, cluster: Cluster) -> None:
        """As it was before, by force: the next run must not suffer from this one."""
        for node in (await cluster.list(NODES)).items:
            name, about = node["metadata"]["name"], node["metadata"]
            where = f"node/{name}"
            labels = {key: None for key in about.get("labels") or {} if f"{where}/label/{key}" not in self.before}
            notes = {key: None for key in about.get("annotations") or {} if key.startswith("chaosrunner.dev/")}
            kept = [
                t for t in node["spec"].get("taints") or [] if f"{where}/taint/{t['key']}:{t['effect']}" in self.before
            ]
            body = {
                "metadata": {"labels": labels, "annotations": notes},
                "spec": {"unschedulable": None, "taints": kept or None},
            }
            path = NODES.path(name=name)
            await cluster.request("PATCH", path, body=body, content_type=MERGE_PATCH)
        lab = self.lab
        deployment = (await cluster.get(DEPLOYMENTS, lab.deployment, lab.namespace)).body
        notes = {
            key: None for key in deployment["metadata"].get("annotations") or {} if key.startswith("chaosrunner.dev/")
        }
        body = {
            "metadata": {"annotations": notes},
            "spec": {"replicas": self.before[f"deployment/{lab.deployment}/replicas"]},
        }
        path = DEPLOYMENTS.path(lab.namespace, lab.deployment)
        await cluster.request("PATCH", path, body=body, content_type=MERGE_PATCH)
        found = await self._snapshot(cluster)
        for key in found.keys() - self.before.keys():
            kind, name, *rest = key.split("/")
            if kind == "policy":
                await cluster.delete(NETWORK_POLICIES, name, lab.namespace)
            elif kind == "lease":
                await cluster.delete(LEASES, name, lab.namespace)
            elif kind == "toxic":
                toxiproxy(lab, "DELETE", f"/proxies/{name}/toxics/{rest[0]}")
            elif kind == "mark":
                (self.folder / "marks" / name).unlink()
        with anyio.move_on_after(SETTLE_LIMIT):
            while await unsettled(cluster, lab):  # noqa: ASYNC110  nobody tells of processes that go on
                await anyio.sleep(0.1)

    def _ask(self, task: Any) -> Any:
        async def run() -> Any:
            config = ClusterConfig(kubeconfig=self.lab.kubeconfig, context=self.lab.context)
            async with connect(config, Clock()) as cluster:
                return await task(cluster)

        return anyio.run(run)


class _Rows:
    """The rows of the only run below a folder, as they come."""

    def __init__(self, timelines: Path) -> None:
        self._timelines = timelines
        self._path: Path | None = None
        self._read = 0
        self._calls = 0

    def calls(self) -> int:
        """How many rows of calls that change something there are so far."""
        self._path = self._path or next(iter(self._timelines.glob("*/*/rows.jsonl")), None)
        if self._path is not None and self._path.stat().st_size > self._read:
            with self._path.open("rb") as file:
                file.seek(self._read)
                new = file.read()
            self._read += len(new)
            self._calls += new.count(CALL)
        return self._calls


def _may_pass(left: list[str]) -> bool:
    """Whether all that differs is about Pods that are on their way out."""
    return all(line.startswith("pod/") for line in left)


def _guardian(runner: int) -> int | None:
    """The guardian of a runner that still lives."""
    with suppress(OSError):
        for child in Path(f"/proc/{runner}/task/{runner}/children").read_text().split():
            if b"chaosrunner.journal.guardian" in Path(f"/proc/{child}/cmdline").read_bytes():
                return int(child)
    return None


def _decoded(line: bytes) -> dict[str, Any] | None:
    try:
        found: dict[str, Any] = msgspec.json.decode(line)
    except msgspec.DecodeError:
        return None
    return found


def _last(path: Path) -> str:
    lines = path.read_text(errors="replace").strip().splitlines()
    return " | ".join(lines[-3:])
