"""A drill as a ServiceAccount with exactly the Roles that `plan --rbac` prints, or with one rule less, on any lab."""

from __future__ import annotations

import copy
import json
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from chaosrunner.cluster import Cluster
from chaosrunner.cluster.access import Access
from chaosrunner.cluster.resources import Resource
from chaosrunner.plan.access import needs
from chaosrunner.plan.rbac import API_GROUP, Grant, Rule, grant, read_subject
from chaosrunner.playbook import BoundDrill

Object = dict[str, Any]

ACCOUNT = "runner"
ACCOUNTS = Resource("", "v1", "serviceaccounts", "ServiceAccount")
RBAC = {
    kind: Resource(API_GROUP, "v1", f"{kind.lower()}s", kind, namespaced=not kind.startswith("Cluster"))
    for kind in ("Role", "RoleBinding", "ClusterRole", "ClusterRoleBinding")
}

EVERYBODY = {("create", "selfsubjectaccessreviews")}
"""What needs no Role, see `chaosrunner.plan.access`."""


def granted(bound: BoundDrill, namespace: str) -> Grant:
    return grant(bound, namespace, read_subject(ACCOUNT, namespace))


@dataclass(frozen=True)
class Missing:
    """A rule that is taken away: its Role's and its own place."""

    role: int
    rule: int
    name: str

    def of(self, grant: Grant) -> Rule:
        return grant.roles[self.role].rules[self.rule]

    def rights(self, grant: Grant) -> list[str]:
        """As a plan names them."""
        rule, where = self.of(grant), grant.roles[self.role].namespace
        found = []
        for resource in rule.resources:
            plural, _, sub = resource.partition("/")
            found += [
                str(Access(verb, plural, where, rule.group, sub, name))
                for verb in rule.verbs
                for name in rule.names or ("",)
            ]
        return found


def each_rule(bound: BoundDrill, namespace: str) -> list[Missing]:
    made = granted(bound, namespace)
    return [
        Missing(i, j, f"{role.namespace or 'cluster'}-{'+'.join(rule.verbs)}-{'+'.join(rule.resources)}")
        for i, role in enumerate(made.roles)
        for j, rule in enumerate(role.rules)
    ]


def manifests(grant: Grant, missing: Missing | None = None) -> list[Object]:
    """The printed objects, without one rule."""
    made = [obj for obj in yaml.safe_load_all(grant.text()) if obj]
    if missing is not None:
        made = copy.deepcopy(made)
        del made[2 * missing.role]["rules"][missing.rule]
    return made


@asynccontextmanager
async def applied(cluster: Cluster, objects: Iterable[Object]) -> AsyncIterator[None]:
    """The objects are there for the length of the block. `cluster` is an administrator's."""
    made = []
    try:
        for obj in objects:
            resource, meta = RBAC[obj["kind"]], obj["metadata"]
            answer = await cluster.create(resource, obj, meta.get("namespace"))
            assert answer.ok, answer.message
            made.append((resource, meta))
        yield
    finally:
        for resource, meta in made:
            await cluster.delete(resource, meta["name"], meta.get("namespace"))


async def account(cluster: Cluster, namespace: str, kubeconfig: str, folder: Path) -> str:
    """Makes the ServiceAccount and gives it a token; the path of a kubeconfig that presents it."""
    answer = await cluster.create(ACCOUNTS, {"metadata": {"name": ACCOUNT}}, namespace)
    assert answer.ok or answer.status == 409, answer.message
    path = ACCOUNTS.path(namespace, ACCOUNT, "token")
    request = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": {"expirationSeconds": 3600}}
    token = (await cluster.request("POST", path, body=request)).body["status"]["token"]
    return presenting(token, kubeconfig, folder / f"kubeconfig-{ACCOUNT}")


def presenting(token: str, kubeconfig: str, path: Path) -> str:
    """Writes a kubeconfig that presents `token` in place of what `kubeconfig` presents; returns its path."""
    config = yaml.safe_load(Path(kubeconfig).read_text())
    config["users"] = [{"name": user["name"], "user": {"token": token}} for user in config["users"]]
    for entry in config["clusters"]:
        # The embedded lab takes a token in the path too, and the administrator's is there.
        server, slash, _ = entry["cluster"]["server"].partition("/token/")
        entry["cluster"]["server"] = f"{server}{slash}{token if slash else ''}"
    path.write_text(json.dumps(config))
    return str(path)


def asked(trail: Path, user: str) -> set[Access]:
    """What a user asked of the API server by its audit trail, in the words of `needs`."""
    found = set()
    for line in trail.read_text().splitlines():
        event = json.loads(line)
        if event["user"]["username"] != user or "objectRef" not in event:
            continue
        ref = event["objectRef"]
        access = Access(
            event["verb"],
            ref["resource"],
            ref.get("namespace"),
            ref.get("apiGroup", ""),
            ref.get("subresource", ""),
            ref.get("name", ""),
        )
        if (access.verb, access.resource) not in EVERYBODY:
            found.add(access)
    return found


def compare(bound: BoundDrill, namespace: str, calls: set[Access]) -> tuple[set[str], set[str]]:
    """Calls that no right of the drill covers, and rights that no call made use of."""
    rights = list(needs(bound.drill, bound.playbook, namespace))
    uncovered = {str(call) for call in calls if not any(right.covers(call) for right in rights)}
    # A right on the whole cluster wants a call about the whole cluster.
    idle = {
        str(right)
        for right in rights
        if not any(right.covers(call) and right.namespace == call.namespace for call in calls)
    }
    return uncovered, idle
