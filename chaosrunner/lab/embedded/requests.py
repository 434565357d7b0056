"""What a request asks for: its path taken apart, its query and body read."""

from __future__ import annotations

import base64
import binascii
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import msgspec
import yaml

from chaosrunner.lab.embedded import errors, protobuf
from chaosrunner.lab.embedded.resources import RESOURCES, Resource
from chaosrunner.lab.embedded.selectors import FieldSelector, Selector, parse_fields
from chaosrunner.lab.objects import Json


@dataclass(frozen=True)
class Target:
    """The resource that a path names. `namespace` is None for all namespaces and for cluster-wide kinds."""

    resource: Resource
    namespace: str | None
    name: str
    subresource: str

    @classmethod
    def parse(cls, path: str) -> Target | None:
        """None for a path that is no resource of this server."""
        match path.strip("/").split("/"):
            case ["api", version, *rest]:
                group = ""
            case ["apis", group, version, *rest]:
                pass
            case _:
                return None
        namespace = None
        if len(rest) >= 3 and rest[0] == "namespaces" and rest[2] != "status":
            namespace, rest = rest[1], rest[2:]
        resource = RESOURCES.get((group, rest[0])) if rest else None
        if resource is None or resource.version != version or len(rest) > 3:
            return None
        if bool(namespace) and not resource.namespaced:
            return None
        name, subresource = (*rest[1:], "", "")[:2]
        if subresource and subresource not in resource.subresources:
            return None
        return cls(resource, namespace, name, subresource)


@dataclass(frozen=True)
class ListOptions:
    """The query of a list or a watch."""

    labels: Selector | None
    fields: FieldSelector
    version: int | None
    version_match: str
    limit: int
    resume: tuple[int, tuple[str, str]] | None
    watch: bool
    bookmarks: bool
    initial_events: bool | None
    timeout: float | None

    @classmethod
    def parse(cls, resource: Resource, query: Mapping[str, str]) -> ListOptions:
        """ApiError 400 for what cannot be read, 422 for what does not fit together."""
        version, resume = _version(query), query.get("continue")
        _check_match(query)
        if resume and version:
            raise errors.bad_request("specifying resource version is not allowed when using continue")
        # What the server has in its memory (version 0) it lists whole.
        limit = 0 if version == 0 and not flag(query, "watch") else max(0, number(query, "limit") or 0)
        labels = query.get("labelSelector")
        return cls(
            labels=Selector.parse(labels) if labels else None,
            fields=parse_fields(resource.plural, query.get("fieldSelector", "")),
            version=version,
            version_match=query.get("resourceVersionMatch", ""),
            limit=limit,
            resume=_read_continue(resume) if resume else None,
            watch=flag(query, "watch"),
            bookmarks=flag(query, "allowWatchBookmarks"),
            initial_events=flag(query, "sendInitialEvents") if query.get("sendInitialEvents") else None,
            timeout=number(query, "timeoutSeconds"),
        )


def _version(query: Mapping[str, str]) -> int | None:
    """ApiError 400 for a version that is no number; on a watch the real server makes that 500."""
    text = query.get("resourceVersion", "")
    if not text:
        return None
    if text.isdigit():
        return int(text)
    message = f'resourceVersion: Invalid value: "{text}": strconv.ParseUint: parsing "{text}": invalid syntax'
    if flag(query, "watch"):
        raise errors.failure(500, None, message)
    raise errors.bad_request(f"invalid resource version: {message}")


_MATCHES = ("Exact", "NotOlderThan", "")


