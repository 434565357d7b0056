"""Role-based access control over the Roles and bindings that the store holds.

https://kubernetes.io/docs/reference/access-authn-authz/rbac/
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from chaosrunner.lab.embedded.store import Store
from chaosrunner.lab.objects import Json

GROUP = "rbac.authorization.k8s.io"


@dataclass(frozen=True)
class Request:
    """What is asked for. `resource` with its subresource (`pods/eviction`); `namespace` None: the whole cluster."""

    verb: str
    group: str
    resource: str
    namespace: str | None = None
    name: str = ""


def allows(store: Store, user: str, groups: tuple[str, ...], asked: Request) -> bool:
    """Whether some Role or ClusterRole that is bound to the user allows it."""
    return any(_covers(rule, asked) for rule in rules(store, user, groups, asked.namespace))


def rules(store: Store, user: str, groups: tuple[str, ...], namespace: str | None) -> Iterator[Json]:
    """The rules that hold for a user in a namespace (None: in the whole cluster), as the Roles have them."""
    bindings = store.list("clusterrolebindings")
    if namespace is not None:
        bindings = bindings + store.list("rolebindings", namespace)
    for binding in bindings:
        if any(_is(subject, user, groups) for subject in binding.get("subjects") or ()):
            reference = binding["roleRef"]
            where = binding["metadata"].get("namespace")
            kind = "clusterroles" if reference["kind"] == "ClusterRole" else "roles"
            role = store.find(kind, reference["name"], where if kind == "roles" else None)
            yield from (role or {}).get("rules") or ()


def _is(subject: Json, user: str, groups: tuple[str, ...]) -> bool:
    match subject["kind"]:
        case "ServiceAccount":
            return user == account_name(subject.get("namespace", ""), subject["name"])
        case "Group":
            return subject["name"] in groups
        case _:
            return bool(subject["name"] == user)


def _covers(rule: Json, asked: Request) -> bool:
    _, _, sub = asked.resource.partition("/")
    resources = {"*", asked.resource} | ({f"*/{sub}"} if sub else set())
    names = rule.get("resourceNames")
    return (
        not {"*", asked.verb}.isdisjoint(rule.get("verbs") or ())
        and not {"*", asked.group}.isdisjoint(rule.get("apiGroups") or ())
        and not resources.isdisjoint(rule.get("resources") or ())
        and (not names or asked.name in names)
    )


def account_name(namespace: str, name: str) -> str:
    """The user name of a ServiceAccount."""
    return f"system:serviceaccount:{namespace}:{name}"


def account_groups(namespace: str) -> tuple[str, ...]:
    """The groups of every ServiceAccount of a namespace."""
    return ("system:serviceaccounts", f"system:serviceaccounts:{namespace}", "system:authenticated")
