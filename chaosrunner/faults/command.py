"""command: the user's own commands as a fault, under the same journal, time limits and verification as any other."""

from __future__ import annotations

import os
import re
import shlex
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from chaosrunner.cluster.actions import answered, sent, target_of
from chaosrunner.cluster.resources import Object, meta
from chaosrunner.cluster.session import Cluster
from chaosrunner.faults.base import Context, FaultResult, PlanContext, Preview, Problem, TargetResult, Touch, refuse
from chaosrunner.journal import ran
from chaosrunner.journal.journal import Entry, Ran, new_name
from chaosrunner.journal.undo import UndoResult
from chaosrunner.timeline import rows

_NAME = re.compile(r"\{\{\s*(.*?)\s*\}\}")

Argv = tuple[str, ...]
Event = Literal["bitten", "not_bitten", "healed", "not_healed", "unknown"]


@dataclass(frozen=True, kw_only=True)
class Commands:
    """What is run, program first; None where there is none. `{{ pod }}`, `{{ node }}`, `{{ ip }}`, `{{ namespace }}`,
    `{{ context }}` and `{{ kubeconfig }}` are filled in."""

    apply: Argv
    verify: Argv | None = None
    undo: Argv | None = None
    verify_undone: Argv | None = None
    timeout: float = 30.0
    """Longest run of each, seconds."""
    folder: str = "."
    """Where they are started."""
    environment: Mapping[str, str] = field(default_factory=dict)

    @property
    def all(self) -> dict[str, Argv]:
        """Those that are given, by what they are for."""
        given = {
            "apply": self.apply, "verify": self.verify, "undo": self.undo, "verify_undone": self.verify_undone,
        }  # fmt: skip
        return {name: argv for name, argv in given.items() if argv is not None}


@dataclass(frozen=True)
class _Made:
    target: rows.Target
    entry: Entry | None
    """None where nothing undoes it."""
    name: str
    filled: dict[str, Argv]
    ran: Ran


