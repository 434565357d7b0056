from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from chaosrunner.cluster import connect
from chaosrunner.cluster.access import Access, review
from chaosrunner.cluster.resources import ENDPOINT_SLICES, NODES, PODS
from chaosrunner.cluster.roots import Roots
from chaosrunner.timeline import rows
from chaosrunner.timeline.clock import Clock

from .server import always, kubeconfig, ok, pod, serving, status
from .test_eviction import recorded

pytestmark = pytest.mark.anyio


def test_paths() -> None:
    assert PODS.path("demo", "a", "eviction") == "/api/v1/namespaces/demo/pods/a/eviction"
    assert PODS.path() == "/api/v1/pods"
    assert NODES.path("ignored", "n1") == "/api/v1/nodes/n1"
    assert ENDPOINT_SLICES.path("demo") == "/apis/discovery.k8s.io/v1/namespaces/demo/endpointslices"


async def test_reviews_as_recorded(tmp_path: Path) -> None:
    denied, allowed = (recorded(label)["response"] for label in ("ssar-create-pods-eviction-denied", "ssar-allowed"))
    async with serving() as server:

        @server.on("POST", "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews")
        async def _(request: web.Request) -> web.StreamResponse:
            wanted = (await request.json())["spec"]["resourceAttributes"]
            if wanted["resource"] == "broken":
                return status(503, "ServiceUnavailable", "not now")
            return ok(allowed if wanted["verb"] == "create" else denied, 201)

        async with connect(kubeconfig(tmp_path, server.url), Clock()) as cluster:
            wanted = [
                Access("create", "pods", "demo", subresource="eviction"),
                Access("patch", "nodes"),
                Access("get", "broken", group="x.y"),
            ]
            found = await review(cluster, wanted)
    assert [permission.allowed for permission in found] == [True, False, None]
    assert [str(permission.access) for permission in found] == [
        "create pods/eviction in demo", "patch nodes", "get broken.x.y",
    ]  # fmt: skip
    assert "not now" in found[2].reason


def owned(name: str, uid: str, *owner: str) -> dict[str, Any]:
    """An object whose controller is (apiVersion, kind, name, uid)."""
    keys = ("apiVersion", "kind", "name", "uid")
    references = [{**dict(zip(keys, owner, strict=True)), "controller": True}] if owner else []
    return {"metadata": {"name": name, "namespace": "demo", "uid": uid, "ownerReferences": references}}


async def test_root_of_a_custom_controller(tmp_path: Path) -> None:
    async with serving() as server:
        group = "orchestration.aibrix.ai/v1alpha1"
        apps = "/apis/apps/v1/namespaces/demo"
        server.on("GET", f"{apps}/replicasets/r")(always(owned("r", "r1", "apps/v1", "Deployment", "d", "d1")))
        server.on("GET", f"{apps}/deployments/d")(always(owned("d", "d1", group, "StormService", "s", "s1")))
        server.on("GET", f"/apis/{group}")(
            always(
                {
                    "resources": [
                        {"name": "stormservices/status", "kind": "StormService", "namespaced": True},
                        {"name": "stormservices", "kind": "StormService", "namespaced": True},
                    ]
                }
            )
        )
        storms = f"/apis/{group}/namespaces/demo/stormservices/s"
        server.on("GET", storms)(always(owned("s", "s1")))
        async with connect(kubeconfig(tmp_path, server.url), Clock()) as cluster:
            roots = Roots(cluster)
            victim = owned("p", "p1", "apps/v1", "ReplicaSet", "r", "r1")
            assert roots.known(victim) is None
            root = await roots.resolve(victim)
            assert root == rows.Owner(kind="StormService", name="s", uid="s1")
            asked = len(server.requests)
            assert roots.known(victim) == await roots.resolve(victim) == root
            assert len(server.requests) == asked
            assert server.asked("GET", storms)
            assert await roots.resolve(pod("bare", "1")) is None


@pytest.mark.parametrize("answer", [status(403, "Forbidden", "no"), ok(owned("r", "another"))])
async def test_owner_that_cannot_be_read_is_the_root(tmp_path: Path, answer: web.Response) -> None:
    async with serving() as server:

        @server.on("GET", "/apis/apps/v1/namespaces/demo/replicasets/r")
        async def _(request: web.Request) -> web.StreamResponse:
            return answer

        async with connect(kubeconfig(tmp_path, server.url), Clock()) as cluster:
            root = await Roots(cluster).resolve(owned("p", "p1", "apps/v1", "ReplicaSet", "r", "r1"))
    assert root == rows.Owner(kind="ReplicaSet", name="r", uid="r1")


async def test_owners_in_a_circle(tmp_path: Path) -> None:
    async with serving() as server:
        path = "/apis/apps/v1/namespaces/demo/replicasets/r"
        server.on("GET", path)(always(owned("r", "r1", "apps/v1", "ReplicaSet", "r", "r1")))
        async with connect(kubeconfig(tmp_path, server.url), Clock()) as cluster:
            root = await Roots(cluster).resolve(owned("p", "p1", "apps/v1", "ReplicaSet", "r", "r1"))
    assert root == rows.Owner(kind="ReplicaSet", name="r", uid="r1")


@pytest.mark.parametrize("path", ["/apis/x.y/v1", "/apis/x.y/v1/namespaces/demo/things/t"])
async def test_a_root_that_cannot_be_read_now_is_looked_up_again(tmp_path: Path, path: str) -> None:
    """Discovery of an aggregated API fails while its server is away: nothing is remembered of that."""
    async with serving() as server:
        found = {
            "/apis/x.y/v1": {"resources": [{"name": "things", "kind": "Thing", "namespaced": True}]},
            "/apis/x.y/v1/namespaces/demo/things/t": owned("t", "t1", "x.y/v1", "Thing", "top", "top1"),
            "/apis/x.y/v1/namespaces/demo/things/top": owned("top", "top1"),
        }
        for known, body in found.items():
            server.on("GET", known)(always(body))
        away = True

        @server.on("GET", path)
        async def _(request: web.Request) -> web.StreamResponse:
            return status(503, "ServiceUnavailable", "not now") if away else ok(found[path])

        async with connect(kubeconfig(tmp_path, server.url), Clock()) as cluster:
            roots, victim = Roots(cluster), owned("p", "p1", "x.y/v1", "Thing", "t", "t1")
            assert (await roots.resolve(victim)) == rows.Owner(kind="Thing", name="t", uid="t1")
            assert roots.known(victim) is None
            away = False
            assert (await roots.resolve(victim)) == rows.Owner(kind="Thing", name="top", uid="top1")
