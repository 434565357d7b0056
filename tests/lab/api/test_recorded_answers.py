"""Each answer of the lab's API server beside its recorded twin of a real Kubernetes 1.37."""

from __future__ import annotations

import json
from typing import Any

import pytest

from chaosrunner.lab.embedded.store import clone
from tests.lab.api.conftest import Client, Serve
from tests.lab.api.recorded import KINDS, calls, comparable, headers, recorded_lines, store_at

pytestmark = pytest.mark.anyio

DISCOVERY = {"apis", "api-v1", "policy-v1", "discovery-v1", "apps-v1", "apis-aggregated", "api-aggregated"}
WATCHES = {"watch-too-old", "watch-future-rv", "watchlist", "watch-no-rv", "watch-bad-rv"}
LEASES = {"lease-create", "lease-exists", "lease-update", "lease-update-stale-409"}
SPECIAL = DISCOVERY | WATCHES | LEASES | {"ssrr", "table-namespaces", "list-exact-old-rv"}
TOKENS = {
    "anonymous-403": None,
    "unauthorized-401": "wrong",
    "rbac-forbidden-list": "drill",
    "rbac-forbidden-evict": "drill",
    "ssar-list-pods--denied": "drill",
    "ssar-create-pods-eviction-denied": "drill",
}


def test_every_recorded_call_is_looked_at() -> None:
    assert len(calls()) == 92
    assert set(calls()) >= SPECIAL


async def send(client: Client, call: dict[str, Any]) -> Any:
    return await client.call(
        call["method"],
        call["path"],
        call["request"],
        content_type=call["content_type"],
        accept=call["accept"],
        token=TOKENS.get(call["label"], "admin"),
    )


# When the watch had shown what the server knew already as it answered.
STATE_AT = {"evict-blocked-by-pdb": 6.33}


@pytest.mark.parametrize("label", sorted(set(calls()) - SPECIAL))
async def test_answer(label: str, connect: Serve) -> None:
    call = calls()[label]
    client = await connect(store_at(STATE_AT.get(label, call["at"])))
    answer = await send(client, call)
    assert answer.status == call["status"]
    assert headers(answer.headers) == headers(call["headers"])
    assert comparable(answer.body) == comparable(call["response"])


async def test_leases(connect: Serve) -> None:
    client = await connect(store_at(36.0))
    versions: dict[str, str] = {}
    for label in sorted(LEASES, key=lambda label: calls()[label]["at"]):
        call = json.loads(json.dumps(calls()[label]))
        meta = call["request"]["metadata"]
        if "resourceVersion" in meta:
            # The lab's versions stand in for the recorded ones: the PUTs carry the version of the create.
            meta |= versions
        answer = await send(client, call)
        assert answer.status == call["status"], label
        assert comparable(answer.body) == comparable(call["response"]), label
        versions = versions or {name: answer.body["metadata"][name] for name in ("uid", "resourceVersion")}


async def test_tables_of_namespaces_have_the_recorded_columns(connect: Serve) -> None:
    call = calls()["table-namespaces"]
    answer = await send(await connect(store_at(call["at"])), call)
    assert comparable(answer.body["columnDefinitions"]) == comparable(call["response"]["columnDefinitions"])
    assert [row["cells"][:2] for row in answer.body["rows"]] == [row["cells"][:2] for row in call["response"]["rows"]]


async def test_list_of_a_version_before_the_beginning_is_empty(connect: Serve) -> None:
    call = calls()["list-exact-old-rv"]
    answer = await send(await connect(store_at(30.0)), call)
    assert (answer.status, answer.body) == (call["status"], call["response"])


async def test_rules_review_has_the_recorded_shape(connect: Serve) -> None:
    call = calls()["ssrr"]
    answer = await send(await connect(store_at(30.0)), call)
    assert answer.status == call["status"]
    for body in (answer.body, call["response"]):
        assert {key: body[key] for key in ("kind", "apiVersion", "metadata", "spec")} == {
            "kind": "SelfSubjectRulesReview",
            "apiVersion": "authorization.k8s.io/v1",
            "metadata": {},
            "spec": {},
        }
        assert body["status"]["incomplete"] is False
        assert {tuple(rule) for rule in body["status"]["resourceRules"]} == {("verbs", "apiGroups", "resources")}
        assert {tuple(rule) for rule in body["status"]["nonResourceRules"]} == {("verbs", "nonResourceURLs")}


