"""What the guardian does when the runner is gone: undoes each open entry, frees the target, tells a person the rest."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from functools import partial
from pathlib import Path

import anyio
import msgspec
import structlog

from chaosrunner import logs
from chaosrunner.cluster import Cluster, ClusterConfig, Unreachable, connect
from chaosrunner.cluster import lease as leases
from chaosrunner.cluster.patience import Backoff
from chaosrunner.errors import UserError
from chaosrunner.journal.guardian import BY_HAND, Notes, Watch
from chaosrunner.journal.journal import Connection
from chaosrunner.journal.recover import recover, same_cluster
from chaosrunner.journal.undo import UndoResult
from chaosrunner.timeline.clock import Clock

log = structlog.get_logger()

LOG = "guardian.log"
"""File in the recording's folder with what the guardian has to say."""


def take_over(told: Watch, notes: Notes, *, patience: float) -> None:
    """Undoes what is open; what fails is tried again for `patience` seconds."""
    folder = Path(told.journal).parent
    with suppress(OSError):
        file = os.open(folder / LOG, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
        os.dup2(file, 1)
        os.dup2(file, 2)
    logs.configure()
    journal = Path(told.journal)  # of which there is none yet where only the Lease was taken
    anyio.run(_take_over, told, notes, patience, journal, journal.exists())


async def _take_over(told: Watch, notes: Notes, patience: float, journal: Path, there: bool) -> None:
    connection = msgspec.convert(told.connection, Connection)
    until, backoff = anyio.current_time() + patience, Backoff(0.5, 15.0)
    reach = partial(_reach, told.request_timeout)
    while True:
        results = await recover([journal] if there else [], reach, patience=until - anyio.current_time())
        left = [result for result in results if not result.ok]
        for result in results:
            if result.ok:
                notes.write(result.state, **_said(result))
        if not left or anyio.current_time() >= until:
            break
        log.warning("not all is undone yet", left=[result.target.name for result in left], detail=left[0].detail)
        await anyio.sleep(min(backoff.next(), max(0.0, until - anyio.current_time())))
    for result in left:
        notes.write(result.state, **_said(result))
        log.error("undo failed", target=result.target.name, detail=result.detail, command=result.command)
    if left and told.stays:
        _tell(journal.parent / BY_HAND, left)
    try:
        async with reach(connection) as cluster:
            freed = await leases.remove(cluster, connection.namespace or "", told.lease, told.run)
    except (Unreachable, UserError) as error:
        freed = False
        log.warning("the lease is left to expire", lease=told.lease, error=str(error))
    notes.write("ended", left=len(left), freed=freed)


@asynccontextmanager
async def _reach(request_timeout: float, connection: Connection) -> AsyncIterator[Cluster]:
    """The cluster as the run reached it."""
    config = ClusterConfig(
        kubeconfig=connection.kubeconfig,
        context=connection.context,
        namespace=connection.namespace,
        as_user=connection.as_user,
        as_groups=connection.as_group,
        request_timeout=request_timeout,
    )
    async with connect(config, Clock()) as cluster:
        same_cluster(cluster, connection)
        yield cluster


def _said(result: UndoResult) -> dict[str, str]:
    said = {"entry": result.entry, "fault": result.fault, "kind": result.target.kind, "name": result.target.name}
    more = {"detail": result.detail, "command": result.command}
    return said | {key: value for key, value in more.items() if value}


def _tell(path: Path, left: list[UndoResult]) -> None:
    lines = ["# The run is dead, and its guardian could not put this back. Type:"]
    for result in left:
        lines += [
            f"# {result.fault} of {result.target.kind} {result.target.name}: {result.detail}",
            result.command or "",
        ]
    with suppress(OSError):
        path.write_text("\n".join(lines) + "\n", encoding="utf-8")
