"""One run that is killed, what undoes it, and what is left."""

from __future__ import annotations

import gc
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

from chaosrunner.cli.options import CLUSTER
from chaosrunner.cli.recovering import recover_below
from chaosrunner.cluster import Cluster, ClusterConfig, connect
from chaosrunner.cluster.resources import DEPLOYMENTS, LEASES, NETWORK_POLICIES, NODES
from chaosrunner.engine import Options, run_drill
from chaosrunner.journal import journal as journals
from chaosrunner.journal.journal import Entry
from chaosrunner.playbook import load_drill
from chaosrunner.timeline import tables
from chaosrunner.timeline.clock import Clock
from tests.torture.ends import Ended, await_end
from tests.torture.kinds import HOLD, MERGE_PATCH, REAL, Kind
from tests.torture.moments import APPLIED, Moments, Where
from tests.torture.preforked import Preforked
from tests.torture.state import Snapshot, differences, residue, snapshot, toxiproxy, unsettled
from tests.torture.world import Lab

assert tables  # what a run that ends imports then, a second's work: it is forked from here

RECOVERY_LIMIT = 90.0
"""Longest wait for a guardian, seconds."""
SETTLE_LIMIT = 60.0
"""Longest wait for what goes by itself, seconds."""
LOOK = 0.1
"""Seconds between two looks at that."""
LENGTH = 4.0
"""Of a run of a kind that has not come to its end yet, seconds."""


@dataclass(frozen=True)
class Plan:
    """What is done to one run; the same for the same seed and number."""

    number: int
    kind: Kind
    moment: int | None
    """Killed near the instant of this number, from 1, that it tells of a change (`moments`); None: at any instant."""
    before: bool
    """Near it, and before a call that comes there has left: the run stands still until its death."""
    delay: float
    """Seconds from that; else the part of an ordinary run's length."""
    guardian: bool
    """Whether the guardian is killed with it."""
    guardian_first: bool
    foreign: int | None
    """Which of the kind's changes somebody else makes in between."""

    @classmethod
    def of(cls, seed: int, number: int, kinds: list[Kind]) -> Plan:
        random = Random(f"{seed}/{number}")
        kind = kinds[number % len(kinds)]
        share = FOREIGN_SHARE * len(kinds) / max(1, sum(bool(kind.foreign) for kind in kinds))
        foreign = random.randrange(len(kind.foreign)) if kind.foreign and random.random() < share else None
        near = random.random() < NEAR_SHARE
        before = near and random.random() < 0.4
        moment = random.randint(1, max(1, kind.moments - 2) if before else kind.moments) if near else None
        delay = AIM * random.random() ** 2 if near else random.random()
        return cls(number, kind, moment, before, delay, random.random() < 1 / 3, random.random() < 0.5, foreign)


NEAR_SHARE = 0.55
"""Of the runs, those that are aimed at a call that changes something; a busy machine misses some."""

AIM = 0.04
"""Most seconds from an instant to a kill that shall be near it: a busy machine adds some."""

FOREIGN_HOLD = 10.0
"""Seconds that a fault lasts in whose time somebody else comes."""

ABANDONED_HOLD = 4.0
"""Seconds after which a fault ends that nobody undoes."""

