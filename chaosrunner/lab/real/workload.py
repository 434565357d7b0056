"""A drill's workload on a real lab: deployed, waited for, and removed again. Several can stand side by side."""

from __future__ import annotations

import json
import time
import urllib.request
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from chaosrunner.errors import UserError
from chaosrunner.lab import manifests
from chaosrunner.lab.instants import Instants
from chaosrunner.lab.manifests import Places
from chaosrunner.lab.objects import Json
from chaosrunner.lab.real.api import Api, ApiError, NotAvailable
from chaosrunner.lab.real.watching import Watching
from chaosrunner.lab.spec import LabSpec

PATIENCE = 60.0
"""Seconds that a workload may take until it serves, beyond its own start-up time."""
REMOVAL = 90.0
"""Seconds that the end of a workload may take, if nothing holds it up."""

_WORKLOAD = "lab.chaosrunner.dev/workload"
"""Label of an object that a workload has outside of its namespaces: the name of its namespace."""
_ELSEWHERE = "lab.chaosrunner.dev/elsewhere"
"""Annotation of a workload's namespace: the paths of these objects."""
_KILL_GRACE = 1
_STUCK = 10.0
"""Seconds after which a Pod that was told to end within one is dropped without a word from its node."""
_POLL = 0.2
_PAGE_SECONDS = 5.0
_OPENER = urllib.request.build_opener(urllib.request.ProxyHandler({}))
"""No proxy of this machine knows the lab's network."""


class NotRemoved(Exception):
    """Something of the workload is still there; the text says what, and what holds it up."""


@dataclass(frozen=True)
class Serving:
    """A workload that serves. URLs are for whoever is in the lab's network.

    url: of the gateway. prometheus: of the alert source. service: of the model's own Service, past the gateway.
    pod_header: by which the gateway names the serving Pod; None where it does not. log: the log of instants.
    """

    namespace: str
    system_namespace: str
    url: str
    prometheus: str
    service: str
    pod_header: str | None
    log: Path


@contextmanager
def noted(api: Api, namespaces: Collection[str], requests: Path, *, log: Path, events: Path) -> Iterator[None]:
    """Keeps a log of instants for the length of the block, of a workload that comes in it.

    `requests`: the folder of its request logs; `events`: that of containerd's. OSError where the lab cannot be watched.
    """
    instants = Instants(log, requests)
    watching = Watching(api.server, instants, namespaces, events)
    try:
        watching.start()
        yield
    finally:
        watching.close()
        instants.close()


@contextmanager
def serving(
    api: Api, spec: LabSpec, places: Places, *, log: Path, tell: Callable[[str], None], stays: bool = False
) -> Iterator[Serving]:
    """A workload for the length of the block; `log`: that of its instants, which others write (`noted`).

    `stays`: it is not removed after the block, because the lab ends then, or keeps it.

    UserError for a manifest that the lab refuses and for a namespace that is there already, NotAvailable if the
    workload does not come to serve, NotRemoved if it does not go in the end.
    """
    tell("creating the workload")
    deploy(api, spec, places, stays=stays)
    try:
        tell("waiting until it serves")
        found = wait(api, spec, places, log)
        settle(api, places)
        yield found
    finally:
        if not stays:
            tell("removing the workload")
            remove(api, places, force=True)


def deploy(api: Api, spec: LabSpec, places: Places, *, stays: bool = False) -> None:
    """Create all objects of a workload, or none; `stays`: what there is of it may stay all the same.

    UserError for namespaces that exist and manifests that are refused.
    """
    for name in (places.namespace, places.system_namespace):
        if api.find(_namespace(name)) is not None:
            raise UserError(f"namespace {name} exists on the lab: a workload serves there, or was left behind")
    places.requests.mkdir(parents=True, exist_ok=True)
    own = manifests.objects(spec, places)
    try:
        for obj in own[: len(own) - len(spec.manifests)]:
            api.create(obj, places.namespace)
        for index, obj in enumerate(spec.manifests):
            try:
                _create_given(api, obj, places)
            except (ApiError, UserError) as error:
                raise UserError(f"lab.manifests[{index}]: {error}") from None
    except BaseException:
        if not stays:
            remove(api, places, force=True)
        raise


def _create_given(api: Api, obj: Json, places: Places) -> None:
    """Create an object of the spec. One outside of the workload's namespaces is written down first, so that it goes
    with the workload, also after a crash in between; its label tells it from one that was there before."""
    path = api.path(obj, places.namespace)
    inside = (f"/namespaces/{name}/" for name in (places.namespace, places.system_namespace))
    if not any(part in path for part in inside):
        namespace = api.request("GET", _namespace(places.namespace))
        annotations = {_ELSEWHERE: json.dumps([*_elsewhere(namespace), path])}
        patch = {"metadata": {"annotations": annotations}}
        api.request("PATCH", _namespace(places.namespace), patch, content_type="application/merge-patch+json")
        meta = obj["metadata"]
        obj = obj | {"metadata": meta | {"labels": (meta.get("labels") or {}) | {_WORKLOAD: places.namespace}}}
    api.create(obj, places.namespace)


