"""A small alert source that speaks Prometheus' API: rules over a gateway's counters and a Service's endpoints."""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
import time
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import SplitResult, parse_qs, urlsplit

from chaosrunner.lab.workload import flags, http1, program
from chaosrunner.lab.workload.alert_rules import (
    DEFAULT_WINDOW,
    BadRule,
    Expression,
    Labels,
    Rule,
    Sample,
    number,
    parse_rules,
    stamp,
)
from chaosrunner.lab.workload.credentials import ApiServer, BadCredentials, api_server
from chaosrunner.lab.workload.endpoints import Endpoint, Follower
from chaosrunner.lab.workload.http1 import Exchange, Server
from chaosrunner.lab.workload.journal import Journal

_SCRAPE = 1.0
"""Seconds that the gateway has to answer."""


def parser() -> argparse.ArgumentParser:
    """The command line of the alert source."""
    result = flags.parser(
        "alert_source",
        "Evaluates alert rules each interval and serves /api/v1/{alerts,rules,query}, /-/healthy and /-/ready.",
        port=9090,
    )
    result.add_argument("--interval", type=flags.duration, default=1.0, help="time between evaluations")

    rules = result.add_argument_group(
        "rules",
        'A rule is JSON: {"alert": "NoReadyEndpoints", "expr": "ready_endpoints < 1", "for": "5s", '
        '"labels": {"severity": "page"}, "annotations": {}}. An expression compares one figure with a number: '
        "ready_endpoints, serving_endpoints, endpoints, gateway_requests, gateway_failed, gateway_5xx_share, "
        "gateway_cut_share, gateway_failed_share (5xx or cut), gateway_in_flight, up. "
        "Shares and counts are over a trailing window: gateway_failed_share[30s] > 5% (30 s unless given).",
    )
    rules.add_argument("--rules", metavar="FILE", help="JSON file with a list of rules")
    rules.add_argument(
        "--rule", action="append", default=[], metavar="JSON", help="one rule; may be given several times"
    )
    rules.add_argument("--group", default="lab", help="name of the rule group")

    sources = result.add_argument_group("sources")
    sources.add_argument("--gateway", metavar="URL", help="base URL of the gateway, whose /gateway/stats is read")
    flags.follow(sources, required=False)
    return result


@dataclass(frozen=True)
class _Counts:
    """The gateway's counters at one time."""

    at: float
    requests: int
    errors: int
    cut: int


class Figures:
    """What expressions can ask for: reads the gateway's page each interval, and the Service's slices as they change."""

    def __init__(self, gateway: SplitResult | None, follower: Follower | None, labels: Labels, longest: float) -> None:
        self._gateway = gateway
        self._follower = follower
        self._labels = labels
        self._longest = longest
        self._history: deque[_Counts] = deque()
        self._in_flight = 0
        self._gateway_up = False
        self.endpoints: list[Endpoint] | None = None

    async def refresh(self) -> None:
        """Read the gateway's counters; an unreachable gateway is down, and its figures unknown."""
        if self._gateway is None:
            return
        try:
            host, port = self._gateway.hostname or "", self._gateway.port or 80
            async with http1.get(host, port, "/gateway/stats", [], _SCRAPE) as (response, connection):
                async with asyncio.timeout(_SCRAPE):
                    page = json.loads(await connection.read_body(response.body))
            errors = sum(number for status, number in page["responses"].items() if status.startswith("5"))
            counts = _Counts(time.time(), page["requests"], errors, page["cut"])
            self._in_flight = page["total_in_flight"]
        except (OSError, TimeoutError, ValueError, KeyError):
            self._gateway_up = False
            self._history.clear()
            return
        self._gateway_up = True
        if self._history and counts.requests < self._history[-1].requests:
            # Started anew: its counters begin at zero.
            self._history.clear()
        self._history.append(counts)
        while len(self._history) > 2 and self._history[1].at <= counts.at - self._longest:
            self._history.popleft()

    def read(self, name: str, window: float) -> list[Sample]:
        """The series of a figure; none if it is unknown."""
        if name == "up":
            return list(self._up())
        value = self._value(name, window)
        return [] if value is None else [({"__name__": name, **self._labels}, value)]

    def _up(self) -> Iterator[Sample]:
        if self._gateway is not None:
            labels = {"__name__": "up", "instance": self._gateway.netloc, "job": "gateway"}
            yield labels, float(self._gateway_up)
        if self._follower is not None:
            labels = {"__name__": "up", "instance": self._follower.instance, "job": "apiserver"}
            yield labels, float(self._follower.connected)

    def _value(self, name: str, window: float) -> float | None:
        if name in _ENDPOINT_FIGURES and self.endpoints is not None:
            return float(sum(map(_ENDPOINT_FIGURES[name], self.endpoints)))
        if not name.startswith("gateway_") or not self._history:
            return None
        if name == "gateway_in_flight":
            return float(self._in_flight)
        now = self._history[-1]
        # The window begins at the last reading that is as old as it; at the first one if none is.
        then = next((old for old in reversed(self._history) if old.at <= now.at - window), self._history[0])
        requests, errors, cut = now.requests - then.requests, now.errors - then.errors, now.cut - then.cut
        counts = {"gateway_requests": requests, "gateway_failed": errors + cut}
        if name in counts:
            return float(counts[name])
        shares = {"gateway_5xx_share": errors, "gateway_cut_share": cut, "gateway_failed_share": errors + cut}
        return shares[name] / requests if name in shares and requests else None


