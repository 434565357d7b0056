"""Live metrics of the runs of one command."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import click

from chaosrunner.analysis import Live
from chaosrunner.metrics import Metrics
from chaosrunner.timeline.rows import Emit


class Measured:
    """Follows one run after the other."""

    def __init__(self, metrics: Metrics) -> None:
        self._metrics = metrics

    def follow(self, live: Live) -> Emit:
        """What is returned is to get every row of the run that `live` follows too."""
        context = live.context
        slos = {probe.name: probe.slo.limits() for probe in context.probes}
        return self._metrics.begin({"drill": context.drill, "run": context.run}, slos)


@contextmanager
def serving(address: str | None) -> Iterator[Measured | None]:
    """Serves at `[HOST:]PORT` for the length of the block, where one is given, and says where. Raises UserError."""
    if address is None:
        yield None
        return
    with Metrics.at(address) as metrics:
        click.echo(f"metrics: {metrics.url}", err=True)
        yield Measured(metrics)
