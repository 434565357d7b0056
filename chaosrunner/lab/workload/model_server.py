"""A model server without a model: vLLM's HTTP face, start-up, warm-up and ways to end, at a chosen speed."""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import signal
import sys
import time
from typing import Any

from chaosrunner.lab.workload import flags, frames, http1, program, requests
from chaosrunner.lab.workload.core import NAME, EngineCore
from chaosrunner.lab.workload.engine import Engine, QueueFull, Sequence, Speed, Warmup
from chaosrunner.lab.workload.frames import Frames
from chaosrunner.lab.workload.http1 import Exchange, Server, find
from chaosrunner.lab.workload.journal import Journal
from chaosrunner.lab.workload.metrics import Metrics
from chaosrunner.lab.workload.requests import Generation, Refused

_ROUTES: dict[str, tuple[str, ...]] = {
    "/health": ("GET",),
    "/ping": ("GET", "POST"),
    "/version": ("GET",),
    "/load": ("GET",),
    "/metrics": ("GET",),
    "/v1/models": ("GET",),
    "/v1/completions": ("POST",),
    "/v1/chat/completions": ("POST",),
}
_SHUTTING_DOWN = frames.error_body(frames.SHUTTING_DOWN, "InternalServerError", None, 500)
_FLUSH = 3.0
"""Seconds that slow clients have to take the rest of their answers before the process ends."""


def parser() -> argparse.ArgumentParser:
    """The command line of the model server."""
    result = flags.parser(
        "model_server",
        "An OpenAI-compatible model server that answers byte for byte like vLLM 0.32, without a model.",
        port=8000,
    )
    result.add_argument(
        "--pod-name",
        default=flags.environment("POD_NAME", "local"),
        help="name of the Pod, from $POD_NAME by default",
    )
    result.add_argument(
        "--pod-header", default="x-served-by", help="response header that names the Pod; empty sends none"
    )
    result.add_argument("--model", default="tiny", help="name of the served model")
    result.add_argument("--max-model-len", type=flags.count, default=2048, help="longest prompt plus answer, in tokens")
    result.add_argument("--seed", type=int, default=0, help="seed of texts and of the spread of chunks")
    result.add_argument(
        "--control", action="store_true", help="serve POST /control/{crash-engine,stall,slow,resume,settle}"
    )
    result.add_argument(
        "--engine-process",
        action="store_true",
        help=f"run the engine core as a process of its own, {NAME}, which can be stopped or killed alone",
    )

    speed = result.add_argument_group("speed")
    speed.add_argument(
        "--startup", type=flags.duration, default=2.0, help="time from start to ready; the port is closed until then"
    )
    speed.add_argument(
        "--tokens-per-second", type=flags.positive, default=40.0, help="tokens a second of one sequence running alone"
    )
    speed.add_argument(
        "--batch-slowdown",
        type=flags.share,
        default=0.02,
        help="by how much each further running sequence lengthens a step",
    )
    speed.add_argument(
        "--prefill-tokens-per-second", type=flags.positive, default=20000.0, help="prompt tokens read a second"
    )
    speed.add_argument("--max-sequences", type=flags.count, default=8, help="sequences generated at the same time")
    speed.add_argument(
        "--queue",
        type=flags.whole,
        default=256,
        help="requests that may wait for a slot; more are answered 503; 0 allows none",
    )
    speed.add_argument(
        "--merge",
        type=flags.share,
        default=0.1,
        help="share of tokens that share a chunk with the next, at full load",
    )
    speed.add_argument(
        "--eos",
        type=flags.share,
        default=0.0,
        help="chance of each token to end the answer, unless ignore_eos is set",
    )

    warmup = result.add_argument_group(
        "warm-up", "A fresh process is slow at first, and the whole engine stands still while it compiles."
    )
    warmup.add_argument(
        "--warmup-first-token", type=flags.duration, default=0.0, help="delay of the very first request's first token"
    )
    warmup.add_argument(
        "--warmup-standstill", type=flags.duration, default=0.0, help="silence in mid-stream of the first requests"
    )
    warmup.add_argument(
        "--warmup-requests", type=flags.count, default=2, help="how many requests stand still in mid-stream"
    )
    warmup.add_argument(
        "--warmup-classes",
        type=flags.borders,
        default=(64, 512),
        metavar="N,N",
        help="borders in prompt tokens between the length classes that are compiled separately; '' is one class",
    )
    warmup.add_argument(
        "--warmup-class-share",
        type=flags.share,
        default=0.1,
        help="share of the first-token delay and the standstill that the first request of a new length class costs",
    )

    ending = result.add_argument_group("ending")
    ending.add_argument(
        "--sigterm",
        choices=("abort", "error", "hang", "drain", "ignore"),
        default="abort",
        help="at SIGTERM: finish streams with finish_reason abort; with an error object; fall silent until killed; "
        "finish what runs and refuse what comes; go on",
    )
    ending.add_argument(
        "--drain-timeout",
        type=flags.duration,
        default=30.0,
        help="longest drain; then streams end with an error object",
    )
    ending.add_argument(
        "--exit-delay", type=flags.duration, default=0.15, help="time the port stays open after the last stream ended"
    )
    ending.add_argument(
        "--engine-death",
        choices=("exit", "stay"),
        default="exit",
        help="when the engine core was killed: end, as vLLM 0.32 does, or answer 503 on /health until restarted",
    )
    ending.add_argument(
        "--keep-alive", type=flags.duration, default=5.0, help="how long an idle connection is kept open"
    )
    return result


