"""The command line: parses, calls, prints. No logic of its own."""

from chaosrunner.cli.main import main

__all__ = ["main"]
