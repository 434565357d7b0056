"""A run that cordons nodes and is killed. Arguments: kubeconfig, journal, run id, when, name=uid..."""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path

import anyio

from chaosrunner.cluster import ClusterConfig, connect
from chaosrunner.faults.base import Context
from chaosrunner.faults.cordon import Cordon
from chaosrunner.journal.journal import Connection, Journal
from chaosrunner.timeline import rows
from chaosrunner.timeline.clock import Clock


async def main(kubeconfig: str, path: str, run: str, kill: str, *nodes: str) -> None:
    def emit(row: rows.Row) -> None:
        if isinstance(row, rows.Action) and (row.event, kill) in (
            ("sent", "before-call"),
            ("answered", "after-answer"),
        ):
            os.kill(os.getpid(), signal.SIGKILL)

    connection = Connection(kubeconfig=kubeconfig, context="lab")
    journal = Journal(Path(path), run=run, drill="drill", connection=connection)
    targets = [rows.Target(kind="Node", name=n, uid=uid) for n, _, uid in (node.partition("=") for node in nodes)]
    async with connect(ClusterConfig(kubeconfig=kubeconfig, context="lab"), Clock()) as cluster:
        await Cordon(targets).apply(Context(cluster=cluster, journal=journal, emit=emit, run=run, drill="drill"))
        print("cordoned", flush=True)
        if kill == "after-all":
            os.kill(os.getpid(), signal.SIGKILL)
        await anyio.sleep(60)


anyio.run(main, *sys.argv[1:])
