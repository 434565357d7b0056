"""Live metrics for Prometheus: the same rows as the recording, folded into counters and histograms while they come."""

from chaosrunner.metrics.fold import Fold
from chaosrunner.metrics.server import Metrics

__all__ = ["Fold", "Metrics"]
