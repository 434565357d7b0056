"""CoreDNS for the Services of a real lab, on node `infra`."""

from __future__ import annotations

from chaosrunner.lab.manifests import INFRA_LABEL, INFRA_TAINT
from chaosrunner.lab.objects import Json
from chaosrunner.lab.real.api import Api
from chaosrunner.lab.real.network import DNS_SERVICE

_NAMESPACE = "kube-system"
_NAME = "coredns"
_RIGHTS = "rbac.authorization.k8s.io"
# Names of the cluster only: the lab has nobody to ask for others. A name that does not exist may do so in a moment.
_COREFILE = """\
.:53 {
    errors
    health :8080
    ready :8181
    kubernetes cluster.local in-addr.arpa {
        ttl 5
    }
    cache 5
}
"""


def deploy(api: Api, image: str, timeout: float = 60.0) -> None:
    """Make it be there and answer, `image` being CoreDNS. NotAvailable if it does not come up in `timeout` seconds."""
    for obj in objects(image):
        api.apply(obj)
    api.wait_available([(_NAMESPACE, _NAME)], timeout)


def objects(image: str) -> list[Json]:
    """All objects of the DNS, in the order of their creation."""
    labels = {"k8s-app": "kube-dns"}
    here = {"name": _NAME, "namespace": _NAMESPACE}
    watched = {"": ["endpoints", "namespaces", "pods", "services"], "discovery.k8s.io": ["endpointslices"]}
    rules = [
        {"apiGroups": [group], "resources": resources, "verbs": ["list", "watch"]}
        for group, resources in watched.items()
    ]
    ports = [{"name": "dns", "port": 53, "protocol": "UDP"}, {"name": "dns-tcp", "port": 53, "protocol": "TCP"}]
    container = {
        "name": _NAME,
        "image": image,
        "imagePullPolicy": "Never",
        "args": ["-conf", "/etc/coredns/Corefile"],
        "ports": [
            {"name": port["name"], "containerPort": port["port"], "protocol": port["protocol"]} for port in ports
        ],
        "readinessProbe": {"httpGet": {"path": "/ready", "port": 8181}, "periodSeconds": 1},
        "volumeMounts": [{"name": "config", "mountPath": "/etc/coredns", "readOnly": True}],
    }
    pod = {
        "serviceAccountName": _NAME,
        "dnsPolicy": "Default",
        "terminationGracePeriodSeconds": 1,
        "nodeSelector": INFRA_LABEL,
        "tolerations": [INFRA_TAINT | {"operator": "Exists"}],
        "containers": [container],
        "volumes": [{"name": "config", "configMap": {"name": _NAME}}],
    }
    return [
        {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": here},
        {"apiVersion": f"{_RIGHTS}/v1", "kind": "ClusterRole", "metadata": {"name": _NAME}, "rules": rules},
        {
            "apiVersion": f"{_RIGHTS}/v1",
            "kind": "ClusterRoleBinding",
            "metadata": {"name": _NAME},
            "roleRef": {"apiGroup": _RIGHTS, "kind": "ClusterRole", "name": _NAME},
            "subjects": [{"kind": "ServiceAccount"} | here],
        },
        {"apiVersion": "v1", "kind": "ConfigMap", "metadata": here, "data": {"Corefile": _COREFILE}},
        {
            "apiVersion": "v1",
            "kind": "Service",
            "metadata": {"name": "kube-dns", "namespace": _NAMESPACE, "labels": labels},
            "spec": {"clusterIP": DNS_SERVICE, "selector": labels, "ports": ports},
        },
        {
            "apiVersion": "apps/v1",
            "kind": "Deployment",
            "metadata": here | {"labels": labels},
            "spec": {
                "replicas": 1,
                "selector": {"matchLabels": labels},
                "template": {"metadata": {"labels": labels}, "spec": pod},
            },
        },
    ]
