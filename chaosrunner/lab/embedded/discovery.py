"""What the server says about itself: versions, groups, resources, and as much OpenAPI as kubectl asks for."""

from __future__ import annotations

from itertools import groupby

from chaosrunner.lab.embedded.resources import READ_WRITE, RESOURCES, Resource
from chaosrunner.lab.objects import Json

VERSION: Json = {
    "major": "1",
    "minor": "37",
    "emulationMajor": "1",
    "emulationMinor": "37",
    "minCompatibilityMajor": "1",
    "minCompatibilityMinor": "36",
    "gitVersion": "v1.37.2",
    "gitCommit": "$Format:%H$",
    "gitTreeState": "",
    "buildDate": "1970-01-01T00:00:00Z",
    "goVersion": "go1.26.8",
    "compiler": "gc",
    "platform": "linux/amd64",
}
AGGREGATED = "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList"

_SUBRESOURCES: dict[str, tuple[str, str, str, tuple[str, ...]]] = {
    "binding": ("", "v1", "Binding", ("create",)),
    "eviction": ("policy", "v1", "Eviction", ("create",)),
    "scale": ("autoscaling", "v1", "Scale", READ_WRITE),
    "token": ("authentication.k8s.io", "v1", "TokenRequest", ("create",)),
}
"""Group, version, kind and verbs of subresources that have a kind of their own."""


def _groups() -> list[tuple[str, list[Resource]]]:
    return [(group, list(entries)) for group, entries in groupby(RESOURCES.values(), lambda entry: entry.group)]


def _subresource(resource: Resource, name: str) -> tuple[str, str, str, tuple[str, ...]]:
    verbs = ("get",) if name == "log" else READ_WRITE
    return _SUBRESOURCES.get(name, ("", "", resource.kind, verbs))


def versions(address: str) -> Json:
    """/api"""
    servers = [{"clientCIDR": "0.0.0.0/0", "serverAddress": address}]
    return {"kind": "APIVersions", "versions": ["v1"], "serverAddressByClientCIDRs": servers}


def groups() -> Json:
    """/apis"""
    listed = []
    for name, entries in _groups():
        if name:
            version = {"groupVersion": entries[0].api_version, "version": entries[0].version}
            listed.append({"name": name, "versions": [version], "preferredVersion": version})
    return {"kind": "APIGroupList", "apiVersion": "v1", "groups": listed}


def group(name: str) -> Json | None:
    """/apis/GROUP; None if there is no such group."""
    found = next((entry for entry in groups()["groups"] if entry["name"] == name), None)
    return {"kind": "APIGroup", "apiVersion": "v1"} | found if found else None


def knows(path: str) -> bool:
    """Whether a path lies below a group that there is, so that only its rest is unknown."""
    match path.strip("/").split("/"):
        case ["api", _, *_]:
            return True
        case ["apis", name, _, *_]:
            return group(name) is not None
    return False


def resources(group: str, version: str) -> Json | None:
    """/api/v1 and /apis/GROUP/VERSION; None if there is no such group or version."""
    entries = [entry for entry in RESOURCES.values() if (entry.group, entry.version) == (group, version)]
    if not entries:
        return None
    listed: list[Json] = []
    for entry in entries:
        shown: Json = {
            "name": entry.plural,
            "singularName": entry.singular,
            "namespaced": entry.namespaced,
            "kind": entry.kind,
            "verbs": list(entry.verbs),
        }
        if entry.short:
            shown["shortNames"] = list(entry.short)
        if entry.categories:
            shown["categories"] = list(entry.categories)
        listed.append(shown)
        for name in entry.subresources:
            of_group, of_version, kind, verbs = _subresource(entry, name)
            below: Json = {"name": f"{entry.plural}/{name}", "singularName": "", "namespaced": entry.namespaced}
            if of_group:
                below |= {"group": of_group, "version": of_version}
            listed.append(below | {"kind": kind, "verbs": list(verbs)})
    answer: Json = {"kind": "APIResourceList"}
    if group:
        answer["apiVersion"] = "v1"
    return answer | {"groupVersion": entries[0].api_version, "resources": listed}


def aggregated(*, core: bool) -> Json:
    """/api (core) and /apis (all other groups) for clients that accept the aggregated form."""
    items = []
    for name, entries in _groups():
        if (name == "") is core:
            listed = [_aggregated_resource(entry) for entry in entries if entry.verbs]
            version = {"version": entries[0].version, "resources": listed, "freshness": "Current"}
            items.append({"metadata": {"name": name} if name else {}, "versions": [version]})
    return {"kind": "APIGroupDiscoveryList", "apiVersion": "apidiscovery.k8s.io/v2", "metadata": {}, "items": items}


def _aggregated_resource(entry: Resource) -> Json:
    shown: Json = {
        "resource": entry.plural,
        "responseKind": {"group": "", "version": "", "kind": entry.kind},
        "scope": "Namespaced" if entry.namespaced else "Cluster",
        "singularResource": entry.singular,
        "verbs": list(entry.verbs),
    }
    if entry.short:
        shown["shortNames"] = list(entry.short)
    if entry.categories:
        shown["categories"] = list(entry.categories)
    below = []
    for name in entry.subresources:
        group, version, kind, verbs = _subresource(entry, name)
        # The real server fills group and version only where they differ from the parent's.
        response = {"group": group, "version": version if group else "", "kind": kind}
        below.append({"subresource": name, "responseKind": response, "verbs": list(verbs)})
    if below:
        shown["subresources"] = below
    return shown


def openapi_index() -> Json:
    """/openapi/v3: where each group's document is."""
    paths = [_prefix(entries[0]) for _, entries in _groups()]
    return {"paths": {path: {"serverRelativeURL": f"/openapi/v3/{path}"} for path in paths}}


def openapi(path: str) -> Json | None:
    """/openapi/v3/PATH without schemas: it tells kubectl only that the server checks fields itself.

    kubectl then asks for no schemas, and patches built-in kinds by what it has compiled in.
    """
    entries = [entry for entry in RESOURCES.values() if _prefix(entry) == path]
    if not entries:
        return None
    paths = {}
    for entry in entries:
        scope = "namespaces/{namespace}/" if entry.namespaced else ""
        kind = {"group": entry.group, "version": entry.version, "kind": entry.kind}
        validation = {"name": "fieldValidation", "in": "query", "schema": {"type": "string"}}
        patch = {"parameters": [validation], "x-kubernetes-group-version-kind": kind, "responses": {}}
        paths[f"/{path}/{scope}{entry.plural}/{{name}}"] = {"patch": patch}
    info = {"title": "Kubernetes", "version": VERSION["gitVersion"]}
    return {"openapi": "3.0.0", "info": info, "paths": paths, "components": {"schemas": {}}}


def _prefix(entry: Resource) -> str:
    return f"apis/{entry.api_version}" if entry.group else f"api/{entry.version}"
