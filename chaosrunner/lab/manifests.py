"""The lab's workload as ordinary Kubernetes objects, built from its spec. Both labs run the same ones; `Places` holds
all that differs."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from chaosrunner.lab.objects import Json
from chaosrunner.lab.spec import LabSpec, arguments

NAMESPACE = "lab"
SYSTEM_NAMESPACE = "lab-system"
INFRA_TAINT = {"key": "lab.chaosrunner.dev/infra", "effect": "NoSchedule"}
INFRA_LABEL = {"lab.chaosrunner.dev/role": "infra"}
GATEWAY_PORT = 8080
ALERTS_PORT = 9090
MODEL_PORT = 8000
READER = "endpoints-reader"
"""Name of the ServiceAccount, Role and RoleBinding of the programs on node `infra`, on a lab that has rights."""


@dataclass(frozen=True)
class Places:
    """Where a workload is, and all in which the labs' objects differ.

    requests: folder of request logs, by the same path on the machine and in every container. gateway: its URL, as the
    alert source reaches it. credentials: options by which the programs on `infra` find the API server. container: what
    every container has here, such as its image. infra: what a Pod on node `infra` has here. further: objects of this
    lab only.
    """

    requests: Path
    gateway: str
    credentials: Mapping[str, Any]
    container: Json
    infra: Json
    further: tuple[Json, ...] = ()
    namespace: str = NAMESPACE
    system_namespace: str = SYSTEM_NAMESPACE
    gateway_port: int = GATEWAY_PORT
    alerts_port: int = ALERTS_PORT
    model_port: int = MODEL_PORT

    @classmethod
    def embedded(cls, kubeconfig: Path, requests: Path, infra_address: str, ports: tuple[int, int, int]) -> Places:
        """On the embedded lab a program on `infra` has the node's own address, so that its URL outlives its Pod.

        `ports`: of the gateway, the alert source and the model server. No image is run, and nobody checks rights.
        """
        return cls(
            requests=requests,
            gateway=f"http://{infra_address}:{ports[0]}",
            credentials={"kubeconfig": kubeconfig},
            container={"image": "lab/workload:1"},
            infra={"hostNetwork": True},
            gateway_port=ports[0],
            alerts_port=ports[1],
            model_port=ports[2],
        )

    @classmethod
    def real(
        cls, image: str, requests: Path, namespace: str = NAMESPACE, system_namespace: str = SYSTEM_NAMESPACE
    ) -> Places:
        """On the real lab a program on `infra` is reached by its Service, and reaches the API by its ServiceAccount."""
        return cls(
            requests=requests,
            gateway="http://gateway",
            credentials={},
            # Images are imported into the nodes; there is nowhere to pull them from.
            container={"image": image, "imagePullPolicy": "Never"},
            infra={"serviceAccountName": READER},
            further=_reader(namespace, system_namespace),
            namespace=namespace,
            system_namespace=system_namespace,
        )


def _reader(namespace: str, system_namespace: str) -> tuple[Json, ...]:
    """The account of the gateway and the alert source; it may follow the model's EndpointSlices, and nothing else."""
    rights = "rbac.authorization.k8s.io"
    rule = {"apiGroups": ["discovery.k8s.io"], "resources": ["endpointslices"], "verbs": ["get", "list", "watch"]}
    subject = {"kind": "ServiceAccount", "name": READER, "namespace": system_namespace}
    account = {"name": READER, "namespace": system_namespace}
    there = {"name": READER, "namespace": namespace}
    role = {"apiGroup": rights, "kind": "Role", "name": READER}
    return (
        {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": account},
        {"apiVersion": f"{rights}/v1", "kind": "Role", "metadata": there, "rules": [rule]},
        {
            "apiVersion": f"{rights}/v1",
            "kind": "RoleBinding",
            "metadata": there,
            "roleRef": role,
            "subjects": [subject],
        },
    )


def objects(spec: LabSpec, places: Places) -> list[Json]:
    """All objects of a workload in the order of their creation; the spec's own manifests come last."""
    found: list[Json] = [
        {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}}
        for name in (places.namespace, places.system_namespace)
    ]
    found += places.further
    found += [_model(spec, places), _service("model", places.namespace, 80)]
    if spec.pdb is not None:
        found.append(_budget(spec, places))
    found += [_gateway(spec, places), _service("gateway", places.system_namespace, 80)]
    found += [_alert_source(spec, places), _service("alert-source", places.system_namespace, ALERTS_PORT)]
    if spec.sleepers:
        found.append(_sleepers(spec.sleepers, places))
    return [*found, *spec.manifests]


def _deployment(name: str, namespace: str, replicas: int, pod: Json) -> Json:
    labels = {"app": name}
    # Variables for each Service would only get in the way of the programs' own.
    pod = {"enableServiceLinks": False} | pod
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


_ENVIRONMENT: list[Json] = [
    {"name": name, "valueFrom": {"fieldRef": {"fieldPath": path}}}
    for name, path in (("POD_NAME", "metadata.name"), ("POD_IP", "status.podIP"))
]


