"""EndpointSlices as rows. A Service may own several; they are merged by the Pods' UIDs when they are analysed."""

from __future__ import annotations

from chaosrunner.cluster.resources import Object, labels
from chaosrunner.observers.values import identity, part
from chaosrunner.timeline import rows

SERVICE_LABEL = "kubernetes.io/service-name"


def to_row(obj: Object, *, seen: rows.Seen, at: float, gap: int | None = None) -> rows.EndpointSlice:
    """One slice. `endpoints: null` is what the API says for an empty one: no endpoints, not "unknown".

    Conditions that are absent read as the API defines them (discovery/v1 types.go): ready and serving true,
    terminating false.
    """
    ports = [port for port in obj.get("ports") or [] if port.get("port") is not None]
    return rows.EndpointSlice(
        **identity(obj, seen, at, gap),
        service=labels(obj).get(SERVICE_LABEL),
        endpoints=[_endpoint(endpoint) for endpoint in obj.get("endpoints") or []],
        ports=[port["port"] for port in ports],
        named_ports={port.get("name") or "": port["port"] for port in ports},
    )


def _endpoint(endpoint: Object) -> rows.Endpoint:
    said, pod = part(endpoint, "conditions"), part(endpoint, "targetRef")
    ready, serving = said.get("ready"), said.get("serving")
    return rows.Endpoint(
        ready=ready is not False,
        serving=serving is not False,
        terminating=said.get("terminating") is True,
        addresses=endpoint.get("addresses") or [],
        pod=pod.get("name") if pod.get("kind", "Pod") == "Pod" else None,
        uid=pod.get("uid"),
        node=endpoint.get("nodeName"),
    )
