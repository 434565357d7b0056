"""What the Eviction API's answers mean: a pure function of status and body.

The classes follow the order of checks in the API server's eviction handler
(`pkg/registry/core/pod/storage/eviction.go`) and recorded answers of Kubernetes 1.20 and 1.37.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Literal, get_args

EvictionClass = Literal[
    "accepted",
    "already_terminating",
    "blocked_by_budget",
    "budget_not_observed",
    "throttled",
    "multiple_budgets",
    "precondition_failed",
    "conflict",
    "not_found",
    "forbidden",
    "namespace_terminating",
    "bad_request",
    "server_error",
    "unreachable",
]
"""accepted: the Pod is being deleted. already_terminating: accepted, but it was on its way before: no new disruption.
blocked_by_budget: the budget allows no disruption now. budget_not_observed: it was changed and not computed again yet.
throttled: 429 that says nothing about a budget. multiple_budgets: configuration error, permanent, never retried.
precondition_failed: not that Pod any more; **the budget was spent all the same**. conflict: the server lost a race
against itself. forbidden: not authenticated or not authorised. unreachable: no answer, the outcome is not known."""

CLASSES: frozenset[str] = frozenset(get_args(EvictionClass))

_BUDGET = re.compile(r"The disruption budget (\S+) (?:needs|is still|does not)")


def classify(status: int, body: Mapping[str, Any], headers: Mapping[str, str]) -> EvictionClass:
    """Class of an HTTP answer. A success whose body is a failed Status is judged by the body.

    `already_terminating` and `unreachable` are for the caller to tell: no answer says them.
    """
    if 200 <= status < 300:
        if body.get("status") == "Failure":
            return classify(int(body.get("code") or 500), body, headers)
        return "accepted"
    message = str(body.get("message") or "")
    details = body.get("details") or {}
    causes = {str(cause.get("reason")): str(cause.get("message") or "") for cause in details.get("causes") or []}
    match status:
        case 429:
            return _too_many(causes)
        case 401 | 403:
            if "NamespaceTerminating" in causes:
                return "namespace_terminating"
            # The handler's own refusals (allowance below zero, too many unconfirmed evictions) name the budget;
            # those of the authoriser name the Pod.
            return "blocked_by_budget" if details.get("kind") == "poddisruptionbudget" else "forbidden"
        case 404:
            # "Could not find the requested resource", and what a proxy says, are about the path, not the Pod.
            missing = body.get("reason") == "NotFound" and "requested resource" not in message
            return "not_found" if missing else "bad_request"
        case 409:
            return "precondition_failed" if "precondition" in message.lower() else "conflict"
        case 500 if "more than one PodDisruptionBudget" in message:
            return "multiple_budgets"
        case _:
            return "server_error" if status >= 500 else "bad_request"


_UNDECIDED = (
    "timeout", "timed out", "deadline exceeded", "etcdserver", "rpc error", "transport is closing",
    "connection refused", "connection reset", ": eof",
)  # fmt: skip
"""Words of a 5xx that is about the server's store, not about the request: etcd slow, without a leader, or gone."""
_WEBHOOK = "failed calling webhook"
"""An admission webhook's trouble reads like the store's, but the request was refused, and nothing was stored."""


def settled(status: int, body: Mapping[str, Any]) -> bool:
    """Whether an answer says what became of the call. A timeout, of the server, of its store or of a proxy before
    it, does not: the change may have been made all the same. Nor does a 503 of a proxy whose upstream broke off."""
    return status not in (502, 503, 504) and not (status >= 500 and _undecided(body))


def passing(status: int, body: Mapping[str, Any]) -> bool:
    """Whether an error tells of the API server's state and not of the request, so that it goes by itself: a store
    that is slow or gone, a server that starts, ends or is overloaded, an authenticator that is not warm yet.

    401: our credentials have been renewed before; a server that starts knows nobody. 403 with an error of the rule
    resolver: RBAC objects that are there are not found until the server's caches are filled. 429: priority and
    fairness, or a watch cache that is being filled (`storage is (re)initializing`); not a budget's.
    """
    match status:
        case 401 | 502 | 503 | 504:
            return True
        case 403:
            return "RBAC: " in str(body.get("message") or "")
        case 429:
            return classify(status, body, {}) == "throttled"
        case _:
            return status >= 500 and _undecided(body)


def _undecided(body: Mapping[str, Any]) -> bool:
    text = f"{body.get('reason')} {body.get('message')}".lower()
    return _WEBHOOK not in text and any(word in text for word in _UNDECIDED)


def _too_many(causes: Mapping[str, str]) -> EvictionClass:
    budget = causes.get("DisruptionBudget")
    if budget is None:
        return "throttled"
    return "budget_not_observed" if "still being processed" in budget else "blocked_by_budget"


def budgets_named(body: Mapping[str, Any]) -> list[str]:
    """Names of the budgets that an answer blames."""
    details = body.get("details") or {}
    if details.get("kind") == "poddisruptionbudget":
        return [str(details.get("name"))]
    messages = (str(cause.get("message") or "") for cause in details.get("causes") or [])
    return sorted({match[1] for message in messages if (match := _BUDGET.search(message))})


def meets(expect: int | str | None, answer: EvictionClass, status: int | None) -> bool | None:
    """Whether an answer is the expected one, by HTTP status or by class; None where nothing was expected.

    That a Pod was already going is an accepted eviction too.
    """
    if expect is None:
        return None
    if isinstance(expect, int):
        return status == expect
    return answer == expect or (expect == "accepted" and answer == "already_terminating")
