from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from chaosrunner.lab.embedded.resources import STORED
from chaosrunner.lab.embedded.selectors import Selector
from chaosrunner.lab.embedded.store import FIRST_VERSION, ApiError, Store
from tests.lab.api.objects import SPEC, add_pod, owned_by, template

Json = dict[str, Any]
FIELDS = st.sampled_from(
    ["spec", "status", "containers", "name", "image", "ports", "port", "selector", "template", "metadata", "labels",
     "matchLabels", "matchExpressions", "key", "operator", "replicas", "minAvailable", "volumes", "lifecycle",
     "readinessProbe", "httpGet", "tolerations", "resources", "strategy", "initContainers"]
)  # fmt: skip


class Clock:
    def __init__(self) -> None:
        self.seconds = 1_800_000_000.0

    def __call__(self) -> datetime:
        return datetime.fromtimestamp(self.seconds, UTC)


def seen(store: Store, *resources: str) -> list[tuple[str, str, str]]:
    """A list that grows by (type, kind, name) of each change."""
    log: list[tuple[str, str, str]] = []
    for resource in resources:
        store.subscribe(resource, lambda type_, obj, old: log.append((type_, obj["kind"], obj["metadata"]["name"])))
    return log


@contextmanager
def refused(status: int, reason: str) -> Iterator[None]:
    with pytest.raises(ApiError) as error:
        yield
    assert (error.value.status, error.value.reason) == (status, reason)


def test_versions_rise_by_one_for_all_kinds_together() -> None:
    store = Store()
    before = store.resource_version
    assert before > FIRST_VERSION
    store.create("configmaps", {"metadata": {"name": "a"}})
    created = store.create("nodes", {"metadata": {"name": "n"}})
    assert int(created["metadata"]["resourceVersion"]) == store.resource_version == before + 2


def test_what_is_handed_out_never_changes_and_what_is_handed_in_is_copied() -> None:
    store = Store()
    mine = {"metadata": {"name": "a"}, "data": {"k": "1"}}
    first = store.create("configmaps", mine)
    mine["data"]["k"] = "2"
    store.mutate("configmaps", "a", "default", lambda obj: obj["data"].update(k="3"))
    assert first["data"] == {"k": "1"}
    assert store.get("configmaps", "a")["data"] == {"k": "3"}


def test_a_write_that_changes_nothing_is_no_change() -> None:
    store = Store()
    obj = store.create("configmaps", {"metadata": {"name": "a"}, "data": {"k": "1"}})
    log = seen(store, "configmaps")
    assert store.mutate("configmaps", "a", "default", lambda obj: None) is obj
    assert log == []


def test_stale_versions_and_foreign_uids_are_conflicts() -> None:
    store = Store()
    old = store.create("configmaps", {"metadata": {"name": "a"}})
    store.mutate("configmaps", "a", "default", lambda obj: obj.update(data={"k": "1"}))
    with refused(409, "Conflict"):
        store.update("configmaps", old | {"data": {"k": "2"}})
    with refused(409, "Conflict"):
        store.update("configmaps", {"metadata": {"name": "a", "uid": "another"}})
    store.update("configmaps", {"metadata": {"name": "a"}, "data": {"k": "unconditional"}})
    assert store.get("configmaps", "a")["data"] == {"k": "unconditional"}


def test_leases_demand_the_version() -> None:
    store = Store()
    store.create("leases", {"metadata": {"name": "a"}})
    with refused(422, "Invalid"):
        store.update("leases", {"metadata": {"name": "a"}, "spec": {"holderIdentity": "me"}})


def test_spec_and_status_are_written_apart() -> None:
    store = Store()
    pod = add_pod(store, "p")
    store.mutate("pods", "p", "default", lambda pod: pod["status"].update(phase="Failed"))
    assert store.get("pods", "p") == pod
    store.mutate(
        "pods",
        "p",
        "default",
        lambda pod: (pod["status"].update(phase="Failed"), pod["spec"].update(nodeName="elsewhere")),
        subresource="status",
    )
    pod = store.get("pods", "p")
    assert (pod["status"]["phase"], pod["spec"]["nodeName"]) == ("Failed", "node1")


def test_generation_counts_changes_of_the_spec_only() -> None:
    store = Store()
    store.create("deployments", {"metadata": {"name": "d"}, "spec": template()})

    def generation() -> int:
        return int(store.get("deployments", "d")["metadata"]["generation"])

    store.mutate("deployments", "d", "default", lambda obj: obj["metadata"].update(labels={"a": "b"}))
    store.mutate("deployments", "d", "default", lambda obj: obj["status"].update(replicas=1), subresource="status")
    assert generation() == 1
    store.mutate("deployments", "d", "default", lambda obj: obj["spec"].update(replicas=3))
    assert generation() == 2
    assert add_pod(store, "p")["metadata"]["generation"] == 1


