from __future__ import annotations

import json
from collections.abc import AsyncIterator
from datetime import UTC, datetime
from typing import Any

import aiohttp
import anyio
import pytest

from chaosrunner.lab.embedded.access import ADMIN, Access, Account, Rule
from chaosrunner.lab.embedded.api import serve
from chaosrunner.lab.embedded.errors import bad_request
from chaosrunner.lab.embedded.resources import RESOURCES
from chaosrunner.lab.embedded.store import Store
from chaosrunner.lab.embedded.tables import age, table
from tests.lab.api.conftest import Client, Serve
from tests.lab.api.objects import SPEC, add_budget, add_pod, template

pytestmark = pytest.mark.anyio

PODS = "/api/v1/namespaces/default/pods"


# -- lists -------------------------------------------------------------------------------------------------------------


async def test_pages_are_of_one_version_whatever_happens_between(connect: Serve) -> None:
    store = Store()
    for name in ("a", "b", "c", "d", "e"):
        add_pod(store, name)
    client = await connect(store)
    names: list[str] = []
    versions = set()
    token = ""
    while True:
        answer = await client.call("GET", f"{PODS}?limit=2&continue={token}")
        names += [item["metadata"]["name"] for item in answer.body["items"]]
        versions.add(answer.body["metadata"]["resourceVersion"])
        token = answer.body["metadata"].get("continue", "")
        if not token:
            break
        if store.find("pods", "e"):
            store.delete("pods", "e", grace=0)
        add_pod(store, f"z{len(names)}")
    assert names == ["a", "b", "c", "d", "e"]
    assert len(versions) == 1


async def test_a_page_of_a_forgotten_version_is_410(connect: Serve) -> None:
    store = Store()
    for name in ("a", "b"):
        add_pod(store, name)
    client = await connect(store)
    token = (await client.call("GET", "/api/v1/pods?limit=1")).body["metadata"]["continue"]
    add_pod(store, "c")
    store.forget_history()
    assert (await client.call("GET", f"/api/v1/pods?limit=1&continue={token}")).status == 410
    assert (await client.call("GET", "/api/v1/pods?limit=1&continue=nonsense")).status == 400


async def test_pages_over_all_namespaces(connect: Serve) -> None:
    store = Store()
    for namespace in ("one", "two"):
        store.create("namespaces", {"metadata": {"name": namespace}})
        for name in ("a", "b"):
            store.create("configmaps", {"metadata": {"name": name}}, namespace=namespace)
    client = await connect(store)
    first = (await client.call("GET", "/api/v1/configmaps?limit=3")).body
    rest = (await client.call("GET", f"/api/v1/configmaps?limit=3&continue={first['metadata']['continue']}")).body
    found = [(item["metadata"]["namespace"], item["metadata"]["name"]) for item in first["items"] + rest["items"]]
    assert found == [("one", "a"), ("one", "b"), ("two", "a"), ("two", "b")]


async def test_a_list_waits_for_the_version_it_was_asked_for(connect: Serve) -> None:
    store = Store()
    client = await connect(store)
    async with anyio.create_task_group() as group:

        async def later() -> None:
            await anyio.sleep(0.1)
            add_pod(store, "p")

        wanted = store.resource_version + 1
        group.start_soon(later)
        answer = await client.call("GET", f"{PODS}?resourceVersion={wanted}")
    assert [item["metadata"]["name"] for item in answer.body["items"]] == ["p"]


async def test_delete_collection_takes_what_the_selector_matches(connect: Serve) -> None:
    store = Store()
    for name, label in (("a", "x"), ("b", "y")):
        store.create("configmaps", {"metadata": {"name": name, "labels": {"l": label}}})
    client = await connect(store)
    answer = await client.call("DELETE", "/api/v1/namespaces/default/configmaps?labelSelector=l%3Dx")
    assert [item["metadata"]["name"] for item in answer.body["items"]] == ["a"]
    assert [obj["metadata"]["name"] for obj in store.list("configmaps")] == ["b"]


