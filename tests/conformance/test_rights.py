"""What an account may do follows its Roles, at once, in requests and in reviews alike."""

from __future__ import annotations

from typing import Any

import pytest

from tests.labs import Client, Json, Lab, Namespace

GROUP = "rbac.authorization.k8s.io"


@pytest.fixture
def drill(lab: Lab, ns: Namespace) -> Client:
    """A ServiceAccount of the namespace, without any rights yet."""
    ns.create("serviceaccounts", {"metadata": {"name": "drill"}})
    return lab.admin.with_headers(Impersonate_User=f"system:serviceaccount:{ns.name}:drill")


def grant(ns: Namespace, *rules: Json, name: str = "drill") -> None:
    where = f"/apis/{GROUP}/v1/namespaces/{ns.name}"
    subject = {"kind": "ServiceAccount", "name": "drill", "namespace": ns.name}
    role = {"apiGroup": GROUP, "kind": "Role", "name": name}
    ns.do("POST", f"{where}/roles", {"metadata": {"name": name}, "rules": list(rules)})
    ns.do("POST", f"{where}/rolebindings", {"metadata": {"name": name}, "roleRef": role, "subjects": [subject]})


def rule(group: str, resource: str, *verbs: str, **more: Any) -> Json:
    return {"apiGroups": [group], "resources": [resource], "verbs": list(verbs), **more}


def may(drill: Client, **attributes: str) -> bool:
    review = {"spec": {"resourceAttributes": attributes}}
    answer = drill.request("POST", "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews", review)
    assert answer.status == 201
    return bool(answer.body["status"]["allowed"])


def test_a_role_opens_what_it_names_and_nothing_else(ns: Namespace, drill: Client) -> None:
    pods = ns.path("pods")
    assert drill.request("GET", pods).status == 403
    grant(ns, rule("", "pods", "list"))
    ns.until(lambda: drill.request("GET", pods).status == 200, what="the Role is not heeded")
    assert drill.request("GET", pods, query={"watch": "true"}).status == 403
    assert drill.request("GET", f"{pods}/a").status == 403
    assert drill.request("GET", "/api/v1/pods").status == 403
    assert drill.request("GET", "/api/v1/namespaces/default/pods").status == 403


def test_reviews_say_what_requests_are_answered(ns: Namespace, drill: Client) -> None:
    where = {"namespace": ns.name}
    assert not may(drill, verb="create", resource="pods", subresource="eviction", **where)
    grant(ns, rule("", "pods/eviction", "create"), rule("apps", "deployments", "get"))
    ns.until(lambda: may(drill, verb="create", resource="pods", subresource="eviction", **where))
    assert may(drill, verb="get", resource="deployments", group="apps", **where)
    assert not may(drill, verb="get", resource="deployments", **where)
    assert not may(drill, verb="create", resource="pods", **where)
    assert not may(drill, verb="create", resource="pods", subresource="eviction")
    body = {"apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": "none"}}
    assert drill.request("POST", ns.path("pods/none/eviction"), body).status == 404


def test_names_limit_a_rule_but_not_for_what_has_no_name_yet(ns: Namespace, drill: Client) -> None:
    grant(ns, rule("coordination.k8s.io", "leases", "get", "create", resourceNames=["mine"]))
    ns.create("leases", {"metadata": {"name": "mine"}})
    ns.until(lambda: drill.request("GET", ns.path("leases/mine")).status == 200)
    assert drill.request("GET", ns.path("leases/other")).status == 403
    assert drill.request("POST", ns.path("leases"), {"metadata": {"name": "mine"}}).status == 403


def test_what_is_taken_away_is_gone(ns: Namespace, drill: Client) -> None:
    grant(ns, rule("", "pods", "list"))
    ns.until(lambda: drill.request("GET", ns.path("pods")).status == 200)
    ns.do("DELETE", f"/apis/{GROUP}/v1/namespaces/{ns.name}/rolebindings/drill")
    ns.until(lambda: drill.request("GET", ns.path("pods")).status == 403, what="the right outlives its binding")


def test_rules_of_an_account(ns: Namespace, drill: Client) -> None:
    grant(ns, rule("policy", "poddisruptionbudgets", "list", "watch"))

    def listed() -> list[Json]:
        review = {"spec": {"namespace": ns.name}}
        answer = drill.request("POST", "/apis/authorization.k8s.io/v1/selfsubjectrulesreviews", review)
        assert (answer.status, answer.body["status"]["incomplete"]) == (201, False)
        return list(answer.body["status"]["resourceRules"])

    own = {"verbs": ["list", "watch"], "apiGroups": ["policy"], "resources": ["poddisruptionbudgets"]}
    ns.until(lambda: own in listed(), what="the rule is not listed")
    reviews = [entry for entry in listed() if "selfsubjectaccessreviews" in entry["resources"]]
    assert [entry["verbs"] for entry in reviews] == [["create"]]


def test_a_token_of_a_service_account(lab: Lab, ns: Namespace, drill: Client) -> None:
    grant(ns, rule("", "pods", "list"))
    asked = {"spec": {"expirationSeconds": 600}}
    answer = ns.ask("POST", "serviceaccounts/drill/token", asked)
    assert (answer.status, answer.body["kind"]) == (201, "TokenRequest")
    bearer = lab.stranger.with_headers(Authorization=f"Bearer {answer.body['status']['token']}")
    ns.until(lambda: bearer.request("GET", ns.path("pods")).status == 200)
    refused = bearer.request("GET", ns.path("services"))
    assert f'User "system:serviceaccount:{ns.name}:drill" cannot list resource "services"' in refused.body["message"]
    short = ns.ask("POST", "serviceaccounts/drill/token", {"spec": {"expirationSeconds": 60}})
    assert short.status == 422
    assert short.body["details"]["causes"][0]["field"] == "spec.expirationSeconds"
