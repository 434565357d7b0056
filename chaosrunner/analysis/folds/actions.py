"""Our own calls: which of them took a Pod away, and what the cluster looked like when they were sent."""

from __future__ import annotations

from dataclasses import dataclass, field

from chaosrunner.analysis.folds.budgets import Budgets
from chaosrunner.analysis.folds.endpoints import Endpoints
from chaosrunner.analysis.folds.pods import Pods, PodState
from chaosrunner.timeline.rows import Action, Pdb

TAKES_POD = frozenset({"evict", "delete_pod"})
"""Actions whose acceptance means that the target Pod goes."""

HITS_POD = ("network_", "add_toxic_", "create_network_policy", "command_apply", "freeze", "kill")
"""How actions begin that keep the target Pod from serving for a while, and leave it where it is."""

MOVES_PODS = frozenset({"rollout_restart", "scale", "taint", "command_apply"})
"""Actions after which controllers, or whoever was called, take Pods away on our account."""

BUDGET_HELD = 120.0
"""Seconds after which the disruption controller forgets an eviction that did not happen: DeletionTimeout in
pkg/controller/disruption/disruption.go of Kubernetes."""


@dataclass
class Call:
    """One call, joined from its two rows, with a snapshot of what was known when it was sent."""

    sent: Action
    answered: Action | None = None
    pod: PodState | None = None
    pod_ready: bool = False
    pod_terminating: bool = False
    ready_endpoints: int | None = None
    ready_keys: frozenset[str] = frozenset()
    budgets: list[Pdb] = field(default_factory=list)
    """Budgets that match the Pod, as last seen before the call."""
    self_inflicted: bool = False
    held_by: Call | None = None
    """For a self-inflicted 429: the failed call that holds the budget."""
    superseded: bool = False
    """It had no answer, and a later call for the same Pod took it: until then it had not gone."""

    @property
    def at(self) -> float:
        return self.sent.at

    @property
    def result(self) -> Action:
        """The row that says how it went; the one of the sending while there is no answer."""
        return self.answered or self.sent

    @property
    def rows(self) -> list[int]:
        return [self.sent.id] + ([self.answered.id] if self.answered and self.answered is not self.sent else [])

    @property
    def change(self) -> bool:
        """Whether it is a fault that may have changed something: no dry run, no undo, not refused, and no second
        removal of a Pod that was leaving already."""
        late = self.result.answer == "already_terminating" or (self.sent.action in TAKES_POD and self.pod_terminating)
        failed = self.result.ok is False or self.superseded
        return not self.sent.dry_run and not self.sent.undo and not failed and not late

    @property
    def disrupts(self) -> bool:
        """Whether it took a Pod away.

        A call whose answer never came counts where the Pod was seen to go after it.
        """
        if self.sent.action not in TAKES_POD or not self.change:
            return False
        if self.result.ok is not None:
            return True
        if self.pod is None:
            return False
        deletion, gone = self.pod.deletion, self.pod.gone
        return (deletion is not None and deletion.at >= self.at) or (gone is not None and gone.high >= self.at)

    @property
    def hits(self) -> bool:
        """Whether it kept a Pod from serving that stayed."""
        return self.sent.action.startswith(HITS_POD) and self.change and self.result.ok is not None

    @property
    def outcome(self) -> str | None:
        """The class of its answer; accepted where none told what became of it, and it took the Pod."""
        return "accepted" if self.result.ok is None and self.disrupts else self.result.answer

    @property
    def pdbs(self) -> set[str]:
        return set(self.result.pdbs or ()) or {pdb.name for pdb in self.budgets}


class Actions:
    def __init__(self, pods: Pods, endpoints: Endpoints, budgets: Budgets) -> None:
        self._pods = pods
        self._endpoints = endpoints
        self._budgets = budgets
        self.calls: list[Call] = []
        self._by_call: dict[int, Call] = {}

    def feed(self, row: Action) -> None:
        call = self._by_call.get(row.call)
        if call is None:
            # A call that was answered without being sent (its Pod was found to be gone) has one row only.
            call = Call(row, ready_endpoints=self._endpoints.ready, ready_keys=self._endpoints.ready_keys)
            self._target(call)
            self.calls.append(call)
            self._by_call[row.call] = call
        if row.event == "answered":
            call.answered = row
            self._inflicted(call)
            self._supersede(call)

    def _target(self, call: Call) -> None:
        target = call.sent.target
        if target.uid is not None:
            call.pod = self._pods.by_uid.get(target.uid)
        elif call.sent.action in TAKES_POD:
            named = self._pods.named(target.name)
            call.pod = named[-1] if named else None
        if call.pod is not None:
            call.pod_ready = call.pod.ready
            call.pod_terminating = call.pod.terminating
            call.budgets = self._budgets.matching(target.namespace, call.pod.labels, call.at)

    def _supersede(self, call: Call) -> None:
        """A removal that was accepted tells of those before it for the same Pod that they had come to nothing."""
        target = call.sent.target.uid
        if target is None or call.sent.dry_run or not call.result.ok or call.result.answer != "accepted":
            return
        for earlier in self.calls:
            same = earlier is not call and earlier.sent.target.uid == target and earlier.sent.action in TAKES_POD
            if same and earlier.answered is not None and earlier.answered.ok is None:
                earlier.superseded = True

    def _inflicted(self, call: Call) -> None:
        """A failed precondition holds the budget (the server spends it first, and checks then); so may a call whose
        answer was lost, if the server died between."""
        if call.result.answer != "blocked_by_budget":
            return
        for earlier in self.calls:
            lost = earlier.answered is not None and earlier.answered.ok is None and earlier.sent.action == "evict"
            holds = earlier.result.answer == "precondition_failed" or lost
            if earlier is call or not holds or earlier.sent.dry_run:
                continue
            if not earlier.at < call.at <= (earlier.answered or earlier.sent).at + BUDGET_HELD:
                continue
            hold = self._budgets.hold(earlier.sent.target.name, earlier.at, call.at)
            if hold is not None and hold.released is not None:
                continue  # the budget was free again
            # Where neither side names a budget, our own request cannot be excluded as the reason.
            if earlier.pdbs & call.pdbs or not earlier.pdbs or not call.pdbs:
                call.self_inflicted, call.held_by = True, earlier

    @property
    def first_fault(self) -> Call | None:
        """The first call that may have changed something."""
        return next((call for call in self.calls if call.change), None)

    @property
    def disruptions(self) -> list[Call]:
        """Accepted calls that took a Pod away, in the order of sending; one a Pod."""
        found: dict[str, Call] = {}
        for call in self.calls:
            if call.disrupts:
                found.setdefault(call.sent.target.uid or (call.pod.uid if call.pod else call.sent.target.name), call)
        return list(found.values())