# -- watches -----------------------------------------------------------------------------------------------------------


async def watched(client: Client, path: str, change: Any) -> list[Any]:
    """What a watch of one second shows when `change` is made a moment after it began."""
    lines: list[Any] = []

    async def watch() -> None:
        answer = await client.call("GET", path + "&timeoutSeconds=1")
        lines.extend(json.loads(line) for line in answer.body.splitlines())

    async with anyio.create_task_group() as group:
        group.start_soon(watch)
        await anyio.sleep(0.3)
        change()
    return lines


def short(lines: list[Any]) -> list[tuple[str, str]]:
    return [(line["type"], line["object"]["metadata"].get("name", "")) for line in lines]


async def test_a_watch_resumes_from_a_version_and_follows(connect: Serve) -> None:
    store = Store()
    add_pod(store, "before")
    version = store.resource_version
    add_pod(store, "between", node=None)
    client = await connect(store)
    lines = await watched(
        client, f"{PODS}?watch=true&resourceVersion={version}", lambda: store.delete("pods", "between")
    )
    assert short(lines) == [("ADDED", "between"), ("MODIFIED", "between"), ("DELETED", "between")]
    versions = [int(line["object"]["metadata"]["resourceVersion"]) for line in lines]
    assert versions == sorted(versions)
    assert versions[0] > version


async def test_objects_enter_and_leave_what_a_watch_selects(connect: Serve) -> None:
    store = Store()
    add_pod(store, "p", labels={"app": "other"})
    client = await connect(store)

    def change() -> None:
        for value in ("chat", "chat", "other"):
            labels = {"app": value, "n": str(store.resource_version)}
            store.mutate("pods", "p", "default", lambda pod, labels=labels: pod["metadata"].update(labels=labels))

    lines = await watched(client, f"{PODS}?watch=true&labelSelector=app%3Dchat", change)
    assert short(lines) == [("ADDED", "p"), ("MODIFIED", "p"), ("DELETED", "p")]
    assert lines[2]["object"]["metadata"]["labels"]["app"] == "chat"
    assert lines[2]["object"]["metadata"]["resourceVersion"] == str(store.resource_version)


async def test_bookmarks_carry_versions_of_other_kinds_changes(connect: Serve) -> None:
    store = Store()
    client = await connect(store, bookmarks=0.2)
    lines = await watched(
        client,
        f"{PODS}?watch=true&allowWatchBookmarks=true&resourceVersion={store.resource_version}",
        lambda: store.create("configmaps", {"metadata": {"name": "c"}}),
    )
    assert {line["type"] for line in lines} == {"BOOKMARK"}
    assert len(lines) >= 3
    assert lines[-1]["object"]["metadata"] == {"resourceVersion": str(store.resource_version)}


async def test_a_watch_without_bookmarks_asked_for_gets_none(connect: Serve) -> None:
    client = await connect(Store(), bookmarks=0.1)
    assert await watched(client, f"{PODS}?watch=true", lambda: None) == []


async def test_a_watch_in_one_namespace_sees_no_other(connect: Serve) -> None:
    store = Store()
    store.create("namespaces", {"metadata": {"name": "other"}})
    client = await connect(store)

    def change() -> None:
        store.create("pods", {"metadata": {"name": "far"}, "spec": SPEC}, namespace="other")
        store.create("pods", {"metadata": {"name": "near"}, "spec": SPEC})

    assert short(await watched(client, f"{PODS}?watch=true", change)) == [("ADDED", "near")]


async def test_a_watch_from_a_forgotten_version_is_200_and_then_410(connect: Serve) -> None:
    store = Store()
    version = store.resource_version
    add_pod(store, "p")
    store.forget_history()
    client = await connect(store)
    lines = await watched(client, f"{PODS}?watch=true&resourceVersion={version}", lambda: None)
    assert [(line["type"], line["object"]["code"]) for line in lines] == [("ERROR", 410)]


