"""What runs a drill inside the cluster: its files, its rights, a place for recordings, and a Job without privileges."""

from __future__ import annotations

import math
import posixpath
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from chaosrunner.errors import UserError
from chaosrunner.plan.rbac import Subject, as_yaml, comment, grant, labels
from chaosrunner.playbook import BoundDrill, locate
from chaosrunner.playbook.secret import Secret
from chaosrunner.playbook.selectors import parse_selector

Manifest = dict[str, Any]

USER = 65532
"""User and group of the runner; the number by which images without users know "nonroot"."""

DRILL, RECORDINGS = "/drill", "/recordings"
"""Where the drill's files and its recordings are in the Pod."""

DRAIN_MARGIN = 60.0
"""Seconds for the report and the end, beyond the rollback and the requests in flight."""


@dataclass(frozen=True, kw_only=True)
class Volume:
    """Where recordings go: `claim` (made, or the one named), `empty`, or `host` (a path on the node)."""

    kind: str
    name: str = ""


def read_volume(text: str) -> Volume:
    """`claim`, `claim:NAME`, `empty`, `host:/PATH`. Raises UserError for anything else."""
    kind, _, name = text.partition(":")
    absolute = name.startswith("/")
    if not ((kind == "claim" and not absolute) or (kind == "empty" and not name) or (kind == "host" and absolute)):
        raise UserError(f"--volume {text}: write claim, claim:NAME, empty or host:/PATH")
    return Volume(kind=kind, name=name)


@dataclass(frozen=True, kw_only=True)
class Options:
    """How the drill is to run."""

    image: str
    name: str
    """Of the Job and what comes with it."""
    namespace: str
    """Of the workload and the Job."""
    service_account: str
    volume: Volume
    secrets: tuple[str, ...] = ()
    """Names of Secrets whose keys become environment variables."""
    node_selector: dict[str, str]
    tolerations: tuple[str, ...] = ()
    """Keys of taints."""
    parameters: tuple[str, ...] = ()
    """`NAME=VALUE`, as given on the command line."""
    cluster: str | None = None
    """Name of the cluster, for a drill in production."""
    rollback: float
    """Longest rollback at the end of a run, seconds."""


def name_of(drill: str) -> str:
    """A name for the Job: DNS characters, short enough for the names of its Pods (63 with their suffixes)."""
    return f"chaosrunner-{re.sub(r'[^a-z0-9]+', '-', drill.lower())}"[:52].strip("-")


def remarks(bound: BoundDrill, options: Options) -> list[str]:
    """What the manifests cannot bring along."""
    found = []
    credentials = list(_credentials(bound))
    names = sorted({secret.env for secret in credentials if secret.env is not None})
    if names and not options.secrets:
        found.append(f"the drill reads {', '.join(names)} from its environment: give --env-from SECRET")
    endpoint, prometheus = bound.drill.endpoint, bound.drill.prometheus
    files = [secret.file for secret in credentials] + [
        endpoint.ca,
        endpoint.replicas.ca,
        prometheus.ca if prometheus else None,
    ]
    if named := sorted({file for file in files if file}):
        found.append(f"the drill reads {', '.join(named)}: mount it at the same path relative to the drill")
    if prompts := sorted({path for probe in bound.playbook.probes for path in probe.prompt_files}):
        found.append(f"the playbook reads {', '.join(prompts)}: mount it at the same path relative to the playbook")
    return found


def text(bound: BoundDrill, options: Options) -> str:
    """All of it as YAML for `kubectl apply`. Raises UserError where the drill's files cannot be brought along."""
    account = Subject(kind="ServiceAccount", name=options.service_account, namespace=options.namespace)
    head = comment(
        f"Drill {bound.drill.metadata.name} as a Job. A Job runs once: delete it before you apply it again. "
        "To abort the drill, delete the Job: what was changed is put back, and the report is still made."
    )
    parts = [head + as_yaml(_object("v1", "ServiceAccount", bound, options, options.service_account))]
    parts.append(grant(bound, options.namespace, account).text())
    parts.append(as_yaml(_config_map(bound, options)))
    if options.volume == Volume(kind="claim"):
        parts.append(as_yaml(_claim(bound, options)))
    parts.append(as_yaml(_job(bound, options)))
    return "---\n".join(parts)


