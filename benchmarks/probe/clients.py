"""The clients, each in a process of its own: `python -m benchmarks.probe.clients NAME LOAD FOLDER`.

All do the same work: a fixed number of users, each with one request at a time; the receive time of every chunk with
text; one `request` row for each request, through the product's own writer. Only the first is the product. The process
prints {"zero": seconds of CLOCK_MONOTONIC at the recording's zero} when it is ready, and begins when a line comes in.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import random
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path

import msgspec

from chaosrunner.timeline.clock import Clock
from chaosrunner.timeline.manifest import Manifest, Workload
from chaosrunner.timeline.rows import Emit, Request
from chaosrunner.timeline.writer import Writer

PROMPT = "bench {{ request }}"


class Load(msgspec.Struct):
    """What a client is to do."""

    url: str
    streams: int
    rate: float | None
    """Requests a second of an open loop; None: a closed one of `streams` users."""
    workers: int
    """Processes; of the product only."""
    ramp: float
    """Seconds over which the users begin."""
    seconds: float
    """How long they go on, from the start of the first."""


async def product(load: Load, emit: Emit, clock: Clock) -> None:
    """The probe by its public entry, nothing changed."""
    import anyio

    from chaosrunner.probes import ProbeSpec, Shape, run_probe
    from chaosrunner.probes.spec import OpenLoop, Stage

    schedule = None
    if load.rate is not None:
        schedule = OpenLoop((Stage(load.rate, load.seconds),), max_in_flight=load.streams)
    spec = ProbeSpec(
        name="chat",
        url=load.url,
        model="m",
        shapes=(Shape(prompt=PROMPT, max_tokens=64),),
        open=schedule,
        concurrency=load.streams,
        ramp=load.ramp,
        workers=load.workers,
        connection="reused",
    )
    stop = anyio.Event()
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(run_probe, spec, emit, clock, stop)
        await anyio.sleep(load.seconds)
        stop.set()


async def httpx(load: Load, emit: Emit, clock: Clock) -> None:
    """One httpx.AsyncClient for all, its limits lifted; raw reads, cut at blank lines."""
    import httpx

    async with httpx.AsyncClient(timeout=None, limits=httpx.Limits(max_connections=None)) as client:

        async def ask(body: dict[str, object]) -> AsyncIterator[bytes]:
            async with client.stream("POST", load.url + "/v1/completions", json=body) as answer:
                async for data in answer.aiter_raw():
                    yield data

        await _users(load, ask, emit, clock)


async def aiohttp(load: Load, emit: Emit, clock: Clock) -> None:
    """One aiohttp.ClientSession for all, its limit lifted; whatever each read has, cut at blank lines."""
    import aiohttp

    connector = aiohttp.TCPConnector(limit=0)
    async with aiohttp.ClientSession(connector=connector, timeout=aiohttp.ClientTimeout()) as session:

        async def ask(body: dict[str, object]) -> AsyncIterator[bytes]:
            async with session.post(load.url + "/v1/completions", json=body) as answer:
                async for data in answer.content.iter_any():
                    yield data

        await _users(load, ask, emit, clock)


async def _users(
    load: Load, ask: Callable[[dict[str, object]], AsyncIterator[bytes]], emit: Emit, clock: Clock
) -> None:
    """The load around a plain client, in the plainest way."""
    numbers = itertools.count(1)
    until = clock.now() + load.seconds

    async def one(scheduled: float | None) -> None:
        name = f"chat-{next(numbers)}"
        sent = clock.now()
        body: dict[str, object] = {
            "model": "m", "prompt": f"bench {name} ", "max_tokens": 64, "stream": True,
            "stream_options": {"include_usage": True},
        }  # fmt: skip
        chunks: list[float] = []
        done = False
        rest = b""
        async for data in ask(body):
            at = clock.now()
            *events, rest = (rest + data).split(b"\n\n")
            for event in events:
                if b'"text":"' in event:
                    chunks.append(at)
                done = done or event == b"data: [DONE]"
        emit(
            Request(
                at=clock.now(),
                request=name,
                probe="chat",
                outcome="complete" if done else "unterminated_stream",
                sent=sent,
                scheduled=scheduled,
                chunks=chunks,
            )
        )

    async def user(number: int) -> None:
        await asyncio.sleep(load.ramp * number / load.streams)
        while clock.now() < until:
            await one(None)

    async with asyncio.TaskGroup() as tasks:
        if load.rate is None:
            for number in range(load.streams):
                tasks.create_task(user(number))
            return
        due = clock.now()
        draw = random.Random(1)
        while due < until:
            await asyncio.sleep(max(0.0, due - clock.now()))
            tasks.create_task(one(due))
            due += draw.expovariate(load.rate)


CLIENTS: dict[str, Callable[[Load, Emit, Clock], Awaitable[None]]] = {
    "product": product,
    "httpx": httpx,
    "aiohttp": aiohttp,
}


def main() -> None:
    name, load, folder = sys.argv[1:]
    wanted = msgspec.json.decode(load, type=Load)
    clock = Clock()
    nowhere = Workload(namespace="", selector="")
    writer = Writer(
        Path(folder), Manifest(run="bench", drill="bench", playbook="bench", anchor=clock.anchor_wall, workload=nowhere)
    )

    async def run() -> None:
        await CLIENTS[name](wanted, writer.emit, clock)

    __import__("chaosrunner.probes" if name == "product" else name)
    print(json.dumps({"zero": -clock.from_monotonic(0.0)}), flush=True)
    sys.stdin.readline()
    asyncio.run(run())
    writer.close()


if __name__ == "__main__":
    main()
