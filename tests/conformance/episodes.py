"""What is done to a lab's workloads, and everything that then changed: the episodes whose order is compared.

Each episode has a namespace of its own; all run side by side. Workloads keep off one node, the one that is cut off.
"""

from __future__ import annotations

import json
import subprocess
import time
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from http.client import HTTPConnection
from pathlib import Path
from typing import Any, Generic, TypeVar

from tests.conformance.transitions import condition
from tests.labs import Change, Json, Lab

T = TypeVar("T")
SOURCE = Path(__file__).with_name("server.py").read_text()
PORT = 8000
GRACE = 20


@dataclass(frozen=True)
class Episode:
    """What changed, after the state in which each object was before (type "BEFORE"), and who plays which part."""

    changes: list[Change]
    names: dict[str, str]
    facts: dict[str, Any] = field(default_factory=dict)


EPISODES: dict[str, Callable[[Stage], Episode]] = {}


def episode(function: Callable[[Stage], Episode]) -> Callable[[Stage], Episode]:
    EPISODES[function.__name__] = function
    return function


class AtOnce(Generic[T]):
    """Things done to a lab side by side; each one's result, or its error, when it is asked for."""

    def __init__(self, acts: Mapping[str, Callable[[Any], T]], stage: Callable[[str], Any], workers: int = 0) -> None:
        pool = ThreadPoolExecutor(workers or len(acts))
        self._begun = {name: pool.submit(lambda act=act, name=name: act(stage(name))) for name, act in acts.items()}
        pool.shutdown(wait=False)

    def __getitem__(self, name: str) -> T:
        return self._begun[name].result()


def all_episodes(lab: Lab) -> AtOnce[Episode]:
    lab.recorder.of("pods")  # record before anything happens
    return AtOnce(EPISODES, lambda name: Stage(lab, name))


def is_ready(pod: Json) -> bool:
    return condition(pod, "Ready") == ("True", "")


def server(lab: Lab, options: Json | None = None, **more: Any) -> Json:
    """A container that runs `server.py`."""
    command = ["python3", "-S", "-c", SOURCE, "$(POD_IP)", "$(PORT)", json.dumps(options or {})]
    return lab.container(command, PORT, **more)


