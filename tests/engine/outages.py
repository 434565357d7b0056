"""What a run must be like, whatever its control plane did meanwhile; and the ways in which one fails."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from itertools import pairwise

from chaosrunner.analysis.verdict import EXIT_CODES
from chaosrunner.cluster.watch import Timing
from chaosrunner.journal.journal import OPEN
from chaosrunner.observers import ObserveScope
from chaosrunner.timeline import rows
from tests.engine import proxy as proxies
from tests.engine.drills import Ran
from tests.engine.lab import Lab, Object, wait_for
from tests.engine.proxy import Proxy, Refusal

QUICK = partial(ObserveScope, timing=Timing(server_timeout=1, silence=2.0))
"""Observers that find a dead watch within two seconds."""

Trouble = Callable[[Proxy], None]


def refuse(refusal: Refusal, seconds: float = 1.2) -> Trouble:
    def begin(proxy: Proxy) -> None:
        proxy.refusal = refusal
        proxy.restore_after(seconds)

    return begin


def restart(proxy: Proxy, seconds: float = 1.2) -> None:
    """The API server is killed, and started again: it knows no version from before."""
    proxy.cut()
    proxy.forget()
    proxy.restore_after(seconds)


def cold_start(proxy: Proxy) -> None:
    """A restart as clients see it: nobody there, not ready, nobody known, no right known, caches being filled."""

    def run() -> None:
        for refusal in (proxies.UNAVAILABLE, proxies.UNAUTHORIZED, proxies.DENIED, proxies.NO_ROLE, proxies.OVERLOADED):
            time.sleep(0.3)
            proxy.refusal, proxy.away = refusal, False
        time.sleep(0.3)
        proxy.restore()

    proxy.cut()
    proxy.forget()
    threading.Thread(target=run, daemon=True).start()


def freeze(proxy: Proxy) -> None:
    """Packets are lost for a while, longer than anybody waits for an answer."""
    proxy.freeze()
    proxy.restore_after(2.5)


def strand(proxy: Proxy) -> None:
    """Connections that are open are dead from now on, and nobody is told."""
    proxy.strand()


def drop(proxy: Proxy) -> None:
    """Connections break, as when a load balancer moves them to another API server; versions live on."""
    proxy.drop()


def lose(part: str) -> Trouble:
    """The next change there is carried out, and its answer lost with the connection."""

    def begin(proxy: Proxy) -> None:
        proxy.lose = part

    return begin


TROUBLES: dict[str, Trouble] = {
    "restart": restart,
    "cold start": cold_start,
    "freeze": freeze,
    "strand": strand,
    "drop": drop,
    "401": refuse(proxies.UNAUTHORIZED),
    "403 no role": refuse(proxies.NO_ROLE),
    "429": refuse(proxies.OVERLOADED),
    "500 etcd slow": refuse(proxies.ETCD_SLOW),
    "500 no leader": refuse(proxies.NO_LEADER),
    "503": refuse(proxies.UNAVAILABLE),
    "504": refuse(proxies.TIMED_OUT),
}


def _started(step: str, row: rows.Row) -> bool:
    return isinstance(row, rows.Step) and (row.step, row.event) == (step, "started")


def _sent(action: str, row: rows.Row) -> bool:
    return isinstance(row, rows.Action) and (row.action, row.event) == (action, "sent")


def _run(event: str, row: rows.Row) -> bool:
    return isinstance(row, rows.Run) and row.event == event


Moment = Callable[[rows.Row], bool]

MOMENTS: dict[str, Moment] = {
    "baseline": partial(_started, "baseline"),
    "before the fault": partial(_started, "evict"),
    "cordon sent": partial(_sent, "cordon"),
    "eviction sent": partial(_sent, "evict"),
    "wait": partial(_started, "wait"),
    "undo sent": partial(_sent, "undo_cordon"),
    "end": partial(_run, "draining"),
}
"""Rows at which the trouble begins. A call has its row before it leaves."""


@dataclass
class Script:
    """Begins each trouble at its moment, once."""

    proxy: Proxy
    plan: dict[str, Trouble]

    def on_row(self, row: rows.Row) -> None:
        for moment in list(self.plan):
            if MOMENTS[moment](row):
                self.plan.pop(moment)(self.proxy)


def sound(ran: Ran, lab: Lab, before: dict[str, tuple[Object, Object]]) -> None:
    """The invariants: everything is as before, nothing false is said, nothing is missing from the recording."""
    facts = ran.facts
    assert facts.exit_code == EXIT_CODES[facts.verdict]
    assert facts.run.state == "ended"
    assert ran.live == facts  # what was known live is what the recording tells
    wait_for(lambda: lab.nodes() == before, 60)

    states: dict[str, str] = {}
    for entry in ran.of(rows.Journal):
        states[entry.entry] = entry.event
    assert not set(states.values()) & OPEN

    # The streams went on: no stretch without a request that was sent, and none that the outage lost.
    sent = sorted(row.sent for row in ran.of(rows.Request))
    ended = next(row.at for row in ran.of(rows.Run) if row.event == "draining")
    assert max(later - earlier for earlier, later in pairwise([*sent, ended])) < 2.5
    victims = {row.target.name for row in ran.of(rows.Action) if row.action in ("evict", "delete_pod")}
    lost = [row for row in ran.of(rows.Request) if row.outcome != "complete" and row.pod not in victims]
    assert [(row.outcome, row.pod, row.error) for row in lost] == []

    # What happened while nobody looked has a window, not an instant.
    gaps = {row.id: row for row in ran.of(rows.Watch) if row.event == "gap_opened"}
    for row in ran.rows:
        if isinstance(row, rows.Observed) and row.seen in ("RELISTED", "VANISHED"):
            assert row.gap in gaps
    hidden = {row.id for row in ran.of(rows.Pod) if row.gap is not None}
    for replacement in facts.replacements:
        for stage in ("created", "scheduled", "initialized", "started", "ready"):
            milestone = getattr(replacement.milestones, stage)
            if hidden & set(milestone.evidence):
                assert milestone.at is None
                assert milestone.low <= milestone.high
    codes = {finding.code for finding in facts.findings}
    assert not codes & {"fault_not_observed", "stuck_terminating", "budget_not_enforced", "watch_forbidden"}
    if gaps:
        assert "observations_incomplete" in codes