def test_subscribers_see_changes_in_order_even_when_a_subscriber_writes() -> None:
    store = Store()
    versions: list[int] = []

    def answer(type_: str, obj: Json, old: Json | None) -> None:
        if type_ == "ADDED":
            store.mutate("configmaps", obj["metadata"]["name"], "default", lambda obj: obj.update(data={"k": "1"}))

    store.subscribe("configmaps", answer)
    stop = store.subscribe(
        "configmaps", lambda type_, obj, old: versions.append(int(obj["metadata"]["resourceVersion"]))
    )
    store.create("configmaps", {"metadata": {"name": "a"}})
    store.create("configmaps", {"metadata": {"name": "b"}})
    assert versions == sorted(versions)
    assert len(versions) == 4
    stop()
    store.delete("configmaps", "a")
    assert len(versions) == 4


def test_history_forgets_and_then_answers_410() -> None:
    store = Store(history=3)
    start = store.resource_version
    for number in range(5):
        store.create("configmaps", {"metadata": {"name": f"c{number}"}})
    assert [change.object["metadata"]["name"] for change in store.changes_since("configmaps", start + 2)] == [
        "c2",
        "c3",
        "c4",
    ]
    with refused(410, "Expired"):
        store.changes_since("configmaps", start + 1)
    assert [obj["metadata"]["name"] for obj in store.list("configmaps", at=start + 3)] == ["c0", "c1", "c2"]
    with refused(410, "Expired"):
        store.list("configmaps", at=start + 1)
    store.forget_history()
    with refused(410, "Expired"):
        store.changes_since("configmaps", start + 4)
    assert store.changes_since("configmaps", store.resource_version) == []


def test_a_list_of_the_past_has_what_was_deleted_and_changed_since() -> None:
    store = Store()
    store.create("configmaps", {"metadata": {"name": "a"}, "data": {"k": "1"}})
    store.create("configmaps", {"metadata": {"name": "b"}})
    then = store.resource_version
    store.mutate("configmaps", "a", "default", lambda obj: obj["data"].update(k="2"))
    store.delete("configmaps", "b")
    store.create("configmaps", {"metadata": {"name": "c"}})
    past = store.list("configmaps", at=then)
    assert [(obj["metadata"]["name"], obj.get("data")) for obj in past] == [("a", {"k": "1"}), ("b", None)]


def test_lists_are_ordered_and_selected() -> None:
    store = Store()
    for name in ("b", "a", "c"):
        add_pod(store, name, node="n1" if name == "a" else None)
    store.create("namespaces", {"metadata": {"name": "other"}})
    store.create("pods", {"metadata": {"name": "z"}, "spec": SPEC}, namespace="other")
    names = [obj["metadata"]["name"] for obj in store.list("pods")]
    assert names == ["a", "b", "c", "z"]
    assert len(store.list("pods", "default", labels=Selector.parse("app=chat"))) == 3
    fields = (("spec.nodeName", True, "n1"),)
    assert [obj["metadata"]["name"] for obj in store.list("pods", fields=fields)] == ["a"]


# kubernetes/kubernetes#87039: the deadline is the time of the request plus the grace period
def test_a_pod_on_a_node_goes_gracefully() -> None:
    clock = Clock()
    store = Store(now=clock)
    add_pod(store, "p")
    log = seen(store, "pods")
    meta = store.delete("pods", "p", grace=20)["metadata"]
    assert (meta["deletionTimestamp"], meta["deletionGracePeriodSeconds"]) == ("2027-01-15T08:00:20Z", 20)
    assert meta["generation"] == 2
    clock.seconds += 5
    assert store.delete("pods", "p", grace=30)["metadata"] == meta
    shortened = store.delete("pods", "p", grace=2)["metadata"]
    assert (shortened["deletionTimestamp"], shortened["deletionGracePeriodSeconds"]) == ("2027-01-15T08:00:07Z", 2)
    assert shortened["generation"] == 2
    last = store.delete("pods", "p", grace=0)["metadata"]
    assert (last["deletionTimestamp"], last["deletionGracePeriodSeconds"]) == ("2027-01-15T08:00:05Z", 0)
    assert [entry[0] for entry in log] == ["MODIFIED", "MODIFIED", "MODIFIED", "DELETED"]
    with refused(404, "NotFound"):
        store.get("pods", "p")