class Command:
    """Runs commands for each Pod: one that makes a change, and those that look at it and take it back.

    Exit code 0 means that it worked, or that it is as it should be. A change whose command failed may have been made
    in part: it is undone too. One that still runs when the runner dies is ended before its undo by whoever undoes it,
    on Linux; elsewhere nobody finds it, of which the plan warns.
    """

    name = "command"

    def __init__(self, pods: Sequence[Object], commands: Commands) -> None:
        self.pods = list(pods)
        self._commands = commands
        self._folder = str(Path(commands.folder).absolute())
        self._made: list[_Made] = []

    async def plan(self, context: PlanContext) -> Preview:
        preview = Preview(undo="restore" if self._commands.undo is not None else "none")
        found: dict[str, Problem] = {}
        for pod in self.pods:
            values = _values(context.cluster, pod)
            for argv in self._commands.all.values():
                for problem in self._problems(argv, values, pod):
                    found.setdefault(problem.text, problem)
            said = shlex.join(_filled(self._commands.apply, values))
            preview.touches.append(Touch(action=self.name, target=target_of(pod), reason=said))
        preview.problems += found.values()
        if self._commands.undo is not None and not ran.sees_orphans():
            how = "run the drill on Linux, or let undo end what apply began"
            preview.problems.append(Problem(severity="warn", code="orphans_unseen", text=ran.UNSEEN, how=how))
        if self._commands.undo is not None:
            preview.stays = f"what {self._commands.apply[0]} changed stays until {self._commands.undo[0]} undoes it"
        return preview

    async def apply(self, context: Context) -> FaultResult:
        """One Pod after the other; the first that fails ends it. Raises JournalLost."""
        result = FaultResult()
        for pod in self.pods:
            done = await self._apply(context, pod)
            result.targets.append(done)
            if not done.expected:
                result.result, result.reason = "failed", f"apply for {done.target.name}: {done.detail}"
                break
            await context.announce(done.target, self.name, f"{self._commands.apply[0]} run")
        return result

    async def verify(self, context: Context) -> FaultResult:
        result = FaultResult()
        for made in self._made:
            bitten, text = await _look(made, "verify")
            event: Event = "unknown" if bitten is None else "bitten" if bitten else "not_bitten"
            context.saw(event, self.name, made.target, by="verify", detail=text, entry=made.name)
            result.targets.append(TargetResult(target=made.target, answer="seen", expected=True, bitten=bitten))
            if bitten is False:
                result.result = "inconclusive"
                result.reason = f"the fault did not bite: verify for {made.target.name}: {text}"
        return result

    async def undo(self, context: Context) -> list[UndoResult]:
        return await context.undo(made.entry for made in self._made if made.entry is not None)

    async def verify_undone(self, context: Context) -> bool:
        healed = True
        for made in self._made:
            if made.ran.undo is None:
                continue
            gone, text = await _look(made, "verify_undone")
            event: Event = "unknown" if gone is None else "healed" if gone else "not_healed"
            context.saw(event, self.name, made.target, by="verify_undone", detail=text, entry=made.name)
            healed = healed and gone is not False
        return healed

    async def _apply(self, context: Context, pod: Object) -> TargetResult:
        values, target = _values(context.cluster, pod), target_of(pod)
        filled = {name: _filled(argv, values) for name, argv in self._commands.all.items()}
        done = Ran(
            undo=filled.get("undo"),
            verify_undone=filled.get("verify_undone"),
            timeout=self._commands.timeout,
            folder=self._folder,
            environment=dict(self._commands.environment),
        )
        entry: Entry | None = None
        if done.undo is not None:
            entry = await context.journal.intend(fault=self.name, target=target, made=done)
        name = entry.entry if entry is not None else new_name()
        self._made.append(_Made(target, entry, name, filled, done))
        row = sent(context.cluster, context.emit, "command_apply", target, step=context.step)
        outcome = await ran.run(filled["apply"], name, "apply", done)
        answer = "accepted" if outcome.ok else "rejected"
        answered(context.emit, row, context.now, answer=answer, message=outcome.text, ok=outcome.ok)
        if entry is not None:
            await context.journal.mark(entry, "applied" if outcome.started else "not_applied", outcome.text)
        return TargetResult(
            target=target,
            answer=answer,
            expected=outcome.ok,
            attempts=1,
            sent=row.at if outcome.ok else None,
            detail=outcome.text,
        )

    def _problems(self, argv: Argv, values: Mapping[str, str], pod: Object) -> list[Problem]:
        names = {match[1] for word in argv for match in _NAME.finditer(word)}
        found = [
            refuse("unknown_template", f"{{{{ {name} }}}} is not known in commands", f"one of {', '.join(values)}")
            for name in sorted(names - values.keys())
        ]
        found += [
            refuse("nothing_to_fill_in", f"Pod {meta(pod)['name']} has no {name}")
            for name in sorted(names & values.keys())
            if not values[name]
        ]
        program, variables = argv[0], ran.environment(self._commands.environment)
        path = str(Path(self._commands.folder) / program) if os.sep in program else program
        if not names.intersection(_NAME.findall(program)) and shutil.which(path, path=variables["PATH"]) is None:
            found.append(refuse("no_such_program", f"{program} is not installed here"))
        return found


def _values(cluster: Cluster, pod: Object) -> dict[str, str]:
    config = cluster.config
    return {
        "pod": str(meta(pod)["name"]),
        "node": str((pod.get("spec") or {}).get("nodeName") or ""),
        "ip": str((pod.get("status") or {}).get("podIP") or ""),
        "namespace": str(meta(pod).get("namespace") or ""),
        "context": cluster.context or "",
        "kubeconfig": config.kubeconfig or os.environ.get("KUBECONFIG") or str(Path.home() / ".kube" / "config"),
    }


def _filled(argv: Argv, values: Mapping[str, str]) -> Argv:
    return tuple(_NAME.sub(lambda match: values.get(match[1], match[0]), word) for word in argv)


async def _look(made: _Made, verb: ran.Verb) -> tuple[bool | None, str]:
    """What the user's own command says; None where there is none."""
    argv = made.filled.get(verb)
    if argv is None:
        return None, f"there is no {verb} command"
    outcome = await ran.run(argv, made.name, verb, made.ran)
    return outcome.ok if outcome.started else None, outcome.text
