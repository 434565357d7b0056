"""The lab's workload as ordinary Kubernetes objects, built from its spec."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from pathlib import Path

from chaosrunner.lab.objects import Json
from chaosrunner.lab.spec import LabSpec, arguments

NAMESPACE = "lab"
SYSTEM_NAMESPACE = "lab-system"
INFRA_TAINT = {"key": "lab.chaosrunner.dev/infra", "effect": "NoSchedule"}
INFRA_LABEL = {"lab.chaosrunner.dev/role": "infra"}
GATEWAY_PORT = 8080
ALERTS_PORT = 9090
MODEL_PORT = 8000


@dataclass(frozen=True)
class Places:
    """Where things of this lab are: its kubeconfig, the folder of request logs, node `infra`, and the ports."""

    kubeconfig: Path
    logs: Path
    infra_address: str
    gateway_port: int = GATEWAY_PORT
    alerts_port: int = ALERTS_PORT
    model_port: int = MODEL_PORT

    @property
    def gateway(self) -> str:
        return f"http://{self.infra_address}:{self.gateway_port}"

    @property
    def alerts(self) -> str:
        return f"http://{self.infra_address}:{self.alerts_port}"


def objects(spec: LabSpec, places: Places) -> list[Json]:
    """All objects of a lab in the order of their creation."""
    found: list[Json] = [
        {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}} for name in (NAMESPACE, SYSTEM_NAMESPACE)
    ]
    found += [_model(spec, places), _service("model", "model")]
    if spec.pdb is not None:
        found.append(_budget(spec))
    found += [_gateway(spec, places), _alert_source(spec, places)]
    if spec.sleepers:
        found.append(_sleepers(spec.sleepers))
    return [*found, *spec.manifests]


def _deployment(name: str, namespace: str, replicas: int, pod: Json) -> Json:
    labels = {"app": name}
    return {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"name": name, "namespace": namespace, "labels": labels},
        "spec": {
            "replicas": replicas,
            "selector": {"matchLabels": labels},
            "template": {"metadata": {"labels": labels}, "spec": pod},
        },
    }


def _program(name: str, module: str, flags: list[str], *, path: str, patience: float = 0) -> Json:
    """A container that runs one of the workload's programs and is ready when it answers `path`.

    `patience`: seconds that it may take to start, beyond half a minute.
    """
    check = {"httpGet": {"path": path, "port": "http"}, "periodSeconds": 1}
    listen = ["--host=$(POD_IP)", "--port=$(CONTAINER_PORT_HTTP)"]
    return {
        "name": name,
        "image": f"lab/{name}:1",
        "command": ["python3", "-m", f"chaosrunner.lab.workload.{module}", *listen, *flags],
        "startupProbe": check | {"failureThreshold": 30 + math.ceil(patience)},
        "readinessProbe": check,
    }


def _model(spec: LabSpec, places: Places) -> Json:
    warmup = {
        "startup": spec.startup,
        "warmup_first_token": spec.warmup.first_token,
        "warmup_standstill": spec.warmup.standstill,
        "warmup_requests": spec.warmup.requests,
        "warmup_classes": ",".join(map(str, spec.warmup.classes)),
        "warmup_class_share": spec.warmup.class_share,
    }
    flags = [*arguments(warmup | spec.model | {"control": True}), f"--log={places.logs}/$(POD_NAME).jsonl"]
    container = _program("model", "model_server", flags, path="/health", patience=spec.startup)
    container["ports"] = [{"name": "http", "containerPort": places.model_port}]
    if spec.pre_stop:
        container["lifecycle"] = {"preStop": _sleep(spec.pre_stop)}
    pod: Json = {"terminationGracePeriodSeconds": spec.grace, "containers": [container]}
    together: Json = {"topologyKey": "kubernetes.io/hostname", "labelSelector": {"matchLabels": {"app": "model"}}}
    if spec.anti_affinity:
        required = {"requiredDuringSchedulingIgnoredDuringExecution": [together]}
        pod["affinity"] = {"podAntiAffinity": required}
    else:
        pod["topologySpreadConstraints"] = [together | {"maxSkew": 1, "whenUnsatisfiable": "ScheduleAnyway"}]
    return _deployment("model", NAMESPACE, spec.replicas, pod)


def _sleep(seconds: float) -> Json:
    """A hook that sleeps. Kubernetes' own sleep action takes whole seconds only."""
    if seconds.is_integer():
        return {"sleep": {"seconds": int(seconds)}}
    return {"exec": {"command": ["sleep", str(seconds)]}}


def _service(name: str, app: str) -> Json:
    ports = [{"name": "http", "port": 80, "targetPort": "http"}]
    return {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {"name": name, "namespace": NAMESPACE, "labels": {"app": app}},
        "spec": {"selector": {"app": app}, "ports": ports},
    }


def _budget(spec: LabSpec) -> Json:
    assert spec.pdb is not None
    limits = {"minAvailable": spec.pdb.min_available, "maxUnavailable": spec.pdb.max_unavailable}
    return {
        "apiVersion": "policy/v1",
        "kind": "PodDisruptionBudget",
        "metadata": {"name": "model", "namespace": NAMESPACE},
        "spec": {name: value for name, value in limits.items() if value is not None}
        | {"selector": {"matchLabels": {"app": "model"}}},
    }


def _on_infra(name: str, container: Json, port: int) -> Json:
    """One replica on node `infra`, on the node's own address, so that its URL outlives it."""
    container["ports"] = [{"name": "http", "containerPort": port, "hostPort": port}]
    pod = {
        "hostNetwork": True,
        "terminationGracePeriodSeconds": 1,
        "nodeSelector": INFRA_LABEL,
        "tolerations": [INFRA_TAINT | {"operator": "Exists"}],
        "containers": [container],
    }
    deployment = _deployment(name, SYSTEM_NAMESPACE, 1, pod)
    # Two of them could not listen on the same port.
    deployment["spec"]["strategy"] = {"type": "Recreate"}
    return deployment


def _follow(places: Places) -> Json:
    return {"kubeconfig": places.kubeconfig, "namespace": NAMESPACE, "service": "model"}


def _gateway(spec: LabSpec, places: Places) -> Json:
    flags = arguments(_follow(places) | {"log": places.logs / "gateway.jsonl"} | spec.gateway)
    container = _program("gateway", "gateway", flags, path="/gateway/healthz")
    return _on_infra("gateway", container, places.gateway_port)


def _alert_source(spec: LabSpec, places: Places) -> Json:
    options = {"interval": spec.alerts.interval, "log": places.logs / "alert-source.jsonl", "gateway": places.gateway}
    rules = [
        {"alert": rule.name, "expr": rule.expr, "for": f"{rule.for_:g}s", "labels": rule.labels, "annotations": {}}
        for rule in spec.alerts.rules
    ]
    flags = [*arguments(_follow(places) | options), *(f"--rule={json.dumps(rule)}" for rule in rules)]
    container = _program("alert-source", "alert_source", flags, path="/-/healthy")
    return _on_infra("alert-source", container, places.alerts_port)


def _sleepers(count: int) -> Json:
    container = {"name": "sleep", "image": "lab/sleep:1", "command": ["sleep", "1000000"]}
    return _deployment("sleeper", NAMESPACE, count, {"terminationGracePeriodSeconds": 1, "containers": [container]})
