"""A small client of a real API server: reads and writes objects, and waits for Deployments.

It is synchronous and every call has a connection of its own, so any thread may use it at any time.
"""

from __future__ import annotations

import http.client
import json
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

from chaosrunner.errors import UserError
from chaosrunner.lab.objects import Json, condition
from chaosrunner.lab.workload.credentials import ApiServer, BadCredentials, read_kubeconfig

_TIMEOUT = 10.0
"""Seconds for a connect, and for each part of an answer."""
_POLL = 0.2
_MANAGER = "chaosrunner-lab"
_HOPELESS = ("ErrImageNeverPull", "InvalidImageName", "CreateContainerConfigError")
"""Reasons of a waiting container that no waiting mends."""


class ApiError(Exception):
    """The API server's refusal. `reason` is its own word for it, such as NotFound."""

    def __init__(self, status: int, reason: str, message: str) -> None:
        super().__init__(f"{message or reason or 'no message'} (HTTP {status})")
        self.status = status
        self.reason = reason


class Unreachable(Exception):
    """No answer came, or half of one."""


class NotAvailable(Exception):
    """A Deployment did not become available; the text says why, as far as its Pods tell."""


class Api:
    """One API server. Every method raises ApiError for a refusal and Unreachable where no answer comes."""

    def __init__(self, server: ApiServer) -> None:
        self.server = server
        self._kinds: dict[str, dict[str, Json]] = {}

    @classmethod
    def of_kubeconfig(cls, path: Path, context: str | None = None) -> Api:
        """The API server that a kubeconfig names. UserError for a bad one."""
        try:
            return cls(read_kubeconfig(str(path), context))
        except BadCredentials as error:
            raise UserError(str(error)) from None

    # -- calls ---------------------------------------------------------------------------------------------------------

    def request(
        self,
        method: str,
        path: str,
        body: Any = None,
        *,
        query: Mapping[str, str] | None = None,
        content_type: str = "application/json",
    ) -> Json:
        """One call; returns the answer's body. A text (a log, a health check) comes as {"text": ...}."""
        server = self.server
        target = server.prefix + path + (f"?{urlencode(query)}" if query else "")
        if server.tls is None:
            connection = http.client.HTTPConnection(server.host, server.port, timeout=_TIMEOUT)
        else:
            connection = http.client.HTTPSConnection(server.host, server.port, timeout=_TIMEOUT, context=server.tls)
        try:
            headers = {"Accept": "application/json, */*", "User-Agent": _MANAGER} | dict(server.headers())
            if body is not None:
                headers["Content-Type"] = content_type
            connection.request(method, target, None if body is None else json.dumps(body), headers)
            answer = connection.getresponse()
            data = answer.read()
        except (OSError, http.client.HTTPException) as error:
            raise Unreachable(f"{server.host}:{server.port}: {error or type(error).__name__}") from error
        finally:
            connection.close()
        if answer.status >= 300:
            raise _refusal(answer.status, data)
        if "json" in answer.headers.get("Content-Type", ""):
            return dict(json.loads(data))
        return {"text": data.decode(errors="replace")}

    def find(self, path: str) -> Json | None:
        """What is at a path; None where nothing is."""
        try:
            return self.request("GET", path)
        except ApiError as error:
            if error.status == 404:
                return None
            raise

    def items(self, path: str, **query: str) -> list[Json]:
        """The objects of a list. `query`: labelSelector, fieldSelector and the like."""
        return list(self.request("GET", path, query=query)["items"])

    # -- objects -------------------------------------------------------------------------------------------------------

    def collection(self, obj: Json, namespace: str = "default") -> str:
        """The path of all objects of the kind, in the object's own namespace if it names one.

        UserError for a kind that the API server does not have.
        """
        version = obj["apiVersion"]
        base = f"/apis/{version}" if "/" in version else f"/api/{version}"
        if version not in self._kinds:
            listed = self.find(base) or {"resources": []}
            self._kinds[version] = {one["kind"]: one for one in listed["resources"] if "/" not in one["name"]}
        kind = self._kinds[version].get(obj["kind"])
        if kind is None:
            # It may come yet, with a CustomResourceDefinition.
            del self._kinds[version]
            raise UserError(f"the lab has no {version} {obj['kind']}")
        scope = f"/namespaces/{obj['metadata'].get('namespace', namespace)}" if kind["namespaced"] else ""
        return f"{base}{scope}/{kind['name']}"

    def path(self, obj: Json, namespace: str = "default") -> str:
        """The path of one object. UserError for an unknown kind."""
        return f"{self.collection(obj, namespace)}/{obj['metadata']['name']}"

    def create(self, obj: Json, namespace: str = "default") -> Json:
        """Create an object, in its own namespace if it names one. ApiError 409 if it exists."""
        return self.request("POST", self.collection(obj, namespace), obj)

    def apply(self, obj: Json, namespace: str = "default") -> Json:
        """Create an object, or make the one that exists as it is given here (a server-side apply)."""
        query = {"fieldManager": _MANAGER, "force": "true"}
        content_type = "application/apply-patch+yaml"  # JSON is YAML too
        return self.request("PATCH", self.path(obj, namespace), obj, query=query, content_type=content_type)

    def delete(self, path: str, *, grace: int | None = None) -> bool:
        """Begin to delete what is at a path: an object with all that it owns, or a whole list. False if none is there.

        `grace`: seconds instead of what the Pods themselves say.
        """
        options: Json = {"kind": "DeleteOptions", "apiVersion": "v1", "propagationPolicy": "Background"}
        if grace is not None:
            options["gracePeriodSeconds"] = grace
        try:
            self.request("DELETE", path, options)
        except ApiError as error:
            if error.status == 404:
                return False
            raise
        return True

    # -- waiting -------------------------------------------------------------------------------------------------------

    def wait_available(self, deployments: Sequence[tuple[str, str]], timeout: float) -> None:
        """Wait until Deployments, given as (namespace, name), have all their replicas ready; `timeout` in seconds.

        NotAvailable after that time, or as soon as no waiting would help.
        """
        deadline = time.monotonic() + timeout
        missing = list(deployments)
        while missing := [where for where in missing if not self._is_available(*where)]:
            late = time.monotonic() > deadline
            for namespace, name in missing:
                why = self._explain(namespace, name)
                if late or any(reason in why for reason in _HOPELESS):
                    after = f" within {timeout:g} s" if late else ""
                    raise NotAvailable(f"deployment {namespace}/{name} did not become available{after}: {why}")
            time.sleep(_POLL)

    def _is_available(self, namespace: str, name: str) -> bool:
        found = self.request("GET", f"/apis/apps/v1/namespaces/{namespace}/deployments/{name}")
        status, wanted = found.get("status", {}), found["spec"].get("replicas", 1)
        if status.get("observedGeneration", 0) < found["metadata"].get("generation", 0):
            return False
        return bool(min(status.get("updatedReplicas", 0), status.get("availableReplicas", 0)) >= wanted)

    def _explain(self, namespace: str, name: str) -> str:
        """Why a Deployment is not available: what its Pods wait for, or why there are none."""
        core, apps = f"/api/v1/namespaces/{namespace}", f"/apis/apps/v1/namespaces/{namespace}"
        deployment = self.request("GET", f"{apps}/deployments/{name}")
        labels = deployment["spec"]["selector"]["matchLabels"]
        selector = ",".join(f"{key}={value}" for key, value in labels.items())
        told = []
        for pod in self.items(f"{core}/pods", labelSelector=selector):
            if (why := _waits_for(pod)) is not None:
                why += self._last_words(core, pod)
                warning = self._last_warning(core, pod)
                why += f" ({warning})" if warning not in why else ""
                told.append(f"pod {pod['metadata']['name']}: {why}")
        failure = condition(deployment, "ReplicaFailure")
        if failure is not None:
            told.append(failure["message"])
        return "; ".join(told) or "nothing tells why"

    def _last_words(self, core: str, pod: Json) -> str:
        """The last line that a container of the Pod wrote before it failed."""
        for status in pod["status"].get("containerStatuses", ()):
            query = {"container": status["name"], "tailLines": "1"}
            if "terminated" in status["lastState"] and "terminated" not in status["state"]:
                query["previous"] = "true"
            elif "terminated" not in status["state"]:
                continue
            try:
                log = self.request("GET", f"{core}/pods/{pod['metadata']['name']}/log", query=query)["text"]
            except (ApiError, Unreachable):
                continue  # its node may be the trouble
            return f", its last words: {log.strip()}" if log.strip() else ""
        return ""

    def _last_warning(self, core: str, pod: Json) -> str:
        selector = f"involvedObject.uid={pod['metadata']['uid']},type=Warning"
        warnings = self.items(f"{core}/events", fieldSelector=selector)
        latest = max(warnings, key=lambda event: str(event.get("lastTimestamp") or event["eventTime"]), default=None)
        return str(latest["message"]) if latest else ""


def _waits_for(pod: Json) -> str | None:
    """Why a Pod is not ready; None for one that is."""
    scheduled = condition(pod, "PodScheduled")
    if scheduled is not None and scheduled["status"] == "False":
        return f"not scheduled: {scheduled.get('message', '')}"
    status = pod["status"]
    for container in [*status.get("initContainerStatuses", ()), *status.get("containerStatuses", ())]:
        state, name = container["state"], container["name"]
        ended = state.get("terminated") or container["lastState"].get("terminated")
        code = f", it ended with code {ended['exitCode']}" if ended else ""
        if waiting := state.get("waiting"):
            return f"{name}: {waiting['reason']}: {waiting.get('message', '')}".removesuffix(": ") + code
        if not container["ready"]:
            return f"{name} is not ready{code}"
    return None if "containerStatuses" in status else "its node has not begun with it"


def _refusal(status: int, body: bytes) -> ApiError:
    try:
        found = json.loads(body)
        return ApiError(status, found.get("reason", ""), found.get("message", ""))
    except (ValueError, AttributeError):
        return ApiError(status, "", body.decode(errors="replace").strip()[:500])
