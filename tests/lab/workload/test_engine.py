"""The engine by itself: slots, queue, warm-up, chunks."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from itertools import pairwise

import pytest

from chaosrunner.lab.workload.engine import Engine, QueueFull, Sequence, Speed, Warmup
from tests.lateness import lateness

SPEED = Speed(
    tokens_per_second=500,
    batch_slowdown=0.0,
    prefill_tokens_per_second=1e6,
    max_sequences=2,
    merge=0.0,
    eos=0.0,
)
NONE = Warmup(0.0, 0.0, 2, (64, 512), 0.1)


@asynccontextmanager
async def running(speed: Speed = SPEED, warmup: Warmup = NONE, queue: int = 8) -> AsyncIterator[Engine]:
    engine = Engine(speed, warmup, seed=0, queue=queue)
    task = asyncio.create_task(engine.run())
    yield engine
    task.cancel()


def submit(engine: Engine, tokens: int, prompt_tokens: int = 10, seed: int | None = None) -> Sequence:
    return engine.submit("hello", prompt_tokens, tokens, True, seed)


class Seen:
    """What a reader of one sequence saw: pieces of text and the loop's time of each."""

    def __init__(self) -> None:
        self.pieces: list[str] = []
        self.times: list[float] = []

    async def read(self, sequence: Sequence) -> Seen:
        while sequence.finish is None:
            self.pieces.append(await sequence.output())
            self.times.append(asyncio.get_running_loop().time())
        return self

    @property
    def largest_gap(self) -> float:
        return max(after - before for before, after in pairwise(self.times))


@pytest.mark.anyio
async def test_only_so_many_run_and_the_next_takes_the_slot_of_one_that_is_cancelled() -> None:
    async with running() as engine:
        first, second, third = (submit(engine, 1000) for _ in range(3))
        await first.output()
        await second.output()
        assert (len(engine.running), len(engine.waiting)) == (2, 1)
        assert third.first_token is None
        engine.cancel(first)
        await asyncio.wait_for(third.output(), 1)
        assert engine.running == [second, third]
        assert not engine.waiting


@pytest.mark.anyio
async def test_a_full_queue_refuses() -> None:
    async with running(queue=1) as engine:
        for _ in range(2):
            await submit(engine, 1000).output()
        submit(engine, 10)
        with pytest.raises(QueueFull):
            submit(engine, 10)


@pytest.mark.anyio
async def test_token_clock_keeps_its_rate_and_slows_with_the_batch() -> None:
    loop = asyncio.get_running_loop()
    speed = Speed(200, 0.5, 1e6, 2, 0.0, 0.0)
    async with running(speed) as engine:
        begun = loop.time()
        await Seen().read(submit(engine, 60))
        alone = loop.time() - begun
        begun = loop.time()
        await asyncio.gather(*(Seen().read(submit(engine, 60)) for _ in range(2)))
        together = loop.time() - begun
    assert alone == pytest.approx(60 / 200, rel=0.2)
    assert together == pytest.approx(60 / 200 * 1.5, rel=0.2)


@pytest.mark.anyio
async def test_warmup_goes_as_recorded_on_a_gpu() -> None:
    # The order of the recorded compiled run: prompts of 200, 900, 900, 200 and 32 tokens. The first has a late token
    # and stands still; the second has an early token and stands still all the same; then warm, but for a new class.
    warmup = Warmup(first_token=0.3, standstill=0.4, requests=2, classes=(64, 512), class_share=0.25)
    seen = []
    async with running(warmup=warmup) as engine:
        for prompt_tokens in (200, 900, 900, 200, 32):
            sequence = submit(engine, 48, prompt_tokens)
            seen.append((await Seen().read(sequence), (sequence.first_token or 0) - sequence.arrived))
    first_tokens = [round(first, 1) for _, first in seen]
    gaps = [round(reader.largest_gap, 1) for reader, _ in seen]
    assert first_tokens == [0.3, 0.1, 0.0, 0.0, 0.1]
    assert gaps == [0.4, 0.4, 0.0, 0.0, 0.1]
    # Nobody but the reader of a stream notices: the pause lies inside it, not before it.
    cold, _ = seen[0]
    pause = max(range(1, 48), key=lambda place: cold.times[place] - cold.times[place - 1])
    assert 0 < pause < 47


@pytest.mark.anyio
async def test_while_one_compiles_all_stand_still() -> None:
    warmup = Warmup(first_token=0.0, standstill=0.3, requests=1, classes=(), class_share=0.0)
    async with running(warmup=warmup) as engine, lateness() as late:
        readers = await asyncio.gather(*(Seen().read(submit(engine, 30)) for _ in range(2)))
    assert all(reader.largest_gap >= 0.3 - late() for reader in readers)


@pytest.mark.anyio
async def test_under_load_tokens_share_chunks_and_none_is_lost() -> None:
    speed = Speed(1000, 0.0, 1e6, 8, 0.3, 0.0)
    async with running(speed) as engine:
        sequences = [submit(engine, 100, seed=1) for _ in range(8)]
        readers = await asyncio.gather(*(Seen().read(sequence) for sequence in sequences))
        alone = await Seen().read(submit(engine, 100, seed=1))
    assert all(sequence.tokens == 100 for sequence in sequences)
    assert sum(len(reader.pieces) for reader in readers) < 8 * 90
    assert len(alone.pieces) == 100
    # The same seed and prompt give the same text, however it was cut.
    assert {"".join(reader.pieces) for reader in readers} == {"".join(alone.pieces)}


@pytest.mark.anyio
async def test_a_slow_reader_gets_what_has_gathered() -> None:
    async with running() as engine:
        sequence = submit(engine, 50)
        await sequence.output()
        await asyncio.sleep(0.2)
        await sequence.output()
        assert sequence.finish == "length"
        assert sequence.tokens == 50


@pytest.mark.anyio
async def test_some_chunks_are_empty_as_recorded() -> None:
    async with running() as engine:
        pieces = (await Seen().read(submit(engine, 200))).pieces
    assert 0.2 < pieces.count("") / len(pieces) < 0.55
    assert json.loads(json.dumps("".join(pieces)))


@pytest.mark.anyio
async def test_an_engine_that_was_held_up_does_not_catch_up() -> None:
    # As recorded with a stopped and continued engine: the stream goes on at its pace.
    async with running() as engine:
        sequence = submit(engine, 1000)
        await sequence.output()
        engine.frozen = True
        await asyncio.sleep(0.3)
        before = sequence.tokens
        engine.resume()
        await asyncio.sleep(0.1)
        assert sequence.tokens - before <= 60


@pytest.mark.anyio
async def test_an_answer_may_end_by_itself_unless_that_is_ignored() -> None:
    async with running(Speed(2000, 0.0, 1e6, 8, 0.0, 0.5)) as engine:
        free = engine.submit("hello", 2, 200, False, 1)
        fixed = engine.submit("hello", 2, 200, True, 1)
        await asyncio.gather(Seen().read(free), Seen().read(fixed))
    assert (free.finish, free.tokens < 200) == ("stop", True)
    assert (fixed.finish, fixed.tokens) == ("length", 200)
