"""A gateway that follows a Service's EndpointSlices and streams through, as Envoy does with one route."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

from chaosrunner.lab.workload import flags


def parser() -> argparse.ArgumentParser:
    """The command line of the gateway."""
    result = flags.parser(
        "gateway", "A streaming HTTP/1.1 gateway in front of one Service. Own pages: /gateway/healthz, /gateway/stats."
    )
    result.add_argument("--port", type=int, default=8080, help="port to listen on; 0 picks one (see the log)")

    source = result.add_argument_group("endpoints")
    source.add_argument("--kubeconfig", required=True, metavar="FILE", help="kubeconfig of a plain-http API server")
    source.add_argument("--context", help="context of the kubeconfig; the current one by default")
    source.add_argument("--namespace", help="namespace of the Service; the context's by default")
    source.add_argument("--service", required=True, help="Service whose EndpointSlices are followed")
    source.add_argument("--port-name", help="name of the Service's port; the only or first one by default")
    source.add_argument(
        "--propagation-delay",
        type=flags.duration,
        default=0.0,
        help="time between a change of the endpoints and the gateway acting on it",
    )
    source.add_argument(
        "--panic",
        choices=("all", "serving", "off"),
        default="all",
        help="with no ready endpoint: try all that are known (as Envoy does), those serving while terminating, or none",
    )

    routing = result.add_argument_group("routing")
    routing.add_argument(
        "--policy",
        choices=("least_request", "round_robin", "random"),
        default="least_request",
        help="how a new request picks an endpoint (least_request: two random choices, as Envoy's)",
    )
    routing.add_argument("--seed", type=int, default=0, help="seed of random choices")
    routing.add_argument(
        "--pod-header", default="x-served-by", help="response header that names the serving Pod; empty sends none"
    )
    routing.add_argument("--connect-timeout", type=flags.duration, default=10.0, help="longest connect to a Pod")
    routing.add_argument("--retries", type=int, default=0, help="further endpoints tried when a connect fails")
    routing.add_argument(
        "--request-timeout",
        type=flags.duration,
        default=0.0,
        help="longest request from its sending to its last byte; 0 is none (Envoy's own default is 15 s)",
    )
    routing.add_argument("--new-connections", action="store_true", help="a new upstream connection for each request")
    routing.add_argument(
        "--idle-timeout", type=flags.duration, default=4.0, help="how long an idle upstream connection is kept"
    )
    routing.add_argument(
        "--death-delay",
        type=flags.duration,
        default=0.0,
        help="time between an upstream's death in mid-stream and the end of the client's connection (Envoy: about 1 s)",
    )
    routing.add_argument("--max-connections", type=flags.count, default=1024, help="most client connections at once")
    return result


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the gateway until SIGTERM or SIGINT; returns the exit code."""
    parser().parse_args(arguments)
    return 0


if __name__ == "__main__":
    sys.exit(main())
