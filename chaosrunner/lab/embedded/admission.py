"""What the lab refuses in Pods beyond the rules of the API, and what it changes in new ones where all share one
address: each gets ports of its own."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from chaosrunner.lab.embedded import errors
from chaosrunner.lab.embedded.resources import Resource
from chaosrunner.lab.embedded.store import Store, clone
from chaosrunner.lab.objects import Json


def check_injected(resource: Resource, pod: Json) -> None:
    """ApiError 403 for an ephemeral container that would change the Pod's network, worded as Pod Security words it."""
    for container in (pod.get("spec") or {}).get("ephemeralContainers") or ():
        added = ((container.get("securityContext") or {}).get("capabilities") or {}).get("add") or ()
        if "NET_ADMIN" in added:
            name = pod["metadata"]["name"]
            why = (
                'violates PodSecurity "lab:latest": non-default capabilities '
                f'(container "{container.get("name", "")}" must not include "NET_ADMIN" in '
                "securityContext.capabilities.add): Pods of the embedded lab have no network of their own"
            )
            raise errors.forbidden(errors.details_of(resource, name), f'{resource.plural} "{name}" is forbidden: {why}')


class PortAdmission(Store):
    """A store that gives every declared containerPort of a new Pod a number of its own, as an admission plugin would.

    Names keep their meaning: a Service's named targetPort, a probe by name, CONTAINER_PORT_<NAME>. Numbers within the
    Pod (probes, hooks, a CONTAINER_PORT_<NAME> that it sets itself) are changed with the port; a Service's numeric
    targetPort cannot work with shared addresses.
    Pods on the host's network keep their ports.
    """

    def __init__(self, choose: Callable[[], int], *, history: int) -> None:
        super().__init__(history=history)
        self._choose = choose

    def create(self, resource: str, obj: Json, *, namespace: str | None = None, dry_run: bool = False) -> Json:
        if resource == "pods" and not obj["spec"].get("hostNetwork"):
            obj = clone(obj)
            self._give_ports(obj["spec"])
        return super().create(resource, obj, namespace=namespace, dry_run=dry_run)

    def _give_ports(self, spec: Json) -> None:
        containers = [*(spec.get("initContainers") or ()), *(spec.get("containers") or ())]
        given: dict[int, int] = {}
        for container in containers:
            for port in container.get("ports") or ():
                given[port["containerPort"]] = self._choose()
                port["containerPort"] = given[port["containerPort"]]
        for container in containers:
            for entry in container.get("env") or ():
                if entry["name"].startswith("CONTAINER_PORT_") and entry.get("value", "").isdecimal():
                    entry["value"] = str(given.get(int(entry["value"]), entry["value"]))
            for handler in _handlers(container):
                for kind in ("httpGet", "tcpSocket"):
                    if handler.get(kind, {}).get("port") in given:
                        handler[kind]["port"] = given[handler[kind]["port"]]


def _handlers(container: Json) -> Iterator[Json]:
    for name in ("startupProbe", "readinessProbe", "livenessProbe"):
        if name in container:
            yield container[name]
    yield from (container.get("lifecycle") or {}).values()
