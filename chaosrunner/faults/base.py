"""What every fault is: a change made to the cluster, told beforehand, checked from outside, put back."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal, Protocol

import anyio
import msgspec
import structlog

from chaosrunner.cluster.actions import create_event, target_of
from chaosrunner.cluster.answers import EvictionClass, meets
from chaosrunner.cluster.budget import HELD, Budgets, Predicted
from chaosrunner.cluster.eviction import EvictionAnswer, evict
from chaosrunner.cluster.patience import Backoff
from chaosrunner.cluster.resources import PODS, Object, meta
from chaosrunner.cluster.session import Answer, Cluster, Unreachable
from chaosrunner.journal.journal import Entry, Journal
from chaosrunner.journal.undo import UndoResult, undo_entry
from chaosrunner.timeline import rows
from chaosrunner.timeline.rows import Emit

log = structlog.get_logger()

PATIENCE = 60.0
"""How long a fault waits for an API server that is away or not up to it, before and while it acts, seconds."""

ANNOUNCING = 5.0
"""Longest time for the Event that names us on a target, seconds: it must not keep a fault from going on."""


class Problem(msgspec.Struct, kw_only=True, frozen=True, omit_defaults=True):
    """Something that a plan found. `refuse` keeps the drill from starting."""

    severity: Literal["refuse", "warn", "info"]
    code: str
    text: str
    how: str | None = None
    """How to mend it."""


def refuse(code: str, text: str, how: str | None = None) -> Problem:
    """A problem that keeps the drill from starting."""
    return Problem(severity="refuse", code=code, text=text, how=how)


class Touch(msgspec.Struct, kw_only=True, frozen=True, omit_defaults=True):
    """One object that a fault would touch, or would leave alone, and what the cluster would answer."""

    action: str
    """evict, delete_pod, cordon, uncordon, skip, wait, block."""
    target: rows.Target
    predicted: str | None = None
    """Predicted class of the answer; a prediction, whatever the cluster said to a dry run."""
    reason: str | None = None
    pdbs: list[str] = []


class Preview(msgspec.Struct, kw_only=True, omit_defaults=True):
    """A fault as its plan sees it."""

    touches: list[Touch] = []
    problems: list[Problem] = []
    undo: Literal["restore", "none"] = "none"
    stays: str | None = None
    """What remains in the cluster until it is undone, and what undoes it."""
    by: str | None = None
    """The driver that makes it; None where there is only one way."""


class TargetResult(msgspec.Struct, kw_only=True, omit_defaults=True):
    """What a fault did to one target. Times in seconds on the recording's clock."""

    target: rows.Target
    answer: str
    """Class of the last answer (`chaosrunner.cluster.answers`); of a cordon accepted, unchanged, rejected, an
    undo's state, or the class of an answer that settled nothing; gone where there was nothing left to take."""
    expected: bool
    """Whether this is what the step asked for."""
    status: int | None = None
    attempts: int = 0
    sent: float | None = None
    """When the call was sent that the cluster accepted."""
    pdbs: list[str] = []
    detail: str | None = None
    bitten: bool | None = None
    """Whether the effect was seen from outside; None where none was asked for, or before `verify`."""
    self_inflicted: bool = False
    """Refused by a budget that a failed eviction of this run holds: no finding about the workload."""
    unknown: bool = False
    """The API server did not say, or could not be asked: nothing is concluded."""


class FaultResult(msgspec.Struct, kw_only=True, omit_defaults=True):
    """What a fault did, or whether it bit. `failed` ends the step as failed, `inconclusive` as inconclusive."""

    result: Literal["ok", "failed", "inconclusive"] = "ok"
    reason: str | None = None
    targets: list[TargetResult] = []


