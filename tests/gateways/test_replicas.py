"""The lab's model server, a process of its own, behind real gateways: killed, stopped, refused, told to end, slow."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Awaitable, Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import NamedTuple

import anyio
import pytest

from chaosrunner.probes import Limits, Shape
from chaosrunner.timeline.outcomes import Outcome
from chaosrunner.timeline.rows import Request
from tests.gateways.programs import PROGRAMS, Gateway, missing, running
from tests.gateways.recorded import recorded
from tests.lab.workload.harness import Program, get
from tests.probes.helpers import ask

pytestmark = pytest.mark.anyio

LIMITS = Limits(connect=5, first_byte=10, byte_idle=10, token_idle=15, total=60, linger=5)
NEVER = 10_000
"""Tokens: more than come while a test lasts."""
SLOW_START = ("--prefill-tokens-per-second", "1")
"""Headers come at once, the first token much later."""


class Replica:
    """A model server at one of the gateway's upstream ports."""

    def __init__(self, program: Program, port: int) -> None:
        self._program = program
        self._port = port

    def signal(self, number: signal.Signals) -> None:
        self._program.process.send_signal(number)

    async def has(self, metric: str, least: float) -> None:
        """Returns once a metric of its own is that high."""
        async with asyncio.timeout(30):
            while True:
                answer = (await get(self._port, "/metrics")).data.decode()
                lines = [line for line in answer.splitlines() if line.startswith(f"vllm:{metric}{{")]
                if lines and float(lines[0].split()[-1]) >= least:
                    return
                await asyncio.sleep(0.02)

    async def streams(self) -> None:
        """Returns once some tokens are on their way."""
        await self.has("generation_tokens_total", 5)

    async def works(self) -> None:
        """Returns once it has taken the request."""
        await self.has("num_requests_running", 1)


Deed = Callable[[Replica], Awaitable[None]]


async def _kill_in_mid_stream(replica: Replica) -> None:
    await replica.streams()
    replica.signal(signal.SIGKILL)


async def _kill_after_headers(replica: Replica) -> None:
    await replica.works()
    await asyncio.sleep(0.2)
    replica.signal(signal.SIGKILL)


async def _kill_before_headers(replica: Replica) -> None:
    await asyncio.sleep(0.3)
    replica.signal(signal.SIGKILL)


async def _stop_in_mid_stream(replica: Replica) -> None:
    await replica.streams()
    replica.signal(signal.SIGSTOP)


async def _end_in_mid_stream(replica: Replica) -> None:
    await replica.streams()
    replica.signal(signal.SIGTERM)


async def _nothing(replica: Replica) -> None:
    pass


class Case(NamedTuple):
    """What is done to a replica, and what the recording calls it or which outcome it must have."""

    meant: str | Outcome
    deed: Deed
    arguments: tuple[str, ...] = ()
    tokens: int = NEVER
    stopped: bool = False
    """Stopped before the request: its system still accepts connections, and nobody answers. A half-open peer."""
    dead: bool = False
    """Killed before the request."""


CASES: dict[str, Case] = {
    "killed in mid-stream": Case("sigkill_between_chunks", _kill_in_mid_stream),
    "killed after headers": Case("sigkill_after_headers", _kill_after_headers, SLOW_START),
    "killed before headers": Case("sigkill_before_headers", _kill_before_headers, stopped=True),
    "stopped in mid-stream": Case("hang_mid_stream", _stop_in_mid_stream),
    "half open": Case("hang_before_headers", _nothing, stopped=True),
    "refused": Case("REFUSED", _nothing, dead=True),
    "ended, aborts": Case(Outcome.ABORTED, _end_in_mid_stream, ("--sigterm", "abort")),
    "ended, with an error": Case(Outcome.ERROR_IN_STREAM, _end_in_mid_stream, ("--sigterm", "error")),
    "ended, drains": Case(Outcome.COMPLETE, _end_in_mid_stream, ("--sigterm", "drain"), 40),
    "slow": Case(Outcome.COMPLETE, _nothing, ("--tokens-per-second", "5"), 6),
}

CLOSED_UPSTREAM = {"killed in mid-stream", "killed after headers"}
"""Where the upstream speaks HTTP/1.0, its answer ends by a close: the death of the replica is a clean end then, and
only the missing finish_reason tells. (Recorded with uvicorn as the upstream.)"""


@contextmanager
def replica(case: Case, port: int, folder: Path) -> Iterator[Program]:
    speed = ("--startup", "0", "--tokens-per-second", "25", "--max-model-len", str(2 * NEVER))
    program = Program("model_server", folder, ["--port", str(port), *speed, *case.arguments])
    try:
        yield program
    finally:
        program.kill()


async def play(case: Case, program: Program, gateway: Gateway, upstream: int) -> Request:
    await program.logged("listening", timeout=60)
    if case.dead:
        program.kill()
    if case.stopped:
        program.process.send_signal(signal.SIGSTOP)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(case.deed, Replica(program, gateway.upstreams[upstream]))
        return await ask(
            gateway.url,
            shapes=(Shape(prompt="a few words", max_tokens=case.tokens),),
            fixed_length=True,
            headers={"x-up": str(upstream)},
            limits=LIMITS,
            http2=gateway.http2,
        )


QUICK = ("nginx", "haproxy", "envoy")


@pytest.mark.parametrize(
    "name", [name if name in QUICK else pytest.param(name, marks=pytest.mark.slow) for name in PROGRAMS]
)
async def test_what_a_client_sees_of_a_replica(name: str, tmp_path: Path) -> None:
    if (reason := missing(name)) is not None:
        pytest.skip(reason)
    before = recorded(name)
    found: dict[str, Request] = {}
    with running(name, tmp_path) as gateway, ExitStack() as stack:
        programs = [
            stack.enter_context(replica(case, gateway.upstreams[number], tmp_path))
            for number, case in enumerate(CASES.values())
        ]

        async def note(number: int, text: str, case: Case) -> None:
            found[text] = await play(case, programs[number], gateway, number)

        async with anyio.create_task_group() as tasks:
            for number, (text, case) in enumerate(CASES.items()):
                tasks.start_soon(note, number, text, case)

    def meant(text: str, case: Case) -> Outcome | None:
        if name == "nginx-default" and text in CLOSED_UPSTREAM:
            return Outcome.UNTERMINATED_STREAM
        if isinstance(case.meant, Outcome):
            return case.meant
        return before[case.meant].outcome if case.meant in before else None

    expected = {text: outcome for text, case in CASES.items() if (outcome := meant(text, case)) is not None}
    assert {text: found[text].outcome for text in expected} == expected
    slow = found["slow"]
    assert slow.largest_gap is not None
    if name == "nginx-default":
        # It keeps everything back until the end: times of tokens mean nothing.
        assert slow.content_reads == 1
    else:
        assert 0.15 < slow.largest_gap < 2


@pytest.mark.parametrize("name", QUICK)
async def test_a_gateway_that_is_told_to_end_cuts_its_streams(name: str, tmp_path: Path) -> None:
    if (reason := missing(name)) is not None:
        pytest.skip(reason)
    found: list[Request] = []
    case = Case("proxy_sigterm", _nothing)
    with running(name, tmp_path) as gateway, replica(case, gateway.upstreams[0], tmp_path) as program:

        async def note() -> None:
            found.append(await play(case, program, gateway, 0))

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(note)
            await program.logged("listening", timeout=60)
            await Replica(program, gateway.upstreams[0]).streams()
            gateway.process.terminate()
    assert found[0].outcome == Outcome.CUT_STREAM
    assert found[0].chunks
