"""A small alert source that speaks Prometheus' API: rules over a gateway's counters and a Service's endpoints."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

from chaosrunner.lab.workload import flags


def parser() -> argparse.ArgumentParser:
    """The command line of the alert source."""
    result = flags.parser(
        "alert_source",
        "Evaluates alert rules each interval and serves /api/v1/{alerts,rules,query}, /-/healthy and /-/ready.",
    )
    result.add_argument("--port", type=int, default=9090, help="port to listen on; 0 picks one (see the log)")
    result.add_argument("--interval", type=flags.duration, default=1.0, help="time between evaluations")

    rules = result.add_argument_group(
        "rules",
        'A rule is JSON: {"alert": "NoReadyEndpoints", "expr": "ready_endpoints < 1", "for": "5s", '
        '"labels": {"severity": "page"}, "annotations": {}}. An expression compares one figure with a number: '
        "ready_endpoints, serving_endpoints, endpoints, gateway_requests, gateway_failed, gateway_5xx_share, "
        "gateway_cut_share, gateway_failed_share (5xx or cut), gateway_in_flight, up. "
        "Shares and counts are over a trailing window: gateway_failed_share[30s] > 5% (30 s unless given).",
    )
    rules.add_argument("--rules", metavar="FILE", help="JSON file with a list of rules")
    rules.add_argument(
        "--rule", action="append", default=[], metavar="JSON", help="one rule; may be given several times"
    )
    rules.add_argument("--group", default="lab", help="name of the rule group")

    sources = result.add_argument_group("sources")
    sources.add_argument("--gateway", metavar="URL", help="base URL of the gateway, whose /gateway/stats is read")
    sources.add_argument("--kubeconfig", metavar="FILE", help="kubeconfig of a plain-http API server")
    sources.add_argument("--context", help="context of the kubeconfig; the current one by default")
    sources.add_argument("--namespace", help="namespace of the Service; the context's by default")
    sources.add_argument("--service", help="Service whose EndpointSlices are counted")
    return result


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the alert source until SIGTERM or SIGINT; returns the exit code."""
    parser().parse_args(arguments)
    return 0


if __name__ == "__main__":
    sys.exit(main())
