"""All folds together: one place that rows are fed into."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from chaosrunner.analysis.clocks import Clocks
from chaosrunner.analysis.context import AnalysisContext
from chaosrunner.analysis.folds.actions import Actions
from chaosrunner.analysis.folds.alerts import AlertPolls
from chaosrunner.analysis.folds.budgets import Budgets
from chaosrunner.analysis.folds.endpoints import Endpoints
from chaosrunner.analysis.folds.events import Events
from chaosrunner.analysis.folds.flight import Flight
from chaosrunner.analysis.folds.nodes import Nodes
from chaosrunner.analysis.folds.pods import Pods
from chaosrunner.analysis.folds.run import RunState
from chaosrunner.analysis.folds.watches import Watches
from chaosrunner.analysis.requests import Requests
from chaosrunner.analysis.warm import Usual
from chaosrunner.timeline import rows
from chaosrunner.timeline.rows import Row


class Observations:
    """The state of all folds after the rows fed so far. Rows come in the order of their ids."""

    def __init__(self, context: AnalysisContext) -> None:
        self.context = context
        self.clocks = Clocks(context.anchor, context.default_skew)
        self.watches = Watches()
        self.pods = Pods(self.clocks, self.watches, context.candidates)
        self.endpoints = Endpoints(self.watches, context.service)
        self.nodes = Nodes(self.clocks, self.watches)
        self.events = Events(self.clocks)
        self.budgets = Budgets()
        self.actions = Actions(self.pods, self.endpoints, self.budgets)
        self.alerts = AlertPolls(self.clocks)
        self.run = RunState()
        self.flight = Flight()
        self.requests = Requests()
        self.direct_flight = Flight()
        self.direct = Requests()
        """Requests that went to replicas by their own addresses: none of them is the service's."""
        self.replicas: list[rows.Replica] = []
        self.usual: Usual = {}
        self.rows = 0
        self.last_at = 0.0
        self._feeds: dict[type, Callable[[Any], None]] = {
            rows.Run: self.run.feed_run,
            rows.Step: self.run.feed_step,
            rows.Journal: self.run.feed_journal,
            rows.Effect: self.run.feed_effect,
            rows.Prober: self.run.feed_prober,
            rows.Worker: self.run.feed_worker,
            rows.Skew: self.clocks.feed,
            rows.Action: self.actions.feed,
            rows.Pod: self.pods.feed,
            rows.EndpointSlice: self.endpoints.feed,
            rows.Pdb: self.budgets.feed,
            rows.Node: self.nodes.feed,
            rows.Event: self.events.feed,
            rows.Alerts: self.alerts.feed,
            rows.Watch: self._watch,
            rows.Replica: self.replicas.append,
            rows.RequestSent: self._sent,
            rows.RequestHeaders: self._headers,
            rows.Request: self._request,
        }

    def feed(self, row: Row) -> None:
        self.rows += 1
        if row.at > self.last_at:
            self.last_at = row.at
        feed = self._feeds.get(type(row))
        if feed is not None:
            feed(row)

    def _watch(self, row: rows.Watch) -> None:
        self.watches.feed(row)
        self.endpoints.feed_watch(row)

    def _sent(self, row: rows.RequestSent) -> None:
        (self.flight if row.replica is None else self.direct_flight).feed_sent(row)

    def _headers(self, row: rows.RequestHeaders) -> None:
        self.flight.feed_headers(row)
        self.direct_flight.feed_headers(row)

    def _request(self, row: rows.Request) -> None:
        if row.replica is None:
            self.flight.feed_end(row)
            self.requests.feed(row)
        else:
            self.direct_flight.feed_end(row)
            self.direct.feed(row)
