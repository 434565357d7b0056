"""The real kubectl against the lab's API server. A small stand-in plays controllers and kubelet."""

from __future__ import annotations

import asyncio
import json
import shutil
import subprocess
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import anyio
import pytest

from chaosrunner.lab.embedded.access import ADMIN, Access, Account, Rule
from chaosrunner.lab.embedded.api import ApiServer, serve
from chaosrunner.lab.embedded.store import Store
from tests.lab.api.objects import add_budget, add_pod, owned_by, template

KUBECTL = shutil.which("kubectl")
pytestmark = [pytest.mark.anyio, pytest.mark.skipif(KUBECTL is None, reason="no kubectl on the PATH")]

ACCESS = Access({"admin": ADMIN, "weak": Account("weak", (Rule(("get", "list"), ("pods",), ("default",)),))})
MANIFEST = """
apiVersion: apps/v1
kind: Deployment
metadata: {name: web}
spec:
  replicas: 2
  selector: {matchLabels: {app: web}}
  template:
    metadata: {labels: {app: web}}
    spec: {containers: [{name: engine, image: "lab/model:1", env: [{name: A, value: "1"}]}]}
---
apiVersion: v1
kind: Service
metadata: {name: web}
spec: {selector: {app: web}, ports: [{port: 80, targetPort: 8000}]}
"""


class Kubectl:
    """Runs kubectl as a user of the lab; in a home of its own, so that nothing is cached from elsewhere."""

    def __init__(self, server: ApiServer, home: Path) -> None:
        self.store = server.store
        users = ("admin", "weak")
        config = {
            "apiVersion": "v1",
            "kind": "Config",
            "clusters": [{"name": user, "cluster": {"server": server.url_of(user)}} for user in users],
            "users": [{"name": user, "user": {}} for user in users],
            "contexts": [{"name": user, "context": {"cluster": user, "user": user}} for user in users],
            "current-context": "admin",
        }
        (home / "config").write_text(json.dumps(config))
        self.environment = {"HOME": str(home), "KUBECONFIG": str(home / "config"), "PATH": "/usr/bin:/bin"}

    async def run(self, *arguments: str, stdin: str = "") -> subprocess.CompletedProcess[bytes]:
        with anyio.fail_after(60):
            return await anyio.run_process(
                [str(KUBECTL), *arguments], input=stdin.encode(), env=self.environment, check=False
            )

    async def __call__(self, *arguments: str, stdin: str = "") -> str:
        """Standard output of a command that must succeed."""
        done = await self.run(*arguments, stdin=stdin)
        assert done.returncode == 0, (arguments, done.stdout.decode(), done.stderr.decode())
        return done.stdout.decode()


@pytest.fixture
async def kubectl(tmp_path: Path) -> AsyncIterator[Kubectl]:
    """kubectl on two nodes, a Deployment `chat` with its ReplicaSet and two Pods on node1, and a budget."""
    store = Store()
    for name in ("node1", "node2"):
        ready = [{"type": "Ready", "status": "True", "reason": "KubeletReady"}]
        store.create("nodes", {"metadata": {"name": name}, "status": {"conditions": ready}})
    deployment = store.create("deployments", {"metadata": {"name": "chat"}, "spec": template() | {"replicas": 2}})
    meta = {"name": "chat-1", "ownerReferences": owned_by(deployment), "labels": {"app": "chat"}}
    replicaset = store.create("replicasets", {"metadata": meta, "spec": template()})
    for name in ("one", "two"):
        add_pod(store, name, ownerReferences=owned_by(replicaset))
    loop = asyncio.get_running_loop()

    def end(type_: str, pod: dict[str, Any], old: dict[str, Any] | None) -> None:
        """A Pod that is asked to go is gone 0.2 s later."""
        meta = pod["metadata"]
        if type_ == "MODIFIED" and meta.get("deletionGracePeriodSeconds"):
            loop.call_later(
                0.2, lambda: store.find("pods", meta["name"]) and store.delete("pods", meta["name"], grace=0)
            )

    def finish(name: str) -> None:
        if store.find("pods", name):
            store.delete("pods", name, grace=0)

    store.subscribe("pods", end)

    async def logs(namespace: str, pod: str, container: str, **options: Any) -> AsyncIterator[bytes]:
        yield f"{pod} {container} tail={options['tail_lines']}\n".encode()
        if options["follow"]:
            await anyio.sleep(0.1)
            yield b"more\n"

    async with serve(store, "127.0.0.1", 0, access=ACCESS, log_reader=logs) as server:
        yield Kubectl(server, tmp_path)