def _object(api: str, kind: str, bound: BoundDrill, options: Options, name: str) -> Manifest:
    metadata = {"name": name, "namespace": options.namespace, "labels": labels(bound.drill.metadata.name)}
    return {"apiVersion": api, "kind": kind, "metadata": metadata}


# --- the drill's files ------------------------------------------------------------------------------------------


def layout(bound: BoundDrill) -> tuple[str, str]:
    """Paths of the drill and its playbook below a common folder, so that the one finds the other as it does here.

    Raises UserError for a playbook that is named by an absolute path.
    """
    file, playbook = bound.path.name, bound.drill.playbook
    if "/" not in playbook and not playbook.endswith((".yaml", ".yml")):
        return file, f"playbooks/{playbook}.yaml"  # a name; `playbooks/` of the working directory comes first
    beside = posixpath.normpath(playbook)
    if beside.startswith(("/", "~")):
        raise UserError(f"{bound.path}: playbook {playbook}: name it by a path relative to the drill")
    depth = beside.split("/").count("..")
    above = ["drill"] * depth
    return posixpath.join(*above, file), posixpath.normpath(posixpath.join(*above, beside))


def _config_map(bound: BoundDrill, options: Options) -> Manifest:
    if any(secret.value is not None for secret in _credentials(bound)):
        raise UserError(f"{bound.path}: holds a credential, which is no matter for a ConfigMap; write {{env: NAME}}")
    playbook = locate.resolve(bound.drill.playbook, "playbooks", beside=bound.path.parent)
    data = {"drill.yaml": _read(bound.path), "playbook.yaml": _read(playbook)}
    return _object("v1", "ConfigMap", bound, options, options.name) | {"data": data}


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"{path} cannot be read: {error}") from error


def _credentials(bound: BoundDrill) -> Iterator[Secret]:
    endpoint, prometheus = bound.drill.endpoint, bound.drill.prometheus
    if endpoint.api_key is not None:
        yield endpoint.api_key
    for headers in (endpoint.headers, prometheus.headers if prometheus else {}):
        yield from (value for value in headers.values() if isinstance(value, Secret))


# --- the Job ----------------------------------------------------------------------------------------------------


def _claim(bound: BoundDrill, options: Options) -> Manifest:
    spec = {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}}
    return _object("v1", "PersistentVolumeClaim", bound, options, options.name) | {"spec": spec}


def grace(bound: BoundDrill, rollback: float) -> int:
    """Seconds that an aborted drill may need: the rollback, then the longest request in flight, then the report."""
    longest = max((probe.timeouts.total for probe in bound.playbook.probes), default=0.0)
    return math.ceil(rollback + longest + DRAIN_MARGIN)


def _job(bound: BoundDrill, options: Options) -> Manifest:
    template = {
        "metadata": {
            "labels": labels(bound.drill.metadata.name),
            # A runner that is moved away in mid-drill has to abort it.
            "annotations": {
                "cluster-autoscaler.kubernetes.io/safe-to-evict": "false",
                "karpenter.sh/do-not-disrupt": "true",
            },
        },
        "spec": _pod(bound, options),
    }
    # A drill that failed is a result, and one that was interrupted is not to be begun again by itself.
    spec = {"backoffLimit": 0, "completions": 1, "parallelism": 1, "template": template}
    return _object("batch/v1", "Job", bound, options, options.name) | {"spec": spec}


