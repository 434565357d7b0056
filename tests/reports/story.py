"""Recordings that tell whole stories, for reports to tell them again. Facts are analysed, never made up."""

from __future__ import annotations

from chaosrunner.analysis import Facts, ProbeContext, Slo
from chaosrunner.timeline import rows
from tests.analysis.tape import Tape, context, facts

VICTIM = "chat-5d9c7f4b6d-aaaaa"
OTHER = "chat-5d9c7f4b6d-bbbbb"
NEW = "chat-5d9c7f4b6d-ccccc"

NASTY = "upstream | said: *reset*\nby `peer` <b>at</b> [10.0.0.1](http://x) and the text goes on " + "x" * 300

CHECKS = ("loss_on_victim == 0", "incomplete_200 == 0", "success_rate >= 99.9%", "time_to_serve <= 60s")


def endpoints(tape: Tape, at: float, seen: rows.Seen = "MODIFIED", **ready: bool) -> None:
    tape.endpoints(at, seen, **{name.replace("-", "_"): value for name, value in ready.items()})


def eviction(*, lost: int = 2, error: str = "finish_reason abort", drill: str = "chat-evict") -> Facts:
    """Two replicas, four streams of two seconds each; one replica is evicted at 10 s with two streams on it, of which
    `lost` are lost; its replacement is Ready at 15 s and warm at 22 s."""
    tape = Tape()
    tape.add(rows.Run(at=0.0, event="started"))
    for name in (VICTIM, OTHER):
        tape.pod(0.1, name, "LISTED", ready=True)
    endpoints(tape, 0.1, "LISTED", **{VICTIM: True, OTHER: True})
    tape.add(rows.Step(at=0.5, index=0, step="baseline", name="baseline", event="started"))
    for at in (1.0, 3.0, 5.0, 7.0):
        tape.request(at, at + 2, pod=VICTIM)
        tape.request(at, at + 2, pod=OTHER)
    tape.add(rows.Step(at=9.0, index=0, step="baseline", name="baseline", event="ended", result="ok"))
    tape.evict(10.0, VICTIM)
    tape.evict(10.5, OTHER, "blocked_by_budget", dry_run=True, message="Cannot evict pod", pdbs=["chat"])
    for number in range(2):
        if number < lost:
            tape.request(9.2, 10.1, "aborted", pod=VICTIM, status=200, first_token=9.4, error=error)
        else:
            tape.request(9.2, 11.2, pod=VICTIM)
        tape.request(9.2, 11.2, pod=OTHER)
    tape.pod(10.02, VICTIM, ready=True, deletion_time="2026-11-29T17:00:40Z", deletion_grace=30.0)
    endpoints(tape, 10.03, **{VICTIM: False, OTHER: True})
    tape.pod(10.05, NEW, "ADDED", ready=False, phase="Pending", created_time="2026-11-29T17:00:10Z")
    tape.pod(11.5, VICTIM, "DELETED", ready=False, deletion_time="2026-11-29T17:00:40Z", deletion_grace=0.0)
    tape.pod(15.0, NEW, ready=True, created_time="2026-11-29T17:00:10Z")
    endpoints(tape, 15.1, **{OTHER: True, NEW: True})
    tape.request(16.0, 19.0, pod=NEW, first_token=18.5)  # outside the SLO: cold
    for at in (20.0, 22.0, 24.0, 26.0):
        tape.request(at, at + 2, pod=NEW)
        tape.request(at, at + 2, pod=OTHER)
    tape.end(29.0)
    settings = context(*CHECKS, drill=drill, run="r", probes=(ProbeContext(name="chat", slo=Slo(ttft=1.0)),))
    return facts(tape, settings)


def quiet() -> Facts:
    """A run without any request on the victim, without a replacement, with a watch gap."""
    tape = Tape()
    tape.pod(0.1, VICTIM, "LISTED", ready=True)
    endpoints(tape, 0.1, "LISTED", **{VICTIM: True})
    tape.evict(5.0, VICTIM)
    tape.watch(6.0, "pods", "gap_opened", reason="silent", last_alive=5.5)
    tape.end(10.0)
    return facts(tape, context(*CHECKS, drill="quiet"))


def crowd(requests: int) -> Facts:
    """Many losses: half aborted on the victim, half refused elsewhere."""
    tape = Tape()
    tape.pod(0.1, VICTIM, "LISTED", ready=True)
    tape.evict(10.0, VICTIM)
    for number in range(requests // 2):
        tape.request(9.0, 10.1 + number / 1000, "aborted", pod=VICTIM, status=200, error="finish_reason abort")
        tape.request(10.2, 10.3 + number / 1000, "connect_refused", error=f"refused {number}")
    tape.end(20.0)
    return facts(tape, context(*CHECKS, drill="crowd"))