@dataclass
class Context:
    """What faults need of a run."""

    cluster: Cluster
    journal: Journal
    emit: Emit
    run: str
    drill: str
    step: int | None = None
    patience: float = PATIENCE
    """How long the cluster may be away in one go, seconds."""
    answered: Callable[[str, float], tuple[int, int]] | None = None
    """By a Pod's UID and an instant (recording's clock): how many requests sent since then this Pod has answered with
    success so far, and how many others have. None where nobody sends any."""
    _lost: dict[str, EvictionAnswer] = field(default_factory=dict)
    """By the UID of its Pod, an eviction whose answer never came."""

    @property
    def now(self) -> float:
        """Seconds on the recording's clock."""
        return self.cluster.clock.now()

    async def undo(self, entries: Iterable[Entry]) -> list[UndoResult]:
        """Takes back what of these entries is to be taken back still, newest first; each is tried even when another
        fails."""
        mine = {entry.entry for entry in entries}
        pending = [entry for entry in self.journal.open() if entry.entry in mine]
        return [await undo_entry(self.cluster, self.journal, entry, self.emit) for entry in pending]

    async def look(self, pod: Object) -> Answer:
        """The Pod as it is now, of which UID whatever; waits for a cluster that is away. Raises Unreachable."""
        return await self.cluster.get(PODS, meta(pod)["name"], meta(pod)["namespace"], patience=self.patience)

    async def evict(
        self,
        pod: Object,
        *,
        expect: int | str,
        dry_run: bool = False,
        grace_period: float | None = None,
        deadline: float = float("inf"),
    ) -> EvictionAnswer:
        """One eviction, with its rows. An abort waits for the answer: whether the Pod went is evidence.

        It is sent again for `patience` seconds, not beyond `deadline` (recording's clock), while the API server is
        away or not up to it. That takes no second Pod: each goes to this UID, after a look. Where the answer of an
        earlier one was lost and the Pod is found to be going now, that one was accepted; a budget that refuses then
        may be held by it for a while, as the server spends it first.
        """
        backoff, until = Backoff(), min(self.now + self.patience, deadline)
        uid = str(meta(pod)["uid"])
        while True:
            with anyio.CancelScope(shield=True):
                answer = await evict(
                    self.cluster,
                    pod,
                    emit=self.emit,
                    dry_run=dry_run,
                    grace_period=grace_period,
                    step=self.step,
                    expect=expect,
                )
            lost = self._lost.get(uid)
            if lost is not None:
                answer = self._after(lost, answer, str(meta(pod)["namespace"]))
            if meets(expect, answer.answer, answer.status) or not (answer.passing or answer.lost):
                return answer
            if answer.lost and not dry_run:
                lost = self._lost.setdefault(uid, answer)
            pause = backoff.next(answer.retry_after)
            if self.now + pause > until:
                return lost or answer
            await anyio.sleep(pause)

    def _after(self, lost: EvictionAnswer, answer: EvictionAnswer, namespace: str) -> EvictionAnswer:
        """What an answer means after one of this Pod's evictions was lost."""
        if answer.answer in ("not_found", "already_terminating") and not lost.was_terminating:
            return replace(lost, answer="accepted", ok=True, message="its answer was lost, but the Pod is seen to go")
        if answer.answer == "blocked_by_budget" and not answer.self_inflicted:
            held = self.now + HELD
            self.cluster.held |= {(namespace, pdb): held for pdb in answer.pdbs}
            said = f"{answer.message} (our own eviction, whose answer was lost, may hold it for up to {HELD:g} s)"
            return replace(answer, held_until=held, message=said)
        return answer

    def saw(
        self,
        event: Literal["bitten", "not_bitten", "healed", "not_healed", "unknown"],
        fault: str,
        target: rows.Target,
        *,
        by: str,
        detail: str,
        entry: str | None,
    ) -> None:
        """Puts on the timeline what was seen of a fault from outside; `entry` is the journal's, where it has one."""
        self.emit(
            rows.Effect(
                at=self.now, event=event, fault=fault, target=target, by=by, step=self.step, entry=entry, detail=detail
            )
        )

    async def announce(self, target: rows.Target, fault: str, what: str) -> None:
        """A Kubernetes Event on the target that says which run did what. Its failure harms nothing: a log line."""
        reason = "ChaosRunner" + "".join(word.capitalize() for word in fault.split("_"))
        message = f"{what} by run {self.run} of drill {self.drill}"
        with anyio.move_on_after(ANNOUNCING):
            try:
                answer = await create_event(self.cluster, target, run=self.run, reason=reason, message=message)
            except Unreachable as error:
                log.info("event not written", target=target.name, error=str(error))
            else:
                if not answer.ok:
                    log.info("event not written", target=target.name, status=answer.status, message=answer.message)


