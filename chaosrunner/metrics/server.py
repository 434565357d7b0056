"""Serves the figures to Prometheus."""

from __future__ import annotations

import platform
from collections.abc import Iterator, Mapping
from math import inf
from socketserver import BaseServer
from typing import Self

from prometheus_client import CollectorRegistry, start_http_server
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector

from chaosrunner import __version__
from chaosrunner.errors import UserError
from chaosrunner.metrics.fold import Fold, Histogram
from chaosrunner.timeline.rows import Emit

LOOPBACK = "127.0.0.1"


class Metrics:
    """A server of `/metrics`, from a thread of its own, for the length of a block.

    It has a registry of its own and forgets a run when the next begins; Prometheus takes that for the restart of a
    process, which it is used to.
    """

    def __init__(self, host: str, port: int) -> None:
        """Raises UserError where the address cannot be had."""
        self._collector = _Collector()
        registry = CollectorRegistry()
        registry.register(self._collector)
        try:
            self._server: BaseServer
            self._server, self._thread = start_http_server(port, host, registry)
        except OSError as error:
            raise UserError(f"--metrics: cannot listen on {host}:{port}: {error.strerror}") from error
        bound = self._server.server_address
        assert isinstance(bound, tuple)
        self.url = f"http://{f'[{bound[0]!s}]' if ':' in str(bound[0]) else bound[0]!s}:{bound[1]}/metrics"

    @classmethod
    def at(cls, address: str) -> Self:
        """Of `PORT`, `HOST:PORT` or `[IPv6]:PORT`. Raises UserError, also for a text that is none of these."""
        host, _, port = address.rpartition(":")
        if not port.isdecimal() or int(port) > 65535:
            raise UserError(f"--metrics {address}: write PORT or HOST:PORT")
        return cls(host.strip("[]") or LOOPBACK, int(port))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    def begin(self, run: Mapping[str, str], slos: Mapping[str, Mapping[str, float]]) -> Emit:
        """A run begins, described by labels; what is returned is to get every row. `slos` as `Fold` takes them."""
        fold = Fold(slos)
        self._collector.show(dict(run), fold)
        return fold.feed


class _Collector(Collector):
    def __init__(self) -> None:
        self._shown: tuple[dict[str, str], Fold] | None = None

    def show(self, run: dict[str, str], fold: Fold) -> None:
        self._shown = run, fold

    def collect(self) -> Iterator[Metric]:
        build = {"version": __version__, "python": platform.python_version()}
        yield _info("chaosrunner_build_info", "Version of chaosrunner and of its interpreter.", build)
        if self._shown is None:
            return
        run, fold = self._shown
        yield _info("chaosrunner_run_info", "The run that the other metrics are about.", run)
        yield from _requests(fold)
        yield from _latencies(fold)
        yield from _health(fold)
        actions = CounterMetricFamily(
            "chaosrunner_actions",
            "Answers of the API server to calls that change something, dry runs apart.",
            labels=["action", "answer"],
        )
        for (action, answer), count in fold.actions.copy().items():
            actions.add_metric([action, answer], count)
        yield actions


def _info(name: str, text: str, labels: dict[str, str]) -> Metric:
    made = GaugeMetricFamily(name, text, labels=list(labels))
    made.add_metric(list(labels.values()), 1)
    return made


def _requests(fold: Fold) -> Iterator[Metric]:
    requests = CounterMetricFamily(
        "chaosrunner_requests", "Ended requests by outcome; see timeline/outcomes.py.", labels=["probe", "outcome"]
    )
    tokens = CounterMetricFamily(
        "chaosrunner_completion_tokens", "Completion tokens of successful requests, by usage.", labels=["probe"]
    )
    in_flight = GaugeMetricFamily("chaosrunner_in_flight", "Requests sent and not ended.", labels=["probe"])
    for name, probe in fold.probes.items():
        for outcome, count in probe.outcomes.items():
            requests.add_metric([name, outcome], count)
        tokens.add_metric([name], probe.tokens)
        in_flight.add_metric([name], len(probe.in_flight))
    yield from (requests, tokens, in_flight)


HISTOGRAMS = {
    "ttft": "Time to the first token of successful requests.",
    "tpot": "Time per output token after the first, of successful requests.",
    "e2e": "Duration of successful requests.",
    "chunk_gap": "Time between two chunks with content, in successful requests.",
}


def _latencies(fold: Fold) -> Iterator[Metric]:
    for name, text in HISTOGRAMS.items():
        family = HistogramMetricFamily(f"chaosrunner_{name}_seconds", text, labels=["probe"])
        for probe, figures in fold.probes.items():
            if name == "chunk_gap":
                figures.count_gaps()
            histogram: Histogram = getattr(figures, name)
            family.add_metric([probe], _buckets(histogram), sum_value=histogram.total)
        yield family


def _buckets(histogram: Histogram) -> list[tuple[str, float]]:
    """Upper edges with the count of all that is not above them."""
    below, buckets = 0, []
    for edge, count in zip((*histogram.edges, inf), tuple(histogram.counts), strict=True):
        below += count
        buckets.append(("+Inf" if edge == inf else repr(edge), float(below)))
    return buckets


def _health(fold: Fold) -> Iterator[Metric]:
    labels = ["probe", "worker"]
    lag = GaugeMetricFamily(
        "chaosrunner_loop_lag_seconds", "Largest lateness of an event loop over the last second.", labels=labels
    )
    late = GaugeMetricFamily(
        "chaosrunner_send_lateness_seconds",
        "Largest lateness of a send against its schedule over the last second.",
        labels=labels,
    )
    files = GaugeMetricFamily("chaosrunner_open_files", "Descriptors of a process.", labels=labels)
    cpu = CounterMetricFamily("chaosrunner_cpu_seconds", "CPU time that a process has used.", labels=labels)
    for key, row in fold.processes.copy().items():
        lag.add_metric(key, row.loop_lag)
        if row.send_lag is not None:
            late.add_metric(key, row.send_lag)
        if row.open_files is not None:
            files.add_metric(key, row.open_files)
        if row.cpu is not None:
            cpu.add_metric(key, row.cpu)
    yield from (lag, late, files, cpu)