_ENDPOINT_FIGURES: dict[str, Callable[[Endpoint], bool]] = {
    "ready_endpoints": lambda endpoint: endpoint.ready,
    "serving_endpoints": lambda endpoint: endpoint.serving,
    "endpoints": lambda endpoint: True,
}
_GATEWAY_FIGURES = (
    "gateway_requests",
    "gateway_failed",
    "gateway_5xx_share",
    "gateway_cut_share",
    "gateway_failed_share",
    "gateway_in_flight",
)
_KNOWN = {"up", *_ENDPOINT_FIGURES, *_GATEWAY_FIGURES}


class AlertSource:
    """Evaluates the rules and answers as Prometheus does."""

    def __init__(self, options: argparse.Namespace, rules: list[Rule], api: ApiServer | None) -> None:
        self._options = options
        self._rules = rules
        self._journal = Journal(options.log)
        self._follower = None
        if api is not None:
            self._follower = Follower(api, options.service, None, self._seen, self._journal.write)
        gateway = urlsplit(options.gateway) if options.gateway else None
        labels = {"service": options.service} if options.service else {}
        longest = max((rule.expression.window for rule in rules), default=DEFAULT_WINDOW)
        self._figures = Figures(gateway, self._follower, labels, max(longest, DEFAULT_WINDOW))
        self._server = Server(self._answer, max_connections=128)
        self._last = 0.0
        self._took = 0.0

    async def run(self) -> int:
        """Serve until told to end; returns the exit code."""
        jobs = [self._evaluate(), *([self._follower.run()] if self._follower is not None else [])]
        rules = [rule.name for rule in self._rules]
        return await program.serve(self._server, self._options, self._journal, *jobs, rules=rules)

    def _seen(self, endpoints: list[Endpoint]) -> None:
        self._figures.endpoints = endpoints

    async def _evaluate(self) -> None:
        """Evaluate all rules each interval, for ever."""
        loop = asyncio.get_running_loop()
        due = loop.time()
        while True:
            await self._figures.refresh()
            self._last = time.time()
            for rule in self._rules:
                before = rule.state
                rule.evaluate(self._figures.read, time.time())
                if rule.state != before:
                    self._journal.write("alert", name=rule.name, before=before, state=rule.state)
            self._took = time.time() - self._last
            due = max(due + self._options.interval, loop.time())
            await asyncio.sleep(due - loop.time())

    # Pages

    async def _answer(self, exchange: Exchange) -> None:
        request = exchange.request
        match request.path:
            case "/-/healthy" | "/-/ready" as path:
                if path == "/-/ready" and not self._last:
                    _text(exchange, 503, "Service Unavailable")
                else:
                    _text(exchange, 200, f"The alert source is {path.removeprefix('/-/')}.\n")
            case "/api/v1/alerts":
                alerts = [alert.page() for rule in self._rules for alert in rule.alerts.values()]
                _success(exchange, {"alerts": alerts})
            case "/api/v1/rules":
                _success(exchange, {"groups": [self._group()]})
            case "/api/v1/query":
                self._query(exchange)
            case _:
                _text(exchange, 404, "404 page not found\n")

    def _group(self) -> dict[str, Any]:
        interval = self._options.interval
        return {
            "name": self._options.group,
            "file": self._options.rules or "rules.json",
            "rules": [rule.page() for rule in self._rules],
            "interval": int(interval) if interval == int(interval) else interval,
            "limit": 0,
            "evaluationTime": round(self._took, 9),
            "lastEvaluation": stamp(self._last),
        }

    def _query(self, exchange: Exchange) -> None:
        """An instant query: one figure, perhaps compared with a number, or the alerts as the series ALERTS."""
        request = exchange.request
        form = request.body.decode("latin-1") if request.method == "POST" else request.query
        text = next(iter(parse_qs(form).get("query", [])), "")
        try:
            expression = Expression.parse(text)
        except BadRule as error:
            page = {"status": "error", "errorType": "bad_data", "error": f'invalid parameter "query": {error}'}
            _json(exchange, 400, page)
            return
        read = self._alerts_series if expression.name == "ALERTS" else self._figures.read
        now = round(time.time(), 3)
        vector = [
            {"metric": dict(sorted(labels.items())), "value": [now, number(value)]}
            for labels, value in expression.evaluate(read)
        ]
        _success(exchange, {"resultType": "vector", "result": vector})

    def _alerts_series(self, name: str, window: float) -> list[Sample]:
        alerts = [alert for rule in self._rules for alert in rule.alerts.values()]
        state = {True: "firing", False: "pending"}
        return [({"__name__": name, "alertstate": state[alert.firing], **alert.labels}, 1.0) for alert in alerts]