@dataclass
class PlanContext:
    """What a fault's plan needs. It reads, and asks for dry runs."""

    cluster: Cluster
    pdbs: Sequence[Object]
    ask: bool = True
    """Whether the server is asked by dry-run evictions; without, budgets are only computed."""
    problems: list[Problem] = field(default_factory=list)
    """What came to light beside the predictions."""
    _budgets: dict[str, Budgets] = field(default_factory=dict)
    _answers: dict[str, EvictionAnswer] = field(default_factory=dict)
    _spent: set[str] = field(default_factory=set)

    def recovered(self) -> None:
        """From here on the plan supposes that replacements are Ready, so that budgets allow what they allow now."""
        self._budgets.clear()
        self._spent.clear()

    async def predict(self, pod: Object, *, spend: bool) -> Predicted:
        """What evicting `pod` will be answered, after the evictions that were predicted with `spend` before it.

        The server's own dry run decides, except that it does not know what those before will have used up.
        """
        namespace = str(meta(pod).get("namespace"))
        budgets = self._budgets.setdefault(namespace, Budgets(self.pdbs))
        computed = (budgets if spend else copy.deepcopy(budgets)).predict(pod)
        if not self.ask:
            return computed
        server = await self.dry_run(pod)
        used_up = computed.answer == "blocked_by_budget" and bool(self._spent.intersection(computed.pdbs))
        if spend and computed.spends:
            self._spent.update(computed.pdbs)
        if used_up or server.answer == computed.answer:
            return computed
        if computed.answer == "blocked_by_budget" and server.answer == "accepted":
            text = f"budget {', '.join(computed.pdbs)} allows no disruption, but the server would evict {computed.pod}"
            self.problems.append(Problem(severity="warn", code="budget_not_enforced", text=text))
        reason = server.message or f"so says the server; by the budgets as read: {computed.answer}"
        return Predicted(pod=computed.pod, answer=server.answer, reason=reason, pdbs=computed.pdbs)

    async def dry_run(self, pod: Object) -> EvictionAnswer:
        """The server's answer to a dry-run eviction of `pod` as things are, asked once a Pod."""
        uid = str(meta(pod).get("uid"))
        if uid not in self._answers:
            self._answers[uid] = await evict(self.cluster, pod, emit=lambda _: None, dry_run=True)
        return self._answers[uid]


class Fault(Protocol):
    """A change, aimed. Methods are called in this order; `undo` may come at any time, and twice."""

    name: str

    async def plan(self, context: PlanContext) -> Preview:
        """What it would touch, whether it may, what the cluster would answer, what remains. Changes nothing."""
        ...

    async def apply(self, context: Context) -> FaultResult:
        """Makes the change. Raises Unreachable if the API server cannot be reached; see `undo` then."""
        ...

    async def verify(self, context: Context) -> FaultResult:
        """Whether it bit, seen from outside. A fault that did not bite proves nothing: inconclusive."""
        ...

    async def undo(self, context: Context) -> list[UndoResult]:
        """Puts back what this fault changed, as it was before. Idempotent."""
        ...

    async def verify_undone(self, context: Context) -> bool:
        """Whether nothing of this fault is left, seen from outside."""
        ...


STATUSES: dict[EvictionClass, tuple[int, ...]] = {
    "accepted": (200, 201),
    "already_terminating": (200, 201),
    "blocked_by_budget": (429,),
    "budget_not_observed": (429,),
    "throttled": (429,),
    "multiple_budgets": (500,),
    "precondition_failed": (409,),
    "conflict": (409,),
    "not_found": (404,),
    "forbidden": (401, 403),
    "namespace_terminating": (403,),
    "bad_request": (400,),
}
"""Statuses with which an answer of a class comes, for predictions."""


def would_meet(expect: int | str, answer: EvictionClass) -> bool:
    """Whether a predicted answer, of which only the class is known, is the expected one."""
    if isinstance(expect, int):
        return expect in STATUSES.get(answer, ())
    return bool(meets(expect, answer, None))


def touch(action: str, pod: Object, predicted: Predicted) -> Touch:
    """A Pod as a plan shows it."""
    return Touch(
        action=action,
        target=target_of(pod),
        predicted=predicted.answer,
        reason=predicted.reason,
        pdbs=list(predicted.pdbs),
    )


def verdict_of(wrong: Sequence[TargetResult]) -> Literal["failed", "inconclusive"]:
    """Of a fault with targets that did not go as wanted: what nobody could tell is no failure, nor what we did."""
    return "inconclusive" if all(target.unknown or target.self_inflicted for target in wrong) else "failed"
