"""Runs a drill: steps, supervision, undo, drain, analysis."""

from chaosrunner.engine.run import Finished, Options, run_drill

__all__ = ["Finished", "Options", "run_drill"]
