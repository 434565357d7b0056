"""Whether the replicas can be reached from here by their own addresses, as some probes are to."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Literal

import anyio

from chaosrunner.cluster import Cluster
from chaosrunner.cluster.resources import ENDPOINT_SLICES, Object, meta
from chaosrunner.cluster.session import ApiError
from chaosrunner.faults.base import Problem
from chaosrunner.playbook.drill import Drill
from chaosrunner.playbook.endpoint import Replicas
from chaosrunner.playbook.playbook import Playbook

LIMIT = 2.0
"""Seconds that a connection may take; from inside a cluster it takes a few milliseconds."""
AT_ONCE = 32
"""Connections that are tried at the same time."""
MOST_NAMED = 3
"""Replicas that are named one by one."""

Place = tuple[str, int]
"""Address and port."""
Answer = Literal["connected", "refused", "unreachable"]

_HOW = (
    "run it inside the cluster (`chaosrunner job`) or in its network (on a lab that stands `chaosrunner lab exec -- "
    "chaosrunner run ...`, elsewhere over a route to the Pods), give endpoint.replicas.proxy, or leave the probe out"
)


async def problems(
    drill: Drill, playbook: Playbook, namespace: str, pods: Iterable[Object], cluster: Cluster
) -> list[Problem]:
    """What is in the way of the probes that go to the replicas; nothing where there are none.

    Opens a connection to each running Pod and closes it again; no request is sent. Raises Unreachable (the cluster).
    """
    if all(probe.target == "endpoint" for probe in playbook.probes):
        return []
    way, service = drill.endpoint.replicas, drill.workload.service
    slices: list[Object] = []
    if service is not None:
        selector = f"kubernetes.io/service-name={service}"
        try:
            slices = (await cluster.list(ENDPOINT_SLICES, namespace, label_selector=selector)).items
        except ApiError as error:
            return [Problem(severity="refuse", code="replicas_unknown", text=str(error))]
    named = list(dict.fromkeys(name for item in slices for name, _ in _ports(item)))
    if not isinstance(way.port, int) and named:
        if way.port is None and len(named) > 1:
            text = f"Service {service} has several ports, {', '.join(named)}: which of them the probes mean is not said"
            return [Problem(severity="refuse", code="replica_port", text=text, how="give endpoint.replicas.port")]
        if way.port is not None and way.port not in named:
            text = f"Service {service} has no port named {way.port}; it has {', '.join(name or '-' for name in named)}"
            return [Problem(severity="refuse", code="replica_port", text=text, how="correct endpoint.replicas.port")]
    places = _places(slices, list(pods), way)
    if not places:
        text = "no replica has an address yet, or none of the family that endpoint.replicas asks for"
        return [Problem(severity="warn", code="no_replica_address", text=text)]
    if way.proxy is not None:  # only the proxy knows
        return []
    return _judge(places, await _try(places))


def _ports(item: Object) -> Iterator[tuple[str, int]]:
    for port in item.get("ports") or []:
        if port.get("port") is not None:
            yield port.get("name") or "", port["port"]


def _places(slices: list[Object], pods: list[Object], way: Replicas) -> dict[str, Place]:
    """Address and port of each running Pod of the workload, by its name, as the probes take them."""
    running = {meta(pod)["uid"]: pod for pod in pods if (pod.get("status") or {}).get("phase") == "Running"}
    known: dict[str, dict[bool, Place]] = {}
    for uid, address, port in _of_pods(running, way.port) if isinstance(way.port, int) else _of_slices(slices, way):
        if uid in running:
            known.setdefault(uid, {}).setdefault(":" in address, (address, port))
    found = {}
    for uid, places in known.items():
        first = ":" in (running[uid]["status"].get("podIP") or "")
        wanted = [first, not first] if way.family is None else [way.family == "IPv6"]
        if place := next((places[is_ipv6] for is_ipv6 in wanted if is_ipv6 in places), None):
            found[meta(running[uid])["name"]] = place
    return found


def _of_pods(running: dict[str, Object], port: int) -> Iterator[tuple[str, str, int]]:
    for uid, pod in running.items():
        for address in (pod["status"].get("podIP"), *(one.get("ip") for one in pod["status"].get("podIPs") or [])):
            if address:
                yield uid, address, port


def _of_slices(slices: list[Object], way: Replicas) -> Iterator[tuple[str, str, int]]:
    for item in slices:
        port = next((number for name, number in _ports(item) if way.port in (None, name)), None)
        for endpoint in item.get("endpoints") or []:
            if port is not None and endpoint.get("addresses"):
                yield (endpoint.get("targetRef") or {}).get("uid", ""), endpoint["addresses"][0], port


async def _try(places: dict[str, Place]) -> dict[str, Answer]:
    answers: dict[str, Answer] = {}
    free = anyio.CapacityLimiter(AT_ONCE)

    async def connect(name: str, host: str, port: int) -> None:
        async with free:
            try:
                with anyio.fail_after(LIMIT):
                    connection = await anyio.connect_tcp(host, port)
            except TimeoutError:
                answers[name] = "unreachable"
            except OSError as error:
                refused = isinstance(error, ConnectionRefusedError) or isinstance(
                    error.__cause__, ConnectionRefusedError
                )
                answers[name] = "refused" if refused else "unreachable"
            else:
                answers[name] = "connected"
                await connection.aclose()

    async with anyio.create_task_group() as group:
        for name, place in places.items():
            group.start_soon(connect, name, *place)
    return answers


def _judge(places: dict[str, Place], answers: dict[str, Answer]) -> list[Problem]:
    found = []
    for answer, some, none in (
        ("unreachable", "some replicas cannot be reached from here", "no replica can be reached from here"),
        ("refused", "some replicas refuse connections", "every replica refuses connections"),
    ):
        names = sorted(name for name in places if answers[name] == answer)
        if not names:
            continue
        listed = ", ".join(f"{name} ({_text(places[name])})" for name in names[:MOST_NAMED])
        more = f" and {len(names) - MOST_NAMED} more" if len(names) > MOST_NAMED else ""
        everyone = len(names) == len(places)
        text = f"{none if everyone else some}, and a probe sends to each: {listed}{more}"
        how = _HOW if answer == "unreachable" else "see whether endpoint.replicas.port is the one it listens on"
        # Where it is reached, a server may listen later; where nobody is, the probe would tell of the network only.
        severity: Literal["refuse", "warn"] = "refuse" if everyone and answer == "unreachable" else "warn"
        found.append(Problem(severity=severity, code=f"replicas_{answer}", text=text, how=how))
    return found


def _text(place: Place) -> str:
    host, port = place
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