def _elsewhere(namespace: Json) -> list[str]:
    return list(json.loads((namespace["metadata"].get("annotations") or {}).get(_ELSEWHERE, "[]")))


def wait(api: Api, spec: LabSpec, places: Places, log: Path, timeout: float | None = None) -> Serving:
    """Wait until a deployed workload serves at its URLs, and the gateway knows every replica.

    NotAvailable, with the reason, after `timeout` seconds (start-up time and `PATIENCE` by default), or as soon as
    waiting is of no use.
    """
    timeout = spec.startup + PATIENCE if timeout is None else timeout
    deadline = time.monotonic() + timeout
    here, system = places.namespace, places.system_namespace
    api.wait_available([(here, "model"), (system, "gateway"), (system, "alert-source")], timeout)
    found = Serving(
        namespace=here,
        system_namespace=system,
        url=_service_url(api, system, "gateway"),
        prometheus=_service_url(api, system, "alert-source"),
        service=_service_url(api, here, "model"),
        pod_header=spec.pod_header,
        log=log,
    )

    def knows_all(page: bytes) -> bool:
        ready = [endpoint for endpoint in json.loads(page)["endpoints"] if endpoint["ready"]]
        return len(ready) >= spec.replicas

    _wait_for_page(f"{found.url}/gateway/stats", deadline, knows_all)
    _wait_for_page(f"{found.prometheus}/-/ready", deadline)
    if spec.replicas:
        _wait_for_page(f"{found.service}/health", deadline)
    return found


def _service_url(api: Api, namespace: str, name: str) -> str:
    spec = api.request("GET", f"/api/v1/namespaces/{namespace}/services/{name}")["spec"]
    port = spec["ports"][0]["port"]
    return f"http://{spec['clusterIP']}" + (f":{port}" if port != 80 else "")


def _wait_for_page(url: str, deadline: float, holds: Callable[[bytes], bool] = lambda page: True) -> None:
    """Wait until a page is there and says what it should; what Services lead to is known to the nodes a bit later."""
    while True:
        try:
            with _OPENER.open(url, timeout=_PAGE_SECONDS) as answer:
                if holds(answer.read()):
                    return
                why = "it does not know all replicas"
        except OSError as error:
            why = str(error)
        if time.monotonic() > deadline:
            raise NotAvailable(f"{url} does not answer as it should: {why}")
        time.sleep(_POLL)


def settle(api: Api, places: Places) -> None:
    """Take the warm-up from the first replicas: a drill begins with a service that has run for a while, and only the
    replicas that come later are cold. OSError where one does not answer."""
    for pod in api.items(f"/api/v1/namespaces/{places.namespace}/pods", labelSelector="app=model"):
        url = f"http://{pod['status']['podIP']}:{places.model_port}/control/settle"
        with _OPENER.open(url, b"{}", timeout=_PAGE_SECONDS) as answer:
            answer.read()


def remove(api: Api, places: Places, *, timeout: float = REMOVAL, force: bool = False) -> None:
    """Remove a workload, or what is left of one; returns when nothing is.

    Its Pods end in their own time, or if `force` says so within a second; one whose node does not answer is then
    dropped. NotRemoved after `timeout` seconds.
    """
    names = [places.namespace, places.system_namespace]
    kept = api.find(_namespace(places.namespace))
    outside = _elsewhere(kept) if kept is not None else []
    for path in reversed(outside):
        if _is_of(api.find(path), places):
            api.delete(path)
    for name in names:
        api.delete(_namespace(name))
    began = time.monotonic()
    if force:
        _end_pods(api, names, _KILL_GRACE)
    stuck = not force
    while left := _left(api, names, outside, places):
        passed = time.monotonic() - began
        if passed > timeout:
            raise NotRemoved(f"still there after {timeout:g} s: {'; '.join(left)}")
        if not stuck and passed > _STUCK:
            stuck = True
            _end_pods(api, names, 0)
        time.sleep(_POLL)


def _namespace(name: str) -> str:
    return f"/api/v1/namespaces/{name}"


def _is_of(obj: Json | None, places: Places) -> bool:
    return obj is not None and (obj["metadata"].get("labels") or {}).get(_WORKLOAD) == places.namespace


def _end_pods(api: Api, namespaces: Sequence[str], grace: int) -> None:
    """No new ones come, as the namespaces are on their way out."""
    for name in namespaces:
        api.delete(f"{_namespace(name)}/pods", grace=grace)


def _left(api: Api, namespaces: Sequence[str], outside: Sequence[str], places: Places) -> list[str]:
    """What is still there, and what its status tells of the reason."""
    found = [api.find(_namespace(name)) for name in namespaces]
    found += [obj for path in outside if _is_of(obj := api.find(path), places)]
    left = []
    for obj in filter(None, found):
        conditions = obj.get("status", {}).get("conditions") or []
        reasons = [
            one["message"] for one in conditions if one["type"].endswith("Remaining") and one["status"] == "True"
        ]
        left.append(" ".join([f"{obj['kind']} {obj['metadata']['name']}", *reasons]))
    return left
