"""What each verb does to the store, and with which answer; no HTTP here."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from chaosrunner.lab.embedded import access, admission, errors, events_v1
from chaosrunner.lab.embedded.access import Account
from chaosrunner.lab.embedded.errors import ApiError
from chaosrunner.lab.embedded.eviction import evict
from chaosrunner.lab.embedded.patch import json_patch, merge_patch, strategic_merge
from chaosrunner.lab.embedded.requests import (
    ListOptions,
    Target,
    continue_token,
    decode,
    is_dry_run,
    number,
    read_object,
)
from chaosrunner.lab.embedded.resources import Resource
from chaosrunner.lab.embedded.selectors import Selector
from chaosrunner.lab.embedded.store import Store, clone
from chaosrunner.lab.objects import Json

Answer = tuple[int, Json]
"""HTTP status and body."""


def read(store: Store, target: Target) -> Json:
    """get, also of /status and /scale."""
    obj = store.get(target.resource.plural, target.name, target.namespace)
    return scale_of(obj) if target.subresource == "scale" else shown(target, obj)


def shown(target: Target, obj: Json) -> Json:
    """The object as the path's API group shows it."""
    return events_v1.to_v1(obj) if target.resource.group == "events.k8s.io" else obj


def list_objects(store: Store, target: Target, options: ListOptions) -> tuple[Json, list[Json]]:
    """The list's metadata and its objects. ApiError 410 for a version or token that is too old."""
    version, start = options.resume or (None, None)
    if version is None and options.version_match == "Exact":
        version = options.version
    plural = target.resource.plural
    objects = store.list(plural, target.namespace, labels=options.labels, fields=options.fields, at=version)
    meta: Json = {"resourceVersion": str(store.resource_version if version is None else version)}
    scoped = target.namespace is not None
    if start is not None:
        objects = [obj for obj in objects if _place(obj, scoped=scoped) > start]
    if options.limit and len(objects) > options.limit:
        last = objects[options.limit - 1]["metadata"]
        token = continue_token(int(meta["resourceVersion"]), last.get("namespace", ""), last["name"], scoped=scoped)
        meta["continue"] = token
        if not options.labels and not options.fields:
            meta["remainingItemCount"] = len(objects) - options.limit
        objects = objects[: options.limit]
    return meta, [shown(target, obj) for obj in objects]


def _place(obj: Json, *, scoped: bool) -> tuple[str, str]:
    """Where an object stands in a list; lists of one namespace leave it out, as their tokens do."""
    meta = obj["metadata"]
    return ("" if scoped else meta.get("namespace", ""), meta["name"])


def create(
    store: Store, target: Target, account: Account, body: bytes, content_type: str, query: Mapping[str, str]
) -> Answer:
    """create, also of the pseudo-objects (reviews, evictions, bindings)."""
    obj = read_object(body, content_type)
    plural, namespace = target.resource.plural, target.namespace
    if plural == "selfsubjectaccessreviews":
        return 201, access.review_access(store, account, obj)
    if plural == "selfsubjectrulesreviews":
        return 201, access.review_rules(store, account, obj)
    if plural == "selfsubjectreviews":
        return 201, access.review_self(account)
    if target.subresource == "eviction":
        _check_kind_of(obj, "Eviction", "policy/")
        dry_run = is_dry_run(query, "DeleteOptions", obj.get("deleteOptions"))
        return 201, evict(store, namespace or "", target.name, obj, dry_run=dry_run)
    if target.subresource == "binding":
        if obj.get("metadata", {}).get("name") != target.name:
            raise errors.bad_request("name in URL does not match name in Binding object")
        store.bind(namespace or "", target.name, obj.get("target", {}).get("name", ""))
        return 201, errors.success(code=201)
    _check_kind(target, obj)
    if target.resource.group == "events.k8s.io":
        obj = events_v1.from_v1(obj)
    if obj.get("metadata", {}).get("resourceVersion"):
        raise errors.failure(500, None, "resourceVersion should not be set on objects to be created")
    created = store.create(plural, obj, namespace=namespace, dry_run=is_dry_run(query, "CreateOptions"))
    return 201, shown(target, created)


def _check_kind(target: Target, obj: Json) -> None:
    resource = target.resource
    kind, version = obj.get("kind", resource.kind), obj.get("apiVersion", resource.api_version)
    if (kind, version) != (resource.kind, resource.api_version):
        message = f'{kind} in version "{version}" cannot be handled as a {resource.kind}'
        raise errors.bad_request(f"{message}: the kind or version in the body is not that of the URL")
    _check_place(target, obj, named=False)


def _check_kind_of(obj: Json, kind: str, group: str) -> None:
    """ApiError 400 unless the body of a subresource is of its kind, or of none."""
    if obj.get("kind", kind) != kind or not obj.get("apiVersion", group).startswith(group):
        raise errors.bad_request(
            f'{obj.get("kind")} in version "{obj.get("apiVersion")}" cannot be handled as a {kind}: it is none'
        )


