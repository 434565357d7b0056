"""The Roles of a drill: exactly the rights that it needs, as YAML that `kubectl apply` takes, each with its reason.

Rules name their objects (`resourceNames`) where the API honours that: never for list, watch and create.
https://kubernetes.io/docs/reference/access-authn-authz/rbac/#referring-to-resources
"""

from __future__ import annotations

import textwrap
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import msgspec
import yaml

from chaosrunner.cluster.access import Access
from chaosrunner.errors import UserError
from chaosrunner.plan.access import CONTROLLERS, Right, kind_of, needs
from chaosrunner.playbook import BoundDrill

API_GROUP = "rbac.authorization.k8s.io"
WIDTH = 110


@dataclass(frozen=True, kw_only=True)
class Subject:
    """Who gets the rights."""

    kind: str
    """ServiceAccount, User or Group."""
    name: str
    namespace: str | None = None
    """Of a ServiceAccount."""

    def __str__(self) -> str:
        return f"{self.kind} {self.namespace}/{self.name}" if self.namespace else f"{self.kind} {self.name}"

    def reference(self) -> dict[str, str]:
        if self.namespace is not None:
            return {"kind": self.kind, "name": self.name, "namespace": self.namespace}
        return {"kind": self.kind, "name": self.name, "apiGroup": API_GROUP}


def read_subject(text: str, namespace: str) -> Subject:
    """`NAME`, `NAMESPACE/NAME` (ServiceAccounts; `namespace` where none is given), `user:NAME`, `group:NAME`.

    Raises UserError for what is neither.
    """
    kind, colon, name = text.partition(":")
    if colon and kind in ("user", "group") and name:
        return Subject(kind=kind.capitalize(), name=name)
    where, slash, account = text.rpartition("/")
    if not account or (slash and not where) or ":" in text or "/" in where:
        raise UserError(f"{text} names nobody: write NAME or NAMESPACE/NAME of a ServiceAccount, user:NAME, group:NAME")
    return Subject(kind="ServiceAccount", name=account, namespace=where or namespace)


@dataclass(frozen=True, kw_only=True)
class Rule:
    """One rule of a Role. Its rights have the same reason, and are all needed or all optional."""

    group: str
    resources: tuple[str, ...]
    """With their subresources: `pods/eviction`."""
    names: tuple[str, ...]
    """The only objects; empty: all."""
    verbs: tuple[str, ...]
    purpose: str
    without: str | None

    def manifest(self) -> dict[str, list[str]]:
        rule = {"apiGroups": [self.group], "resources": list(self.resources)}
        if self.names:
            rule["resourceNames"] = list(self.names)
        return rule | {"verbs": list(self.verbs)}

    @property
    def reason(self) -> str:
        can = f"Optional: without it {self.without}." if self.without else "Required: without it the drill is refused."
        return f"{self.purpose[0].upper()}{self.purpose[1:]}. {can}"


@dataclass(frozen=True, kw_only=True)
class Role:
    """A Role, or a ClusterRole where it has no namespace, with its binding."""

    name: str
    namespace: str | None
    rules: tuple[Rule, ...]

    @property
    def kind(self) -> str:
        return "Role" if self.namespace is not None else "ClusterRole"


@dataclass(frozen=True, kw_only=True)
class Grant:
    """All that somebody needs to run a drill."""

    drill: str
    playbook: str
    subject: Subject
    roles: tuple[Role, ...]
    unknown: str | None = None
    """The drill's controller where it cannot be told without a cluster what stands between it and the Pods."""

    def manifests(self) -> list[dict[str, Any]]:
        """Roles and bindings as objects, each Role before its binding."""
        return [made for role in self.roles for made in (self._role(role), self._binding(role))]

    def text(self) -> str:
        """The same as YAML, with the reason of each rule beside it."""
        documents = [self._head()]
        for role in self.roles:
            documents += [self._document(role), as_yaml(self._binding(role))]
        return "---\n".join(documents)

    def _head(self) -> str:
        lines = [
            f"Rights of drill {self.drill} (playbook {self.playbook}) for {self.subject}.",
            "Any authenticated user may ask about its own rights and read the server's version and kinds "
            "(system:basic-user, system:public-info-viewer, system:discovery): that is needed too, and not listed.",
        ]
        if self.unknown:
            lines.append(
                f"What stands between {self.unknown} and its Pods is known to the cluster only: "
                "`chaosrunner plan` names each kind that it may not get. Without these rights the drill runs too."
            )
        return "".join(comment(line) for line in lines)

    def _document(self, role: Role) -> str:
        body = as_yaml({**self._role(role), "rules": []}).removesuffix("rules: []\n") + "rules:\n"
        for rule in role.rules:
            body += textwrap.indent(comment(rule.reason) + as_yaml([rule.manifest()]), "  ")
        if all(rule.without for rule in role.rules):
            body = comment("All of this is optional: the drill runs without it, and sees less.") + body
        return body

    def _role(self, role: Role) -> dict[str, Any]:
        return self._object(role, role.kind) | {"rules": [rule.manifest() for rule in role.rules]}

    def _binding(self, role: Role) -> dict[str, Any]:
        return self._object(role, f"{role.kind}Binding") | {
            "roleRef": {"apiGroup": API_GROUP, "kind": role.kind, "name": role.name},
            "subjects": [self.subject.reference()],
        }

    def _object(self, role: Role, kind: str) -> dict[str, Any]:
        place = {} if role.namespace is None else {"namespace": role.namespace}
        metadata = {"name": role.name, **place, "labels": labels(self.drill)}
        return {"apiVersion": f"{API_GROUP}/v1", "kind": kind, "metadata": metadata}


