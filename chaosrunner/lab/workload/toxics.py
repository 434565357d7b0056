"""What Toxiproxy can do to a connection: delay, slow down, swallow, reset, end late, cut short.

Each direction of a connection is a pipe with a stage for each toxic, in the order in which they were added. They act
as Toxiproxy's do, with one difference: `reset_peer` resets connections that were open before, which Toxiproxy ends in
order.
"""

from __future__ import annotations

import asyncio
import random
import socket
import struct
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, ClassVar

from chaosrunner.lab.workload.http1 import HIGH_WATER, Connection, Disconnected

STREAMS = ("upstream", "downstream")
"""To the server, and back."""

_SLICE = 0.1
"""Longest time that a piece of data takes through a narrow link, seconds: more is passed on piece by piece."""

Sink = Callable[[bytes | None], None]
"""Takes bytes, and None where the stream ends."""


@dataclass
class Toxic:
    """A toxic as the API has it. Attributes are whole numbers: milliseconds, bytes, or for a rate kB a second."""

    name: str
    type: str
    stream: str
    toxicity: float
    attributes: dict[str, int] = field(default_factory=dict)


class Stage:
    """One toxic on one direction of one connection."""

    attributes: ClassVar[tuple[str, ...]] = ()

    def __init__(self, link: Link, values: dict[str, int], pass_on: Sink) -> None:
        self.pass_on = pass_on
        self.held = 0
        """Bytes that wait here."""
        self._link = link
        self._values = values
        self._timer: asyncio.TimerHandle | None = None
        self._ended = False

    def feed(self, data: bytes | None) -> None:
        """Take what comes next."""
        raise NotImplementedError

    def stop(self) -> None:
        """The toxic is taken away: what waits goes on at once."""
        self._cancel()

    def _after(self, seconds: float, act: Callable[[], None]) -> None:
        self._cancel()
        self._timer = asyncio.get_running_loop().call_later(max(0.0, seconds), act)

    def _cancel(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _end(self) -> None:
        """The stream ends here, whatever else comes."""
        self._cancel()
        if not self._ended:
            self._ended = True
            self.pass_on(None)


class _Queue(Stage):
    """Passes data on in order, each piece when its time has come."""

    def __init__(self, link: Link, values: dict[str, int], pass_on: Sink) -> None:
        super().__init__(link, values, pass_on)
        self._pieces: deque[tuple[float, bytes | None]] = deque()
        self._last = 0.0

    def feed(self, data: bytes | None) -> None:
        now = asyncio.get_running_loop().time()
        if data is None:
            self._pieces.append((self._last, None))
        else:
            self.held += len(data)
            for at, piece in self._times(max(now, self._last), now, data):
                self._last = at
                self._pieces.append((at, piece))
        self._release()

    def stop(self) -> None:
        super().stop()
        while self._pieces:
            self._pass(self._pieces.popleft()[1])

    def _times(self, free: float, now: float, data: bytes) -> list[tuple[float, bytes]]:
        """When data that came now goes on; the last of before goes on at `free`."""
        raise NotImplementedError

    def _release(self) -> None:
        now = asyncio.get_running_loop().time()
        while self._pieces and self._pieces[0][0] <= now:
            self._pass(self._pieces.popleft()[1])
        if self._pieces:
            self._after(self._pieces[0][0] - now, self._release)

    def _pass(self, piece: bytes | None) -> None:
        self.held -= len(piece or b"")
        self.pass_on(piece)
        self._link.flowed()


class Latency(_Queue):
    """Everything takes `latency` longer, give or take up to `jitter`."""

    attributes = ("latency", "jitter")

    def _times(self, free: float, now: float, data: bytes) -> list[tuple[float, bytes]]:
        jitter = self._values["jitter"]
        delay = self._values["latency"] + (random.uniform(-jitter, jitter) if jitter > 0 else 0)
        return [(max(free, now + delay / 1000), data)]


class Bandwidth(_Queue):
    """No more than `rate` kB (1000 bytes) a second; 0 is no limit."""

    attributes = ("rate",)

    def _times(self, free: float, now: float, data: bytes) -> list[tuple[float, bytes]]:
        rate = self._values["rate"] * 1000
        if rate <= 0:
            return [(free, data)]
        size = max(1, int(rate * _SLICE))
        pieces = [data[start : start + size] for start in range(0, len(data), size)]
        times = []
        for piece in pieces:
            free += len(piece) / rate
            times.append((free, piece))
        return times


class Timeout(Stage):
    """Nothing goes through; after `timeout` without data the connection ends, with 0 never. It ends with the toxic."""

    attributes = ("timeout",)

    def __init__(self, link: Link, values: dict[str, int], pass_on: Sink) -> None:
        super().__init__(link, values, pass_on)
        self._wait()

    def feed(self, data: bytes | None) -> None:
        if data is None:
            self._end()
        elif not self._ended:
            self._wait()

    def stop(self) -> None:
        self._end()

    def _wait(self) -> None:
        if self._values["timeout"] > 0:
            self._after(self._values["timeout"] / 1000, self._end)


class ResetPeer(Stage):
    """The connection is reset `timeout` after data comes."""

    attributes = ("timeout",)

    def feed(self, data: bytes | None) -> None:
        if self._timer is None and not self._ended:
            self._after(self._values["timeout"] / 1000, self._reset)

    def _reset(self) -> None:
        self._ended = True
        self._link.reset()


class SlowClose(Stage):
    """The end comes `delay` late."""

    attributes = ("delay",)

    def feed(self, data: bytes | None) -> None:
        if data is None:
            self._after(self._values["delay"] / 1000, self._end)
        else:
            self.pass_on(data)

    def stop(self) -> None:
        if self._timer is not None:
            self._end()


class LimitData(Stage):
    """The connection ends after `bytes`."""

    attributes = ("bytes",)

    def __init__(self, link: Link, values: dict[str, int], pass_on: Sink) -> None:
        super().__init__(link, values, pass_on)
        self._passed = 0

    def feed(self, data: bytes | None) -> None:
        if self._ended:
            return
        if data is not None:
            part = data[: max(0, self._values["bytes"] - self._passed)]
            self._passed += len(part)
            if part:
                self.pass_on(part)
            if self._passed < self._values["bytes"]:
                return
        self._end()


TYPES: dict[str, type[Stage]] = {
    "latency": Latency,
    "bandwidth": Bandwidth,
    "timeout": Timeout,
    "reset_peer": ResetPeer,
    "slow_close": SlowClose,
    "limit_data": LimitData,
}


class _Pipe:
    """One direction of a connection."""

    def __init__(self, link: Link, sink: Sink) -> None:
        self._link = link
        self._sink = sink
        self._stages: dict[str, Stage] = {}

    @property
    def free(self) -> bool:
        """Whether nothing is in the way."""
        return not self._stages

    @property
    def held(self) -> int:
        return sum(stage.held for stage in self._stages.values())

    def feed(self, data: bytes | None) -> None:
        first = next(iter(self._stages.values()), None)
        (self._sink if first is None else first.feed)(data)

    def add(self, toxic: Toxic) -> None:
        if random.random() >= toxic.toxicity:
            return
        last = next(reversed(self._stages.values()), None)
        stage = self._stages[toxic.name] = TYPES[toxic.type](self._link, toxic.attributes, self._sink)
        if last is not None:
            last.pass_on = stage.feed

    def remove(self, name: str) -> None:
        stage = self._stages.get(name)
        if stage is None:
            return
        stage.stop()
        names = list(self._stages)
        place = names.index(name)
        if place > 0:
            self._stages[names[place - 1]].pass_on = stage.pass_on
        del self._stages[name]

    def stop(self) -> None:
        for stage in self._stages.values():
            stage._cancel()


class Link(Connection):
    """A connection to a server with toxics in between. Without any it is a plain connection."""

    def __init__(self, opened: Callable[[Link], None], gone: Callable[[Link], None]) -> None:
        super().__init__(self._made)
        self._opened = opened
        self._gone = gone
        self._closed = False
        self._pipes = {"upstream": _Pipe(self, self._send), "downstream": _Pipe(self, self._deliver)}

    def _made(self, _: Connection) -> None:
        self._opened(self)

    def add(self, toxic: Toxic) -> None:
        """A toxic that acts from now on."""
        self._pipes[toxic.stream].add(toxic)

    def remove(self, toxic: Toxic) -> None:
        """Take a toxic away again."""
        self._pipes[toxic.stream].remove(toxic.name)
        self.flowed()

    # From the server

    def data_received(self, data: bytes) -> None:
        if self._closed:
            return
        pipe = self._pipes["downstream"]
        pipe.feed(data)
        if pipe.held > HIGH_WATER:
            self.transport.pause_reading()

    def flowed(self) -> None:
        """Less waits in the pipes than before."""
        room = self._pipes["downstream"].held <= HIGH_WATER
        if room and not self._paused_reading and not self.transport.is_closing():
            self.transport.resume_reading()

    def eof_received(self) -> bool:
        self._pipes["downstream"].feed(None)
        return not self.ended  # what is on its way may still take its time

    def connection_lost(self, exc: Exception | None) -> None:
        if self._pipes["downstream"].free or self.ended:
            super().connection_lost(exc)
        else:
            self._pipes["downstream"].feed(None)
        self._gone(self)

    def _deliver(self, data: bytes | None) -> None:
        if data is None:
            self._end()
            self._pipes["upstream"].feed(None)
        elif not self.ended:
            super().data_received(data)

    # To the server

    def write(self, data: bytes) -> None:
        if self._pipes["upstream"].free:
            super().write(data)
        elif self.ended:
            raise Disconnected("the peer is gone")
        else:
            self._pipes["upstream"].feed(data)

    def close(self) -> None:
        if not self._closed:
            self._closed = True
            self._pipes["downstream"].stop()
            self._pipes["upstream"].feed(None)

    def reset(self) -> None:
        """Break the connection on both ends."""
        for pipe in self._pipes.values():
            pipe.stop()
        self.error = ConnectionResetError("reset by a toxic")
        self._end()
        if not self.transport.is_closing():
            self.transport.get_extra_info("socket").setsockopt(
                socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0)
            )
        self.transport.abort()

    def _send(self, data: bytes | None) -> None:
        if data is None:
            self.transport.close()
        elif not self.transport.is_closing():
            self.transport.write(data)


def attributes_of(kind: str, given: Any) -> dict[str, int]:
    """The attributes of a type of toxic, those that are not given as 0. ValueError for what is no whole number."""
    values = dict.fromkeys(TYPES[kind].attributes, 0)
    if given is not None and not isinstance(given, dict):
        raise ValueError("attributes are no object")
    for name in values:
        value = (given or {}).get(name)
        if value is not None:
            if not isinstance(value, int) or isinstance(value, bool):
                raise ValueError(f"{name} is no whole number: {value!r}")
            values[name] = value
    return values