def _check_place(target: Target, obj: Json, *, named: bool = True) -> None:
    """ApiError 400 if the object says that it is another one than the URL does; `named`: it must say its name."""
    meta = obj.get("metadata") or {}
    name, namespace = meta.get("name"), meta.get("namespace")
    if named and not name:
        raise errors.bad_request(
            f"the name of the object ({target.name} based on URL) was undeterminable: name must be provided"
        )
    if named and name != target.name:
        raise errors.bad_request(f"the name of the object ({name}) does not match the name on the URL ({target.name})")
    if namespace and target.resource.namespaced and target.namespace and namespace != target.namespace:
        raise errors.bad_request(
            "the namespace of the provided object does not match the namespace sent on the request"
        )


def replace(
    store: Store, target: Target, body: bytes, content_type: str, query: Mapping[str, str], manager: str
) -> Answer:
    """update (PUT), also of /status and /scale. `manager`: who writes."""
    obj = read_object(body, content_type)
    dry_run = is_dry_run(query, "UpdateOptions")
    if target.subresource == "scale":
        _check_kind_of(obj, "Scale", "autoscaling/")
        return 200, _rescale(store, target, obj, dry_run, manager)
    _check_kind(target, obj)
    _check_place(target, obj)
    version = obj["metadata"].get("resourceVersion")
    if version and not str(version).isdigit():
        raise errors.failure(500, None, f'strconv.ParseUint: parsing "{version}": invalid syntax')
    plural = target.resource.plural
    if target.resource.put_creates and store.find(plural, target.name, target.namespace) is None:
        return 201, store.create(plural, obj, namespace=target.namespace, dry_run=dry_run)
    return 200, _write(store, target, obj, dry_run, manager)


def _write(store: Store, target: Target, obj: Json, dry_run: bool, manager: str) -> Json:
    if target.resource.group == "events.k8s.io":
        obj = events_v1.from_v1(obj)
    meta = obj["metadata"] = dict(obj.get("metadata") or {})
    meta["name"] = target.name
    if target.namespace:
        meta["namespace"] = target.namespace
    subresource = target.subresource or None
    if subresource == "ephemeralcontainers":
        admission.check_injected(target.resource, obj)
    written = store.update(target.resource.plural, obj, subresource=subresource, dry_run=dry_run, manager=manager)
    return shown(target, written)


def patch(
    store: Store, target: Target, body: bytes, content_type: str, query: Mapping[str, str], manager: str
) -> Answer:
    """patch in its four forms, also of /status and /scale; server-side apply creates what is missing. `manager`: who
    writes."""
    change = _patch_of(target, body, content_type, query)
    dry_run = is_dry_run(query, "PatchOptions")
    try:
        current = read(store, target)
    except ApiError as error:
        if error.status != 404 or content_type != "application/apply-patch+yaml" or target.subresource:
            raise
        applied = change({"metadata": {"name": target.name}})
        created = store.create(target.resource.plural, applied, namespace=target.namespace, dry_run=dry_run)
        return 201, shown(target, created)
    patched = change(current)
    if not isinstance(patched, dict) or not isinstance(patched.get("metadata"), dict):
        raise errors.rejected_patch()
    try:
        return 200, _write_patched(store, target, current, patched, dry_run, manager)
    except errors.Unreadable as error:
        why = f"Invalid value: {error}"
        raise errors.invalid(Resource("", ""), "", [("FieldValueInvalid", "patch", why)]) from None


def _write_patched(store: Store, target: Target, current: Json, patched: Json, dry_run: bool, manager: str) -> Json:
    if target.subresource == "scale":
        return _rescale(store, target, patched, dry_run, manager)
    _check_place(target, patched)
    before, after = current["metadata"]["uid"], patched["metadata"].get("uid")
    if after not in (None, "", before):
        why = f'Invalid value: "{after}": field is immutable'
        raise errors.invalid(target.resource, target.name, [("FieldValueInvalid", "metadata.uid", why)])
    return _write(store, target, clone(patched), dry_run, manager)


def _patch_of(target: Target, body: bytes, content_type: str, query: Mapping[str, str]) -> Any:
    match content_type:
        case "application/json-patch+json":
            operations = _decode_patch(body)
            return lambda current: json_patch(current, operations)
        case "application/merge-patch+json":
            document = _document(_decode_patch(body))
            return lambda current: merge_patch(current, document)
        case "application/strategic-merge-patch+json":
            document = _document(_decode_patch(body))
        case "application/apply-patch+yaml":
            if not query.get("fieldManager"):
                why = "Required value: is required for apply patch"
                raise errors.invalid_options("PatchOptions", "FieldValueRequired", "fieldManager", why)
            document = _document(decode(body, as_yaml=True))
            if not (document.get("kind") and document.get("apiVersion")):
                raise errors.bad_request("invalid object type: /, Kind=")
            document.get("metadata", {}).pop("managedFields", None)
        case _:
            raise errors.unsupported_patch_type()
    service = target.resource.plural == "services"
    return lambda current: strategic_merge(current, document, service=service)


