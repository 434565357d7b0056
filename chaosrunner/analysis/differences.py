"""What differs in what was run: two manifests beside each other. Where it ran (addresses, ids) is left out."""

from __future__ import annotations

import re
from collections.abc import Iterator
from difflib import unified_diff
from typing import Any

from chaosrunner.analysis.facts import Fact
from chaosrunner.timeline.manifest import Manifest

Value = str | int | float | bool | None


class Difference(Fact):
    """One setting that differs; None where one of the two does not have it."""

    what: str
    """Like `parameters.concurrency`, `versions.kubernetes`, `Pod.terminationGracePeriodSeconds`."""
    a: Value
    b: Value


class TextDifference(Fact):
    """A file of the drill that differs."""

    kind: str
    """drill or playbook."""
    lines: list[str]
    """Those that only one has, marked with `-` (the first) and `+` (the second); blank lines and comments apart."""


def differences(a: Manifest, b: Manifest) -> list[Difference]:
    left, right = dict(_settings(a)), dict(_settings(b))
    return [
        Difference(what=what, a=left.get(what), b=right.get(what))
        for what in dict.fromkeys([*left, *right])
        if left.get(what) != right.get(what)
    ]


def texts(a: Manifest, b: Manifest) -> list[TextDifference]:
    left, right = _sources(a), _sources(b)
    found = []
    for kind in dict.fromkeys([*left, *right]):
        before, after = (_lines(side.get(kind, "")) for side in (left, right))
        lines = [line for line in unified_diff(before, after, n=0, lineterm="") if not _heading(line)]
        if lines:
            found.append(TextDifference(kind=kind, lines=lines))
    return found


def _lines(text: str) -> list[str]:
    return [line for line in text.splitlines() if line.strip() and not line.lstrip().startswith("#")]


def _heading(line: str) -> bool:
    return line.startswith(("--- ", "+++ ", "@@ ")) or line in ("---", "+++")


def _sources(manifest: Manifest) -> dict[str, str]:
    """By what they are; files are named as people like."""
    found: dict[str, str] = {}
    for name, text in manifest.sources.items():
        kind = re.search(r"^kind:\s*(\w+)", text, re.MULTILINE)
        found[kind.group(1).lower() if kind else name] = text
    return found


def _settings(manifest: Manifest) -> Iterator[tuple[str, Value]]:
    """What a manifest tells about what was run, flat; checks are compared with their results."""
    yield "drill", manifest.drill
    yield "playbook", manifest.playbook
    yield "lab", manifest.lab
    yield from _flat("parameters", manifest.parameters)
    yield from _flat("versions", manifest.versions)
    yield "platform", manifest.host.platform if manifest.host else None
    workload = manifest.workload
    for name in ("namespace", "selector", "service", "controller", "replicas"):
        yield f"workload.{name}", getattr(workload, name)
    yield "ready endpoints", manifest.ready_endpoints
    # Replicas are alike; where they are not, the first stands for them, as in the plan.
    if manifest.candidates:
        yield from _pod(manifest.candidates[0].spec)
    for probe in manifest.probes:
        for name in ("dialect", "stream", "concurrency", "load", "workers", "warm_streams"):
            yield f"probe {probe.name}.{name}", getattr(probe, name)
        yield from _flat(f"probe {probe.name}.slo", probe.slo)
        yield f"probe {probe.name}.shapes", " ".join(filter(None, probe.shapes)) or None
    yield "steps", ", ".join(step.step for step in manifest.steps) or None


def _pod(spec: dict[str, Any]) -> Iterator[tuple[str, Value]]:
    """A Pod's spec: its own settings, and each container's with its command line option by option."""
    for key, value in spec.items():
        if key not in ("containers", "initContainers"):
            yield from _flat(f"Pod {key}", value)
            continue
        for container in value:
            name = f"container {container.get('name')}"
            for part, inner in container.items():
                if part in ("command", "args"):
                    for argument in inner:
                        yield from _argument(name, str(argument))
                elif part != "name":
                    yield from _flat(f"{name} {part}", inner)


def _argument(name: str, argument: str) -> Iterator[tuple[str, Value]]:
    """`--drain=30` as a setting, anything else as something that is there."""
    option, sign, value = argument.partition("=")
    yield (f"{name} {option}", _TEMPORARY.sub("a temporary folder", value)) if sign else (f"{name} {argument}", True)


_TEMPORARY = re.compile(r"^(/private)?(/tmp|/var/folders/\w+/\w+/T)/[^/]+")
"""A folder made for one run: where it ran, not what."""


def _flat(name: str, value: Any) -> Iterator[tuple[str, Value]]:
    """The leaves of nested mappings and lists; items of a list by what they are called, else by what they are."""
    if isinstance(value, dict):
        for key, inner in value.items():
            yield from _flat(f"{name}.{key}", inner)
    elif isinstance(value, list):
        for item in value:
            if isinstance(item, dict):
                yield from _flat(f"{name}[{item.get('name', '')}]", item)
            else:
                yield f"{name} {item}", True
    else:
        yield name, value
