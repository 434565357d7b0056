"""What the drill's URL means for the way of its requests: the address of a Service gives each connection one Pod, and
hides which."""

from __future__ import annotations

from collections.abc import Iterator
from urllib.parse import urlsplit

from chaosrunner.cluster.resources import Object, meta
from chaosrunner.faults.base import Problem
from chaosrunner.playbook.drill import Drill
from chaosrunner.playbook.expressions import Expression, metrics, reads_target
from chaosrunner.playbook.playbook import Playbook
from chaosrunner.playbook.rules import expressions
from chaosrunner.playbook.steps import PodFault

_ON_THE_REPLACEMENT = frozenset(
    {
        "replacement.routed",
        "replacement.first_complete",
        "replacement.warm",
        "replacement.tokens",
        "time_to_serve",
        "time_to_first_stream",
        "routing_delay",
    }
)
"""Metrics that only requests on a replacement make known."""


def problems(drill: Drill, playbook: Playbook, service: Object | None) -> Iterator[Problem]:
    """What comes of sending the probes' requests to the workload's own Service; nothing where they go elsewhere.

    A gateway chooses a Pod for each request; kube-proxy, and a client that resolves a headless Service, for each
    connection (kubernetes.io, "Virtual IPs and Service Proxies").
    """
    url = drill.endpoint.url
    if service is None or url is None or not _is_address_of(service, urlsplit(url).hostname or ""):
        return
    name, asked = meta(service)["name"], [expression for _, expression in expressions(playbook)]
    is_headless = (service.get("spec") or {}).get("clusterIP") == "None"
    if drill.endpoint.pod_header is None and not is_headless and any(map(reads_target, asked)):
        yield Problem(
            severity="warn",
            code="pod_unknown",
            text=f"the URL is the address of Service {name}, which hides the Pod that serves a request: "
            "in_flight(target) is never known, so the step that waits for it gives up",
            how="give endpoint.pod_header, or the URL of a gateway that names the Pod",
        )
    through = [probe for probe in playbook.probes if probe.target == "endpoint"]
    if all(probe.connection != "new" for probe in through) and (what := _needs_new(playbook, asked)):
        yield Problem(
            severity="warn",
            code="sticky_connections",
            text=f"the URL is the address of Service {name}, and connections are reused: each stays with one Pod, so "
            f"{what} may never come about",
            how="set connection: new in a probe",
        )


def _is_address_of(service: Object, host: str) -> bool:
    metadata, spec = meta(service), service.get("spec") or {}
    addresses = {spec.get("clusterIP"), *(spec.get("clusterIPs") or ()), *(spec.get("externalIPs") or ())}
    short = f"{metadata['name']}.{metadata['namespace']}"
    return host in addresses or host in (metadata["name"], short, f"{short}.svc") or host.startswith(f"{short}.svc.")


def _needs_new(playbook: Playbook, asked: list[Expression]) -> str | None:
    """What of the playbook takes a connection to a Pod that none may lead to."""
    for step in playbook.steps:
        body = step.body
        if isinstance(body, PodFault) and body.when is not None and reads_target(body.when):
            several = body.pods.mode in ("all", "percent") or body.pods.value > 1
            if several or body.from_ is not None or body.including is not None:
                return f"exposure on the Pods of step {step.title!r}"
    used = sorted(set().union(*map(metrics, asked)) & _ON_THE_REPLACEMENT)
    return f"{used[0]} (a replacement gets new connections only)" if used else None