FOREIGN_SHARE = 0.12
"""Of all runs, those in which somebody changes the same object: a tenth, and some for those that end before."""


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
    near: Where | None = None
    """Where in a call that changes something it died; None: not within `NEAR` of any."""
    since: float | None = None
    """Seconds since the last thing that it told of such a call."""
    foreign: bool = False
    ended_by_itself: list[Ended] = field(default_factory=list)
    """How each of its faults ended that was there, where it was abandoned to that."""
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

    def __init__(
        self,
        lab: Lab,
        folder: Path,
        seed: int,
        kinds: list[str],
        *,
        abandon: bool = False,
        preforked: bool = False,
    ) -> None:
        """`abandon`: each guardian dies with its run, and nobody recovers before the faults ended by themselves.
        `preforked`: guardians are forked and not started anew, which saves most of what a run costs."""
        self.abandon = abandon
        self.preforked = preforked
        self.lab = lab
        self.folder = folder
        self.seed = seed
        self.kinds = [REAL[name] for name in kinds]
        self.lengths: dict[str, float] = {}
        """Of an ordinary run of each kind, seconds; learned."""
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
        waiting = Preforked() if self.preforked else None
        moments = Moments()
        runner = self._start(plan, timelines, moments, waiting)
        wanted = dict(self.before)
        guardian = self._strike(plan, runner, waiting, moments, timelines, came, wanted)
        came.seconds = time.monotonic() - began
        self._note(came, timelines)
        if came.ended:
            came.by = "the run"
            self.lengths[plan.kind.name] = came.seconds
        else:
            if self.abandon:
                entries = [e for path in timelines.glob("*/*/journal.jsonl") for e in journals.open_entries(path)]
                self._ask(partial(self._await_ends, entries, came))
            self._recover(plan, guardian, timelines, came)
            came.recovery = time.time() - came.died
        if waiting is not None:
            waiting.reap()
        self._ask(partial(self._judge, came, wanted))
        if came.foreign or not came.good:
            self._ask(self._restore)
        return came

    # --- the run and its death --------------------------------------------------------------------------

    def _start(self, plan: Plan, timelines: Path, moments: Moments, guardian: Preforked | None) -> int:
        drill = self._write(plan, timelines)
        gc.freeze()  # what the run is forked from stays shared with it
        child = os.fork()
        if child:
            gc.unfreeze()
            moments.forked()
            if guardian is not None:
                guardian.leave()
            return child
        code = 70
        try:
            os.setsid()
            moments.tell(plan.moment if plan.before and plan.foreign is None else None)
            if guardian is not None:
                guardian.serve()
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

    def _strike(
        self,
        plan: Plan,
        runner: int,
        waiting: Preforked | None,
        moments: Moments,
        timelines: Path,
        came: Came,
        wanted: Snapshot,
    ) -> int | None:
        """Waits for the instant and kills. A pidfd of the guardian that lives on, None where there is none."""
        file = os.pidfd_open(runner)
        limit = time.monotonic() + 60
        at = limit
        if plan.moment is None and plan.foreign is None:
            at = time.monotonic() + plan.delay * self.lengths.get(plan.kind.name, LENGTH)
        waited_for = [file, moments.file] if at == limit else [file]
        while (left := at - time.monotonic()) > 0:
            ready = select.select(waited_for, [], [], left)[0]
            if file in ready:
                came.ended = True
                break
            if not ready:
                continue
            moments.read()
            if plan.foreign is None:
                if (aimed := moments.at(plan.moment or 1, unsent=plan.before)) is not None:
                    at, waited_for = aimed + plan.delay, [file]
            elif any(what == APPLIED for what, _ in moments.told):
                wanted |= self._ask(partial(self._change, plan.kind.foreign[plan.foreign]))
                came.foreign = True
                at, waited_for = time.monotonic() + plan.delay, [file]
        guardian = None if came.ended else waiting.pid if waiting is not None else _guardian(runner)
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
            if victim == runner:
                died, came.died = time.monotonic(), time.time()
        _, status = os.waitpid(runner, 0)
        os.close(file)
        moments.read()
        moments.close()
        if not came.ended:
            came.near, came.since = moments.where(died, held=plan.before and plan.foreign is None)
        elif status:
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

    async def _await_ends(self, entries: list[Entry], came: Came, cluster: Cluster) -> None:
        """Leaves each fault that ends by itself to that, and notes how it did."""
        for entry in entries:
            if entry.ends is not None and (ended := await await_end(cluster, self.lab, entry)):
                came.ended_by_itself.append(ended)
                came.late += ended.left

    # --- looking ----------------------------------------------------------------------------------------

    def _note(self, came: Came, timelines: Path) -> None:
        for path in timelines.glob("*/*/journal.jsonl"):
            came.states = [state for _, state in journals.read(path)]

    async def _judge(self, came: Came, wanted: Snapshot, cluster: Cluster) -> None:
        """Compares; what the API server has to do by itself, and what a drill's own limits end, has time."""
        until = anyio.current_time() + SETTLE_LIMIT
        while (left := differences(wanted, await self._snapshot(cluster))) and anyio.current_time() < until:
            if not _may_pass(left):
                break
            await anyio.sleep(LOOK)
        came.left += left
        while (late := await unsettled(cluster, self.lab)) and anyio.current_time() < until:  # noqa: ASYNC110
            await anyio.sleep(LOOK)
        came.late += [f"{key}: {value}" for key, value in late.items()]

    async def _snapshot(self, cluster: Cluster) -> Snapshot:
        return await snapshot(cluster, self.lab, self.folder / "marks")

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
                await anyio.sleep(LOOK)

    def _ask(self, task: Any) -> Any:
        async def run() -> Any:
            config = ClusterConfig(kubeconfig=self.lab.kubeconfig, context=self.lab.context)
            async with connect(config, Clock()) as cluster:
                return await task(cluster)

        return anyio.run(run)


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


def _last(path: Path) -> str:
    lines = path.read_text(errors="replace").strip().splitlines()
    return " | ".join(lines[-3:])
