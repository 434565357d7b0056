"""What Kubernetes objects went through: derived states without names and times, comparable between two runs."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

from tests.labs import Change, Json

RECORDING = Path(__file__).parents[1] / "data" / "k8s-1.37"


def recorded() -> list[Change]:
    """Every watch event of the recording, in the order of its versions."""
    found = []
    for path in RECORDING.glob("watch-*.jsonl"):
        kind = path.stem.removeprefix("watch-").replace("pdbs", "poddisruptionbudgets")
        for line in path.read_text().splitlines():
            row = json.loads(line)
            if row.get("type") in ("ADDED", "MODIFIED", "DELETED"):
                version = int(row["object"]["metadata"]["resourceVersion"])
                found.append(Change(version, kind, row["type"], row["object"], row["at"]))
    return sorted(found, key=lambda change: change.version)


def window(changes: list[Change], start: int, end: int | None = None) -> list[Change]:
    """Changes number `start` to `end`, after the state in which each object was before (type "BEFORE"; no Events)."""
    before: dict[tuple[str, str], Change] = {}
    for change in changes[:start]:
        if change.kind != "events":
            before[change.kind, change.name] = replace(change, type="BEFORE")
        if change.type == "DELETED":
            before.pop((change.kind, change.name), None)
    return [*before.values(), *changes[start:end]]


def collapsed(states: Iterable[Any]) -> list[Any]:
    """States without repetitions in a row."""
    found: list[Any] = []
    for state in states:
        if not found or found[-1] != state:
            found.append(state)
    return found


def of(changes: Iterable[Change], kind: str, name: str) -> list[Change]:
    return [change for change in changes if change.kind == kind and change.name == name]


def sequence(changes: Iterable[Change], kind: str, name: str, state: Callable[[Json], Any]) -> list[Any]:
    """The states of one object; the last one is "DELETED" if it went."""
    history = of(changes, kind, name)
    return collapsed("DELETED" if change.type == "DELETED" else state(change.object) for change in history)


# -- states ------------------------------------------------------------------------------------------------------------


def condition(obj: Json, type_: str) -> tuple[str, str] | None:
    for entry in obj.get("status", {}).get("conditions") or ():
        if entry["type"] == type_:
            return entry["status"], entry.get("reason", "")
    return None


def container(pod: Json) -> Any:
    """Of the first container: state, exit code or reason, started, ready, restarts, how the last run ended."""
    statuses = pod["status"].get("containerStatuses")
    if not statuses:
        return None
    entry = statuses[0]

    def ended(state: Json) -> Any:
        return (state["terminated"]["exitCode"], state["terminated"]["reason"]) if "terminated" in state else None

    state = next(iter(entry["state"]))
    detail = ended(entry["state"]) or entry["state"][state].get("reason", "")
    return state, detail, entry.get("started"), entry["ready"], entry["restartCount"], ended(entry["lastState"])


POD_CONDITIONS = (
    "PodScheduled",
    "PodReadyToStartContainers",
    "Initialized",
    "ContainersReady",
    "Ready",
    "DisruptionTarget",
)


def pod(obj: Json) -> Any:
    meta = obj["metadata"]
    grace = meta.get("deletionGracePeriodSeconds")
    return {
        "phase": obj["status"]["phase"],
        "bound": bool(obj["spec"].get("nodeName")),
        "address": bool(obj["status"].get("podIP")),
        "deletion": None if grace is None else "now" if grace == 0 else "graceful",
        "seen": obj["status"].get("observedGeneration") == meta["generation"],
        "container": container(obj),
    } | {type_: condition(obj, type_) for type_ in POD_CONDITIONS}


def endpoint(changes: Iterable[Change], pod_name: str) -> list[Any]:
    """(ready, serving, terminating) of a Pod's endpoint; None while it has none."""
    states: list[Any] = []
    for change in changes:
        if change.kind != "endpointslices":
            continue
        entries = [entry for entry in change.object["endpoints"] or () if entry["targetRef"]["name"] == pod_name]
        states.append(tuple(entries[0]["conditions"].values()) if entries else None)
    return collapsed(states)


def field(*path: str) -> Callable[[Json], Any]:
    """A state that is one field; an absent count is 0."""

    def state(obj: Json) -> Any:
        value: Any = obj
        for name in path:
            value = value.get(name, {}) if isinstance(value, dict) else {}
        return value or 0

    return state


def budget(name: str) -> Callable[[Json], Any]:
    match name:
        case "disrupted":
            return lambda obj: len(obj["status"].get("disruptedPods", {}))
        case "allowed":
            return lambda obj: (obj["status"]["disruptionsAllowed"], condition(obj, "DisruptionAllowed"))
        case _:
            return field("status", name)


def node(obj: Json) -> Any:
    taints = [(taint["key"].partition("/")[2], taint["effect"]) for taint in obj["spec"].get("taints") or ()]
    return obj["spec"].get("unschedulable", False), sorted(taints), condition(obj, "Ready")


def events(changes: Iterable[Change], name: str, *, without: tuple[str, ...] = ()) -> list[tuple[str, str, str]]:
    """(type, reason, component) of the Events about an object, each once, in the order of their first appearance."""
    hidden = ("MissingClusterDNS", "Unhealthy", *without)
    return [
        (change.object["type"], change.object["reason"], change.object["reportingComponent"])
        for change in changes
        if change.kind == "events"
        and change.type == "ADDED"
        and change.object["involvedObject"]["name"] == name
        and change.object["reason"] not in hidden
    ]


def is_subsequence(short: list[Any], long: list[Any]) -> bool:
    rest = iter(long)
    return all(any(state == other for other in rest) for state in short)
