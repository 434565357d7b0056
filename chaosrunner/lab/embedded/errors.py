"""Errors as a Kubernetes API server answers them: each is a `metav1.Status` with an HTTP status.

Wording and fields follow recorded answers of Kubernetes 1.37 (`tests/data/k8s-1.37/requests.jsonl`).
"""

from __future__ import annotations

from collections.abc import Sequence

from chaosrunner.lab.embedded.resources import Resource
from chaosrunner.lab.objects import Json


class ApiError(Exception):
    """A refused request. `status` is the HTTP status, `body` the `metav1.Status` that goes on the wire."""

    def __init__(self, status: int, body: Json) -> None:
        super().__init__(body["message"])
        self.status = status
        self.body = body

    @property
    def reason(self) -> str:
        return str(self.body.get("reason", ""))


def failure(code: int, reason: str | None, message: str, details: Json | None = None) -> ApiError:
    """An error with `reason` and `details` left out where they are None, as the real server leaves them out."""
    body: Json = {"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure", "message": message}
    if reason is not None:
        body["reason"] = reason
    if details is not None:
        body["details"] = details
    return ApiError(code, body | {"code": code})


def success(resource: Resource | None = None, name: str = "", uid: str = "", code: int | None = None) -> Json:
    """The `metav1.Status` of a success: of an eviction (with `code`) or of a delete (with the object's details)."""
    body: Json = {"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Success"}
    if resource is not None:
        body["details"] = details_of(resource, name) | {"uid": uid}
    if code is not None:
        body["code"] = code
    return body


def details_of(resource: Resource, name: str = "") -> Json:
    details: Json = {}
    if name:
        details["name"] = name
    if resource.group:
        details["group"] = resource.group
    return details | ({"kind": resource.plural} if resource.plural else {})


def not_found(resource: Resource, name: str) -> ApiError:
    return failure(404, "NotFound", f'{resource.qualified} "{name}" not found', details_of(resource, name))


def already_exists(resource: Resource, name: str) -> ApiError:
    return failure(409, "AlreadyExists", f'{resource.qualified} "{name}" already exists', details_of(resource, name))


STALE = "the object has been modified; please apply your changes to the latest version and try again"


def conflict(resource: Resource, name: str, why: str = STALE) -> ApiError:
    message = f'Operation cannot be fulfilled on {resource.qualified} "{name}": {why}'
    return failure(409, "Conflict", message, details_of(resource, name))


def precondition_failed(resource: Resource, name: str, why: str) -> ApiError:
    """A delete's precondition that does not hold; here the server names the kind, not the resource."""
    message = f'Operation cannot be fulfilled on {resource.qualified_kind} "{name}": {why}'
    return failure(409, "Conflict", message, details_of(resource, name) | {"kind": resource.kind})


def bad_request(message: str) -> ApiError:
    return failure(400, "BadRequest", message)


class Unreadable(ApiError):
    """An object that has not the shape of its kind (400; 422 where a patch made it so)."""

    def __init__(self, resource: Resource, why: object) -> None:
        refused = bad_request(f"the object cannot be read as a {resource.qualified_kind}: {why}")
        super().__init__(refused.status, refused.body)


class Denied(ApiError):
    """Refused for lack of rights (403), as opposed to what nobody may do."""

    def __init__(self, details: Json, message: str) -> None:
        refused = forbidden(details, message)
        super().__init__(refused.status, refused.body)


def unauthorized() -> ApiError:
    return failure(401, "Unauthorized", "Unauthorized")


def forbidden(details: Json, message: str) -> ApiError:
    return failure(403, "Forbidden", message, details)


def namespace_terminating(resource: Resource, name: str, namespace: str) -> ApiError:
    """Something new in a namespace that goes away; clients tell it from other refusals by the cause."""
    cause = {
        "reason": "NamespaceTerminating",
        "message": f"namespace {namespace} is being terminated",
        "field": "metadata.namespace",
    }
    message = (
        f'{resource.qualified} "{name}" is forbidden: unable to create new content in namespace {namespace} '
        "because it is being terminated"
    )
    return forbidden(details_of(resource, name) | {"causes": [cause]}, message)


READ_TYPES = "application/json, application/yaml, application/vnd.kubernetes.protobuf"


def unsupported_media_type() -> ApiError:
    message = f"the body of the request was in an unknown format - accepted media types include: {READ_TYPES}"
    return failure(415, "UnsupportedMediaType", message)


def unsupported_patch_type() -> ApiError:
    return failure(415, "UnsupportedMediaType", "415: Unsupported Media Type", {})


def not_acceptable() -> ApiError:
    message = f"only the following media types are accepted: {READ_TYPES}"
    return failure(406, "NotAcceptable", message)


def no_such_resource() -> ApiError:
    """A path below a group and version that there are, but for a resource that there is not."""
    return failure(404, "NotFound", "the server could not find the requested resource", {})


def invalid_options(kind: str, reason: str, field: str, message: str) -> ApiError:
    """Something in the query, or in the options of a body."""
    return invalid(Resource("", kind, "meta.k8s.io"), "", [(reason, field, message)])


def method_not_allowed() -> ApiError:
    message = "the server does not allow this method on the requested resource"
    return failure(405, "MethodNotAllowed", message, {})


def expired(message: str) -> ApiError:
    return failure(410, "Expired", message)


def version_too_large(asked: int, current: int) -> ApiError:
    details = {
        "causes": [{"reason": "ResourceVersionTooLarge", "message": "Too large resource version"}],
        "retryAfterSeconds": 1,
    }
    message = f"Timeout: Too large resource version: {asked}, current: {current}"
    return failure(504, "Timeout", message, details)


def rejected_patch() -> ApiError:
    """A JSON patch that cannot be applied, also one whose `test` operation fails."""
    return failure(422, "Invalid", "the server rejected our request due to an error in our request", {})


Cause = tuple[str, str, str]
"""(reason, field, message) of one invalid field."""


def invalid(resource: Resource, name: str, causes: Sequence[Cause]) -> ApiError:
    listed = [f"{field}: {message}" for _, field, message in causes]
    text = listed[0] if len(listed) == 1 else f"[{', '.join(listed)}]"
    details = details_of(resource, name) | {
        **({"kind": resource.kind} if resource.kind else {}),
        "causes": [{"reason": reason, "message": message, "field": field} for reason, field, message in causes],
    }
    return failure(422, "Invalid", f'{resource.qualified_kind} "{name}" is invalid: {text}', details)
