"""The state of a cluster that a drill may change, flat, so that a difference names itself."""

from __future__ import annotations

import json
import os
import subprocess
import urllib.request
from pathlib import Path
from typing import Any

import psutil

from chaosrunner.cluster import Cluster
from chaosrunner.cluster.resources import DEPLOYMENTS, LEASES, NETWORK_POLICIES, NODES, PODS, Object, meta
from tests.torture.world import Lab

Snapshot = dict[str, Any]
"""What is there, by `kind/name/part`."""

RESTARTED = "kubectl.kubernetes.io/restartedAt"
"""Annotation of a Pod template that a rollout restart leaves, as kubectl does: residue."""
OURS = "chaosrunner"


async def snapshot(cluster: Cluster, lab: Lab, marks: Path) -> Snapshot:
    """All that must be as before once a run is over, of whatever way it ended."""
    found: Snapshot = {}
    for node in (await cluster.list(NODES)).items:
        where = f"node/{meta(node)['name']}"
        spec = dict(node["spec"])
        if spec.pop("unschedulable", False):
            found[f"{where}/unschedulable"] = True
        for taint in spec.pop("taints", None) or []:
            if not taint["key"].startswith("node.kubernetes.io/"):
                found[f"{where}/taint/{taint['key']}:{taint['effect']}"] = taint.get("value", "")
        found[f"{where}/spec"] = json.dumps(spec, sort_keys=True)
        found |= _metadata(where, node)
    deployment = (await cluster.get(DEPLOYMENTS, lab.deployment, lab.namespace)).body
    where = f"deployment/{lab.deployment}"
    spec = dict(deployment["spec"])
    found[f"{where}/replicas"] = spec.pop("replicas")
    (spec["template"].get("metadata", {}).get("annotations") or {}).pop(RESTARTED, None)
    if not spec["template"].get("metadata", {}).get("annotations"):
        spec["template"].get("metadata", {}).pop("annotations", None)
    found[f"{where}/spec"] = json.dumps(spec, sort_keys=True)
    found |= _metadata(where, deployment)
    for policy in (await cluster.list(NETWORK_POLICIES, lab.namespace)).items:
        found[f"policy/{meta(policy)['name']}"] = json.dumps(policy["spec"], sort_keys=True)
    for lease in (await cluster.list(LEASES, lab.namespace)).items:
        if meta(lease)["name"].startswith(OURS):
            found[f"lease/{meta(lease)['name']}"] = lease["spec"].get("holderIdentity")
    for pod in (await cluster.list(PODS, lab.namespace)).items:
        about = meta(pod)
        for kind in ("labels", "annotations"):
            for key in about.get(kind) or {}:
                if OURS in key:
                    found[f"pod/{about['name']}/{kind}/{key}"] = about[kind][key]
    found |= toxics(lab)
    found |= {f"mark/{name}": True for name in os.listdir(marks)}  # noqa: PTH208  of an async function
    return found


async def unsettled(cluster: Cluster, lab: Lab) -> Snapshot:
    """What goes by itself within the limits of a drill: stopped processes, agents at work, Pods that are not Ready."""
    found: Snapshot = {}
    ready = 0
    for pod in (await cluster.list(PODS, lab.namespace, label_selector=lab.selector)).items:
        name, status = meta(pod)["name"], pod.get("status") or {}
        for one in status.get("ephemeralContainerStatuses") or []:
            if "terminated" not in (one.get("state") or {}):
                found[f"pod/{name}/agent/{one['name']}"] = one.get("state")
        conditions = {c["type"]: c["status"] for c in status.get("conditions") or []}
        ready += conditions.get("Ready") == "True" and "deletionTimestamp" not in meta(pod)
    wanted = (await cluster.get(DEPLOYMENTS, lab.deployment, lab.namespace)).body["spec"]["replicas"]
    if ready != wanted:
        found["pods/ready"] = f"{ready} of {wanted}"
    return found | effects(lab)


def effects(lab: Lab) -> Snapshot:
    """What the faults made that set something in a Pod: processes that stand still, rules in networks."""
    found: Snapshot = {}
    networks: dict[int, int] = {}
    for process in psutil.Process(lab.pid).children(recursive=True):
        try:
            if lab.real:
                networks[Path(f"/proc/{process.pid}/ns/net").stat().st_ino] = process.pid
            if process.status() in (psutil.STATUS_STOPPED, psutil.STATUS_TRACING_STOP):
                found[f"stopped/{process.pid}"] = " ".join(process.cmdline())
        except (psutil.NoSuchProcess, FileNotFoundError):
            continue
    for pid in networks.values():
        for table in _tables(pid):
            found[f"rules/{pid}/{table}"] = True
    return found


def _tables(pid: int) -> list[str]:
    """Tables of ours in the network of a process (nftables)."""
    command = ["nsenter", f"--net=/proc/{pid}/ns/net", "nft", "list", "tables"]
    listed = subprocess.run(command, capture_output=True, text=True, check=False)
    return [line for line in listed.stdout.splitlines() if OURS in line]


async def residue(cluster: Cluster, lab: Lab) -> int:
    """Terminated ephemeral containers, which nobody can take out of a Pod."""
    pods = (await cluster.list(PODS, lab.namespace, label_selector=lab.selector)).items
    return sum(len(pod["spec"].get("ephemeralContainers") or []) for pod in pods)


def toxics(lab: Lab) -> Snapshot:
    """Toxics of all proxies."""
    if lab.toxiproxy is None:
        return {}
    return {
        f"toxic/{proxy}/{toxic['name']}": json.dumps(toxic, sort_keys=True)
        for proxy, body in toxiproxy(lab, "GET", "/proxies").items()
        for toxic in body.get("toxics") or []
    }


def toxiproxy(lab: Lab, method: str, path: str, body: Any = None) -> Any:
    """A request to the proxy's API; its answer."""
    data = None if body is None else json.dumps(body).encode()
    headers = {"Content-Type": "application/json"}
    request = urllib.request.Request(f"{lab.toxiproxy}{path}", data=data, method=method, headers=headers)
    with urllib.request.build_opener(urllib.request.ProxyHandler({})).open(request, timeout=10) as answer:
        content = answer.read()
    return json.loads(content) if content else None


def differences(wanted: Snapshot, found: Snapshot) -> list[str]:
    """What differs, one line each."""
    return [
        f"{key}: was {wanted.get(key)!r}, is {found.get(key)!r}"
        for key in sorted(wanted.keys() | found.keys())
        if wanted.get(key) != found.get(key)
    ]


def _metadata(where: str, obj: Object) -> Snapshot:
    about = meta(obj)
    found: Snapshot = {f"{where}/label/{key}": value for key, value in (about.get("labels") or {}).items()}
    for key, value in (about.get("annotations") or {}).items():
        if key == "deployment.kubernetes.io/revision":
            continue
        part = "undo" if key.startswith(f"{OURS}.dev/") else "annotation"
        found[f"{where}/{part}/{key}"] = value
    return found
