"""What the labs that stand are like: what was said when each came up, and what its API server says now."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import anyio
import msgspec

from chaosrunner.cli import labs
from chaosrunner.cli.labs import Kind, Lab
from chaosrunner.cli.network import within
from chaosrunner.cli.output import out, print_json
from chaosrunner.cluster import ApiError, ClusterConfig, Unreachable, connect
from chaosrunner.cluster.resources import NODES, PODS, ready
from chaosrunner.reports.document import Section
from chaosrunner.reports.terminal import render
from chaosrunner.timeline.clock import Clock

TIMEOUT = 5.0
"""Longest wait for an answer of a lab's API server, seconds; it may be one that somebody killed."""


class Node(msgspec.Struct):
    """A node as the API server tells."""

    name: str
    ready: bool
    schedulable: bool


class Status(Lab, kw_only=True):
    """A lab that stands, and what its API server says."""

    version: str | None = None
    """Of Kubernetes; None where its API server did not answer."""
    node_states: list[Node] = msgspec.field(default_factory=list)
    pods: int = 0
    """Pods in the workload's namespace."""
    pods_ready: int = 0
    problem: str | None = None
    """Why nothing is known of nodes and Pods."""


def status(kind: Kind | None, state: Path | None, output: str) -> None:
    found = [_ask(lab) for lab in labs.standing(kind, state)]
    if output == "json":
        print_json(found)
    elif found:
        render(out(), None, [_section(one) for one in found])
    else:
        out().print("no lab stands")


def _ask(lab: Lab) -> Status:
    with within(lab.network):
        return anyio.run(_read, lab)


async def _read(lab: Lab) -> Status:
    config = ClusterConfig(kubeconfig=lab.kubeconfig, context=lab.context, request_timeout=TIMEOUT)
    made = Status(**msgspec.structs.asdict(lab))
    try:
        async with connect(config, Clock()) as cluster:
            made.version = (await cluster.version()).git
            listed = {node["metadata"]["name"]: node for node in (await cluster.list(NODES)).items}
            made.node_states = [_node(listed[name]) for name in lab.nodes if name in listed]
            if lab.namespace:
                pods = (await cluster.list(PODS, lab.namespace)).items
                made.pods, made.pods_ready = len(pods), sum(map(ready, pods))
    except (Unreachable, ApiError) as error:
        made.problem = f"its API server does not answer: {error}"
    return made


def _node(node: dict[str, Any]) -> Node:
    conditions = {one["type"]: one["status"] for one in node["status"].get("conditions", [])}
    schedulable = not node["spec"].get("unschedulable", False)
    return Node(node["metadata"]["name"], conditions.get("Ready") == "True", schedulable)


def _section(lab: Status) -> Section:
    section = Section(f"{lab.kind} lab" + (f", Kubernetes {lab.version}" if lab.version else ""))
    if lab.problem:
        section.item("API server", lab.problem, "bad")
    for node in lab.node_states:
        words = ["Ready" if node.ready else "not Ready"]
        words += [] if node.schedulable else ["cordoned"]
        words += ["cut off"] if node.name in lab.cut else []
        section.item(node.name, ", ".join(words), "good" if words == ["Ready"] else "warn")
    for name, runs in lab.components.items():
        if not runs:
            section.item(name, "killed", "bad")
    if lab.version and lab.namespace:
        told = f"{lab.pods_ready} of {lab.pods} ready in namespace {lab.namespace}"
        section.item("Pods", told, "good" if lab.pods_ready == lab.pods else "warn")
    if lab.abandoned:
        told = f"namespace {', '.join(lab.abandoned)}: its rehearsal was killed; the next one on this lab removes it"
        section.item("left behind", told, "warn")
    for label, value in (
        ("gateway", lab.url),
        ("alerts", lab.prometheus and f"{lab.prometheus}/api/v1/alerts"),
        ("network", lab.network),
        ("kubeconfig", lab.kubeconfig),
        ("logs and state", lab.state),
    ):
        if value:
            section.item(label, value)
    return section
