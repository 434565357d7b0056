"""Prometheus alerts, by polling its API: each poll is one row, the failed ones too.

`/api/v1/alerts` lists only what is pending or firing; an alert that it does not list is inactive only if its rule is
there and healthy, so `/api/v1/rules` is asked as well (https://prometheus.io/docs/prometheus/latest/querying/api/).
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Mapping
from typing import Any

import anyio

from chaosrunner.cluster.resources import Object
from chaosrunner.observers.values import part, text
from chaosrunner.timeline import rows
from chaosrunner.timeline.clock import Clock
from chaosrunner.timeline.rows import Emit

Fetch = Callable[[str, Mapping[str, str]], Awaitable[tuple[int, dict[str, Any]]]]
"""GETs a path below the Prometheus URL with query parameters; status and JSON body. May raise anything."""


async def poll(
    fetch: Fetch,
    clock: Clock,
    emit: Emit,
    *,
    interval: float,
    names: Collection[str] = (),
    rules: bool = True,
    up: bool = False,
) -> None:
    """Poll every `interval` seconds until cancelled.

    `names` restricts rows to these alerts (empty: all); `rules` asks for the health of the rules; `up` asks for
    targets that cannot be scraped as well, since a failed scrape resets the `for` of a rule.
    """
    due = clock.now()
    while True:
        emit(await poll_once(fetch, clock, names=names, rules=rules, up=up))
        due = max(due + interval, clock.now())
        await anyio.sleep(max(0.0, due - clock.now()))


async def poll_once(
    fetch: Fetch, clock: Clock, *, names: Collection[str] = (), rules: bool = True, up: bool = False
) -> rows.Alerts:
    """One poll; `at` is when the last answer came."""
    sent = clock.now()
    try:
        alerts = await _data(fetch, "/api/v1/alerts", {})
        states = await _data(fetch, "/api/v1/rules", {"type": "alert"}) if rules else {}
        down = await _data(fetch, "/api/v1/query", {"query": "up == 0"}) if up else {}
    except Exception as error:  # whatever is wrong with the alert source must not end the drill
        return rows.Alerts(at=clock.now(), ok=False, sent=sent, error=str(error) or type(error).__name__)
    return to_row(alerts, states, down, sent=sent, at=clock.now(), names=names)


def to_row(
    alerts: Object, rules: Object, down: Object, *, sent: float, at: float, names: Collection[str] = ()
) -> rows.Alerts:
    """The `data` parts of the three answers as one row."""
    return rows.Alerts(
        at=at,
        ok=True,
        sent=sent,
        alerts=[
            _alert(item)
            for item in alerts.get("alerts") or []
            if item.get("state") in ("pending", "firing")
            if not names or part(item, "labels").get("alertname") in names
        ],
        rules=[
            _rule(item, group)
            for group in rules.get("groups") or []
            for item in group.get("rules") or []
            if item.get("type", "alerting") == "alerting" and (not names or item.get("name") in names)
        ],
        down=sorted(text(part(item, "metric").get("instance")) for item in down.get("result") or []),
    )


async def _data(fetch: Fetch, path: str, params: Mapping[str, str]) -> Object:
    status, body = await fetch(path, params)
    if status != 200 or body.get("status") != "success":
        raise ValueError(f"{path}: HTTP {status} {text(body.get('error'))}".rstrip())
    return part(body, "data")


def _alert(item: Object) -> rows.Alert:
    labels = part(item, "labels")
    return rows.Alert(
        name=text(labels.get("alertname")),
        state=item["state"],
        labels=labels,
        annotations=part(item, "annotations"),
        active_time=item.get("activeAt"),
        value=None if item.get("value") is None else text(item["value"]),
    )


def _rule(item: Object, group: Object) -> rows.Rule:
    return rows.Rule(
        name=text(item.get("name")),
        state=text(item.get("state")),
        health=text(item.get("health")),
        hold=float(item.get("duration") or 0.0),
        error=item.get("lastError") or None,
        query=item.get("query"),
        group=group.get("name"),
        interval=group.get("interval"),
        evaluated_time=item.get("lastEvaluation"),
    )
