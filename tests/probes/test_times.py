"""Recorded streams of a real vLLM at their own pace: the time of each chunk in the row is when it was sent."""

from __future__ import annotations

import asyncio
import json
import sys
from pathlib import Path
from typing import NamedTuple

import anyio
import pytest

from chaosrunner.probes import Expect, Limits, Overrides, probe_once
from chaosrunner.timeline.clock import Clock
from chaosrunner.timeline.rows import Request
from tests.http.scripted import Conversation, serve
from tests.probes.helpers import spec_for

pytestmark = pytest.mark.anyio

DATA = Path(__file__).parent.parent / "data" / "vllm_kill"
RECORDINGS = ["A_sigterm_default", "D_sigkill_api", "E_sigkill_enginecore", "F_sigkill_worker", "H_sigint"]
"""Those that last some two seconds."""


class Write(NamedTuple):
    """Bytes that were sent at once, and the time before and after the call that sent them."""

    before: float
    after: float
    texts: int
    """Chunks with text that these bytes complete."""


def reads_of(name: str) -> list[tuple[float, bytes, int]]:
    """What the recorder received: when, which bytes, and how many chunks with text they complete. Events there are
    never cut in two, but the blank line that dispatches them may be."""
    raw = (DATA / f"{name}_stream0.bin").read_bytes()
    found, offset, counted = [], 0, 0
    for at, size in json.loads((DATA / f"{name}_stream0.json").read_text())["recv"]:
        offset += size
        events = raw[:offset].split(b"\n\n")[:-1]
        texts = sum(b'"text":"' in event and b'"text":""' not in event for event in events)
        found.append((at, raw[offset - size : offset], texts - counted))
        counted = texts
    return found


async def replay(name: str, clock: Clock) -> tuple[Request, list[Write]]:
    writes: list[Write] = []

    async def script(conversation: Conversation) -> None:
        start = clock.now()
        for at, data, texts in reads_of_name:
            await asyncio.sleep(max(0.0, start + at - clock.now()))
            before = clock.now()
            conversation.writer.write(data)
            writes.append(Write(before, clock.now(), texts))
        await conversation.fin()

    reads_of_name = reads_of(name)
    async with serve(script) as server:
        spec = spec_for(server.url, limits=Limits())
        return await probe_once(spec, Overrides(), Expect(), lambda _: None, clock), writes


@pytest.mark.skipif(sys.platform != "linux", reason="no kernel receive time here")
async def test_the_time_of_a_chunk_is_when_it_was_sent() -> None:
    clock = Clock()
    found: list[tuple[Request, list[Write]]] = []

    async def note(name: str) -> None:
        found.append(await replay(name, clock))

    async with anyio.create_task_group() as tasks:
        for name in RECORDINGS:
            tasks.start_soon(note, name)
    late = []
    for request, writes in found:
        assert request.exact
        assert request.chunks is not None
        assert len(request.chunks) == sum(write.texts for write in writes)
        sent = [write for write in writes for _ in range(write.texts)]
        for at, write in zip(request.chunks, sent, strict=True):
            assert at > write.before - 0.0001, "received before it was sent"
            late.append(at - write.after)
    # The system takes a packet over loopback within the call that sends it, unless it is busy.
    late.sort()
    assert late[len(late) // 2] < 0.0001
    assert late[int(len(late) * 0.95)] < 0.005
