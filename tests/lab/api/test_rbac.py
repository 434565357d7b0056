"""Roles and bindings, and the tokens of ServiceAccounts, over HTTP."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import aiohttp
import pytest

from chaosrunner.lab.embedded.access import ADMIN, Access, Account
from chaosrunner.lab.embedded.api import serve
from chaosrunner.lab.embedded.store import Store

from .conftest import Client

pytestmark = pytest.mark.anyio

RBAC = "/apis/rbac.authorization.k8s.io/v1"
ROBOT = "system:serviceaccount:team:robot"


@asynccontextmanager
async def asking(access: Access | None = None) -> AsyncIterator[Client]:
    store = Store()
    store.create("namespaces", {"metadata": {"name": "team"}})
    access = access or Access({"admin": ADMIN, "dev": Account("dev", (), ("devs", "system:authenticated"))})
    async with serve(store, "127.0.0.1", 0, access=access) as server, aiohttp.ClientSession() as session:
        yield Client(server, session)


def rule(verbs: str, resources: str, *names: str, group: str = "") -> dict[str, Any]:
    made = {"apiGroups": [group], "resources": resources.split(), "verbs": verbs.split()}
    return made | ({"resourceNames": list(names)} if names else {})


async def bind(client: Client, subject: dict[str, str], *rules: dict[str, Any], role: str, binding: str) -> None:
    """`role` and `binding`: namespaces, or empty for the cluster."""
    reference = {"kind": "Role" if role else "ClusterRole", "name": "r:1"}
    for where, kind, spec in (
        (role, "Role", {"rules": list(rules)}),
        (binding, "RoleBinding", {"roleRef": reference, "subjects": [subject]}),
    ):
        path = f"{RBAC}/namespaces/{where}/{kind.lower()}s" if where else f"{RBAC}/cluster{kind.lower()}s"
        made = await client.call("POST", path, {"metadata": {"name": "r:1"}, **spec})
        assert made.status == 201, made.body


async def token(client: Client, seconds: int = 600) -> Any:
    await client.call("POST", "/api/v1/namespaces/team/serviceaccounts", {"metadata": {"name": "robot"}})
    path = "/api/v1/namespaces/team/serviceaccounts/robot/token"
    return await client.call("POST", path, {"spec": {"expirationSeconds": seconds}})


async def test_a_service_account_may_what_its_roles_say_and_a_review_says_the_same() -> None:
    async with asking() as client:
        issued = (await token(client)).body["status"]["token"]
        subject = {"kind": "ServiceAccount", "name": "robot", "namespace": "team"}
        await bind(client, subject, rule("list", "pods"), rule("get", "leases", "mine", group="coordination.k8s.io"),
                   role="team", binding="team")  # fmt: skip
        pods, leases = "/api/v1/namespaces/team/pods", "/apis/coordination.k8s.io/v1/namespaces/team/leases"
        for method, path, status in (
            ("GET", pods, 200),
            ("GET", f"{pods}/p", 403),
            ("DELETE", pods, 403),
            ("GET", "/api/v1/pods", 403),
            ("GET", "/api/v1/namespaces/default/pods", 403),
            ("GET", f"{leases}/mine", 404),
            ("GET", f"{leases}/other", 403),
            ("GET", leases, 403),
            ("GET", "/apis", 200),
        ):
            assert (await client.call(method, path, token=issued)).status == status, (method, path)
        denied = (await client.call("GET", "/api/v1/pods", token=issued)).body["message"]
        assert (
            denied
            == f'pods is forbidden: User "{ROBOT}" cannot list resource "pods" in API group "" at the cluster scope'
        )
        for name, allowed in (("mine", True), ("other", False), ("", False)):
            attributes = {"verb": "get", "group": "coordination.k8s.io", "resource": "leases", "namespace": "team"}
            attributes["name"] = name
            path = "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews"
            review = await client.call("POST", path, {"spec": {"resourceAttributes": attributes}}, token=issued)
            assert review.body["status"]["allowed"] is allowed


@pytest.mark.parametrize(
    ("role", "binding", "here", "everywhere"), [("team", "team", 200, 403), ("", "team", 200, 403), ("", "", 200, 200)]
)
@pytest.mark.parametrize("subject", [{"kind": "Group", "name": "devs"}, {"kind": "User", "name": "dev"}])
async def test_a_binding_says_where_a_role_holds(
    subject: dict[str, str], role: str, binding: str, here: int, everywhere: int
) -> None:
    async with asking() as client:
        assert (await client.call("GET", "/api/v1/namespaces/team/pods", token="dev")).status == 403
        await bind(client, subject, rule("*", "*"), role=role, binding=binding)
        assert (await client.call("GET", "/api/v1/namespaces/team/pods", token="dev")).status == here
        assert (await client.call("GET", "/api/v1/pods", token="dev")).status == everywhere


async def test_subresources_need_a_rule_of_their_own() -> None:
    async with asking() as client:
        await bind(client, {"kind": "User", "name": "dev"}, rule("create", "pods"), role="team", binding="team")
        evict = "/api/v1/namespaces/team/pods/p/eviction"
        assert (await client.call("POST", evict, {"metadata": {"name": "p"}}, token="dev")).status == 403
        update = rule("create", "pods/eviction")
        path = f"{RBAC}/namespaces/team/roles/r:1"
        kind = "application/merge-patch+json"
        assert (await client.call("PATCH", path, {"rules": [update]}, content_type=kind)).status == 200
        assert (await client.call("POST", evict, {"metadata": {"name": "p"}}, token="dev")).status == 404


async def test_tokens_live_ten_minutes_at_least_and_end(monkeypatch: pytest.MonkeyPatch) -> None:
    async with asking() as client:
        short = await token(client, 599)
        assert (short.status, short.body["reason"]) == (422, "Invalid")
        assert "may not specify a duration less than 10 minutes" in short.body["message"]
        issued = (await token(client)).body["status"]["token"]
        assert (await client.call("GET", "/apis", token=issued)).status == 200
        now = time.time()
        monkeypatch.setattr(time, "time", lambda: now + 601)
        assert (await client.call("GET", "/apis", token=issued)).status == 401


async def test_a_service_account_can_be_impersonated() -> None:
    async with asking() as client:
        subject = {"kind": "Group", "name": "system:serviceaccounts:team"}
        await bind(client, subject, rule("list", "pods"), role="team", binding="team")
        headers = {"Authorization": "Bearer admin", "Impersonate-User": ROBOT}
        for path, status in (("/api/v1/namespaces/team/pods", 200), ("/api/v1/pods", 403)):
            async with client.session.get(client.server.url + path, headers=headers) as answer:
                assert answer.status == status