class Stage:
    """A lab and one namespace in it, where an episode takes place."""

    def __init__(self, lab: Lab, name: str) -> None:
        self.lab = lab
        self.app = name.replace("_", "-")
        self.ns = lab.namespace(self.app)
        self._version = 0

    # -- what is there -----------------------------------------------------------------------------------------------

    def of(self, kind: str) -> dict[str, Json]:
        return self.lab.recorder.of(kind, self.ns.name)

    def pods(self) -> list[Json]:
        """Present Pods, by name."""
        return [pod for _, pod in sorted(self.of("pods").items())]

    def until(self, holds: Callable[[], Any], what: str, seconds: float = 60) -> Any:
        return self.lab.recorder.until(holds, seconds, f"{self.app}: {what}")

    def whole(self, replicas: int = 3) -> bool:
        """So many Pods, all Ready, none terminating, and every controller has seen it."""
        pods = self.pods()
        deployment = self.of("deployments")[self.app]
        status = deployment.get("status", {})
        endpoints = [entry for obj in self.of("endpointslices").values() for entry in obj["endpoints"] or ()]
        budget = self.of("poddisruptionbudgets").get(self.app)
        counts = ("replicas", "updatedReplicas", "readyReplicas", "availableReplicas")
        return (
            len(pods) == replicas
            and all(is_ready(pod) and "deletionTimestamp" not in pod["metadata"] for pod in pods)
            and status.get("observedGeneration") == deployment["metadata"]["generation"]
            and status.get("terminatingReplicas") == 0
            and all(status.get(name) == replicas for name in counts)
            and [entry["conditions"]["ready"] for entry in endpoints] == [True] * replicas
            and (budget is None or budget["status"]["currentHealthy"] == budget["status"]["expectedPods"] == replicas)
        )

    # -- what is done ------------------------------------------------------------------------------------------------

    def deploy(self, replicas: int = 3, *, drain: float = 0.4, grace: int = GRACE, hook: list[str] | None = None,
               budget: Json | None = None, on: Json | None = None, late: float = 1.5) -> None:  # fmt: skip
        """The recording's Deployment and Service with shorter times, whole. `on`: the Pods' node affinity or so."""
        check = {"httpGet": {"path": "/", "port": "http"}, "periodSeconds": 1}
        container = server(
            self.lab,
            {"drain": drain, "late": late},
            readinessProbe=check,
            startupProbe=check | {"failureThreshold": 30},
            lifecycle={"preStop": {"exec": {"command": hook or ["sleep", "0.3"]}}},
        )
        labels = {"app": self.app}
        spread = {
            "maxSkew": 1,
            "topologyKey": "kubernetes.io/hostname",
            "whenUnsatisfiable": "ScheduleAnyway",
            "labelSelector": {"matchLabels": labels},
        }
        spec = {
            "automountServiceAccountToken": False,
            "terminationGracePeriodSeconds": grace,
            "containers": [container],
            "topologySpreadConstraints": [spread],
            **(on or self._away_from(self.lab.nodes[-1])),
        }
        template = {"metadata": {"labels": labels}, "spec": spec}
        whole = {"replicas": replicas, "selector": {"matchLabels": labels}, "template": template}
        ports = [{"name": "http", "port": 80, "targetPort": "http"}]
        self.ns.create("services", {"metadata": {"name": self.app}, "spec": {"selector": labels, "ports": ports}})
        self.ns.create("deployments", {"metadata": {"name": self.app}, "spec": whole})
        if budget is not None:
            spec = {"selector": {"matchLabels": labels}, **budget}
            self.ns.create("poddisruptionbudgets", {"metadata": {"name": self.app}, "spec": spec})
        self.until(lambda: self.app in self.of("deployments") and self.whole(replicas), "the workload is not whole")

    def _away_from(self, node: str) -> Json:
        expression = {"key": "kubernetes.io/hostname", "operator": "NotIn", "values": [node]}
        terms = {"nodeSelectorTerms": [{"matchExpressions": [expression]}]}
        return {"affinity": {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": terms}}}

    def evict(self, pod: str, **options: Any) -> Json:
        body = {"apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": pod}}
        return self.ns.do("POST", f"pods/{pod}/eviction", body | ({"deleteOptions": options} if options else {}))

    def begin(self) -> None:
        """From here on changes belong to the episode."""
        self._version = int(self.ns.do("GET", "pods")["metadata"]["resourceVersion"])
        self._before = {pod["metadata"]["name"] for pod in self.pods()}

    def end(self, victim: str = "", **facts: Any) -> Episode:
        self._let_events_come()
        history = self.lab.recorder.history(self.ns.name, nodes=True)
        before: dict[tuple[str, str], Change] = {}
        for change in history:
            if change.version > self._version:
                break
            if change.kind != "events":
                before[change.kind, change.name] = replace(change, type="BEFORE")
            if change.type == "DELETED":
                before.pop((change.kind, change.name), None)
        changes = [*before.values(), *(change for change in history if change.version > self._version)]
        created = [c.name for c in changes if c.kind == "pods" and c.type == "ADDED" and c.name not in self._before]
        replicasets = [change.name for change in changes if change.kind == "replicasets"]
        names = {"app": self.app, "victim": victim, "replacement": created[0] if created else ""}
        return Episode(changes, names | {"replicaset": replicasets[0]}, facts)

    def _let_events_come(self) -> None:
        """Wait for the last Event of each Pod's life, and until none came for 2 s: a kubelet sends them behind
        everything else, and tries again only after 10 s when the API server was too busy."""
        history = self.lab.recorder.history(self.ns.name)
        placed = {change.name for change in history if change.kind == "pods" and change.object["spec"].get("nodeName")}
        last = {(name, "Started" if name in self.of("pods") else "Killing") for name in placed}
        told = self.lab.recorder.history
        self.until(
            lambda: last <= {(e.object["involvedObject"]["name"], e.object["reason"])
                             for e in told(self.ns.name) if e.kind == "events"},
            "a kubelet keeps its Events back",
        )  # fmt: skip
        known = -1
        while known != (known := len(self.of("events"))):
            time.sleep(2)

    def ready_pod(self) -> Json:
        return next(pod for pod in self.pods() if is_ready(pod) and "deletionTimestamp" not in pod["metadata"])

    def gone(self, pod: str) -> Callable[[], bool]:
        return lambda: pod not in self.of("pods")


def seen(pod: Json, timeout: float = 5) -> list[tuple[float, str]]:
    """What a Pod's server has noted so far. OSError if it cannot be reached."""
    port = pod["spec"]["containers"][0]["ports"][0]["containerPort"]
    connection = HTTPConnection(pod["status"]["podIP"], port, timeout=timeout)
    try:
        connection.request("GET", "/seen")
        return [(at, what) for at, what in json.loads(connection.getresponse().read())]
    finally:
        connection.close()


@episode
def eviction(s: Stage) -> Episode:
    s.deploy(drain=5, budget={"minAvailable": 2})
    s.until(lambda: s.of("poddisruptionbudgets")[s.app]["status"]["disruptionsAllowed"] == 1, "no disruption allowed")
    victim = s.ready_pod()["metadata"]["name"]
    s.begin()
    s.evict(victim)
    s.until(s.gone(victim), "the victim stays")
    s.until(s.whole, "not whole again")
    return s.end(victim)


@episode
def kill(s: Stage) -> Episode:
    s.deploy(budget={"minAvailable": 2})
    s.until(lambda: s.of("poddisruptionbudgets")[s.app]["status"]["disruptionsAllowed"] == 1, "no disruption allowed")
    victim = s.ready_pod()
    s.begin()
    s.lab.kill(victim)
    name = victim["metadata"]["name"]
    s.until(lambda: s.of("pods")[name]["status"]["containerStatuses"][0]["restartCount"] == 1, "nobody noticed")
    s.until(s.whole, "not whole again")
    return s.end(name)


@episode
def force_delete(s: Stage) -> Episode:
    """The object goes at once; the process runs on for a while."""
    s.deploy(drain=2)
    victim = s.ready_pod()
    name = victim["metadata"]["name"]
    s.begin()
    s.ns.do("DELETE", f"pods/{name}", {"gracePeriodSeconds": 0})
    s.until(s.gone(name), "the object stays")
    still = bool(seen(victim))
    s.until(s.whole, "not whole again")
    return s.end(name, runs_on=still)


@episode
def delete(s: Stage) -> Episode:
    s.deploy()
    victim = s.ready_pod()["metadata"]["name"]
    s.begin()
    s.ns.do("DELETE", f"pods/{victim}")
    s.until(s.gone(victim), "the victim stays")
    s.until(s.whole, "not whole again")
    return s.end(victim)


@episode
def grace_exceeded(s: Stage) -> Episode:
    """preStop takes longer than the grace period."""
    s.deploy(1, grace=3, hook=["sleep", "30"], drain=30)
    victim = s.ready_pod()["metadata"]["name"]
    s.begin()
    s.evict(victim)
    s.until(s.gone(victim), "the victim stays")
    s.until(lambda: s.whole(1), "not whole again")
    return s.end(victim)


@episode
def evicted_twice(s: Stage) -> Episode:
    """The second eviction of a Pod that is going already: accepted, and changes nothing."""
    s.deploy(2, drain=3, budget={"minAvailable": 1})
    s.until(lambda: s.of("poddisruptionbudgets")[s.app]["status"]["disruptionsAllowed"] == 1, "no disruption allowed")
    victim = s.ready_pod()["metadata"]["name"]
    s.begin()
    s.evict(victim)
    s.until(lambda: "deletionTimestamp" in s.of("pods")[victim]["metadata"], "not terminating")
    second = s.evict(victim)
    s.until(s.gone(victim), "the victim stays")
    s.until(lambda: s.whole(2), "not whole again")
    return s.end(victim, second=second)


@episode
def pending_eviction(s: Stage) -> Episode:
    """A Pod that no node takes is evicted although its budget allows nothing, and goes at once."""
    s.deploy(1, budget={"minAvailable": 1})
    spec = {"nodeSelector": {"kubernetes.io/hostname": "none"}}
    s.ns.patch(f"deployments/{s.app}", {"spec": {"template": {"spec": spec}}}, "strategic-merge")

    def waiting() -> Json | None:
        pods = [pod for pod in s.pods() if condition(pod, "PodScheduled") == ("False", "Unschedulable")]
        return pods[0] if len(s.pods()) == 2 and pods else None

    victim = s.until(waiting, "no Pod waits for a node")["metadata"]["name"]
    s.begin()
    s.evict(victim)
    s.until(lambda: s.gone(victim)() and waiting(), "not replaced")
    return s.end(victim)


@episode
def rolling_restart(s: Stage) -> Episode:
    s.deploy()
    old = next(iter(s.of("replicasets")))
    s.begin()
    s.lab.kubectl("-n", s.ns.name, "rollout", "restart", f"deployment/{s.app}")
    s.until(lambda: s.of("deployments")[s.app]["status"].get("observedGeneration") == 2 and s.whole(), "not rolled out")
    found = s.end()
    new = next(change.name for change in found.changes if change.kind == "replicasets" and change.type == "ADDED")
    return replace(found, names=found.names | {"old": old, "new": new})


@episode
def scale(s: Stage) -> Episode:
    """Down to one, and up again."""
    s.deploy()
    where = f"deployments/{s.app}/scale"
    s.begin()
    s.ns.patch(where, {"spec": {"replicas": 1}})
    s.until(lambda: s.whole(1), "not scaled down")
    return s.end()


@episode
def scale_up(s: Stage) -> Episode:
    s.deploy(1)
    s.begin()
    s.lab.kubectl("-n", s.ns.name, "scale", f"deployment/{s.app}", "--replicas=3")
    s.until(s.whole, "not scaled up")
    return s.end()


@episode
def drain(s: Stage) -> Episode:
    """kubectl drains a node that has two of four replicas, one disruption allowed at a time."""
    s.deploy(4, budget={"minAvailable": 3})
    s.until(lambda: s.of("poddisruptionbudgets")[s.app]["status"]["disruptionsAllowed"] == 1, "no disruption allowed")
    node = s.lab.nodes[0]
    victims = [pod["metadata"]["name"] for pod in s.pods() if pod["spec"]["nodeName"] == node]
    assert len(victims) == 2, "the replicas are not spread"
    s.begin()
    done: subprocess.CompletedProcess[str] = s.lab.kubectl(
        "drain", node, f"--pod-selector=app={s.app}", "--ignore-daemonsets", "--timeout=60s"
    )
    s.until(lambda: s.whole(4), "not whole again")
    s.lab.kubectl("uncordon", node)
    s.until(lambda: not s.lab.recorder.of("nodes")[node]["spec"].get("taints"), "the taint stays")
    found = s.end(victims[0], output=done.stdout + done.stderr)
    return replace(found, names=found.names | {"node": node, "other": victims[1]})


@episode
def node_cut(s: Stage) -> Episode:
    """A node is lost and comes back: its Pods are not deleted, and go on running."""
    node = s.lab.nodes[-1]
    s.deploy(1, on={"nodeSelector": {"kubernetes.io/hostname": node}})
    victim = s.ready_pod()
    started = seen(victim)[0]
    s.begin()
    s.lab.cut(node)
    cut = time.monotonic()
    try:
        s.until(lambda: not is_ready(s.of("pods")[victim["metadata"]["name"]]), "the Pod stays Ready")
        lost = time.monotonic() - cut
        s.until(lambda: len(s.lab.recorder.of("nodes")[node]["spec"].get("taints") or ()) == 2, "no taints")
        time.sleep(1)
        try:
            reached = bool(seen(victim, timeout=1))
        except OSError:
            reached = False
    finally:
        s.lab.heal(node)
    healed = time.monotonic()
    s.until(lambda: s.whole(1), "not whole again")
    whole = time.monotonic() - healed
    s.until(lambda: not s.lab.recorder.of("nodes")[node]["spec"].get("taints"), "the taints stay")
    found = s.end(
        victim["metadata"]["name"], lost=lost, reached=reached, whole=whole, same_process=seen(victim)[0] == started
    )
    return replace(found, names=found.names | {"node": node})