@pytest.mark.parametrize("label", sorted(DISCOVERY))
async def test_discovery_shows_a_part_of_what_the_real_server_shows(label: str, connect: Serve) -> None:
    call = calls()[label]
    answer = await send(await connect(store_at(0.0)), call)
    assert answer.status == 200
    assert answer.headers["Content-Type"] == call["headers"]["Content-Type"]
    body = json.loads(answer.body) if isinstance(answer.body, str) else answer.body
    shown = comparable(body)
    assert is_part(shown, comparable(call["response"])), shown


def is_part(mine: Any, real: Any) -> bool:
    """Whether `mine` is `real` with some list entries left out."""
    if isinstance(mine, dict):
        return (
            isinstance(real, dict)
            and mine.keys() <= real.keys()
            and all(is_part(value, real[key]) for key, value in mine.items())
        )
    if isinstance(mine, list) and all(isinstance(item, dict) for item in mine):
        return bool(mine) and all(any(is_part(item, other) for other in real) for item in mine)
    return bool(mine == real)


def events(lines: list[dict[str, Any]]) -> list[Any]:
    """Recorded lines hold only name, uid and version of an object, except for bookmarks and errors."""
    shown: list[Any] = []
    for line in lines:
        if line["type"] in ("BOOKMARK", "ERROR"):
            shown.append(comparable(line))
        else:
            shown.append((line["type"], line["object"]["kind"], line["object"]["metadata"]["name"]))
    return shown


@pytest.mark.parametrize("label", sorted(WATCHES))
async def test_watch(label: str, connect: Serve) -> None:
    call = calls()[label]
    client = await connect(store_at(33.0))
    timeout = "" if "timeoutSeconds" in call["path"] else "&timeoutSeconds=1"
    answer = await client.call("GET", call["path"] + timeout)
    lines = [json.loads(line) for line in answer.body.splitlines()] if answer.status == 200 else []
    assert answer.status == call["status"]
    assert headers(answer.headers) == headers(call["headers"])
    if label == "watch-bad-rv":
        assert answer.body == call["lines"][0]["object"]
        return
    assert events(lines) == events(call["lines"])


SERVER_SET = ("uid", "resourceVersion", "creationTimestamp", "generation", "managedFields")


@pytest.mark.parametrize("name", ["pods", "deployments", "replicasets", "pdbs", "endpointslices", "events"])
def test_new_objects_get_the_recorded_defaults(name: str) -> None:
    """The first version of each recorded object, without its defaults, comes out of the lab as it was recorded."""
    resource = KINDS[name]
    first = [line["object"] for line in recorded_lines(f"watch-{name}.jsonl") if line.get("type") == "ADDED"]
    assert first
    for real in first:
        store = store_at(0.0)
        sent = clone(real)
        sent["metadata"] = {key: value for key, value in sent["metadata"].items() if key not in SERVER_SET}
        sent.pop("status", None)
        forget_defaults(resource, sent)
        made = store.create(resource, sent)
        if "generation" in real["metadata"]:
            made["metadata"]["generation"] = real["metadata"]["generation"]
        if real.get("status", {}).keys() <= made.get("status", {}).keys():
            assert comparable(made) == comparable(real)
        else:
            # Seen first when a controller had filled in the status.
            assert comparable(made | {"status": real["status"]}) == comparable(real)


def forget_defaults(resource: str, obj: dict[str, Any]) -> None:
    """Take out what no client of the recording sent."""
    spec = obj.get("spec", {})
    pod = spec if resource == "pods" else spec.get("template", {}).get("spec", {})
    for field in ("restartPolicy", "dnsPolicy", "securityContext", "schedulerName", "serviceAccountName",
                  "serviceAccount", "tolerations", "priority", "enableServiceLinks", "preemptionPolicy"):  # fmt: skip
        pod.pop(field, None)
    for container in pod.get("containers", ()):
        for field in ("resources", "terminationMessagePath", "terminationMessagePolicy"):
            del container[field]
        for probe in ("readinessProbe", "startupProbe"):
            for field in ("timeoutSeconds", "successThreshold"):
                container.get(probe, {}).pop(field, None)
    for field in ("strategy", "revisionHistoryLimit", "progressDeadlineSeconds"):
        spec.pop(field, None)
    if resource == "events":
        for field in ("source", "firstTimestamp", "lastTimestamp", "eventTime", "reportingInstance"):
            if not obj.get(field):
                del obj[field]
