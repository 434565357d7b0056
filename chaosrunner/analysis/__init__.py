"""Rows in, facts out: what a recording, finished or still growing, says about the service.

`analyse` reads a recording, `Live` is fed row by row while a run lasts; both use the same folds. This room sees only
rows and expressions: no network, no clock, no cluster.
"""

from chaosrunner.analysis.analyse import Source, analyse
from chaosrunner.analysis.context import AnalysisContext, CheckContext, KnownPod, ProbeContext, Slo
from chaosrunner.analysis.facts import Facts
from chaosrunner.analysis.live import Live
from chaosrunner.analysis.reading import Reading, transitions
from chaosrunner.analysis.scope import MetricScope
from chaosrunner.analysis.transitions import Transition

__all__ = [
    "AnalysisContext",
    "CheckContext",
    "Facts",
    "KnownPod",
    "Live",
    "MetricScope",
    "ProbeContext",
    "Reading",
    "Slo",
    "Source",
    "Transition",
    "analyse",
    "transitions",
]
