"""The recording of a real Kubernetes 1.37 (`tests/data/k8s-1.37`): what was asked and answered, and the state then."""

from __future__ import annotations

import json
import re
from datetime import UTC, datetime
from functools import cache
from pathlib import Path
from typing import Any

from chaosrunner.lab.embedded.access import ADMIN, Access, Account
from chaosrunner.lab.embedded.store import Store

FOLDER = Path(__file__).parents[2] / "data" / "k8s-1.37"
KINDS = {
    "deployments": "deployments",
    "endpointslices": "endpointslices",
    "events": "events",
    "nodes": "nodes",
    "pdbs": "poddisruptionbudgets",
    "pods": "pods",
    "replicasets": "replicasets",
}
ACCESS = Access({"admin": ADMIN, "drill": Account("system:serviceaccount:demo:drill")})

Json = dict[str, Any]


@cache
def recorded_lines(name: str) -> list[Json]:
    """The lines of one file of the recording. Not to be changed."""
    return [json.loads(line) for line in (FOLDER / name).read_text().splitlines()]


@cache
def calls() -> dict[str, Json]:
    """Each recorded request by its label. Watches carry `lines` in place of `response`, and no `at`."""
    return {line["label"]: line for line in recorded_lines("requests.jsonl") if "label" in line}


def start() -> float:
    """Unix time of the recording's zero."""
    first = recorded_lines("requests.jsonl")[0]
    return float(first["unix"] - first["at"])


def instant(at: float) -> datetime:
    return datetime.fromtimestamp(start() + at, UTC)


def store_at(at: float) -> Store:
    """A store with the objects as they were `at` seconds into the recording, and a clock that stands there."""
    store = Store(now=lambda: instant(at))
    store.create("namespaces", {"metadata": {"name": "demo"}})
    if at > 0.61:
        store.load("services", [calls()["create-service"]["response"]])
    for name, resource in KINDS.items():
        present: dict[str, Json] = {}
        for line in recorded_lines(f"watch-{name}.jsonl"):
            if line["at"] > at:
                break
            if "list" in line:
                present = {obj["metadata"]["name"]: obj for obj in line["list"]["items"]}
            elif line.get("type") == "DELETED":
                present.pop(line["object"]["metadata"]["name"], None)
            elif line.get("type") in ("ADDED", "MODIFIED"):
                present[line["object"]["metadata"]["name"]] = line["object"]
        store.load(resource, present.values())
    return store


_OWN = {
    "uid", "resourceVersion", "creationTimestamp", "deletionTimestamp", "lastTransitionTime", "continue", "clusterIP",
    "clusterIPs", "serverAddressByClientCIDRs", "bootID", "machineID", "systemUUID", "kernelVersion",
}  # fmt: skip
"""Fields whose values each server picks for itself, or that were made anonymous in a part of the recording."""


def comparable(value: Any) -> Any:
    """A body without what is no rule: identities, instants, versions in messages, and the columns' help texts."""
    if isinstance(value, dict):
        return {
            key: "..." if key in _OWN else comparable(item)
            for key, item in value.items()
            if key not in ("managedFields", "description", "storageVersionHash")
        }
    if isinstance(value, list):
        return [comparable(item) for item in value]
    if isinstance(value, str):
        value = re.sub(r"^6\.18\.\S+ \(amd64\)$", "kernel", value)
        value = re.sub(r"(current: |in record \(|resource version: \d+ \()\d+", r"\1N", value)
    return value


def headers(recorded: Json) -> Json:
    """The headers that the lab must send as well; the rest is transport and API priority and fairness."""
    kept = ("Cache-Control", "Content-Type", "Retry-After", "X-Content-Type-Options")
    return {name: value for name, value in recorded.items() if name in kept}
