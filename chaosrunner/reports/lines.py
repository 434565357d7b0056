"""One line of text for a row of the timeline, as `chaosrunner timeline` and the live display show it."""

from __future__ import annotations

from chaosrunner.reports.format import one_line, seconds
from chaosrunner.timeline import rows
from chaosrunner.timeline.outcomes import SUCCESSES


def kind(row: rows.Row) -> str:
    return str(row.__struct_config__.tag)


def describe(row: rows.Row) -> str:
    """What the row says, without its time, kind and id."""
    match row:
        case rows.Run():
            return row.event.replace("_", " ") + _because(row.reason)
        case rows.Step():
            return f"{row.name}: {row.event}" + (f", {row.result}" if row.result else "") + _because(row.reason)
        case rows.Action():
            what = f"{row.action}{' (dry run)' if row.dry_run else ''}{' (undo)' if row.undo else ''} {row.target.name}"
            if row.event == "sent":
                return f"{what}: sent"
            answer = f"{what}: {row.answer or ''} {row.status or ''}".rstrip()
            return answer + (f": {one_line(row.message)}" if row.message and not row.ok else "")
        case rows.Journal():
            return f"{row.fault} {row.target.name}: {row.event.replace('_', ' ')}" + _because(row.detail)
        case rows.Effect():
            return f"{row.fault} {row.target.name}: {row.event.replace('_', ' ')}, by {row.by}" + _because(row.detail)
        case rows.Clock():
            return f"wall time {row.wall:.6f}"
        case rows.Skew():
            return f"{row.owner} said {row.reported:.3f}"
        case rows.Prober():
            worker = f"worker {row.worker} of probe {row.probe}: " if row.worker is not None else ""
            return f"{worker}loop lag {seconds(row.loop_lag)}"
        case rows.Worker():
            return f"probe {row.probe}: " + (row.reason or f"worker {row.worker} of {row.of} {row.event}")
        case rows.Replica():
            return f"probe {row.probe}: {row.name} at {row.address} {row.event}"
        case rows.RequestSent():
            return f"{row.request}: sent"
        case rows.RequestHeaders():
            return f"{row.request}: HTTP {row.status}" + (f" from {row.pod}" if row.pod else "")
        case rows.Request():
            return _request(row)
        case rows.Pod():
            return _pod(row)
        case rows.EndpointSlice():
            ends = (
                ", ".join(f"{e.pod or '/'.join(e.addresses)} {_endpoint(e)}" for e in row.endpoints) or "no endpoints"
            )
            return f"{_seen(row)}{row.name}: {ends}"
        case rows.Node():
            text = f"{_seen(row)}{row.name}: Ready={row.ready}"
            return (
                text
                + (", cordoned" if row.unschedulable else "")
                + "".join(f", {t.key}:{t.effect}" for t in row.taints)
            )
        case rows.Pdb():
            return (
                f"{_seen(row)}{row.name}: {row.allowed} allowed, {row.current} of {row.desired} healthy"
                f"{''.join(f', disrupting {name}' for name in row.disrupted_times)}"
            )
        case rows.Event():
            times = f" (x{row.count})" if row.count > 1 else ""
            return f"{row.object_kind} {row.object_name}: {row.reason}{times}: {one_line(row.message)}".rstrip(": ")
        case rows.Alerts():
            if not row.ok:
                return f"poll failed: {one_line(row.error)}"
            return ", ".join(f"{alert.name} {alert.state}" for alert in row.alerts) or "none pending or firing"
        case rows.Watch():
            return f"{row.resource}: {row.event.replace('_', ' ')}" + _because(row.reason)


class News:
    """Tells rows that are news to somebody who follows a run from those that only repeat, sample or count.

    What is new depends on what was before, so it must see every row, in order.
    """

    def __init__(self) -> None:
        self._known: dict[str, object] = {}

    def has(self, row: rows.Row) -> bool:
        match row:
            case rows.Run() | rows.Step() | rows.Action() | rows.Effect():
                return True
            case rows.Journal():
                return row.event != "intent"
            case rows.Request():
                return row.outcome not in SUCCESSES and not row.once and row.replica is None
            case rows.Worker():
                return row.event == "died"
            case rows.Watch():
                return row.event in ("gap_opened", "gap_closed", "forbidden")
            case rows.Pod():
                ready = next((c.status for c in row.conditions if c.type == "Ready"), None) == "True"
                restarts = sum(c.restarts for c in row.containers)
                return self._changed(row, (ready, row.deletion_time is not None, restarts, _gone(row)))
            case rows.Node():
                return self._changed(row, (row.ready, row.unschedulable, _gone(row)))
            case rows.EndpointSlice():
                return self._changed(row, frozenset(e.uid or e.pod for e in row.endpoints if e.ready))
            case rows.Alerts():
                before = self._known.get("alerts", frozenset())
                now = frozenset((a.name, a.state) for a in row.alerts) if row.ok else before
                self._known["alerts"] = now
                return now != before
            case _:
                return False

    def _changed(self, row: rows.Observed, state: object) -> bool:
        """Whether an object differs in what matters. What the first list shows is no news."""
        before, self._known[row.uid] = self._known.get(row.uid), state
        return row.seen != "LISTED" and state != before


def _gone(row: rows.Observed) -> bool:
    return row.seen in ("DELETED", "VANISHED")


def _because(reason: str | None) -> str:
    return f" ({one_line(reason)})" if reason else ""


def _seen(row: rows.Observed) -> str:
    return "" if row.seen == "MODIFIED" else f"{row.seen.lower()} "


def _endpoint(end: rows.Endpoint) -> str:
    if end.ready:
        return "ready"
    state = "serving" if end.serving else "not ready"
    return f"{state}, terminating" if end.terminating else state


def _pod(row: rows.Pod) -> str:
    parts = [row.phase or "?"]
    ready = next((c.status for c in row.conditions if c.type == "Ready"), None)
    if ready:
        parts.append(f"Ready={ready}")
    if row.deletion_time:
        parts.append("terminating")
    if row.node:
        parts.append(f"on {row.node}")
    parts.extend(f"{c.name} exit {c.exit_code}" for c in row.containers if c.state == "terminated")
    parts.extend(f"{c.name} restarts {c.restarts}" for c in row.containers if c.restarts)
    parts.extend(f"{c.type}={c.reason}" for c in row.conditions if c.type == "DisruptionTarget" and c.reason)
    return f"{_seen(row)}{row.name}: {', '.join(parts)}"


def _request(row: rows.Request) -> str:
    parts = [row.outcome]
    if row.status:
        parts.append(f"HTTP {row.status}")
    if row.pod:
        parts.append(f"on {row.pod}")
    if row.tokens is not None:
        parts.append(f"{row.tokens} tokens")
    if row.first_token is not None:
        parts.append(f"first token {seconds(row.first_token - row.sent)}")
    parts.append(f"took {seconds(row.at - row.sent)}")
    if row.error:
        parts.append(one_line(row.error))
    return f"{row.request}: {', '.join(parts)}"