@pytest.mark.parametrize("phase", ["Pending", "Succeeded", "Failed"])
def test_a_pod_without_a_node_or_that_has_ended_goes_at_once(phase: str) -> None:
    store = Store()
    add_pod(store, "p", node=None if phase == "Pending" else "node1")
    store.mutate("pods", "p", "default", lambda pod: pod["status"].update(phase=phase), subresource="status")
    store.delete("pods", "p", grace=30)
    assert store.find("pods", "p") is None


def test_delete_preconditions() -> None:
    store = Store()
    pod = add_pod(store, "p")
    with refused(409, "Conflict"):
        store.delete("pods", "p", uid="another")
    with refused(409, "Conflict"):
        store.delete("pods", "p", resource_version="1")
    assert store.get("pods", "p") is pod
    store.delete("pods", "p", uid=pod["metadata"]["uid"], resource_version=pod["metadata"]["resourceVersion"], grace=0)
    assert store.find("pods", "p") is None


def test_finalizers_hold_an_object_until_they_are_gone() -> None:
    store = Store()
    store.create("configmaps", {"metadata": {"name": "a", "finalizers": ["mine"]}})
    assert "deletionTimestamp" in store.delete("configmaps", "a")["metadata"]
    assert store.find("configmaps", "a") is not None
    store.mutate("configmaps", "a", "default", lambda obj: obj["metadata"].pop("finalizers"))
    assert store.find("configmaps", "a") is None


@pytest.fixture
def family() -> Store:
    """Deployment d owns ReplicaSet r owns Pods p1 and p2 (on a node)."""
    store = Store()
    deployment = store.create("deployments", {"metadata": {"name": "d"}, "spec": template()})
    replicaset = store.create(
        "replicasets", {"metadata": {"name": "r", "ownerReferences": owned_by(deployment)}, "spec": template()}
    )
    for name in ("p1", "p2"):
        add_pod(store, name, ownerReferences=owned_by(replicaset))
    return store


def test_background_delete_takes_the_owned_afterwards(family: Store) -> None:
    log = seen(family, "deployments", "replicasets", "pods")
    family.delete("deployments", "d")
    assert log == [
        ("DELETED", "Deployment", "d"),
        ("DELETED", "ReplicaSet", "r"),
        ("MODIFIED", "Pod", "p1"),
        ("MODIFIED", "Pod", "p2"),
    ]


def test_foreground_delete_takes_the_owned_before(family: Store) -> None:
    held = family.delete("deployments", "d", propagation="Foreground")
    assert held["metadata"]["finalizers"] == ["foregroundDeletion"]
    family.delete("pods", "p1", grace=0)
    assert family.find("replicasets", "r") is not None
    log = seen(family, "deployments", "replicasets", "pods")
    family.delete("pods", "p2", grace=0)
    assert [entry for entry in log if entry[0] == "DELETED"] == [
        ("DELETED", "Pod", "p2"),
        ("DELETED", "ReplicaSet", "r"),
        ("DELETED", "Deployment", "d"),
    ]


def test_orphaning_delete_leaves_the_owned(family: Store) -> None:
    family.delete("replicasets", "r", propagation="Orphan")
    pod = family.get("pods", "p1")
    assert "ownerReferences" not in pod["metadata"]
    assert "deletionTimestamp" not in pod["metadata"]


def test_a_namespace_goes_when_it_is_empty_and_takes_nothing_new() -> None:
    store = Store()
    store.create("namespaces", {"metadata": {"name": "n"}})
    store.create("pods", {"metadata": {"name": "p"}, "spec": SPEC}, namespace="n")
    store.bind("n", "p", "node1")
    store.delete("namespaces", "n")
    assert store.get("namespaces", "n")["status"]["phase"] == "Terminating"
    with pytest.raises(ApiError) as error:
        store.create("configmaps", {"metadata": {"name": "late"}}, namespace="n")
    assert error.value.status == 403
    assert error.value.body["details"]["causes"][0]["reason"] == "NamespaceTerminating"
    store.delete("pods", "p", "n", grace=0)
    assert store.find("namespaces", "n") is None
    with refused(404, "NotFound"):
        store.create("configmaps", {"metadata": {"name": "later"}}, namespace="n")


