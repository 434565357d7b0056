"""What a real API server fills into objects on writing, as far as people, kubectl and observers see it.

Compared with recorded objects of Kubernetes 1.37. Defaults only ever add fields that are absent.
"""

from __future__ import annotations

from chaosrunner.lab.embedded.resources import Resource
from chaosrunner.lab.objects import Json


def on_create(resource: Resource, obj: Json) -> None:
    """Fill in the defaults of a new object, in place; client-given status is dropped where the server owns it."""
    if resource.has_status and resource.plural != "nodes":
        obj["status"] = {}
    match resource.plural:
        case "pods":
            _admit_pod(obj["spec"] if isinstance(obj.get("spec"), dict) else obj.setdefault("spec", {}))
            obj["status"] = {"phase": "Pending", "qosClass": qos_class(obj["spec"])}
        case "poddisruptionbudgets":
            obj["status"] = {"disruptionsAllowed": 0, "currentHealthy": 0, "desiredHealthy": 0, "expectedPods": 0}
        case "namespaces":
            obj["metadata"].setdefault("labels", {})["kubernetes.io/metadata.name"] = obj["metadata"].get("name", "")
            obj["spec"] = {"finalizers": ["kubernetes"]}
            obj["status"] = {"phase": "Active"}
        case "services":
            obj["status"] = {"loadBalancer": {}}
        case "replicasets":
            obj["status"] = {"replicas": 0}
        case "events":
            obj.setdefault("source", {})
            for field in ("firstTimestamp", "lastTimestamp", "eventTime"):
                obj.setdefault(field, None)
            for field in ("reportingComponent", "reportingInstance"):
                obj.setdefault(field, "")
        case "nodes":
            obj.setdefault("spec", {})
            obj.setdefault("status", {})
        case "leases":
            obj.setdefault("spec", {})
    on_update(resource, obj)


def on_update(resource: Resource, obj: Json) -> None:
    """Fill in the defaults that also hold for a changed object, in place."""
    spec = obj.get("spec")
    if resource.plural == "endpointslices":
        for port in obj.get("ports") or ():
            port.setdefault("name", "")
            port.setdefault("protocol", "TCP")
    if not isinstance(spec, dict):
        return
    match resource.plural:
        case "pods":
            pod_spec(spec)
            for condition in obj.get("status", {}).get("conditions") or ():
                condition.setdefault("lastProbeTime", None)
                condition.setdefault("lastTransitionTime", None)
        case "deployments":
            _template(spec)
            spec.setdefault("replicas", 1)
            strategy = spec.setdefault("strategy", {})
            if strategy.setdefault("type", "RollingUpdate") == "RollingUpdate":
                rolling = strategy.setdefault("rollingUpdate", {})
                rolling.setdefault("maxUnavailable", "25%")
                rolling.setdefault("maxSurge", "25%")
            spec.setdefault("revisionHistoryLimit", 10)
            spec.setdefault("progressDeadlineSeconds", 600)
        case "replicasets":
            _template(spec)
            spec.setdefault("replicas", 1)
        case "services":
            _service(spec, obj["metadata"])
        case "networkpolicies":
            _policy(spec)


def _template(spec: Json) -> None:
    template = spec.get("template")
    if isinstance(template, dict) and isinstance(template.get("spec"), dict):
        pod_spec(template["spec"])


def pod_spec(spec: Json) -> None:
    """Defaults of a Pod's spec, also inside a template."""
    for kind in ("initContainers", "containers", "ephemeralContainers"):
        for container in spec.get(kind) or ():
            _container(container)
    for volume in spec.get("volumes") or ():
        if "hostPath" in volume:
            volume["hostPath"].setdefault("type", "")
        for source in ("configMap", "secret"):
            if source in volume:
                volume[source].setdefault("defaultMode", 420)
    spec.setdefault("restartPolicy", "Always")
    spec.setdefault("terminationGracePeriodSeconds", 30)
    spec.setdefault("dnsPolicy", "ClusterFirst")
    spec.setdefault("securityContext", {})
    spec.setdefault("schedulerName", "default-scheduler")
    if "serviceAccountName" in spec:
        spec["serviceAccount"] = spec["serviceAccountName"]