async def test_a_watch_that_the_client_leaves_is_forgotten(connect: Serve) -> None:
    store = Store()
    client = await connect(store)
    with anyio.move_on_after(0.3):
        await client.call("GET", f"{PODS}?watch=true")
    await anyio.sleep(0.1)
    assert store._followers["pods"] == []


async def test_the_server_stops_promptly_with_watches_open(connect: Serve) -> None:
    async with aiohttp.ClientSession() as session:
        async with serve(Store(), "127.0.0.1", 0, access=NARROW) as server:
            answer = await session.get(f"{server.url_of('reader')}{PODS}?watch=true")
        with anyio.fail_after(2):
            with pytest.raises(aiohttp.ClientError):
                await answer.read()


async def test_many_watchers_see_every_change(connect: Serve) -> None:
    store = Store()
    client = await connect(store)
    seen: list[list[tuple[str, str]]] = []

    async def watch() -> None:
        answer = await client.call(
            "GET", f"{PODS}?watch=true&timeoutSeconds=2&resourceVersion={store.resource_version}"
        )
        seen.append(short([json.loads(line) for line in answer.body.splitlines()]))

    async with anyio.create_task_group() as group:
        for _ in range(9):
            group.start_soon(watch)
        await anyio.sleep(0.2)
        for number in range(200):
            add_pod(store, f"p{number:03}")
    added = [("ADDED", f"p{number:03}") for number in range(200)]
    assert all([entry for entry in lines if entry[0] == "ADDED"] == added for lines in seen)
    assert len(seen) == 9


# -- writes ------------------------------------------------------------------------------------------------------------


async def test_put_checks_names(connect: Serve) -> None:
    store = Store()
    store.create("configmaps", {"metadata": {"name": "a"}})
    client = await connect(store)
    path = "/api/v1/namespaces/default/configmaps/a"
    wrong_name = await client.call("PUT", path, {"metadata": {"name": "b"}})
    assert wrong_name.status == 400
    wrong_kind = await client.call("PUT", path, {"kind": "Secret", "apiVersion": "v1", "metadata": {"name": "a"}})
    assert wrong_kind.status == 400
    fine = await client.call("PUT", path, {"metadata": {"name": "a"}, "data": {"k": "v"}})
    assert (fine.status, fine.body["data"]) == (200, {"k": "v"})


@pytest.mark.parametrize(
    ("method", "path", "body", "status"),
    [
        ("POST", PODS, "{not json", 400),
        ("POST", PODS, "[]", 400),
        ("PUT", f"{PODS}", {}, 405),
        ("PATCH", f"{PODS}/p/eviction", {}, 405),
        ("GET", f"{PODS}/p/binding", None, 405),
        ("GET", f"{PODS}/p/nothing", None, 404),
        ("GET", "/api/v1/nothing", None, 404),
        ("POST", "/api/v1/namespaces/none/configmaps", {"metadata": {"name": "a"}}, 404),
        ("POST", f"{PODS}?dryRun=Some", {"metadata": {"name": "a"}, "spec": SPEC}, 422),
    ],
)
async def test_requests_that_make_no_sense(method: str, path: str, body: Any, status: int, connect: Serve) -> None:
    store = Store()
    add_pod(store, "p")
    client = await connect(store)
    content_type = "application/json" if isinstance(body, str) else None
    answer = await client.call(method, path, body, content_type=content_type)
    assert answer.status == status