def _decode_patch(body: bytes) -> Any:
    try:
        return decode(body)
    except ApiError:
        raise errors.bad_request("invalid JSON patch") from None


def _document(patch: Any) -> Json:
    if not isinstance(patch, dict):
        raise errors.bad_request("error decoding patch: the patch is not an object")
    return patch


def delete(store: Store, target: Target, body: bytes, content_type: str, query: Mapping[str, str]) -> Answer:
    """delete one object: answers with it where it stays for a while, or where its kind is always shown."""
    options = _delete_options(body, content_type, query)
    plural = target.resource.plural
    before = store.get(plural, target.name, target.namespace)
    preconditions = options.get("preconditions") or {}
    dry_run = is_dry_run(query, "DeleteOptions", options)
    last = store.delete(
        plural,
        target.name,
        target.namespace,
        uid=preconditions.get("uid"),
        resource_version=preconditions.get("resourceVersion"),
        grace=options.get("gracePeriodSeconds"),
        propagation=options.get("propagationPolicy"),
        dry_run=dry_run,
    )
    uid = before["metadata"]["uid"]
    present = store.find(plural, target.name, target.namespace)
    stays = not dry_run and present is not None and present["metadata"]["uid"] == uid
    if target.resource.returned or stays:
        return 200, shown(target, last)
    return 200, errors.success(target.resource, target.name, uid)


def delete_collection(
    store: Store, target: Target, body: bytes, content_type: str, query: Mapping[str, str]
) -> tuple[Json, list[Json]]:
    """delete everything that a list with the same selectors shows; answers with that list."""
    options = _delete_options(body, content_type, query)
    meta, objects = list_objects(store, target, ListOptions.parse(target.resource, query))
    for obj in objects:
        name, namespace = obj["metadata"]["name"], obj["metadata"].get("namespace")
        if store.find(target.resource.plural, name, namespace) is not None:
            store.delete(
                target.resource.plural,
                name,
                namespace,
                grace=options.get("gracePeriodSeconds"),
                propagation=options.get("propagationPolicy"),
                dry_run=is_dry_run(query, "DeleteOptions", options),
            )
    return meta, objects


def _delete_options(body: bytes, content_type: str, query: Mapping[str, str]) -> Json:
    options = read_object(body, content_type) if body else {}
    if options.get("kind", "DeleteOptions") != "DeleteOptions":
        raise errors.bad_request(f'no kind "{options["kind"]}" is registered for the options of a delete')
    if query.get("gracePeriodSeconds"):
        options["gracePeriodSeconds"] = number(query, "gracePeriodSeconds")
    if "propagationPolicy" in query:
        options["propagationPolicy"] = query["propagationPolicy"]
    policy, orphan = options.get("propagationPolicy"), options.get("orphanDependents")
    if policy is not None and orphan is not None:
        why = f'Invalid value: "{policy}": orphanDependents and deletionPropagation cannot be both set'
        raise errors.invalid_options("DeleteOptions", "FieldValueInvalid", "propagationPolicy", why)
    if policy not in (None, *_POLICIES):
        supported = ", ".join(f'"{name}"' for name in (*_POLICIES, "nil"))
        why = f'Unsupported value: "{policy}": supported values: {supported}'
        raise errors.invalid_options("DeleteOptions", "FieldValueNotSupported", "propagationPolicy", why)
    return options


_POLICIES = ("Foreground", "Background", "Orphan")


def scale_of(obj: Json) -> Json:
    """The autoscaling/v1 Scale of a Deployment or ReplicaSet."""
    meta = obj["metadata"]
    kept = ("name", "namespace", "uid", "resourceVersion", "creationTimestamp")
    return {
        "kind": "Scale",
        "apiVersion": "autoscaling/v1",
        "metadata": {key: meta[key] for key in kept},
        # Go leaves out a 0 here.
        "spec": {"replicas": obj["spec"]["replicas"]} if obj["spec"]["replicas"] else {},
        "status": {
            "replicas": obj["status"].get("replicas", 0),
            "selector": str(Selector.of(obj["spec"]["selector"])),
        },
    }


def _rescale(store: Store, target: Target, scale: Json, dry_run: bool, manager: str) -> Json:
    replicas = (scale.get("spec") or {}).get("replicas", 0)
    if not isinstance(replicas, int):
        raise errors.Unreadable(target.resource, "spec.replicas is no number")
    if replicas < 0:
        why = f"Invalid value: {replicas}: must be greater than or equal to 0"
        raise errors.invalid(
            Resource("scales", "Scale", "autoscaling"), target.name, [("FieldValueInvalid", "spec.replicas", why)]
        )
    obj = clone(store.get(target.resource.plural, target.name, target.namespace))
    if version := scale.get("metadata", {}).get("resourceVersion"):
        obj["metadata"]["resourceVersion"] = version
    obj["spec"]["replicas"] = replicas
    return scale_of(store.update(target.resource.plural, obj, dry_run=dry_run, manager=manager))
