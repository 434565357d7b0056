"""Watches over time: order, progress, ends. What single lines look like is in `scripts.py`."""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from tests.labs import Json, Lab, Namespace


def lease(name: str, **labels: str) -> Json:
    return {"metadata": {"name": name, "labels": labels}, "spec": {"holderIdentity": "0"}}


def test_all_watchers_see_all_changes_in_the_same_order(ns: Namespace) -> None:
    """Versions only rise, although several clients write at the same time."""
    version = ns.do("GET", "leases")["metadata"]["resourceVersion"]
    with (
        ns.watch("leases", resourceVersion=version) as one,
        ns.watch("leases", resourceVersion=version) as two,
        ThreadPoolExecutor(4) as pool,
    ):

        def write(name: str) -> None:
            ns.create("leases", lease(name))
            for turn in range(5):
                ns.patch(f"leases/{name}", {"spec": {"holderIdentity": f"{turn}"}})
            ns.do("DELETE", f"leases/{name}")

        list(pool.map(write, ("a", "b", "c", "d")))
        # Of 5 changes the first changes nothing: no event.
        seen = [watch.wait(lambda events: len(events) >= 24) for watch in (one, two)]
    assert seen[0] == seen[1]
    versions = [int(event["object"]["metadata"]["resourceVersion"]) for event in seen[0]]
    assert versions == sorted(set(versions))
    for name in ("a", "b", "c", "d"):
        types = [event["type"] for event in seen[0] if event["object"]["metadata"]["name"] == name]
        assert types == ["ADDED", *["MODIFIED"] * 4, "DELETED"]


def test_a_watch_resumes_where_another_ended(ns: Namespace) -> None:
    version = ns.do("GET", "leases")["metadata"]["resourceVersion"]
    ns.create("leases", lease("a"))
    with ns.watch("leases", resourceVersion=version) as watch:
        first = watch.wait(lambda events: events)[0]
    ns.create("leases", lease("b"))
    with ns.watch("leases", resourceVersion=first["object"]["metadata"]["resourceVersion"]) as watch:
        assert [event["object"]["metadata"]["name"] for event in watch.wait(lambda events: events)] == ["b"]


def test_a_bookmark_comes_before_the_end_and_can_be_resumed_from(ns: Namespace) -> None:
    """Its version is newer than what the watch began with, although nothing that it watches has changed."""
    version = ns.do("GET", "leases")["metadata"]["resourceVersion"]
    ns.create("configmaps", {"metadata": {"name": "other"}})
    query = {"resourceVersion": version, "allowWatchBookmarks": "true", "timeoutSeconds": 5}
    with ns.watch("leases", **query) as watch:
        found = watch.wait(lambda events: events)[-1]
    assert found["type"] == "BOOKMARK"
    assert found["object"]["kind"] == "Lease"
    bookmark = found["object"]["metadata"]["resourceVersion"]
    assert int(bookmark) > int(version)
    ns.create("leases", lease("a"))
    with ns.watch("leases", resourceVersion=bookmark) as watch:
        assert watch.wait(lambda events: events)[0]["object"]["metadata"]["name"] == "a"


def test_a_watch_ends_after_its_timeout_with_a_proper_end(ns: Namespace) -> None:
    begun = time.monotonic()
    with ns.watch("leases", timeoutSeconds=2) as watch:
        assert watch.ended.wait(10)
    assert 2 - 0.5 <= time.monotonic() - begun <= 2 + 4
    assert watch.status == 200


def test_a_watch_from_the_future_is_silent_until_then(ns: Namespace) -> None:
    version = int(ns.do("GET", "leases")["metadata"]["resourceVersion"])
    with ns.watch("leases", resourceVersion=version + 1_000_000, timeoutSeconds=3) as watch:
        ns.create("leases", lease("a"))
        assert watch.ended.wait(10)
        assert watch.seen() == []


def test_a_watch_of_all_namespaces_sees_each(lab: Lab, ns: Namespace) -> None:
    other = lab.namespace()
    version = ns.do("GET", "leases")["metadata"]["resourceVersion"]
    with ns.watch("/apis/coordination.k8s.io/v1/leases", resourceVersion=version, labelSelector="both=yes") as watch:
        for where in (ns, other):
            where.create("leases", lease("a", both="yes"))
        events = watch.wait(lambda events: len(events) == 2)
    assert [event["object"]["metadata"]["namespace"] for event in events] == [ns.name, other.name]


def test_what_a_label_selector_shows_when_labels_change(ns: Namespace) -> None:
    """An object that leaves is DELETED, with its last labels that matched and the version of the change."""
    made = ns.create("leases", lease("a", tier="x"))

    def names(events: list[Any]) -> list[tuple[str, dict[str, str]]]:
        return [(event["type"], event["object"]["metadata"].get("labels", {})) for event in events]

    with ns.watch("leases", resourceVersion=made["metadata"]["resourceVersion"], labelSelector="tier=x") as watch:
        left = ns.patch("leases/a", {"metadata": {"labels": {"tier": "y"}}})
        ns.patch("leases/a", {"spec": {"holderIdentity": "nobody sees this"}})
        ns.patch("leases/a", {"metadata": {"labels": {"tier": "x"}}})
        events = watch.wait(lambda events: len(events) == 2)
    assert names(events) == [("DELETED", {"tier": "x"}), ("ADDED", {"tier": "x"})]
    assert events[0]["object"]["metadata"]["resourceVersion"] == left["metadata"]["resourceVersion"]