def _program(
    name: str, module: str, flags: list[str], places: Places, *, port: int, path: str, patience: float = 0
) -> Json:
    """A container that runs one of the workload's programs and is ready when it answers `path`.

    `patience`: seconds that it may take to start, beyond half a minute.
    """
    check = {"httpGet": {"path": path, "port": "http"}, "periodSeconds": 1}
    listen = ["--host=$(POD_IP)", "--port=$(CONTAINER_PORT_HTTP)"]
    return places.container | {
        "name": name,
        "command": ["python3", "-m", f"chaosrunner.lab.workload.{module}", *listen, *flags],
        "env": [*_ENVIRONMENT, {"name": "CONTAINER_PORT_HTTP", "value": str(port)}],
        "ports": [{"name": "http", "containerPort": port}],
        "startupProbe": check | {"failureThreshold": 30 + math.ceil(patience)},
        "readinessProbe": check,
        "volumeMounts": [{"name": "requests", "mountPath": str(places.requests)}],
    }


def _logging(places: Places) -> Json:
    """The volume of request logs: a folder of the machine, whichever node the Pod is on."""
    return {"volumes": [{"name": "requests", "hostPath": {"path": str(places.requests), "type": "Directory"}}]}


def _model(spec: LabSpec, places: Places) -> Json:
    warmup = {
        "startup": spec.startup,
        "warmup_first_token": spec.warmup.first_token,
        "warmup_standstill": spec.warmup.standstill,
        "warmup_requests": spec.warmup.requests,
        "warmup_classes": ",".join(map(str, spec.warmup.classes)),
        "warmup_class_share": spec.warmup.class_share,
    }
    flags = [*arguments(warmup | spec.model | {"control": True}), f"--log={places.requests}/$(POD_NAME).jsonl"]
    port, patience = places.model_port, spec.startup
    container = _program("model", "model_server", flags, places, port=port, path="/health", patience=patience)
    if spec.liveness:
        container["livenessProbe"] = container["readinessProbe"] | {"failureThreshold": spec.liveness}
    if spec.pre_stop:
        container["lifecycle"] = {"preStop": _sleep(spec.pre_stop, spec.grace)}
    pod: Json = {
        "terminationGracePeriodSeconds": spec.grace,
        "automountServiceAccountToken": False,
        "containers": [container],
    } | _logging(places)
    together: Json = {"topologyKey": "kubernetes.io/hostname", "labelSelector": {"matchLabels": {"app": "model"}}}
    if spec.anti_affinity:
        required = {"requiredDuringSchedulingIgnoredDuringExecution": [together]}
        pod["affinity"] = {"podAntiAffinity": required}
    else:
        pod["topologySpreadConstraints"] = [together | {"maxSkew": 1, "whenUnsatisfiable": "ScheduleAnyway"}]
    return _deployment("model", places.namespace, spec.replicas, pod)


def _sleep(seconds: float, grace: int) -> Json:
    """A hook that sleeps. Kubernetes' own sleep action takes whole seconds only, and fewer than the grace period."""
    if seconds.is_integer() and seconds < grace:
        return {"sleep": {"seconds": int(seconds)}}
    return {"exec": {"command": ["sleep", str(seconds)]}}


def _service(name: str, namespace: str, port: int) -> Json:
    return {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {"name": name, "namespace": namespace, "labels": {"app": name}},
        "spec": {"selector": {"app": name}, "ports": [{"name": "http", "port": port, "targetPort": "http"}]},
    }


def _budget(spec: LabSpec, places: Places) -> Json:
    assert spec.pdb is not None
    limits = {"minAvailable": spec.pdb.min_available, "maxUnavailable": spec.pdb.max_unavailable}
    return {
        "apiVersion": "policy/v1",
        "kind": "PodDisruptionBudget",
        "metadata": {"name": "model", "namespace": places.namespace},
        "spec": {name: value for name, value in limits.items() if value is not None}
        | {"selector": {"matchLabels": {"app": "model"}}},
    }


def _on_infra(name: str, container: Json, places: Places) -> Json:
    """One replica on node `infra`: two would not count together, and could not share a port of the node."""
    pod = {
        "terminationGracePeriodSeconds": 1,
        "nodeSelector": INFRA_LABEL,
        "tolerations": [INFRA_TAINT | {"operator": "Exists"}],
        "containers": [container],
    }
    deployment = _deployment(name, places.system_namespace, 1, pod | _logging(places) | places.infra)
    deployment["spec"]["strategy"] = {"type": "Recreate"}
    return deployment


def _follow(places: Places) -> Json:
    return {**places.credentials, "namespace": places.namespace, "service": "model"}


def _gateway(spec: LabSpec, places: Places) -> Json:
    flags = arguments(_follow(places) | {"log": places.requests / "gateway.jsonl"} | spec.gateway)
    port = places.gateway_port
    container = _program("gateway", "gateway", flags, places, port=port, path="/gateway/healthz")
    return _on_infra("gateway", container, places)


def _alert_source(spec: LabSpec, places: Places) -> Json:
    log = places.requests / "alert-source.jsonl"
    options = {"interval": spec.alerts.interval, "log": log, "gateway": places.gateway}
    rules = [
        {"alert": rule.name, "expr": rule.expr, "for": f"{rule.for_:g}s", "labels": rule.labels, "annotations": {}}
        for rule in spec.alerts.rules
    ]
    flags = [*arguments(_follow(places) | options), *(f"--rule={json.dumps(rule)}" for rule in rules)]
    port = places.alerts_port
    container = _program("alert-source", "alert_source", flags, places, port=port, path="/-/healthy")
    return _on_infra("alert-source", container, places)


def _sleepers(count: int, places: Places) -> Json:
    container = places.container | {"name": "sleep", "command": ["sleep", "1000000"]}
    pod = {"terminationGracePeriodSeconds": 1, "automountServiceAccountToken": False, "containers": [container]}
    return _deployment("sleeper", places.namespace, count, pod)
