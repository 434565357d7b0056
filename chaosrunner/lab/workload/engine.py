"""The engine behind the model server: continuous batching on a token clock, with a warm-up, without a model.

One step makes one token for every running sequence. While the engine reads a prompt or compiles, everything stands
still, as one device does.
"""

from __future__ import annotations

import asyncio
import random
from bisect import bisect_right
from collections import deque
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field

_WORDS = (" the", " quick", " fox", " jumps", " over", " lazy", " dog", " hello", " world", " drill", " tiny", " this")
_PIECES = ("he", "llo", "qu", "ick", "in", "ju", "}", "~", "?", "!", "5", "_", "y", "I", "\x06", " ")
_BYTE_SHARE = 0.35
"""Share of tokens that are part of a character: they give no text yet, so that some chunks are empty."""
_STANDSTILL_AFTER = 8
"""Tokens of an answer after which a cold engine compiles its decoding step."""


@dataclass(frozen=True)
class Speed:
    """Rates of the engine; see the server's command line."""

    tokens_per_second: float
    batch_slowdown: float
    prefill_tokens_per_second: float
    max_sequences: int
    merge: float
    eos: float


@dataclass(frozen=True)
class Warmup:
    """What a fresh engine owes before it is fast, in seconds; see the server's command line."""

    first_token: float
    standstill: float
    requests: int
    classes: tuple[int, ...]
    class_share: float


class QueueFull(Exception):
    """No slot is free and too many requests wait for one."""


@dataclass(eq=False)
class Sequence:
    """One answer in the making. Times are the event loop's."""

    prompt_tokens: int
    max_tokens: int
    ignore_eos: bool
    texts: random.Random
    arrived: float
    admitted: float | None = None
    first_token: float | None = None
    last_token: float | None = None
    tokens: int = 0
    finish: str | None = None
    """stop, length, abort or error, once the sequence has ended."""
    compiled: bool = False
    _pending: list[str] = field(default_factory=list)
    _partial: int = 0
    _ready: asyncio.Event = field(default_factory=asyncio.Event)

    async def output(self) -> str:
        """Wait for the next piece of text and take all there is: several tokens if the reader was slow."""
        await self._ready.wait()
        self._ready.clear()
        text = "".join(self._pending)
        self._pending.clear()
        return text

    def add(self, now: float) -> None:
        """Make one token."""
        self.tokens += 1
        self.first_token = self.first_token or now
        self.last_token = now
        if self.texts.random() < _BYTE_SHARE and self._partial < 3:
            self._partial += 1
            text = ""
        else:
            text = "\N{REPLACEMENT CHARACTER}" * self._partial
            text += self.texts.choice(_WORDS if self.texts.random() < 0.2 else _PIECES)
            self._partial = 0
        self._pending.append(text)

    def deliver(self, finish: str | None = None) -> None:
        """Wake the reader."""
        self.finish = self.finish or finish
        self._ready.set()