def _container(container: Json) -> None:
    for port in container.get("ports") or ():
        port.setdefault("protocol", "TCP")
    container.setdefault("resources", {})
    for name in ("startupProbe", "readinessProbe", "livenessProbe"):
        if isinstance(container.get(name), dict):
            _probe(container[name])
    for handler in (container.get("lifecycle") or {}).values():
        if "httpGet" in handler:
            handler["httpGet"].setdefault("path", "/")
            handler["httpGet"].setdefault("scheme", "HTTP")
    container.setdefault("terminationMessagePath", "/dev/termination-log")
    container.setdefault("terminationMessagePolicy", "File")
    tag = str(container.get("image", "")).rpartition("/")[2].partition(":")[2]
    container.setdefault("imagePullPolicy", "Always" if tag in ("", "latest") else "IfNotPresent")


def _probe(probe: Json) -> None:
    if "httpGet" in probe:
        probe["httpGet"].setdefault("path", "/")
        probe["httpGet"].setdefault("scheme", "HTTP")
    for field, value in (
        ("timeoutSeconds", 1),
        ("periodSeconds", 10),
        ("successThreshold", 1),
        ("failureThreshold", 3),
    ):
        probe.setdefault(field, value)


def _admit_pod(spec: Json) -> None:
    """What admission adds to a Pod, and never to a template."""
    if spec.get("nodeName") == "":
        del spec["nodeName"]
    if (spec.get("terminationGracePeriodSeconds") or 0) < 0:
        spec["terminationGracePeriodSeconds"] = 1
    spec.setdefault("serviceAccountName", "default")
    tolerations = spec.setdefault("tolerations", [])
    for key in ("node.kubernetes.io/not-ready", "node.kubernetes.io/unreachable"):
        if not any(entry.get("key") in (key, None) and entry.get("effect") in ("NoExecute", None)
                   for entry in tolerations):  # fmt: skip
            tolerations.append({"key": key, "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": 300})
    spec.setdefault("priority", 0)
    spec.setdefault("enableServiceLinks", True)
    spec.setdefault("preemptionPolicy", "PreemptLowerPriority")


def qos_class(spec: Json) -> str:
    """Guaranteed, Burstable or BestEffort, by the requests and limits of cpu and memory of all containers."""
    containers = [*(spec.get("initContainers") or ()), *(spec.get("containers") or ())]
    resources = [entry.get("resources") or {} for entry in containers]
    if not any(entry.get("requests") or entry.get("limits") for entry in resources):
        return "BestEffort"
    for entry in resources:
        limits = entry.get("limits") or {}
        requests = limits | (entry.get("requests") or {})
        if any(name not in limits or requests[name] != limits[name] for name in ("cpu", "memory")):
            return "Burstable"
    return "Guaranteed"


def _policy(spec: Json) -> None:
    spec.setdefault("podSelector", {})
    if not spec.get("policyTypes"):
        spec["policyTypes"] = ["Ingress", *(["Egress"] if spec.get("egress") else [])]
    for rule in (*(spec.get("ingress") or ()), *(spec.get("egress") or ())):
        for port in rule.get("ports") or ():
            port.setdefault("protocol", "TCP")


def _service(spec: Json, meta: Json) -> None:
    for port in spec.get("ports") or ():
        port.setdefault("protocol", "TCP")
        port.setdefault("targetPort", port.get("port"))
    if spec.setdefault("type", "ClusterIP") != "ExternalName":
        # An address out of the service range that the object's UID fixes; nothing listens there in the lab.
        number = int(meta["uid"].replace("-", "")[:4], 16)
        spec.setdefault("clusterIP", f"10.96.{number >> 8}.{number & 255}")
        spec.setdefault("clusterIPs", [spec["clusterIP"]])
        spec.setdefault("ipFamilies", ["IPv4"])
        spec.setdefault("ipFamilyPolicy", "SingleStack")
        spec.setdefault("internalTrafficPolicy", "Cluster")
    spec.setdefault("sessionAffinity", "None")
