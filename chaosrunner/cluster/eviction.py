"""Evicting one Pod through the Eviction API, so that every answer says what it means.

A precondition that fails has already spent the budget (the handler takes the disruption off first and compares the
UID when it deletes), so the UID is compared by a GET just before; the precondition is sent as well, for the
milliseconds in between.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from chaosrunner.cluster.actions import answered, causes_of, sent, target_of
from chaosrunner.cluster.answers import EvictionClass, budgets_named, classify, meets, settled
from chaosrunner.cluster.budget import HELD, budgets_of
from chaosrunner.cluster.resources import PDBS, PODS, meta, terminating
from chaosrunner.cluster.session import Answer, ApiError, Cluster, Unreachable, delete_options
from chaosrunner.timeline import rows
from chaosrunner.timeline.rows import Emit


@dataclass(frozen=True, slots=True, kw_only=True)
class EvictionAnswer:
    """What became of an eviction."""

    answer: EvictionClass
    call: int
    status: int | None = None
    reason: str | None = None
    message: str | None = None
    causes: list[dict[str, str]] | None = None
    retry_after: float | None = None
    """Seconds that the server asks to wait."""
    pdbs: tuple[str, ...] = ()
    """Budgets that match the Pod, where the answer is about budgets."""
    ok: bool | None = None
    """Whether the cluster accepted it; None where no answer came, or one that does not say (a timeout)."""
    sent: float | None = None
    """When the request left, on the recording's clock; None if it was never sent."""
    held_until: float | None = None
    """Until when (recording's clock) a failed eviction of ours may hold `pdbs`; see `Cluster.held`."""
    passing: bool = False
    """Nothing was carried out, for a reason that goes by itself (`Cluster.passing`, or no connection)."""
    was_terminating: bool = False
    """The Pod was on its way out before."""

    @property
    def lost(self) -> bool:
        """Nobody said what became of it: it may have been carried out."""
        return self.ok is None

    @property
    def self_inflicted(self) -> bool:
        """Blocked by a budget that our own failed eviction holds: no finding about the workload."""
        return self.answer == "blocked_by_budget" and self.held_until is not None


async def evict(
    cluster: Cluster,
    pod: dict[str, Any],
    *,
    emit: Emit | None = None,
    dry_run: bool = False,
    grace_period: float | None = None,
    step: int | None = None,
    expect: int | str | None = None,
) -> EvictionAnswer:
    """Evict the Pod that `pod` (name, namespace, UID) is, once. Never raises for what the cluster does.

    Emits an Action row when the request leaves and one when it is answered; a Pod that is gone (404 or another UID)
    is not evicted and gets the second row only. With `dry_run` the server checks the budget and changes nothing; then
    `emit` may be left out, for a plan that records nothing. `expect`: an HTTP status or a class, for the row.
    """
    assert emit is not None or dry_run, "an eviction that is not recorded would be a fault nobody knows of"
    emit = emit or _nowhere
    metadata, target = meta(pod), target_of(pod)
    name, namespace, uid = str(metadata["name"]), str(metadata["namespace"]), str(metadata["uid"])

    def unsent(kind: EvictionClass, message: str, status: int | None, *, passing: bool = False) -> EvictionAnswer:
        """The GET before it said that there is nothing to evict, or could not say anything."""
        call, ok = next(cluster.calls), False
        row = rows.Action(
            at=cluster.clock.now(), event="answered", call=call, action="evict", target=target, step=step,
            dry_run=dry_run, answer=kind, status=status, message=message, ok=ok, expected=meets(expect, kind, status),
        )  # fmt: skip
        emit(row)
        return EvictionAnswer(answer=kind, call=call, status=status, message=message, ok=ok, passing=passing)

    try:
        current = await cluster.get(PODS, name, namespace)
    except Unreachable as error:
        return unsent("unreachable", f"not sent: {error}", None, passing=True)
    if not current.ok:
        kind = classify(current.status, current.body, current.headers)
        passing = cluster.passing(current)
        return unsent(kind, f"not sent: {current.message}", current.status, passing=passing)
    if (found := meta(current.body).get("uid")) != uid:
        return unsent("not_found", f"not sent: another Pod has this name by now (UID {found}, not {uid})", 404)

    eviction = {
        "apiVersion": "policy/v1",
        "kind": "Eviction",
        "metadata": {"name": name, "namespace": namespace},
        "deleteOptions": delete_options(uid=uid, grace_period=grace_period, dry_run=dry_run),
    }
    row = sent(cluster, emit, "evict", target, step=step, dry_run=dry_run)
    try:
        answer = await cluster.request("POST", PODS.path(namespace, name, "eviction"), body=eviction)
    except Unreachable as error:
        lost = EvictionAnswer(
            answer="unreachable",
            call=row.call,
            message=str(error),
            ok=None if error.sent else False,
            sent=row.at,
            passing=not error.sent,
            was_terminating=terminating(current.body),
        )
        _record(emit, row, lost, cluster.clock.now(), expect)
        return lost

    kind = classify(answer.status, answer.body, answer.headers)
    if kind == "accepted" and terminating(current.body):
        kind = "already_terminating"
    pdbs = tuple(budgets_named(answer.body))
    if kind in ("multiple_budgets", "precondition_failed"):
        pdbs = await _matching_budgets(cluster, current.body)
    held_until = _held(cluster, namespace, kind, pdbs, answer, dry_run)
    known = settled(answer.status, answer.body)
    result = EvictionAnswer(
        answer=kind,
        call=row.call,
        status=answer.status,
        reason=answer.reason,
        message=_explained(cluster, kind, answer, pdbs, held_until),
        causes=causes_of(answer),
        retry_after=answer.retry_after,
        pdbs=pdbs,
        ok=kind in ("accepted", "already_terminating") if known else None,
        sent=row.at,
        held_until=held_until,
        passing=known and cluster.passing(answer),
        was_terminating=terminating(current.body),
    )
    _record(emit, row, result, answer.received, expect)
    return result


