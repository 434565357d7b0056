"""A model server without a model: vLLM's HTTP face, start-up, warm-up and ways to end, at a chosen speed."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

from chaosrunner.lab.workload import options


def parser() -> argparse.ArgumentParser:
    """The command line of the model server."""
    result = options.parser(
        "model_server", "An OpenAI-compatible model server that answers byte for byte like vLLM 0.32, without a model."
    )
    result.add_argument("--port", type=int, default=8000, help="port to listen on once started; 0 picks one (see the log)")
    result.add_argument(
        "--pod-name", default=options.environment("POD_NAME", "local"), help="name of the Pod, from $POD_NAME by default"
    )
    result.add_argument(
        "--pod-header", default="x-served-by", help="response header that names the Pod; empty sends none"
    )
    result.add_argument("--model", default="tiny", help="name of the served model")
    result.add_argument("--max-model-len", type=options.count, default=2048, help="longest prompt plus answer, in tokens")
    result.add_argument("--seed", type=int, default=0, help="seed of texts and of the spread of chunks")
    result.add_argument("--control", action="store_true", help="serve POST /control/{crash-engine,stall,slow,resume}")

    speed = result.add_argument_group("speed")
    speed.add_argument(
        "--startup", type=options.duration, default=2.0, help="time from start to ready; the port is closed until then"
    )
    speed.add_argument(
        "--tokens-per-second", type=options.positive, default=40.0, help="tokens a second of one sequence running alone"
    )
    speed.add_argument(
        "--batch-slowdown",
        type=options.share,
        default=0.02,
        help="by how much each further running sequence lengthens a step",
    )
    speed.add_argument(
        "--prefill-tokens-per-second", type=options.positive, default=20000.0, help="prompt tokens read a second"
    )
    speed.add_argument("--max-sequences", type=options.count, default=8, help="sequences generated at the same time")
    speed.add_argument(
        "--queue", type=int, default=256, help="requests that may wait for a slot; more are answered 503; 0 allows none"
    )
    speed.add_argument(
        "--merge", type=options.share, default=0.1, help="share of tokens that share a chunk with the next, at full load"
    )
    speed.add_argument(
        "--eos", type=options.share, default=0.0, help="chance of each token to end the answer, unless ignore_eos is set"
    )

    warmup = result.add_argument_group(
        "warm-up", "A fresh process is slow at first, and the whole engine stands still while it compiles."
    )
    warmup.add_argument(
        "--warmup-first-token", type=options.duration, default=0.0, help="delay of the very first request's first token"
    )
    warmup.add_argument(
        "--warmup-standstill", type=options.duration, default=0.0, help="silence in mid-stream of the first requests"
    )
    warmup.add_argument(
        "--warmup-requests", type=options.count, default=2, help="how many requests stand still in mid-stream"
    )
    warmup.add_argument(
        "--warmup-classes",
        type=options.borders,
        default=(64, 512),
        metavar="N,N",
        help="borders in prompt tokens between the length classes that are compiled separately; '' is one class",
    )
    warmup.add_argument(
        "--warmup-class-share",
        type=options.share,
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
        "--drain-timeout", type=options.duration, default=30.0, help="longest drain; then streams end with an error object"
    )
    ending.add_argument(
        "--exit-delay", type=options.duration, default=0.15, help="time the port stays open after the last stream ended"
    )
    ending.add_argument(
        "--keep-alive", type=options.duration, default=5.0, help="how long an idle connection is kept open"
    )
    return result


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the model server until it is told to end; returns the exit code."""
    parser().parse_args(arguments)
    return 0


if __name__ == "__main__":
    sys.exit(main())
