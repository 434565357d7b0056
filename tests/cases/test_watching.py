"""Watches and objects as real servers send them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest

from chaosrunner.observers import endpoints, events, nodes, pdbs, pods
from chaosrunner.timeline.rows import Row
from tests.cluster.server import bookmark, pod, serving
from tests.cluster.server import status as refusal
from tests.cluster.test_watch import FOREVER, listed, serve, watching
from tests.cluster.test_watch import events as stream


@pytest.mark.anyio
@pytest.mark.parametrize("code", [500, 504])
async def test_an_error_event_that_repeats_is_left_by_a_list(tmp_path: Path, code: int) -> None:
    # client-go's reflector lists again after any ERROR event: the same version may fail for ever, as with an etcd
    # event that lacks its previous value (kubernetes/kubernetes, "etcd event received with PrevKv=nil")
    error = {"kind": "Status", "status": "Failure", "code": code, "message": "etcd event received with PrevKv=nil"}

    async def watch(request: Any) -> Any:
        broken = request.query["resourceVersion"] == "10"
        return await stream(*([("ERROR", error)] if broken else []), hold=0.0 if broken else FOREVER)(request)

    async with serving() as server:
        serve(server, [listed("10", pod("a", "1")), listed("50", pod("b", "40"))], [watch])
        async with watching(server, tmp_path) as view:
            await view.until(("RELISTED", "b"))
            await view.until_life("gap_closed")
        assert view.life[:3] == [("listed", None), ("gap_opened", f"http_{code}"), ("gap_closed", "relisted")]
        assert [change.gap is None for change in view.changes] == [True, False, False]


@pytest.mark.anyio
async def test_a_watch_of_nothing_but_bookmarks_has_no_gap(tmp_path: Path) -> None:
    # kubernetes-client/python#1729
    marks = [("BOOKMARK", bookmark(str(version))) for version in (11, 12)]
    async with serving() as server:
        serve(server, [listed("10")], [stream(*marks), stream(("ADDED", pod("a", "13")), hold=FOREVER)])
        async with watching(server, tmp_path) as view:
            await view.until(("ADDED", "a"))
        assert view.life == [("listed", None), ("stopped", None)]
        watches = [query["resourceVersion"] for _, _, query, _, _ in server.requests if "watch" in query]
        assert watches == ["10", "12"]


@pytest.mark.anyio
async def test_a_pod_that_came_back_under_its_name_is_another_one(tmp_path: Path) -> None:
    # a StatefulSet's Pod: the deletion and the creation carry one name and two UIDs
    new = pod("web-0", "22", uid="new")
    async with serving() as server:
        serve(
            server,
            [listed("10", pod("web-0", "1", uid="old"))],
            [stream(("DELETED", pod("web-0", "21", uid="old")), ("ADDED", new), hold=FOREVER)],
        )
        async with watching(server, tmp_path) as view:
            await view.until(("ADDED", "web-0"))
        assert [(change.seen, change.object["metadata"]["uid"]) for change in view.changes] == [
            ("LISTED", "old"),
            ("DELETED", "old"),
            ("ADDED", "new"),
        ]


@pytest.mark.anyio
async def test_a_first_list_that_the_server_cannot_answer_yet(tmp_path: Path) -> None:
    calls: list[int] = []

    async def list_(request: Any) -> Any:
        calls.append(1)
        if len(calls) < 3:
            return refusal(504, "Timeout", "Too large resource version")
        return await listed("10", pod("a", "1"))(request)

    async with serving() as server:
        serve(server, [list_], [stream(hold=FOREVER)])
        async with watching(server, tmp_path) as view:
            await view.until(("LISTED", "a"))
        assert [name for name, _ in view.life] == ["gap_opened", "listed", "gap_closed", "stopped"]


CONVERTERS = {"pods": pods, "endpoints": endpoints, "nodes": nodes, "pdbs": pdbs, "events": events}


@pytest.mark.parametrize("kind", CONVERTERS)
@pytest.mark.parametrize(
    "obj",
    [
        {},
        {"metadata": None, "spec": None, "status": None, "endpoints": None, "ports": None},
        {"metadata": {"name": "x", "labels": None, "annotations": None, "ownerReferences": None, "finalizers": None}},
        {"metadata": {"name": "x"}, "spec": {}, "status": {"conditions": None, "containerStatuses": None}},
        {"metadata": {"name": "x"}, "status": {"containerStatuses": [{"name": "c", "state": None, "lastState": None}]}},
        {"metadata": {"name": "x"}, "status": {"conditions": [{"type": "Ready", "status": "Unknown", "reason": None}]}},
        {"metadata": {"name": "x"}, "endpoints": [{"addresses": None, "conditions": None, "targetRef": None}]},
        {"metadata": {"name": "x"}, "endpoints": [{}], "ports": [{"port": None}, {"name": ""}]},
        {"metadata": {"name": "x"}, "series": None, "involvedObject": None, "source": None, "count": None},
        {"metadata": {"name": "x"}, "spec": {"taints": None, "unschedulable": None, "selector": None}},
    ],
    ids=range(10),
)
def test_legal_objects_become_rows_that_can_be_read_again(kind: str, obj: dict[str, Any]) -> None:
    # kubernetes-client/python#2423, #2214, #1616, #1826: null where a typed client expects something
    row = CONVERTERS[kind].to_row(obj, seen="LISTED", at=1.0)
    assert msgspec.json.decode(msgspec.json.encode(row), type=Row) == row


@pytest.mark.parametrize(
    ("fields", "first", "last", "count"),
    [
        ({"eventTime": "T5.000001Z", "series": {"count": 9, "lastObservedTime": "T9.5Z"}}, "T5.000001Z", "T9.5Z", 9),
        # recorded by client-go's recorder: the first of a series has no count yet
        ({"eventTime": "T5.000001Z", "series": None, "count": 0}, "T5.000001Z", "T5.000001Z", 1),
        ({"firstTimestamp": "T1Z", "lastTimestamp": "T3Z", "count": 4, "eventTime": None}, "T1Z", "T3Z", 4),
        ({"deprecatedFirstTimestamp": "T1Z", "deprecatedLastTimestamp": "T3Z", "deprecatedCount": 2}, "T1Z", "T3Z", 2),
        ({"metadata": {"creationTimestamp": "T2Z"}}, "T2Z", "T2Z", 1),
        ({}, None, None, 1),
    ],
)
def test_times_and_counts_of_events(fields: dict[str, Any], first: str | None, last: str | None, count: int) -> None:
    # kubernetes/kubernetes#90482, #36304, #89689; AliyunContainerService/kube-eventer#276
    row = events.to_row(fields, seen="MODIFIED", at=0.0)
    assert (row.first_time, row.last_time, row.count) == (first, last, count)