def _record(emit: Emit, row: rows.Action, result: EvictionAnswer, at: float, expect: int | str | None) -> None:
    answered(
        emit,
        row,
        at,
        answer=result.answer,
        status=result.status,
        reason=result.reason,
        message=result.message,
        causes=result.causes,
        retry_after=result.retry_after,
        pdbs=list(result.pdbs) or None,
        ok=result.ok,
        expected=meets(expect, result.answer, result.status),
    )


def _nowhere(row: rows.Row) -> None:
    """Where the rows of a plan go."""


async def _matching_budgets(cluster: Cluster, pod: dict[str, Any]) -> tuple[str, ...]:
    """Names of the budgets that match; none where they cannot be read."""
    try:
        pdbs = await cluster.list(PDBS, meta(pod)["namespace"])
    except (ApiError, Unreachable):
        return ()
    return tuple(str(meta(pdb)["name"]) for pdb in budgets_of(pod, pdbs.items))


def _held(
    cluster: Cluster, namespace: str, kind: EvictionClass, pdbs: tuple[str, ...], answer: Answer, dry_run: bool
) -> float | None:
    """Remember budgets that a failed precondition has spent, and recognise them when they block us."""
    keys = [(namespace, pdb) for pdb in pdbs]
    if kind == "precondition_failed" and not dry_run:
        cluster.held |= dict.fromkeys(keys, answer.received + HELD)
        return answer.received + HELD
    if kind == "blocked_by_budget":
        until = max((cluster.held.get(key, 0.0) for key in keys), default=0.0)
        return until if until > answer.received else None
    return None


def _explained(
    cluster: Cluster, kind: EvictionClass, answer: Answer, pdbs: tuple[str, ...], held_until: float | None
) -> str | None:
    if answer.ok:
        return None
    names = " and ".join(pdbs) or "its budget"
    if kind == "precondition_failed" and held_until is not None:
        return f"{answer.message} ({names} may be held by this failed eviction for {HELD:g} s)"
    if kind == "blocked_by_budget" and held_until is not None:
        left = held_until - cluster.clock.now()
        return f"{answer.message} ({names} is held by our own failed eviction for up to {left:.0f} s more)"
    if kind == "multiple_budgets" and pdbs:
        return f"{answer.message} (they are {names}: a configuration error, which no retry heals)"
    return answer.message