class Engine:
    """Runs sequences until it is crashed, frozen or cancelled."""

    def __init__(self, speed: Speed, warmup: Warmup, seed: int, queue: int) -> None:
        self.speed = speed
        self.warmup = warmup
        self.waiting: deque[Sequence] = deque()
        self.running: list[Sequence] = []
        self.dead = False
        self.frozen = False
        """Nothing more comes out, and nothing is closed."""
        self.slowness = 1.0
        """Factor on the length of every step."""
        self.on_step: Callable[[int, int, list[float]], None] = lambda prompt, generated, gaps: None
        """Told of each step: prompt tokens read, tokens generated, and how long after the one before each came (s)."""
        self.sleep: Callable[[float], Awaitable[None]] = asyncio.sleep
        """Waits out a step of so many seconds."""
        self._queue = queue
        self._seed = seed
        self._spread = random.Random(seed)
        self._numbers = 0
        self._stall = 0.0
        self._work = asyncio.Event()
        self._read_classes: set[int] = set()
        self._compiled_classes: set[int] = set()
        self._standstills = warmup.requests

    def settle(self) -> None:
        """Count every class of requests as seen: what a process that has served for a while is like."""
        kinds = range(len(self.warmup.classes) + 1)
        self._read_classes.update(kinds)
        self._compiled_classes.update(kinds)
        self._standstills = 0

    def submit(self, prompt: str, prompt_tokens: int, max_tokens: int, ignore_eos: bool, seed: int | None) -> Sequence:
        """Take a request in; raises QueueFull. The same seed and prompt give the same text on every server."""
        if len(self.waiting) >= self._queue and len(self.running) + len(self.waiting) >= self.speed.max_sequences:
            raise QueueFull
        self._numbers += 1
        number = f"#{self._numbers}" if seed is None else str(seed)
        texts = random.Random(f"{self._seed}/{number}/{prompt}")
        now = asyncio.get_running_loop().time()
        sequence = Sequence(prompt_tokens, max_tokens, ignore_eos, texts, now)
        self.waiting.append(sequence)
        self._work.set()
        return sequence

    def cancel(self, sequence: Sequence) -> None:
        """Free the slot of a sequence that nobody reads any more; one that has ended is left as it is."""
        if sequence in self.running:
            self.running.remove(sequence)
        elif sequence in self.waiting:
            self.waiting.remove(sequence)

    def end_all(self, finish: str) -> None:
        """End every sequence now, for one reason."""
        sequences = [*self.running, *self.waiting]
        self.running.clear()
        self.waiting.clear()
        for sequence in sequences:
            sequence.deliver(finish)

    def crash(self) -> None:
        """Die: every sequence ends with an error, and none can be started any more."""
        self.dead = True
        self.end_all("error")

    def resume(self) -> None:
        """Go on after a stall or a slow-down."""
        self.frozen = False
        self.slowness = 1.0
        self._work.set()

    def stall(self, seconds: float) -> None:
        """Make the next step so much longer."""
        self._stall += seconds

    async def run(self) -> None:
        """Make tokens, step by step."""
        loop = asyncio.get_running_loop()
        due = loop.time()
        while True:
            while self.frozen or not (self.running or self.waiting):
                self._work.clear()
                await self._work.wait()
                due = loop.time()
            length, prompt = self._plan(loop.time())
            now = loop.time()
            # Steps follow each other without drift, but an engine that was held up does not catch up.
            due = due + length if now - due < 0.1 else now + length
            await self.sleep(due - now)
            if not self.frozen:
                self._step(loop.time(), prompt)

    def _plan(self, now: float) -> tuple[float, int]:
        """Admit what fits; return the length of the next step in seconds and the prompt tokens read in it."""
        prompt = 0
        extra = self._stall
        self._stall = 0.0
        while self.waiting and len(self.running) < self.speed.max_sequences:
            sequence = self.waiting.popleft()
            sequence.admitted = now
            self.running.append(sequence)
            prompt += sequence.prompt_tokens
            extra += self._first_token_cost(sequence)
        for sequence in self.running:
            extra += self._standstill_cost(sequence)
        step = (1 + self.speed.batch_slowdown * (len(self.running) - 1)) / self.speed.tokens_per_second
        return (step + prompt / self.speed.prefill_tokens_per_second) * self.slowness + extra, prompt

    def _class(self, sequence: Sequence) -> int:
        return bisect_right(self.warmup.classes, sequence.prompt_tokens)

    def _first_token_cost(self, sequence: Sequence) -> float:
        kind = self._class(sequence)
        if kind in self._read_classes:
            return 0.0
        first = not self._read_classes
        self._read_classes.add(kind)
        return self.warmup.first_token * (1.0 if first else self.warmup.class_share)

    def _standstill_cost(self, sequence: Sequence) -> float:
        """The pause in the middle of an answer, paid by the first few and by the first of each length class."""
        if sequence.compiled or sequence.tokens < min(_STANDSTILL_AFTER, max(1, sequence.max_tokens // 2)):
            return 0.0
        sequence.compiled = True
        kind = self._class(sequence)
        known = kind in self._compiled_classes
        self._compiled_classes.add(kind)
        if self._standstills > 0:
            self._standstills -= 1
            return self.warmup.standstill
        return 0.0 if known else self.warmup.standstill * self.warmup.class_share

    def _step(self, now: float, prompt: int) -> None:
        load = (len(self.running) - 1) / max(1, self.speed.max_sequences - 1)
        gaps = [now - sequence.last_token for sequence in self.running if sequence.last_token is not None]
        self.on_step(prompt, len(self.running), gaps)
        for sequence in list(self.running):
            sequence.add(now)
            if sequence.tokens >= sequence.max_tokens:
                finish = "length"
            elif not sequence.ignore_eos and sequence.texts.random() < self.speed.eos:
                finish = "stop"
            elif sequence.tokens > 1 and self._spread.random() < self.speed.merge * load:
                continue
            else:
                sequence.deliver()
                continue
            self.running.remove(sequence)
            sequence.deliver(finish)
