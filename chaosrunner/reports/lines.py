"""One line of text for a row of the timeline, as `chaosrunner timeline` and the live display show it."""

from __future__ import annotations

from chaosrunner.reports.format import seconds
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
            return answer + (f": {row.message}" if row.message and not row.ok else "")
        case rows.Journal():
            return f"{row.fault} {row.target.name}: {row.event.replace('_', ' ')}" + _because(row.detail)
        case rows.Clock():
            return f"wall time {row.wall:.6f}"
        case rows.Skew():
            return f"{row.owner} said {row.reported:.3f}"
        case rows.Prober():
            return f"loop lag {seconds(row.loop_lag)}"
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
            return f"{row.object_kind} {row.object_name}: {row.reason}{times}: {row.message or ''}".rstrip(": ")
        case rows.Alerts():
            if not row.ok:
                return f"poll failed: {row.error}"
            return ", ".join(f"{alert.name} {alert.state}" for alert in row.alerts) or "none pending or firing"
        case rows.Watch():
            return f"{row.resource}: {row.event.replace('_', ' ')}" + _because(row.reason)


def notable(row: rows.Row) -> bool:
    """Whether the row is news to somebody who follows a run: not each request, sample or bookmark."""
    match row:
        case rows.Run() | rows.Step() | rows.Action():
            return True
        case rows.Journal():
            return row.event != "intent"
        case rows.Request():
            return row.outcome not in SUCCESSES and not row.once
        case rows.Watch():
            return row.event in ("gap_opened", "gap_closed", "forbidden")
        case rows.Alerts():
            return False
        case _:
            return False


def _because(reason: str | None) -> str:
    return f" ({reason})" if reason else ""


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
        parts.append(row.error)
    return f"{row.request}: {', '.join(parts)}"