def _text(exchange: Exchange, status: int, text: str) -> None:
    body = text.encode()
    kind = ("content-type", "text/plain; charset=utf-8")
    exchange.respond(status, [("date", http1.date()), ("content-length", str(len(body))), kind], body)


def _json(exchange: Exchange, status: int, page: dict[str, Any]) -> None:
    body = json.dumps(page, separators=(",", ":")).encode()
    kind = ("content-type", "application/json")
    exchange.respond(status, [kind, ("date", http1.date()), ("content-length", str(len(body)))], body)


def _success(exchange: Exchange, data: dict[str, Any]) -> None:
    _json(exchange, 200, {"status": "success", "data": data})


def _read_rules(options: argparse.Namespace) -> list[Rule]:
    """The rules of the command line; raises BadRule."""
    try:
        values = json.loads(Path(options.rules).read_text(encoding="utf-8")) if options.rules else []
        single = [json.loads(text) for text in options.rule]
    except (OSError, ValueError) as error:
        raise BadRule(f"rules cannot be read: {error}") from error
    rules = parse_rules(values) + parse_rules(single)
    for rule in rules:
        if rule.expression.name not in _KNOWN:
            raise BadRule(f"{rule.name}: {rule.expression.name} is none of {', '.join(sorted(_KNOWN))}")
        if rule.expression.comparison is None:
            raise BadRule(f"{rule.name}: the expression compares with nothing")
        if rule.expression.name in _ENDPOINT_FIGURES and not options.service:
            raise BadRule(f"{rule.name}: needs --service")
        if rule.expression.name in _GATEWAY_FIGURES and not options.gateway:
            raise BadRule(f"{rule.name}: needs --gateway")
    return rules


def main(arguments: list[str] | None = None) -> int:
    """Run the alert source until SIGTERM or SIGINT; returns the exit code."""
    options = parser().parse_args(arguments)
    if options.kubeconfig and not options.service:
        sys.stderr.write("--kubeconfig needs --service\n")
        return 2
    try:
        rules = _read_rules(options)
        api = api_server(options.kubeconfig, options.context, options.namespace) if options.service else None
    except (BadRule, BadCredentials) as error:
        sys.stderr.write(f"{error}\n")
        return 2

    async def serve() -> int:
        return await AlertSource(options, rules, api).run()

    return asyncio.run(serve())


if __name__ == "__main__":
    sys.exit(main())