def _check_match(query: Mapping[str, str]) -> None:
    """ApiError 422: k8s.io/apimachinery/pkg/apis/meta/internalversion/validation."""
    match, version, initial = (
        query.get(name, "") for name in ("resourceVersionMatch", "resourceVersion", "sendInitialEvents")
    )
    why = ""
    if match not in _MATCHES:
        listed = ", ".join(f'"{name}"' for name in _MATCHES)
        why = f'Unsupported value: "{match}": supported values: {listed}'
        raise errors.invalid_options("ListOptions", "FieldValueNotSupported", "resourceVersionMatch", why)
    if flag(query, "watch"):
        if initial and match != "NotOlderThan":
            why = "sendInitialEvents requires setting resourceVersionMatch to NotOlderThan"
        elif match and not initial:
            why = "resourceVersionMatch is forbidden for watch unless sendInitialEvents is provided"
    elif match and not version:
        why = "resourceVersionMatch is forbidden unless resourceVersion is provided"
    elif match == "Exact" and version == "0":
        why = 'resourceVersionMatch "exact" is forbidden for resourceVersion "0"'
    if why:
        raise errors.invalid_options("ListOptions", "FieldValueForbidden", "resourceVersionMatch", f"Forbidden: {why}")


def flag(query: Mapping[str, str], name: str) -> bool:
    return query.get(name, "") in ("1", "true", "True")


def number(query: Mapping[str, str], name: str) -> int | None:
    text = query.get(name)
    if not text:
        return None
    if not re.fullmatch(r"-?\d+", text):
        raise errors.bad_request(f'strconv.ParseInt: parsing "{text}": invalid syntax')
    return int(text)


def continue_token(version: int, namespace: str, name: str, *, scoped: bool) -> str:
    """The token that resumes a list after an object, in the form of the real server."""
    start = f"/{name}\0" if scoped else f"{namespace}/{name}\0"
    body = json.dumps({"v": "meta.k8s.io/v1", "rv": version, "start": start}, separators=(",", ":"))
    return base64.urlsafe_b64encode(body.encode()).decode().rstrip("=")


def _read_continue(token: str) -> tuple[int, tuple[str, str]]:
    try:
        body = json.loads(base64.urlsafe_b64decode(token + "=" * (-len(token) % 4)))
        namespace, _, name = body["start"].rstrip("\0").rpartition("/")
        return body["rv"], (namespace, name)
    except (binascii.Error, ValueError, KeyError, TypeError):
        raise errors.bad_request("invalid continue token: continue key is not valid: it cannot be read") from None


def log_options(query: Mapping[str, str]) -> dict[str, Any]:
    """The options of a log request, by the names that a `LogReader` takes."""
    return {
        "follow": flag(query, "follow"),
        "previous": flag(query, "previous"),
        "timestamps": flag(query, "timestamps"),
        "tail_lines": number(query, "tailLines"),
        "since_seconds": number(query, "sinceSeconds"),
        "limit_bytes": number(query, "limitBytes"),
    }


def is_dry_run(query: Mapping[str, str], kind: str, options: Json | None = None) -> bool:
    """Whether the query, or the body's options, ask for dryRun=All, the only value there is (ApiError 422).

    `kind`: what the options are called, such as CreateOptions.
    """
    asked = [query["dryRun"]] if query.get("dryRun") else list((options or {}).get("dryRun") or ())
    if any(value != "All" for value in asked):
        why = f'Unsupported value: {json.dumps(asked)}: supported values: "All"'
        raise errors.invalid_options(kind, "FieldValueNotSupported", "dryRun", why)
    return bool(asked)


def read_object(body: bytes, content_type: str) -> Json:
    """A body that holds an object. ApiError 415 for a form that the server does not read, 400 if it is broken."""
    if content_type == protobuf.CONTENT_TYPE:
        return protobuf.decode(body)
    if content_type not in ("", "application/json", "application/yaml"):
        raise errors.unsupported_media_type()
    obj = decode(body, as_yaml=content_type == "application/yaml")
    obj = {} if obj is None else obj
    if not isinstance(obj, dict) or not isinstance(obj.get("metadata", {}), dict):
        raise errors.bad_request("the body is not an object of the Kubernetes API")
    return obj


def decode(body: bytes, *, as_yaml: bool = False) -> Any:
    """ApiError 400 for text that is neither."""
    try:
        return yaml.safe_load(body) if as_yaml else msgspec.json.decode(body)
    except (yaml.YAMLError, msgspec.DecodeError) as error:
        raise errors.bad_request(f"the object provided is unrecognized: {error}") from None