async def test_dry_run_of_each_verb(connect: Serve) -> None:
    store = Store()
    add_pod(store, "p")
    client = await connect(store)
    version = store.resource_version
    made = await client.call("POST", f"{PODS}?dryRun=All", {"metadata": {"name": "q"}, "spec": SPEC})
    assert (made.status, made.body["spec"]["restartPolicy"]) == (201, "Always")
    merge = "application/merge-patch+json"
    patch = {"metadata": {"labels": {"x": "y"}}}
    patched = await client.call("PATCH", f"{PODS}/p?dryRun=All", patch, content_type=merge)
    assert patched.body["metadata"]["labels"]["x"] == "y"
    assert (await client.call("DELETE", f"{PODS}/p?dryRun=All")).status == 200
    assert (await client.call("POST", f"{PODS}/p/eviction?dryRun=All", {"metadata": {"name": "p"}})).status == 201
    assert store.resource_version == version


async def test_a_patch_of_the_status_leaves_the_spec(connect: Serve) -> None:
    store = Store()
    store.create("nodes", {"metadata": {"name": "n"}, "status": {"conditions": [{"type": "Ready", "status": "True"}]}})
    client = await connect(store)
    body = {
        "spec": {"unschedulable": True},
        "status": {"conditions": [{"type": "Ready", "status": "Unknown"}, {"type": "New", "status": "True"}]},
    }
    strategic = "application/strategic-merge-patch+json"
    await client.call("PATCH", "/api/v1/nodes/n/status", body, content_type=strategic)
    node = store.get("nodes", "n")
    assert "unschedulable" not in node["spec"]
    assert [(entry["type"], entry["status"]) for entry in node["status"]["conditions"]] == [
        ("Ready", "Unknown"),
        ("New", "True"),
    ]


async def test_server_side_apply_creates_what_is_missing(connect: Serve) -> None:
    store = Store()
    client = await connect(store)
    path = "/api/v1/namespaces/default/configmaps/a?fieldManager=test"
    body = "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: a}\ndata: {k: v}\n"
    apply = "application/apply-patch+yaml"
    first = await client.call("PATCH", path, body, content_type=apply)
    second = await client.call("PATCH", path, body, content_type=apply)
    assert (first.status, second.status) == (201, 200)
    assert first.body == second.body == store.get("configmaps", "a")


async def test_scale_by_put_and_on_a_stale_version(connect: Serve) -> None:
    store = Store()
    store.create("deployments", {"metadata": {"name": "d"}, "spec": template()})
    client = await connect(store)
    path = "/apis/apps/v1/namespaces/default/deployments/d/scale"
    scale = (await client.call("GET", path)).body
    scale["spec"]["replicas"] = 4
    assert (await client.call("PUT", path, scale)).body["spec"] == {"replicas": 4}
    assert store.get("deployments", "d")["spec"]["replicas"] == 4
    assert (await client.call("PUT", path, scale)).status == 409


async def test_events_are_one_kind_in_two_groups(connect: Serve) -> None:
    store = Store()
    client = await connect(store)
    event = {
        "metadata": {"name": "e"},
        "regarding": {"kind": "Pod", "name": "p", "namespace": "default"},
        "note": "told",
        "reason": "Why",
        "type": "Normal",
        "reportingController": "test",
        "eventTime": "2026-11-29T16:00:00.000000Z",
    }
    made = await client.call("POST", "/apis/events.k8s.io/v1/namespaces/default/events", event)
    assert (made.status, made.body["apiVersion"], made.body["note"]) == (201, "events.k8s.io/v1", "told")
    core = (await client.call("GET", "/api/v1/namespaces/default/events?fieldSelector=involvedObject.name%3Dp")).body
    assert core["kind"] == "EventList"
    assert core["items"][0]["message"] == "told"
    assert core["items"][0]["reportingComponent"] == "test"
    again = (await client.call("GET", "/apis/events.k8s.io/v1/events")).body["items"][0]
    assert again["note"] == "told"


async def test_retry_after_is_a_header_too(connect: Serve) -> None:
    store = Store()
    add_pod(store, "p")
    add_budget(store, observed=False)
    client = await connect(store)
    answer = await client.call("POST", f"{PODS}/p/eviction", {"metadata": {"name": "p"}})
    assert (answer.status, answer.headers["Retry-After"]) == (429, "10")