def _pod(bound: BoundDrill, options: Options) -> Manifest:
    drill, playbook = layout(bound)
    files = [{"key": "drill.yaml", "path": drill}, {"key": "playbook.yaml", "path": playbook}]
    spec: Manifest = {
        "serviceAccountName": options.service_account,
        "automountServiceAccountToken": True,
        "enableServiceLinks": False,
        "restartPolicy": "Never",
        "terminationGracePeriodSeconds": grace(bound, options.rollback),
        "securityContext": {
            "runAsNonRoot": True,
            "runAsUser": USER,
            "runAsGroup": USER,
            "fsGroup": USER,
            "seccompProfile": {"type": "RuntimeDefault"},
        },
        "affinity": {"podAntiAffinity": _apart(bound, options)},
        "containers": [_container(drill, options)],
        "volumes": [
            {"name": "drill", "configMap": {"name": options.name, "items": files}},
            {"name": "recordings", **_recordings(options)},
            {"name": "tmp", "emptyDir": {}},
        ],
    }
    if options.node_selector:
        spec["nodeSelector"] = options.node_selector
    if options.tolerations:
        spec["tolerations"] = [{"key": key, "operator": "Exists"} for key in options.tolerations]
    return spec


def _container(drill: str, options: Options) -> Manifest:
    fields = {"POD_NAME": "metadata.name", "POD_NAMESPACE": "metadata.namespace", "NODE_NAME": "spec.nodeName"}
    container: Manifest = {
        "name": "chaosrunner",
        "image": options.image,
        "workingDir": DRILL,
        "args": [
            *("run", "--yes", "--context", "in-cluster", "--namespace", options.namespace),
            *("--timelines", RECORDINGS),
            *(("--cluster", options.cluster) if options.cluster else ()),
            # $( would be filled in by the kubelet.
            *(word for given in options.parameters for word in ("--parameter", given.replace("$(", "$$("))),
            f"{DRILL}/{drill}",
        ],
        "env": [
            {"name": "HOME", "value": "/tmp"},
            *({"name": name, "valueFrom": {"fieldRef": {"fieldPath": path}}} for name, path in fields.items()),
        ],
    }
    if options.secrets:
        container["envFrom"] = [{"secretRef": {"name": name}} for name in options.secrets]
    return container | {
        # No limit on CPU: a prober that is throttled measures itself.
        "resources": {"requests": {"cpu": "500m", "memory": "512Mi"}, "limits": {"memory": "1Gi"}},
        "securityContext": {
            "allowPrivilegeEscalation": False,
            "readOnlyRootFilesystem": True,
            "capabilities": {"drop": ["ALL"]},
        },
        "volumeMounts": [
            {"name": "drill", "mountPath": DRILL, "readOnly": True},
            {"name": "recordings", "mountPath": RECORDINGS},
            {"name": "tmp", "mountPath": "/tmp"},
        ],
    }


def _recordings(options: Options) -> Manifest:
    volume = options.volume
    match volume.kind:
        case "claim":
            return {"persistentVolumeClaim": {"claimName": volume.name or options.name}}
        case "host":
            return {"hostPath": {"path": volume.name, "type": "Directory"}}
        case _:
            return {"emptyDir": {}}


def _apart(bound: BoundDrill, options: Options) -> Manifest:
    """Keeps the Job off the nodes of the workload where it can. Not by force: what a Pod refuses as a neighbour is kept
    off its node as well, and the drill would meddle with where replacements go."""
    requirements = parse_selector(bound.drill.workload.selector).requirements
    expressions = [
        {"key": r.key, "operator": r.operator} | ({"values": list(r.values)} if r.values else {}) for r in requirements
    ]
    term = {
        "labelSelector": {"matchExpressions": expressions},
        "namespaces": [options.namespace],
        "topologyKey": "kubernetes.io/hostname",
    }
    return {"preferredDuringSchedulingIgnoredDuringExecution": [{"weight": 100, "podAffinityTerm": term}]}
