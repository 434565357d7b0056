"""Proposes a drill for a Service that is there: reads it, its Pods, their controller and their budget."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from chaosrunner.cluster import ApiError, Cluster
from chaosrunner.cluster.budget import budgets_of
from chaosrunner.cluster.resources import PDBS, PODS, SERVICES, ready
from chaosrunner.cluster.roots import Roots
from chaosrunner.errors import Refused
from chaosrunner.playbook import load_playbook

POD_HEADERS = ("target-pod", "x-served-by")
"""Response headers by which gateways and servers name the serving Pod, for the comment in the file."""

NO_POD_HEADER = "names the serving Pod in responses; without it losses cannot be placed"

SECOND_EVICTION = "second_eviction"
"""Parameter of playbooks that ask what a further eviction is answered while a replica is missing."""


async def propose(
    cluster: Cluster, *, service: str, playbook: str, url: str | None = None, pod_header: str | None = None
) -> str:
    """The text of a drill that binds `playbook` to the Service; comments mark what could not be known.

    `pod_header`: the response header that names the serving Pod, where the caller knows it. Raises Refused where the
    Service is not there or selects no Pods, UserError for an unknown playbook, Unreachable.
    """
    known = load_playbook(playbook)
    namespace = cluster.namespace
    answer = await cluster.get(SERVICES, service, namespace)
    if not answer.ok:
        raise Refused(f"service {namespace}/{service}: {answer.message or answer.status}")
    spec = answer.body.get("spec") or {}
    selector = ",".join(f"{key}={value}" for key, value in sorted((spec.get("selector") or {}).items()))
    if not selector:
        raise Refused(f"service {namespace}/{service} has no selector, so its Pods cannot be told apart from others")
    try:
        pods = (await cluster.list(PODS, namespace, label_selector=selector)).items
        budgets = (await cluster.list(PDBS, namespace)).items
    except ApiError as error:
        raise Refused(str(error)) from error
    if not pods:
        raise Refused(f"service {namespace}/{service}: no Pod matches its selector {selector}")
    protecting = sorted({str(pdb["metadata"]["name"]) for pod in pods for pdb in budgets_of(pod, budgets)})
    root = await Roots(cluster).resolve(pods[0])
    lines = [
        "# A drill: which playbook, on what, with which limits. Check it with: chaosrunner plan THIS-FILE",
        "apiVersion: chaosrunner.dev/v1",
        "kind: Drill",
        f"metadata: {{name: {_text(f'{service}-{playbook}')}}}",
        f"playbook: {_text(playbook)}  # {_first_sentence(known.description)}",
        f"context: {_text(cluster.context)}",
        f"namespace: {_text(namespace)}",
        "workload:",
        f"  selector: {_text(selector)}",
        *(
            [f"  controller: {_text(f'{root.kind.lower()}/{root.name}')}"]
            if root
            else ["  # the Pods have no controller: nothing will replace them"]
        ),
        f"  service: {_text(service)}",
        "endpoint:",
        *_endpoint(service, namespace, spec, url),
        f"  pod_header: {_text(pod_header)}" if pod_header else f"  # pod_header: {POD_HEADERS[0]}  # {NO_POD_HEADER}",
        "  # api_key: {env: API_KEY}",
        "  # model: NAME  # where the probe's requests must name one",
        "# prometheus: {url: http://prometheus.monitoring.svc:9090}",
        *_parameters(known.parameters, protected=bool(protecting)),
        *_limits(pods, protecting),
    ]
    return "\n".join(lines) + "\n"


def _text(value: str) -> str:
    """A YAML scalar: plain where that is safe, else quoted as JSON, which YAML reads alike."""
    plain = value.replace("-", "").replace("/", "").replace(".", "").replace("=", "").replace("_", "")
    risky = not plain.isalnum() or value.lower() in ("yes", "no", "on", "off", "true", "false", "null", "y", "n")
    return json.dumps(value) if risky or value[0].isdigit() or value[0] in "-=/." else value


def _first_sentence(text: str) -> str:
    flat = " ".join(text.split())
    return flat.partition(". ")[0].rstrip(".")


def _endpoint(service: str, namespace: str, spec: dict[str, Any], url: str | None) -> Sequence[str]:
    if url:
        return [f"  url: {_text(url)}"]
    ports = [port for port in spec.get("ports") or [] if port.get("protocol", "TCP") == "TCP"]
    port = ports[0]["port"] if ports else 80
    note = "  # the Service as the cluster's own DNS knows it; from outside use the gateway's address"
    return [f'  url: "http://{service}.{namespace}.svc:{port}"{note}']


def _parameters(parameters: dict[str, Any], *, protected: bool) -> Sequence[str]:
    """Every parameter of the playbook: as a comment where its default does, else to be filled in."""
    if not parameters:
        return []
    listed = ["parameters:"]
    for name, parameter in parameters.items():
        if name == SECOND_EVICTION and not protected:
            listed.append(
                f"  {name}: accepted  # no PodDisruptionBudget protects these Pods, so nothing would refuse it"
            )
            continue
        default = "REQUIRED" if parameter.default is None else json.dumps(parameter.default)
        mark = "" if parameter.default is None else "#"
        listed.append(f"{mark}  {name}: {default}  # {' '.join(parameter.description.split()) or parameter.type}")
    return listed if any(not line.startswith("#") for line in listed[1:]) else ["#" + listed[0], *listed[1:]]


def _limits(pods: Sequence[dict[str, Any]], protecting: Sequence[str]) -> Sequence[str]:
    healthy = sum(ready(pod) for pod in pods)
    budget = f"budget {', '.join(protecting)}" if protecting else "no PodDisruptionBudget protects them"
    return [f"limits: {{max_pods: 1, deadline: 30m}}  # {len(pods)} Pods, {healthy} of them Ready; {budget}"]