# -- access ------------------------------------------------------------------------------------------------------------

READER = Account("reader", (Rule(("get", "list", "watch"), ("pods", "pods/log"), ("default",)),))
NARROW = Access({"admin": ADMIN, "reader": READER})


@pytest.mark.parametrize(
    ("method", "path", "token", "status"),
    [
        ("GET", PODS, "reader", 200),
        ("GET", f"{PODS}/p", "reader", 200),
        ("GET", "/api/v1/pods", "reader", 403),
        ("GET", "/api/v1/namespaces/kube-system/pods", "reader", 403),
        ("DELETE", f"{PODS}/p", "reader", 403),
        ("GET", f"{PODS}/p/status", "reader", 403),
        ("GET", "/api/v1/nodes", "reader", 403),
        ("GET", "/apis", "reader", 200),
        ("GET", "/apis", None, 403),
        ("GET", "/version", None, 200),
        ("GET", "/readyz", None, 200),
        ("GET", PODS, "unknown", 401),
        ("GET", "/version", "unknown", 401),
        ("GET", "/token/reader" + PODS, None, 200),
        ("GET", "/token/unknown" + PODS, None, 401),
        ("GET", "/token/reader/api/v1/nodes", None, 403),
        ("GET", "/token/reader/api/v1/nodes", "admin", 200),
    ],
)
async def test_who_may_do_what(method: str, path: str, token: str | None, status: int) -> None:
    store = Store()
    add_pod(store, "p")
    async with serve(store, "127.0.0.1", 0, access=NARROW) as server, aiohttp.ClientSession() as session:
        answer = await Client(server, session).call(method, path, token=token)
    assert answer.status == status


async def test_reviews_and_impersonation() -> None:
    async with serve(Store(), "127.0.0.1", 0, access=NARROW) as server, aiohttp.ClientSession() as session:

        async def allowed(verb: str, resource: str, headers: dict[str, str]) -> Any:
            attributes = {"verb": verb, "resource": resource, "namespace": "default"}
            url = f"{server.url}/apis/authorization.k8s.io/v1/selfsubjectaccessreviews"
            async with session.post(url, json={"spec": {"resourceAttributes": attributes}}, headers=headers) as answer:
                body = await answer.json()
                return body["status"]["allowed"] if answer.status == 201 else answer.status

        reader, admin = {"Authorization": "Bearer reader"}, {"Authorization": "Bearer admin"}
        assert await allowed("list", "pods", reader) is True
        assert await allowed("delete", "pods", reader) is False
        assert await allowed("delete", "pods", admin) is True
        assert await allowed("delete", "pods", admin | {"Impersonate-User": "reader"}) is False
        assert await allowed("list", "pods", admin | {"Impersonate-User": "reader"}) is True
        assert await allowed("list", "pods", reader | {"Impersonate-User": "kubernetes-admin"}) == 403
        assert await allowed("list", "pods", {}) == 403


# -- logs --------------------------------------------------------------------------------------------------------------


async def test_logs_come_from_the_reader_with_the_options(connect: Serve) -> None:
    store = Store()
    two = {"containers": [{"name": "a", "image": "i:1"}, {"name": "b", "image": "i:1"}]}
    store.create("pods", {"metadata": {"name": "p"}, "spec": two})

    async def reader(namespace: str, pod: str, container: str, **options: Any) -> AsyncIterator[bytes]:
        if container == "b":
            raise bad_request("container b is waiting to start")
        yield f"{namespace}/{pod}/{container} {options['tail_lines']} {options['follow']}\n".encode()
        await anyio.sleep(0.05)
        yield b"end\n"

    client = await connect(store, log_reader=reader)
    answer = await client.call("GET", f"{PODS}/p/log?container=a&tailLines=5&follow=true")
    assert (answer.status, answer.body) == (200, "default/p/a 5 True\nend\n")
    assert (await client.call("GET", f"{PODS}/p/log?container=b")).status == 400
    unnamed = await client.call("GET", f"{PODS}/p/log")
    assert unnamed.body["message"] == "a container name must be specified for pod p, choose one of: [a b]"
    assert (await client.call("GET", f"{PODS}/p/log?container=c")).status == 400
    assert (await client.call("GET", f"{PODS}/none/log")).status == 404


