"""What a probe's processes tell each other: msgpack, each message behind its length.

The parent sends `Start`, and when all workers are `Ready`, `Begin`; then `Aim`, where it has replicas
to name; later `Stop`, or `Cancel`. A worker sends `Rows`
all along and one of `Done`, `Refused` and `Failed` at its end; a connection that ends without one of them was that of a
worker that died. Secrets go this way and no other: arguments and environment of a process can be read by others.
"""

from __future__ import annotations

import asyncio

import msgspec

from chaosrunner.probes.part import Part
from chaosrunner.probes.replicas import Replica
from chaosrunner.probes.spec import ProbeSpec
from chaosrunner.timeline.rows import Row


class Start(msgspec.Struct, tag="start"):
    """What to do."""

    spec: ProbeSpec
    part: Part
    anchor: tuple[int, int]
    """Of the recording's clock, see `Clock.anchored`."""
    drain: float | None
    """As `run_probe` takes it."""


class Begin(msgspec.Struct, tag="begin"):
    at: float
    """When the load begins, on the recording's clock: the same instant for all workers."""


class Aim(msgspec.Struct, tag="aim"):
    """The replicas that there are now, for a probe of replicas."""

    replicas: tuple[Replica, ...]


class Stop(msgspec.Struct, tag="stop"):
    """No request starts any more; those in flight are read to their end."""


class Cancel(msgspec.Struct, tag="cancel"):
    """Requests in flight are cancelled."""


class Ready(msgspec.Struct, tag="ready"):
    """The spec is of use."""


class Rows(msgspec.Struct, tag="rows"):
    rows: list[Row]


class Done(msgspec.Struct, tag="done"):
    """Every request has its final row."""


class Refused(msgspec.Struct, tag="refused"):
    """The user's mistake."""

    text: str


class Failed(msgspec.Struct, tag="failed"):
    """A bug of ours."""

    text: str
    """The traceback."""


Order = Start | Begin | Aim | Stop | Cancel
Report = Ready | Rows | Done | Refused | Failed

_SIZE = 4
_encoder = msgspec.msgpack.Encoder()
read_order = msgspec.msgpack.Decoder(Order).decode
read_report = msgspec.msgpack.Decoder(Report).decode


def framed(message: Order | Report) -> bytes:
    data = _encoder.encode(message)
    return len(data).to_bytes(_SIZE) + data


async def next_frame(reader: asyncio.StreamReader) -> bytes | None:
    """The next message, still encoded; None at the end, also where it comes in mid-message."""
    try:
        size = int.from_bytes(await reader.readexactly(_SIZE))
        return await reader.readexactly(size)
    except (asyncio.IncompleteReadError, ConnectionError):
        return None