class ModelServer:
    """The server's state and its answers."""

    def __init__(self, options: argparse.Namespace) -> None:
        self._options = options
        self._journal = Journal(options.log)
        self._created = int(time.time())
        self._permission = f"modelperm-{os.urandom(8).hex()}"
        self._metrics = Metrics(options.model)
        speed = Speed(
            options.tokens_per_second,
            options.batch_slowdown,
            options.prefill_tokens_per_second,
            options.max_sequences,
            options.merge,
            options.eos,
        )
        warmup = Warmup(
            options.warmup_first_token,
            options.warmup_standstill,
            options.warmup_requests,
            options.warmup_classes,
            options.warmup_class_share,
        )
        self._engine = Engine(speed, warmup, options.seed, options.queue)
        self._engine.on_step = self._stepped
        self._server = Server(self._answer, keep_alive=options.keep_alive)
        self._pod = [(options.pod_header, options.pod_name)] if options.pod_header else []
        self._active = 0
        self._idle = asyncio.Event()
        self._idle.set()
        self._refusing = False
        """New generation requests get 500 at once."""
        self._closing = False
        """Every answer closes its connection."""
        self._engine_lost = False
        self._ending: asyncio.Task[None] | None = None
        self._end = asyncio.Event()

    async def run(self) -> int:
        """Start up, serve, end as told; returns the exit code."""
        options = self._options
        loop = asyncio.get_running_loop()
        self._journal.write("start", pod=options.pod_name, pid=os.getpid())
        if options.sigterm == "ignore":
            loop.add_signal_handler(signal.SIGTERM, self._journal.write, "sigterm")
        else:
            # Process 1 of a container outlives a signal that it does not handle, any other process does not.
            signal.signal(signal.SIGTERM, lambda number, frame: os._exit(128 + number))
        core = self._start_core() if options.engine_process else None
        await asyncio.sleep(options.startup)
        port = await program.listen(self._server, options, self._journal)
        if port is None:
            return 1
        if options.sigterm != "ignore":
            loop.add_signal_handler(signal.SIGTERM, self._signalled, "sigterm", options.sigterm)
        # vLLM ends its streams with an error object when it is interrupted.
        loop.add_signal_handler(signal.SIGINT, self._signalled, "sigint", "error")
        self._say(f"serving {options.model} on {options.host}:{port}")
        generation = loop.create_task(self._engine.run())
        await self._end.wait()
        generation.cancel()
        if core is not None and not self._engine_lost:
            core.close()
        await self._server.close()
        self._journal.write("exit", code=0)
        self._say("ended")
        return 0

    def _start_core(self) -> EngineCore:
        core = EngineCore(self._lose_engine)
        self._engine.sleep = core.step
        self._journal.write("engine_core", name=NAME, pid=core.pid)
        return core

    def _lose_engine(self) -> None:
        """The engine core's process has ended."""
        self._engine_lost = True
        self._journal.write("engine_lost", active=self._active)
        self._say(f"{NAME} died, {self._active} requests in flight")
        self._engine.crash()
        if self._options.engine_death == "exit":
            self._terminate("error")

    def _say(self, text: str) -> None:
        sys.stdout.write(text + "\n")
        sys.stdout.flush()

    # Ending

    def _signalled(self, name: str, manner: str) -> None:
        self._journal.write(name, manner=manner, active=self._active)
        self._say(f"{name}: {manner}, {self._active} requests in flight")
        if manner == "hang":
            self._engine.frozen = True
        else:
            self._terminate(manner)

    def _terminate(self, manner: str) -> None:
        if self._ending is None:
            self._refusing = True
            self._ending = asyncio.get_running_loop().create_task(self._finish(manner))

    async def _finish(self, manner: str) -> None:
        if manner == "drain":
            try:
                async with asyncio.timeout(self._options.drain_timeout):
                    await self._idle.wait()
            except TimeoutError:
                self._journal.write("drain_timeout", active=self._active)
                self._engine.crash()
        elif manner == "abort":
            self._closing = True
            self._engine.end_all("abort")
        else:
            self._engine.crash()
        await asyncio.sleep(self._options.exit_delay)
        self._server.stop_listening()
        self._journal.write("closed")
        try:
            async with asyncio.timeout(_FLUSH):
                await self._idle.wait()
        except TimeoutError:
            self._journal.write("flush_timeout", active=self._active)
        self._end.set()

    # Answers

    def _respond(
        self, exchange: Exchange, status: int, body: bytes, kind: str | None = "application/json", *, allow: str = ""
    ) -> None:
        headers = [("date", http1.date()), ("server", "uvicorn")]
        if allow:
            headers.append(("allow", allow))
        headers.append(("content-length", str(len(body))))
        if kind is not None:
            headers.append(("content-type", kind))
        exchange.keep_alive = exchange.keep_alive and not self._closing
        exchange.respond(status, [*headers, ("vary", "Origin"), *self._pod], body)

    async def _answer(self, exchange: Exchange) -> None:
        method, path = exchange.request.method, exchange.request.path
        control = path.startswith("/control/") and self._options.control
        allowed = ("POST",) if control else _ROUTES.get(path, ())
        if not allowed:
            self._respond(exchange, 404, b'{"detail":"Not Found"}')
        elif method not in allowed:
            self._respond(exchange, 405, b'{"detail":"Method Not Allowed"}', allow=", ".join(allowed))
        elif path in ("/health", "/ping"):
            self._respond(exchange, 503 if self._engine.dead else 200, b"", None)
        elif path == "/version":
            self._respond(exchange, 200, frames.dumps({"version": frames.VERSION}))
        elif path == "/load":
            self._respond(exchange, 200, frames.dumps({"server_load": self._active}))
        elif path == "/metrics":
            page = self._metrics.page(self._gauges()).encode()
            self._respond(exchange, 200, page, "text/plain; version=1.0.0; charset=utf-8")
        elif path == "/v1/models":
            options = self._options
            body = frames.models(options.model, options.max_model_len, self._created, self._permission)
            self._respond(exchange, 200, body)
        elif control:
            self._control(exchange, path.removeprefix("/control/"))
        else:
            await self._generation(exchange, chat=path.endswith("/chat/completions"))

    def _gauges(self) -> dict[tuple[str, str], float]:
        running, waiting = self._engine.running, self._engine.waiting
        tokens = sum(sequence.prompt_tokens + sequence.tokens for sequence in running)
        return {
            ("num_requests_running", ""): len(running),
            ("num_requests_waiting", ""): len(waiting),
            ("num_requests_waiting_by_reason", "capacity"): len(waiting),
            ("engine_sleep_state", "awake"): 1.0,
            ("kv_cache_usage_perc", ""): tokens / (self._options.max_sequences * self._options.max_model_len),
        }

    def _control(self, exchange: Exchange, action: str) -> None:
        try:
            values = json.loads(exchange.request.body or b"{}")
            match action:
                case "crash-engine":
                    self._engine.crash()
                    if values.get("exit", True):
                        self._terminate("error")
                case "stall":
                    if "seconds" in values:
                        self._engine.stall(flags.duration(str(values["seconds"])))
                    else:
                        self._engine.frozen = True
                case "slow":
                    self._engine.slowness = flags.positive(str(values["factor"]))
                case "resume":
                    self._engine.resume()
                case "settle":
                    self._engine.settle()
                case _:
                    self._respond(exchange, 404, b'{"detail":"Not Found"}')
                    return
        except (ValueError, TypeError, KeyError, AttributeError, argparse.ArgumentTypeError) as error:
            self._respond(exchange, 400, frames.dumps({"detail": f"{action}: {error!r}"}))
            return
        self._journal.write("control", action=action)
        self._respond(exchange, 200, b"{}")

    async def _generation(self, exchange: Exchange, *, chat: bool) -> None:
        received = time.time()
        name = find(exchange.request.headers, "x-request-id")
        row: dict[str, Any] = {"id": name or os.urandom(8).hex(), "path": exchange.request.path, "received": received}
        try:
            sequence, generation = self._admit(exchange.request.body, chat)
        except Refused as refused:
            self._refuse(exchange, refused)
            self._log(row, exchange, "refused")
            return
        self._active += 1
        self._idle.clear()
        self._journal.write("received", **row)
        row |= {
            "stream": generation.stream,
            "prompt_tokens": generation.prompt_tokens,
            "max_tokens": generation.max_tokens,
        }
        answer = Frames(
            chat=chat,
            id=("chatcmpl-" if chat else "cmpl-") + row["id"],
            created=int(received),
            model=self._options.model,
            include_usage=generation.include_usage,
            continuous_usage=generation.continuous_usage,
        )
        ended = "client_gone"
        try:
            if generation.stream:
                await self._stream(exchange, answer, sequence)
            else:
                await self._whole(exchange, answer, sequence)
            ended = {"abort": "aborted", "error": "error"}.get(sequence.finish or "", "complete")
        finally:
            self._engine.cancel(sequence)
            self._active -= 1
            if not self._active:
                self._idle.set()
            self._count(sequence, generation, ended)
            self._log(row, exchange, ended, sequence)

    def _admit(self, body: bytes, chat: bool) -> tuple[Sequence, Generation]:
        options = self._options
        generation = requests.read(body, chat=chat, model=options.model, max_model_len=options.max_model_len)
        if self._engine.dead:
            raise Refused(500, frames.error_body(frames.ENGINE_DEAD, "InternalServerError", None, 500))
        if self._refusing:
            raise Refused(500, _SHUTTING_DOWN)
        try:
            sequence = self._engine.submit(
                generation.prompt,
                generation.prompt_tokens,
                generation.max_tokens,
                generation.ignore_eos,
                generation.seed,
            )
        except QueueFull:
            self._metrics.add("admission_rejections", 1, "max_num_queued_reqs")
            text = "The server is overloaded: too many requests wait."
            raise Refused(503, frames.error_body(text, "ServiceUnavailableError", None, 503)) from None
        return sequence, generation

    def _refuse(self, exchange: Exchange, refused: Refused) -> None:
        if refused.body is not _SHUTTING_DOWN:
            self._respond(exchange, refused.status, refused.body)
            return
        # This answer of vLLM is made outside the layer that adds `vary`.
        headers = [("date", http1.date()), ("server", "uvicorn"), ("content-length", str(len(refused.body)))]
        exchange.keep_alive = exchange.keep_alive and not self._closing
        exchange.respond(refused.status, [*headers, ("content-type", "application/json"), *self._pod], refused.body)

    async def _stream(self, exchange: Exchange, answer: Frames, sequence: Sequence) -> None:
        kind = ("content-type", "text/event-stream; charset=utf-8")
        headers = [("date", http1.date()), ("server", "uvicorn"), kind, ("vary", "Origin"), *self._pod]
        exchange.start(200, headers)
        prompt = sequence.prompt_tokens
        begun = not answer.chat
        while True:
            text = await sequence.output()
            finish, tokens = sequence.finish, sequence.tokens
            failed = finish == "error"
            if not begun and not failed:
                exchange.send(answer.role(prompt))
                begun = True
            if text or not failed:
                exchange.send(answer.text(text, None if failed else finish, prompt, tokens))
            if finish is not None:
                break
            await exchange.connection.drain()
        if failed:
            exchange.send(frames.error_event())
        elif answer.include_usage:
            exchange.send(answer.usage(prompt, tokens))
        exchange.send(frames.DONE)
        exchange.keep_alive = exchange.keep_alive and not self._closing
        exchange.finish()

    async def _whole(self, exchange: Exchange, answer: Frames, sequence: Sequence) -> None:
        text = ""
        while sequence.finish is None:
            text += await sequence.output()
        if sequence.finish == "error":
            self._respond(exchange, 500, frames.error_body(frames.ENGINE_DEAD, "InternalServerError", None, 500))
        else:
            self._respond(exchange, 200, answer.whole(text, sequence.finish, sequence.prompt_tokens, sequence.tokens))

    # Records

    def _stepped(self, prompt: int, generated: int, gaps: list[float]) -> None:
        self._metrics.add("prompt_tokens", prompt)
        self._metrics.add("prompt_tokens_by_source", prompt, "local_compute")
        self._metrics.add("prefix_cache_queries", prompt)
        self._metrics.add("generation_tokens", generated)
        self._metrics.observe("iteration_tokens_total", prompt + generated)
        for gap in gaps:
            self._metrics.observe("inter_token_latency_seconds", gap)

    def _count(self, sequence: Sequence, generation: Generation, ended: str) -> None:
        # As in vLLM, a request whose client has gone is counted nowhere.
        if ended == "client_gone" or sequence.finish is None:
            return
        metrics = self._metrics
        metrics.add("request_success", 1, sequence.finish)
        metrics.observe("request_prompt_tokens", sequence.prompt_tokens)
        metrics.observe("request_prefill_kv_computed_tokens", sequence.prompt_tokens)
        metrics.observe("request_generation_tokens", sequence.tokens)
        metrics.observe("request_max_num_generation_tokens", sequence.tokens)
        metrics.observe("request_params_n", 1)
        metrics.observe("request_params_max_tokens", generation.max_tokens)
        metrics.observe("request_num_preemptions", 0)
        if sequence.admitted is None or sequence.first_token is None or sequence.last_token is None:
            return
        decode = sequence.last_token - sequence.first_token
        metrics.observe("time_to_first_token_seconds", sequence.first_token - sequence.arrived)
        metrics.observe("e2e_request_latency_seconds", sequence.last_token - sequence.arrived)
        metrics.observe("request_queue_time_seconds", sequence.admitted - sequence.arrived)
        metrics.observe("request_inference_time_seconds", sequence.last_token - sequence.admitted)
        metrics.observe("request_prefill_time_seconds", sequence.first_token - sequence.admitted)
        metrics.observe("request_decode_time_seconds", decode)
        if sequence.tokens > 1:
            metrics.observe("request_time_per_output_token_seconds", decode / (sequence.tokens - 1))

    def _log(self, row: dict[str, Any], exchange: Exchange, ended: str, sequence: Sequence | None = None) -> None:
        if sequence is not None:
            shift = time.time() - asyncio.get_running_loop().time()
            row |= {
                "admitted": sequence.admitted and round(sequence.admitted + shift, 6),
                "first_token": sequence.first_token and round(sequence.first_token + shift, 6),
                "last_token": sequence.last_token and round(sequence.last_token + shift, 6),
                "tokens": sequence.tokens,
                "finish_reason": sequence.finish,
            }
        self._journal.write("request", **row, status=exchange.status, ended=ended)
        self._say(f'{exchange.connection.peer} "POST {row["path"]}" {exchange.status} {ended}')


def main(arguments: list[str] | None = None) -> int:
    """Run the model server until it is told to end; returns the exit code."""
    options = parser().parse_args(arguments)

    async def serve() -> int:
        return await ModelServer(options).run()

    return asyncio.run(serve())


if __name__ == "__main__":
    sys.exit(main())