# -- tables ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("seconds", "shown"),
    [(0, "0s"), (119, "119s"), (120, "2m"), (134, "2m14s"), (600, "10m"), (7200, "120m"), (10800, "3h"),
     (11100, "3h5m"), (28800, "8h"), (172800, "2d"), (176400, "2d1h"), (691200, "8d"), (63072000, "2y")],
)  # fmt: skip
def test_ages_as_kubectl_writes_them(seconds: int, shown: str) -> None:
    now = datetime.fromtimestamp(2_000_000_000 + seconds, UTC)
    assert age("2033-05-18T03:33:20Z", now) == shown


@pytest.mark.parametrize(
    ("status", "deleting", "shown"),
    [
        ({"phase": "Pending"}, False, ("0/1", "Pending", "0")),
        (
            {"phase": "Running", "containerStatuses": [{"ready": True, "state": {"running": {}}}]},
            False,
            ("1/1", "Running", "0"),
        ),
        (
            {"phase": "Running", "containerStatuses": [{"ready": True, "state": {"running": {}}}]},
            True,
            ("1/1", "Terminating", "0"),
        ),
        (
            {"phase": "Pending", "containerStatuses": [{"state": {"waiting": {"reason": "ContainerCreating"}}}]},
            False,
            ("0/1", "ContainerCreating", "0"),
        ),
        (
            {
                "phase": "Running",
                "containerStatuses": [
                    {
                        "restartCount": 2,
                        "state": {"waiting": {"reason": "CrashLoopBackOff"}},
                        "lastState": {"terminated": {"exitCode": 1, "finishedAt": "2033-05-18T03:33:10Z"}},
                    }
                ],
            },
            False,
            ("0/1", "CrashLoopBackOff", "2 (10s ago)"),
        ),
        (
            {"phase": "Succeeded", "containerStatuses": [{"state": {"terminated": {"reason": "Completed"}}}]},
            True,
            ("0/1", "Completed", "0"),
        ),
        (
            {"phase": "Failed", "containerStatuses": [{"state": {"terminated": {"exitCode": 137}}}]},
            False,
            ("0/1", "ExitCode:137", "0"),
        ),
        ({"phase": "Failed", "reason": "Evicted"}, False, ("0/1", "Evicted", "0")),
    ],
)
def test_the_status_of_a_pod_as_kubectl_get_shows_it(status: Any, deleting: bool, shown: Any) -> None:
    meta = {"name": "p"} | ({"deletionTimestamp": "2033-05-18T03:33:20Z"} if deleting else {})
    pod = {"metadata": meta, "spec": SPEC, "status": status}
    now = datetime.fromtimestamp(2_000_000_000, UTC)
    rows = table(RESOURCES["", "pods"], [pod], now)["rows"]
    assert tuple(rows[0]["cells"][1:4]) == shown


async def test_a_watch_of_tables_names_the_columns_once(connect: Serve) -> None:
    store = Store()
    for name in ("a", "b"):
        add_pod(store, name)
    client = await connect(store)
    accept = "application/json;as=Table;v=v1;g=meta.k8s.io,application/json"
    answer = await client.call("GET", f"{PODS}?watch=true&timeoutSeconds=1", accept=accept)
    tables = [json.loads(line)["object"] for line in answer.body.splitlines()]
    assert [entry["kind"] for entry in tables] == ["Table", "Table"]
    assert [entry["rows"][0]["cells"][0] for entry in tables] == ["a", "b"]
    assert [bool(entry["columnDefinitions"]) for entry in tables] == [True, False]
