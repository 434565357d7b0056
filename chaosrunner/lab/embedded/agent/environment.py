"""What a container's process gets to see: environment variables, its command line, its ports."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Mapping
from pathlib import Path

import chaosrunner
from chaosrunner.lab.objects import Json

_INHERITED = ("PATH", "HOME", "LANG", "LC_ALL", "TMPDIR", "TZ")
_REFERENCE = re.compile(r"\$(?:\$|\(([-._a-zA-Z0-9]+)\))")
_SUBSCRIPT = re.compile(r"metadata\.(labels|annotations)\['([^']+)'\]")


class ConfigError(Exception):
    """The container asks for something that the lab does not have; its text goes into the container's status."""


def environment(pod: Json, container: Json, pod_ip: str, host_ip: str, api: dict[str, str]) -> dict[str, str]:
    """The variables of a container: a few of the lab's own, the lab's promises, and those of its spec.

    POD_IP and CONTAINER_PORT_<NAME> say where to listen; they hold in both modes of addresses. PYTHONPATH lets a
    container run this package's own programs, also out of a checkout.
    """
    meta = pod["metadata"]
    found = {name: os.environ[name] for name in _INHERITED if name in os.environ}
    found |= {
        "PYTHONPATH": str(Path(chaosrunner.__file__).parents[1]),
        "PYTHONUNBUFFERED": "1",
        "HOSTNAME": meta["name"],
        "POD_NAME": meta["name"],
        "POD_NAMESPACE": meta["namespace"],
        "POD_IP": pod_ip,
    } | api
    for port in container.get("ports") or ():
        if port.get("name"):
            found[f"CONTAINER_PORT_{port['name'].upper().replace('-', '_')}"] = str(port["containerPort"])
    for entry in container.get("env") or ():
        source = entry.get("valueFrom")
        if source is None:
            found[entry["name"]] = expand(entry.get("value", ""), found)
        elif "fieldRef" in source:
            found[entry["name"]] = _field(source["fieldRef"]["fieldPath"], pod, pod_ip, host_ip)
        else:
            raise ConfigError(f"the lab fills environment variable {entry['name']} from a value or fieldRef only")
    if container.get("envFrom"):
        raise ConfigError("the lab has no envFrom")
    return found


def command_line(container: Json, variables: Mapping[str, str]) -> list[str]:
    """The command and arguments with `$(VAR)` filled in. The lab runs no images, so a command is a must."""
    if not container.get("command"):
        raise ConfigError(f"container {container['name']} needs a command: the embedded lab runs no images")
    words = [*container["command"], *(container.get("args") or ())]
    return with_interpreter([expand(word, variables) for word in words])


def with_interpreter(command: list[str]) -> list[str]:
    """`python` and `python3` mean the interpreter that the lab itself runs on."""
    return [sys.executable, *command[1:]] if command[0] in ("python", "python3") else command


def expand(text: str, variables: Mapping[str, str]) -> str:
    """Fill in `$(VAR)`; what is not defined stays as it is, `$$` is a dollar sign."""

    def value(found: re.Match[str]) -> str:
        if found[0] == "$$":
            return "$"
        return variables.get(found[1], found[0])

    return _REFERENCE.sub(value, text)


def _field(path: str, pod: Json, pod_ip: str, host_ip: str) -> str:
    meta = pod["metadata"]
    subscript = _SUBSCRIPT.fullmatch(path)
    if subscript is not None:
        return str((meta.get(subscript[1]) or {}).get(subscript[2], ""))
    values = {
        "metadata.name": meta["name"],
        "metadata.namespace": meta["namespace"],
        "metadata.uid": meta["uid"],
        "spec.nodeName": pod["spec"].get("nodeName", ""),
        "spec.serviceAccountName": pod["spec"].get("serviceAccountName", ""),
        "status.podIP": pod_ip,
        "status.podIPs": pod_ip,
        "status.hostIP": host_ip,
    }
    if path not in values:
        raise ConfigError(f"the lab does not know fieldRef {path}")
    return str(values[path])
