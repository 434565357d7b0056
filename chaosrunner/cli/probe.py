"""The command that runs a probe alone. What it does is in `probing` and `single`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from chaosrunner.cli.commands import Command, Duration
from chaosrunner.cli.options import (
    complete_dialect,
    complete_drill,
    complete_playbook,
    metrics_option,
    output_option,
    parameters_option,
    timelines_option,
)
from chaosrunner.errors import UserError


@click.command(
    cls=Command,
    examples="""
    chaosrunner probe http://127.0.0.1:8000 --once
    chaosrunner probe http://127.0.0.1:8000/v1/chat/completions --model m -c 16 -d 60s --slo ttft=500ms,tpot=50ms
    chaosrunner probe http://127.0.0.1:8000 --rps 20 --check 'success_rate >= 99.9%' --check 'p99(ttft) <= 1s'
    chaosrunner probe http://127.0.0.1:8000 --stage 30s:5 --stage 60s:5-50 --max-in-flight 512 --record
    chaosrunner probe --drill drills/chat.yaml --probe chat -d 30s -o json | jq .latency.ttft
    """,
)
@click.argument("url", required=False, metavar="[URL]")
@click.option(
    "--playbook",
    metavar="FILE",
    shell_complete=complete_playbook,
    help="A probe of this playbook (file or name), sent to URL.",
)
@click.option(
    "--drill",
    metavar="FILE",
    shell_complete=complete_drill,
    help="A probe of this drill (file or name), sent to URL or else to the drill's own endpoint.",
)
@click.option("--probe", "name", metavar="NAME", help="Which of its probes, where there are several.")
@parameters_option
@click.option(
    "--dialect",
    metavar="NAME",
    shell_complete=complete_dialect,
    help="What is spoken: completions, chat, responses, messages, sse, json_lines or http.  [default: by the path of "
    "URL, else completions]",
)
@click.option("--model", metavar="NAME", help="Model asked for.")
@click.option("--prompt", metavar="TEXT", help="The prompt; `{{ nonce }}` differs in each request.")
@click.option(
    "--body",
    metavar="JSON",
    help="More fields for the body; with sse, json_lines and http the whole of it. @FILE reads.",
)
@click.option(
    "--terminal",
    metavar="RULE",
    help="How a complete stream ends, with sse and json_lines: data=TEXT, event=NAME, fields=JSON, or eof.  "
    '[default: as in playbooks: data=[DONE], and fields={"done": true}]',
)
@click.option("--max-tokens", type=click.IntRange(1), metavar="N", help="Longest answer.  [default: 128]")
@click.option("--fixed-length", is_flag=True, help="Ask for exactly --max-tokens; another length is `wrong_length`.")
@click.option("-X", "--method", metavar="METHOD", help="HTTP method, with sse, json_lines and http.")
@click.option("-H", "--header", "headers", multiple=True, metavar="NAME:VALUE", help="Request header; repeatable.")
@click.option("--api-key-env", metavar="VARIABLE", help="Environment variable with the key, sent as Bearer.")
@click.option("--ca", type=click.Path(dir_okay=False), help="File of CA certificates to trust instead of the system's.")
@click.option("--insecure", is_flag=True, help="Do not verify the server's certificate.")
@click.option("--http2", is_flag=True, help="Speak HTTP/2, where the server does.")
@click.option("--proxy", metavar="URL", help="HTTP proxy on the way.")
@click.option("--pod-header", metavar="NAME", help="Response header that names the serving replica.")
@click.option(
    "--connection",
    type=click.Choice(["new", "reused", "fixed"]),
    help="Whether each request opens a connection, takes an idle one, or its user's own.  [default: reused]",
)
@click.option(
    "--limit",
    "limits",
    multiple=True,
    metavar="NAME=TIME",
    help="Time limit: connect, first_byte, idle, token_idle or total.",
)
@click.option("-c", "--concurrency", type=click.IntRange(1), metavar="N", help="Requests in flight.  [default: 1]")
@click.option("--ramp", type=Duration(), help="Time over which these users begin.")
@click.option("--pause", type=Duration(), help="Time between an answer and the next request of the same user.")
@click.option("--rps", type=float, metavar="RATE", help="Send so many requests a second instead, whatever comes back.")
@click.option(
    "--stage",
    "stages",
    multiple=True,
    metavar="TIME:RATE[-RATE]",
    help="A stretch of this rate, or from one rate to another; repeatable, instead of --rps and --duration.",
)
@click.option(
    "--arrivals",
    type=click.Choice(["poisson", "constant"]),
    help="With --rps and --stage: independent users, or equal distances.  [default: poisson]",
)
@click.option(
    "--max-in-flight", type=click.IntRange(1), metavar="N", help="More than this is `not_sent`.  [default: 256]"
)
@click.option("--workers", type=click.IntRange(1), metavar="N", help="Processes that share the load.  [default: 1]")
@click.option("-d", "--duration", type=Duration(), help="No request starts after this time.  [default: 30s]")
@click.option("-n", "--requests", type=click.IntRange(1), metavar="N", help="No request starts after this many.")
@click.option(
    "--drain", type=Duration(), help="Cancel what is in flight so long after that.  [default: read it to its end]"
)
@click.option("--seed", metavar="TEXT", help="Of nonces and arrivals.  [default: another one each time]")
@click.option("--no-chunks", is_flag=True, help="Keep no time of each chunk: less memory, no chunk gaps.")
@click.option(
    "--slo", metavar="NAME=TIME,...", help="What a good request is: limits of ttft, ttft_answer, tpot, e2e, chunk_gap."
)
@click.option(
    "--check", "checks", multiple=True, metavar="EXPR", help="Fail unless this holds, as in playbooks; repeatable."
)
@click.option("--once", is_flag=True, help="Send one request and show its answer frame by frame.")
@click.option("--raw", is_flag=True, help="With --once: write the bytes of the body as they come, and nothing else.")
@click.option("--record", is_flag=True, help="Keep a recording, for report, timeline and compare.")
@timelines_option
@metrics_option
@output_option("text", "json")
def probe(once: bool, raw: bool, timelines: Path, **given: Any) -> None:
    """Run a probe alone, without any cluster.

    What is sent is told by flags, or is the probe of a playbook or a drill, of which flags then replace parts. Prints
    what a load test prints, with the outcomes and figures of drills: only a stream that ends as it was meant to is a
    success, and percentiles are exact. Progress goes to standard error. --record keeps every row.

    SIGINT or SIGTERM ends it early, with what there is: requests in flight are read to their end, a second one cancels
    them. Exit codes: 0, 1 a check failed, 2 bad usage, 3 inconclusive, 4 ended early. With --once: 0 a success, 1 none.
    """
    if once:
        from chaosrunner.cli.single import run_once

        raise click.exceptions.Exit(run_once(raw=raw, **given))
    if raw:
        raise UserError("--raw writes the body of a single answer: give --once too")
    from chaosrunner.cli.probing import run

    raise click.exceptions.Exit(run(timelines=timelines, **given))