async def test_get(kubectl: Kubectl) -> None:
    head, *rows = [line.split() for line in (await kubectl("get", "pods")).splitlines()]
    assert head == ["NAME", "READY", "STATUS", "RESTARTS", "AGE"]
    assert [row[:4] for row in rows] == [["one", "0/1", "Running", "0"], ["two", "0/1", "Running", "0"]]
    assert "node1" in await kubectl("get", "pods", "-o", "wide")
    assert (await kubectl("get", "pods", "-A", "-l", "app=chat", "-o", "name")).split() == ["pod/one", "pod/two"]
    assert json.loads(await kubectl("get", "pod", "one", "-o", "json"))["metadata"]["name"] == "one"
    assert "name: chat-1" in await kubectl("get", "rs", "-o", "yaml")
    everything = await kubectl("get", "all")
    assert all(name in everything for name in ("pod/one", "deployment.apps/chat", "replicaset.apps/chat-1"))
    missing = await kubectl.run("get", "pod", "none")
    assert (missing.returncode, missing.stderr) == (1, b'Error from server (NotFound): pods "none" not found\n')


async def test_get_watch(kubectl: Kubectl) -> None:
    async with await anyio.open_process([str(KUBECTL), "get", "pods", "-w"], env=kubectl.environment) as process:
        assert process.stdout is not None
        seen = b""
        with anyio.fail_after(60):
            while seen.count(b"\n") < 3:
                seen += await process.stdout.receive()
            kubectl.store.delete("pods", "one")
            while seen.count(b"Terminating") < 2:
                seen += await process.stdout.receive()
        process.terminate()
    assert seen.count(b"NAME") == 1


async def test_describe(kubectl: Kubectl) -> None:
    pod = {
        "kind": "Pod",
        "namespace": "default",
        "name": "one",
        "uid": kubectl.store.get("pods", "one")["metadata"]["uid"],
    }
    event = {"metadata": {"name": "e"}, "involvedObject": pod, "reason": "Told", "message": "what happened"}
    kubectl.store.create("events", event | {"type": "Normal", "source": {"component": "test"}})
    shown = await kubectl("describe", "pod", "one")
    assert "ReplicaSet/chat-1" in shown
    assert "what happened" in shown
    assert "Non-terminated Pods:          (2 in total)" in await kubectl("describe", "node", "node1")
    assert "RollingUpdate" in await kubectl("describe", "deployment", "chat")
    assert "Told" in await kubectl("get", "events")


async def test_logs(kubectl: Kubectl) -> None:
    assert await kubectl("logs", "one", "--tail=7") == "one engine tail=7\n"
    assert await kubectl("logs", "-f", "deployment/chat") in (
        "one engine tail=None\nmore\n",
        "two engine tail=None\nmore\n",
    )


async def test_apply_and_create(kubectl: Kubectl) -> None:
    first = await kubectl("apply", "-f", "-", stdin=MANIFEST)
    assert first.splitlines() == ["deployment.apps/web created", "service/web created"]
    second = await kubectl("apply", "-f", "-", stdin=MANIFEST)
    assert second.splitlines() == ["deployment.apps/web unchanged", "service/web unchanged"]
    changed = MANIFEST.replace('value: "1"', 'value: "2"').replace("80,", "81,")
    third = await kubectl("apply", "-f", "-", stdin=changed)
    assert third.splitlines() == ["deployment.apps/web configured", "service/web configured"]
    (container,) = kubectl.store.get("deployments", "web")["spec"]["template"]["spec"]["containers"]
    assert container["env"] == [{"name": "A", "value": "2"}]
    assert [entry["port"] for entry in kubectl.store.get("services", "web")["spec"]["ports"]] == [81]
    applied = await kubectl("apply", "--server-side", "--force-conflicts", "-f", "-", stdin=changed)
    assert "deployment.apps/web serverside-applied" in applied
    await kubectl("create", "-f", "-", stdin=MANIFEST.replace("name: web}", "name: again}"))
    assert kubectl.store.get("deployments", "again")["spec"]["replicas"] == 2
    twice = await kubectl.run("create", "-f", "-", stdin=MANIFEST)
    assert b'deployments.apps "web" already exists' in twice.stderr


async def test_bodies_in_protobuf(kubectl: Kubectl) -> None:
    await kubectl("create", "namespace", "n")
    await kubectl("create", "configmap", "c", "-n", "n", "--from-literal=a=b")
    assert kubectl.store.get("configmaps", "c", "n")["data"] == {"a": "b"}
    await kubectl("create", "deployment", "d", "--image=x:1", "--replicas=3", "--port=80", "--", "run", "it")
    spec = kubectl.store.get("deployments", "d")["spec"]
    assert (spec["replicas"], spec["selector"]) == (3, {"matchLabels": {"app": "d"}})
    (container,) = spec["template"]["spec"]["containers"]
    assert (container["image"], container["command"]) == ("x:1", ["run", "it"])
    assert container["ports"] == [{"containerPort": 80, "protocol": "TCP"}]
    await kubectl("create", "pdb", "b", "--selector=app=d", "--min-available=50%")
    await kubectl("create", "pdb", "c", "--selector=app=d", "--max-unavailable=1")
    assert kubectl.store.get("poddisruptionbudgets", "b")["spec"] == {
        "minAvailable": "50%",
        "selector": {"matchLabels": {"app": "d"}},
    }
    assert kubectl.store.get("poddisruptionbudgets", "c")["spec"]["maxUnavailable"] == 1