def test_dry_runs_change_nothing() -> None:
    store = Store()
    add_pod(store, "p")
    version = store.resource_version
    store.create("configmaps", {"metadata": {"name": "a"}}, dry_run=True)
    store.update(
        "pods", {"metadata": {"name": "p", "labels": {"x": "y"}}, "spec": store.get("pods", "p")["spec"]}, dry_run=True
    )
    store.delete("pods", "p", dry_run=True)
    assert store.resource_version == version


def test_binding_a_pod_is_one_change_and_happens_once() -> None:
    store = Store()
    store.create("pods", {"metadata": {"generateName": "p-"}, "spec": SPEC})
    (pod,) = store.list("pods")
    log = seen(store, "pods")
    bound = store.bind("default", pod["metadata"]["name"], "n1")
    assert bound["spec"]["nodeName"] == "n1"
    assert [(entry["type"], entry["status"]) for entry in bound["status"]["conditions"]] == [("PodScheduled", "True")]
    assert bound["metadata"]["generation"] == 1
    assert len(log) == 1
    with refused(409, "Conflict"):
        store.bind("default", pod["metadata"]["name"], "n2")


@pytest.mark.parametrize(
    ("resource", "obj", "field"),
    [
        ("pods", {"metadata": {}, "spec": SPEC}, "metadata.name"),
        ("pods", {"metadata": {"name": "p"}, "spec": {"containers": [{"name": "c"}]}}, "spec.containers[0].image"),
        ("services", {"metadata": {"name": "s"}, "spec": {}}, "spec.ports"),
        ("deployments", {"metadata": {"name": "d"}, "spec": template() | {"replicas": -1}}, "spec.replicas"),
        (
            "deployments",
            {"metadata": {"name": "d"}, "spec": template() | {"selector": {"matchLabels": {"app": "typo"}}}},
            "spec.template.metadata.labels",
        ),
        (
            "poddisruptionbudgets",
            {"metadata": {"name": "b"}, "spec": {"minAvailable": 1, "maxUnavailable": 1}},
            "spec",
        ),
        ("poddisruptionbudgets", {"metadata": {"name": "b"}, "spec": {"minAvailable": "half"}}, "spec.minAvailable"),
    ],
)
def test_invalid_objects_are_422_with_the_field(resource: str, obj: Json, field: str) -> None:
    with pytest.raises(ApiError) as error:
        Store().create(resource, obj)
    assert error.value.status == 422
    assert [cause["field"] for cause in error.value.body["details"]["causes"]] == [field]


def test_most_of_a_living_pods_spec_is_fixed() -> None:
    store = Store()
    add_pod(store, "p")
    store.mutate("pods", "p", "default", lambda pod: pod["spec"]["containers"][0].update(image="lab/model:2"))
    with refused(422, "Invalid"):
        store.mutate("pods", "p", "default", lambda pod: pod["spec"].update(hostNetwork=True))


@pytest.mark.parametrize(
    ("resources", "expected"),
    [
        ([{}], "BestEffort"),
        ([{"requests": {"cpu": "1"}}], "Burstable"),
        ([{"limits": {"cpu": "1", "memory": "1Gi"}}], "Guaranteed"),
        ([{"limits": {"cpu": "1", "memory": "1Gi"}, "requests": {"cpu": "500m"}}], "Burstable"),
        ([{"limits": {"cpu": "1", "memory": "1Gi"}}, {}], "Burstable"),
    ],
)
def test_quality_of_service_class(resources: list[Json], expected: str) -> None:
    containers = [{"name": f"c{at}", "image": "i:1", "resources": entry} for at, entry in enumerate(resources)]
    pod = Store().create("pods", {"metadata": {"name": "p"}, "spec": {"containers": containers}})
    assert pod["status"]["qosClass"] == expected


JSON = st.recursive(
    st.none() | st.booleans() | st.integers(0, 9) | st.sampled_from(["", "a", "Exists", "50%"]),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(FIELDS, inner, max_size=4),
    max_leaves=10,
)


META = st.sampled_from(["name", "generateName", "namespace", "labels", "annotations", "finalizers", "ownerReferences"])


@given(st.sampled_from(sorted(STORED)), st.dictionaries(FIELDS, JSON, max_size=4), st.dictionaries(META, JSON))
def test_no_object_is_too_strange_to_be_refused_properly(resource: str, fields: Json, meta: Json) -> None:
    store = Store()
    with suppress(ApiError):
        store.create(resource, {"metadata": {"name": "a"} | meta} | fields)
    store.create("nodes", {"metadata": {"name": "present"}})
    with suppress(ApiError):
        store.update("nodes", fields | {"metadata": meta | {"name": "present"}})