def labels(drill: str) -> dict[str, str]:
    """Labels of everything that is made for a drill. A label's value has 63 characters at most."""
    return {"app.kubernetes.io/name": "chaosrunner", "chaosrunner.dev/drill": drill[:63].rstrip("-_.")}


def grant(bound: BoundDrill, namespace: str, subject: Subject) -> Grant:
    """The rights of a drill on its namespace, found out without a cluster."""
    drill = bound.drill
    name = f"chaosrunner:{drill.metadata.name}"
    by_place: dict[str | None, list[tuple[Access, Right]]] = {namespace: []}
    for access, right in needs(drill, bound.playbook, namespace).items():
        by_place.setdefault(access.namespace, []).append((access, right))
    # Outside of the workload's namespace it is named after it: the same drill may be bound to several.
    roles = [
        Role(name=name if place == namespace else f"{name}:{namespace}", namespace=place, rules=tuple(_rules(rights)))
        for place, rights in sorted(by_place.items(), key=lambda item: (item[0] is None, item[0] != namespace))
    ]
    controller = drill.workload.controller
    known = controller is not None and kind_of(controller) in CONTROLLERS
    return Grant(
        drill=drill.metadata.name,
        playbook=bound.playbook.metadata.name,
        subject=subject,
        roles=tuple(roles),
        unknown=None if known else controller or "the controller that the drill does not name",
    )


def _rules(rights: Iterable[tuple[Access, Right]]) -> list[Rule]:
    """Verbs on the same objects for the same reason make one rule, and so do resources with the same verbs."""
    names: dict[tuple[Access, Right], list[str]] = {}
    for access, right in rights:
        alike = replace(access, name=""), msgspec.structs.replace(right, right="")
        names.setdefault(alike, []).extend([access.name] if access.name else [])
    verbs: dict[tuple[Access, Right, tuple[str, ...]], list[str]] = {}
    for (access, right), named in names.items():
        verbs.setdefault((replace(access, verb=""), right, tuple(named)), []).append(access.verb)
    resources: dict[tuple[str, Right, tuple[str, ...], tuple[str, ...]], list[str]] = {}
    for (access, right, only), asked in verbs.items():
        resource = f"{access.resource}/{access.subresource}" if access.subresource else access.resource
        resources.setdefault((access.group, right, only, tuple(asked)), []).append(resource)
    return [
        Rule(group=group, resources=tuple(found), names=only, verbs=asked, purpose=right.purpose, without=right.without)
        for (group, right, only, asked), found in resources.items()
    ]


class _Dumper(yaml.SafeDumper):
    """Lists of plain words on one line, mappings on lines of their own; text of several lines as it is."""


def _list(dumper: yaml.SafeDumper, items: list[Any]) -> yaml.Node:
    flat = all(isinstance(item, str) for item in items)
    return dumper.represent_sequence("tag:yaml.org,2002:seq", items, flow_style=flat)


def _text(dumper: yaml.SafeDumper, text: str) -> yaml.Node:
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style="|" if "\n" in text else None if text else '"')


_Dumper.add_representer(list, _list)
_Dumper.add_representer(str, _text)


def as_yaml(value: Mapping[str, Any] | list[Any]) -> str:
    return str(yaml.dump(value, Dumper=_Dumper, sort_keys=False, width=1000, allow_unicode=True))


def comment(text: str) -> str:
    return "".join(f"# {line}\n" for line in textwrap.wrap(text, WIDTH, break_on_hyphens=False))