async def test_cordon_drain_uncordon(kubectl: Kubectl) -> None:
    await kubectl("cordon", "node1")
    assert kubectl.store.get("nodes", "node1")["spec"]["unschedulable"] is True
    assert "Ready,SchedulingDisabled" in await kubectl("get", "node", "node1")
    out = await kubectl("drain", "node1", "--timeout=20s")
    assert {"pod/one evicted", "pod/two evicted", "node/node1 drained"} <= set(out.splitlines())
    assert kubectl.store.list("pods") == []
    await kubectl("uncordon", "node1")
    assert "unschedulable" not in kubectl.store.get("nodes", "node1")["spec"]


async def test_a_budget_holds_up_a_drain(kubectl: Kubectl) -> None:
    add_budget(kubectl.store, disruptionsAllowed=1, currentHealthy=2, desiredHealthy=1, expectedPods=2)
    done = await kubectl.run("drain", "node1", "--timeout=2s")
    assert done.returncode == 1
    assert b"Cannot evict pod as it would violate the pod's disruption budget." in done.stderr
    assert len(kubectl.store.list("pods")) == 1


async def test_a_bare_pod_needs_force(kubectl: Kubectl) -> None:
    add_pod(kubectl.store, "bare")
    refused = await kubectl.run("drain", "node1", "--timeout=5s")
    assert b"declare no controller (use --force to override): default/bare" in refused.stderr
    assert "node/node1 drained" in await kubectl("drain", "node1", "--force", "--disable-eviction", "--timeout=20s")


async def test_delete(kubectl: Kubectl) -> None:
    assert 'pod "one" deleted' in await kubectl("delete", "pod", "one")
    assert kubectl.store.find("pods", "one") is None
    assert 'pod "two" force deleted' in await kubectl("delete", "pod", "two", "--force", "--grace-period=0")
    assert kubectl.store.find("pods", "two") is None
    await kubectl("delete", "deployment", "chat", "--cascade=foreground")
    assert kubectl.store.list("replicasets") == []


async def test_scale_and_rollout(kubectl: Kubectl) -> None:
    await kubectl("scale", "deployment", "chat", "--replicas=3")
    assert kubectl.store.get("deployments", "chat")["spec"]["replicas"] == 3
    await kubectl("rollout", "restart", "deployment", "chat")
    meta = kubectl.store.get("deployments", "chat")["spec"]["template"]["metadata"]
    assert "kubectl.kubernetes.io/restartedAt" in meta["annotations"]

    def progress(replicas: int) -> None:
        def change(deployment: dict[str, Any]) -> None:
            counts = dict.fromkeys(("replicas", "updatedReplicas", "readyReplicas", "availableReplicas"), replicas)
            deployment["status"] = counts | {"observedGeneration": deployment["metadata"]["generation"]}

        kubectl.store.mutate("deployments", "chat", "default", change, subresource="status")

    progress(1)
    command = [str(KUBECTL), "rollout", "status", "deployment", "chat", "--timeout=60s"]
    async with await anyio.open_process(command, env=kubectl.environment) as process:
        assert process.stdout is not None
        assert b"Waiting for deployment" in await process.stdout.receive()
        progress(3)
        out = b"".join([part async for part in process.stdout])
    assert out.splitlines()[-1] == b'deployment "chat" successfully rolled out'


async def test_label_annotate_patch(kubectl: Kubectl) -> None:
    await kubectl("label", "pod", "one", "x=y")
    await kubectl("annotate", "pod", "one", "a=b")
    await kubectl("patch", "deployment", "chat", "-p", '{"spec":{"replicas":5}}')
    await kubectl(
        "patch", "deployment", "chat", "--type=json", "-p", '[{"op":"remove","path":"/spec/strategy/rollingUpdate"}]'
    )
    meta = kubectl.store.get("pods", "one")["metadata"]
    assert (meta["labels"]["x"], meta["annotations"]["a"]) == ("y", "b")
    assert kubectl.store.get("deployments", "chat")["spec"]["replicas"] == 5
    await kubectl("label", "pod", "one", "x-")
    assert "x" not in kubectl.store.get("pods", "one")["metadata"]["labels"]


async def test_what_the_server_has_and_allows(kubectl: Kubectl) -> None:
    assert "poddisruptionbudgets" in await kubectl("api-resources")
    assert "v1.37.2" in await kubectl("version")
    assert "policy/v1" in await kubectl("api-versions")
    assert await kubectl("auth", "can-i", "create", "pods", "--subresource=eviction") == "yes\n"
    refused = await kubectl.run("--context", "weak", "auth", "can-i", "create", "pods", "--subresource=eviction")
    assert (refused.returncode, refused.stdout) == (1, b"no\n")
    assert "pods" in await kubectl("--context", "weak", "auth", "can-i", "--list")
    assert "kubernetes-admin" in await kubectl("auth", "whoami")
    forbidden = await kubectl.run("--context", "weak", "delete", "pod", "one")
    assert b'pods "one" is forbidden: User "weak" cannot delete resource "pods"' in forbidden.stderr
    waited = await kubectl("wait", "--for=condition=Ready", "pod/one", "--timeout=5s")
    assert waited == "pod/one condition met\n"
