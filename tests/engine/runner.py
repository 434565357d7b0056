"""Runs a drill as `chaosrunner run` does, with a guardian in a hurry, and with an event loop that gets stuck on demand.

Arguments: drill, kubeconfig, context, timelines, settings of `Watch` as JSON, `stuck` or `free`.
"""

from __future__ import annotations

import json
import sys
import time
from functools import partial
from pathlib import Path

import anyio

from chaosrunner.analysis import Live
from chaosrunner.cluster import ClusterConfig
from chaosrunner.engine import Options, run, run_drill
from chaosrunner.playbook import load_drill
from chaosrunner.timeline import rows


def main(drill: str, kubeconfig: str, context: str, timelines: str, settings: str, loop: str) -> None:
    run.Watch = partial(run.Watch, **json.loads(settings))  # type: ignore[misc, assignment]

    def follow(folder: Path, live: Live) -> rows.Emit:
        def hear(row: rows.Row) -> None:
            if isinstance(row, rows.Action) and (row.action, row.event, row.ok) == ("cordon", "answered", True):
                while loop == "stuck":
                    time.sleep(0.01)

        return hear

    config = ClusterConfig(kubeconfig=kubeconfig, context=context, request_timeout=5.0)
    anyio.run(run_drill, load_drill(drill), config, Options(timelines=Path(timelines), follow=follow))


if __name__ == "__main__":
    main(*sys.argv[1:])
