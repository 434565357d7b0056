from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from chaosrunner.observers import CONVERTERS, to_row
from chaosrunner.observers.events import Interest
from chaosrunner.observers.nodes import News
from chaosrunner.timeline import rows
from tests.cluster.server import DATA

SEEN = ("ADDED", "MODIFIED", "DELETED")

FILES = {
    "Pod": "pods",
    "EndpointSlice": "endpointslices",
    "Node": "nodes",
    "PodDisruptionBudget": "pdbs",
    "Event": "events",
}


def recorded(kind: str) -> list[tuple[rows.Seen, dict[str, Any], float]]:
    """Every object of the recording with how and when it was seen."""
    lines = (DATA / f"k8s-1.37/watch-{FILES[kind]}.jsonl").read_text().splitlines()
    first, *rest = map(json.loads, lines)
    found: list[tuple[rows.Seen, dict[str, Any], float]] = [
        ("LISTED", item, first["at"]) for item in first["list"]["items"]
    ]
    return found + [(line["type"], line["object"], line["at"]) for line in rest if line.get("type") in SEEN]


def converted(kind: str) -> list[Any]:
    return [to_row(kind, obj, seen, at) for seen, obj, at in recorded(kind)]


@pytest.mark.parametrize("kind", FILES)
def test_every_recorded_object_survives_the_recording_format(kind: str) -> None:
    found = converted(kind)
    assert len(found) > 40
    decoder = msgspec.json.Decoder(rows.Row)
    for row in found:
        assert row.name
        assert row.uid
        assert row.version
        assert decoder.decode(msgspec.json.encode(row)) == row


# --- what an eviction looked like (mark "evict" at 6.292 of the recording) ---

EVICTED = 6.292
VICTIM = "chat-df8ff699f-7q65j"


def test_the_evicted_pod() -> None:
    pods = [row for row in converted("Pod") if row.name == VICTIM]
    target = next(row for row in pods if any(c.type == "DisruptionTarget" for c in row.conditions))
    assert next(c.reason for c in target.conditions if c.type == "DisruptionTarget") == "EvictionByEvictionAPI"
    assert target.deletion_time is None
    going = next(row for row in pods if row.deletion_time)
    assert (going.deletion_grace, going.at - EVICTED) == (20.0, pytest.approx(0.024, abs=0.005))
    ended = next(row for row in pods if row.containers and row.containers[0].state == "terminated")
    engine = ended.containers[0]
    assert (engine.name, engine.exit_code, engine.reason, ended.at - EVICTED) == (
        "engine", 0, "Completed", pytest.approx(5.40, abs=0.01),
    )  # fmt: skip
    gone = next(row for row in pods if row.seen == "DELETED")
    assert gone.at - EVICTED == pytest.approx(5.52, abs=0.01)
    # C6: the kubelet's last delete rewrites the deadline; rows keep what was said each time
    assert (gone.deletion_grace, gone.deletion_time > going.deletion_time) == (0.0, False)
    assert going.owner is not None
    assert (going.owner.kind, going.owner.name, going.labels["app"]) == ("ReplicaSet", "chat-df8ff699f", "chat")


def test_a_killed_container_shows_its_last_state() -> None:
    # mark "killed": SIGKILL at 36.93, noticed 0.94 s later
    killed = next(
        row
        for row in converted("Pod")
        if row.name == "chat-df8ff699f-mkdnf" and row.containers and row.containers[0].restarts
    )
    engine = killed.containers[0]
    assert (engine.restarts, engine.last_exit_code, engine.ready) == (1, 137, False)
    assert engine.last_finished_time is not None


def test_the_endpoint_of_the_evicted_pod() -> None:
    slices = [row for row in converted("EndpointSlice") if row.service == "chat"]
    assert slices[0].endpoints == []  # endpoints: null

    def of(row: rows.EndpointSlice) -> rows.Endpoint | None:
        return next((e for e in row.endpoints if e.pod == VICTIM), None)

    first = next(row for row in slices if (e := of(row)) and e.terminating)
    endpoint = of(first)
    assert endpoint is not None
    assert (endpoint.ready, endpoint.serving, endpoint.terminating) == (False, True, True)
    assert first.at - EVICTED == pytest.approx(0.049, abs=0.005)
    removed = next(row for row in slices if row.at > first.at and of(row) is None)
    assert removed.at - EVICTED == pytest.approx(5.41, abs=0.01)
    assert first.ports == [8000]
    assert list(first.named_ports.values()) == [8000]


def test_the_budget_during_the_eviction() -> None:
    budgets = [row for row in converted("PodDisruptionBudget") if row.name == "chat" and row.at >= EVICTED]
    spent = budgets[0]
    assert (spent.allowed, spent.min_available, list(spent.disrupted_times)) == (0, "2", [VICTIM])
    again = next(row for row in budgets if row.allowed == 1)
    assert again.at - EVICTED == pytest.approx(3.52, abs=0.02)


def test_heartbeats_are_no_news() -> None:
    news = News()
    found = converted("Node")
    told = [row for row in found if news.is_new(row)]
    assert len(told) < len(found) / 2
    node2 = [(row.ready, row.unschedulable) for row in told if row.name == "node2"]
    # ready; cut off: Unknown; healed: ready again
    assert [ready for ready, _ in dict.fromkeys(node2)] == ["True", "Unknown"]
    assert node2[-1][0] == "True"
    node3 = [row.unschedulable for row in told if row.name == "node3"]
    assert True in node3
    assert (
        next(row.taints[0].key for row in told if row.unschedulable and row.taints)
        == "node.kubernetes.io/unschedulable"
    )


def test_a_deleted_node_is_news_and_so_is_its_return() -> None:
    node = next(obj for _, obj, _ in recorded("Node"))
    news = News()
    seen: tuple[rows.Seen, ...] = ("LISTED", "MODIFIED", "VANISHED", "RELISTED")
    assert [news.is_new(to_row("Node", node, kind, 0.0)) for kind in seen] == [True, False, True, True]  # type: ignore[arg-type]


# --- C4: legal objects that crash typed clients ---


def test_slice_with_null_endpoints_is_an_outage_not_unknown() -> None:
    # kubernetes-client/python#2423, #2214
    line = (
        '{"kind":"EndpointSlice","metadata":{"name":"chat-x","uid":"s1","resourceVersion":"51"},'
        '"addressType":"IPv4","endpoints":null,"ports":null}'
    )
    row = to_row("EndpointSlice", json.loads(line), "MODIFIED", 1.0)
    assert row == rows.EndpointSlice(at=1.0, seen="MODIFIED", name="chat-x", uid="s1", version="51", endpoints=[])


def test_absent_conditions_read_as_the_api_defines_them() -> None:
    slice_ = {"metadata": {}, "endpoints": [{"addresses": ["10.0.0.1"]}, {"conditions": {"ready": None}}]}
    row = to_row("EndpointSlice", slice_, "ADDED", 0.0)
    assert isinstance(row, rows.EndpointSlice)
    assert [(e.ready, e.serving, e.terminating) for e in row.endpoints] == [(True, True, False)] * 2


def test_event_without_event_time_spans_an_interval() -> None:
    # kubernetes-client/python#1616, #1826
    event = {
        "kind": "Event",
        "metadata": {"name": "e1", "creationTimestamp": "2026-03-02T10:00:09Z"},
        "eventTime": None,
        "firstTimestamp": "2026-03-02T10:00:01Z",
        "lastTimestamp": "2026-03-02T10:00:09Z",
        "count": 4,
        "reason": "Unhealthy",
    }
    row = to_row("Event", event, "ADDED", 0.0)
    assert isinstance(row, rows.Event)
    assert (row.first_time, row.last_time, row.count, row.resolution) == (
        "2026-03-02T10:00:01Z", "2026-03-02T10:00:09Z", 4, 1.0,
    )  # fmt: skip


def places(value: Any, *path: str | int) -> list[tuple[str | int, ...]]:
    """Every optional place in an object; what the API requires wherever its parent is there is left out."""
    if isinstance(value, list):
        return [place for number, item in enumerate(value) for place in places(item, *path, number)]
    if not isinstance(value, dict) or path[-1:] in (("labels",), ("annotations",), ("matchLabels",)):
        return []
    optional = [key for key in value if not path or key not in ("type", "status", "name", "uid", "kind", "port")]
    return [(*path, key) for key in optional] + [p for key, item in value.items() for p in places(item, *path, key)]


SAMPLES = [(kind, obj, places(obj)) for kind in FILES for _, obj, _ in recorded(kind)[::9]]


@given(data=st.data())
@settings(max_examples=300, deadline=None)
def test_nothing_optional_is_missed(data: st.DataObject) -> None:
    """Any optional parts of a real object may be null or absent."""
    kind, obj, optional = data.draw(st.sampled_from(SAMPLES))
    obj = json.loads(json.dumps(obj))
    for place in data.draw(st.lists(st.sampled_from(optional), max_size=4)):
        try:
            parent = obj
            for key in place[:-1]:
                parent = parent[key]
            if data.draw(st.booleans()):
                parent[place[-1]] = None
            else:
                del parent[place[-1]]
        except (KeyError, TypeError):
            continue  # its parent is gone already
    row = to_row(kind, obj, "MODIFIED", 0.0)
    assert msgspec.json.decode(msgspec.json.encode(row), type=rows.Row) == row


# --- C7: which of an Event's five times ---


@pytest.mark.parametrize(
    ("fields", "first", "last", "resolution", "count"),
    [
        # kubernetes/kubernetes#90482, #89689: eventTime set, first and last null
        (
            {"eventTime": "2026-03-02T12:00:04.812345Z", "firstTimestamp": None, "lastTimestamp": None},
            "2026-03-02T12:00:04.812345Z", "2026-03-02T12:00:04.812345Z", 1e-6, 1,
        ),
        (
            {"firstTimestamp": "2026-03-02T12:00:00Z", "lastTimestamp": "2026-03-02T12:00:30Z", "count": 7},
            "2026-03-02T12:00:00Z", "2026-03-02T12:00:30Z", 1.0, 7,
        ),
        (
            {"eventTime": "2026-03-02T12:00:00.1Z",
             "series": {"count": 9, "lastObservedTime": "2026-03-02T12:01:00.5Z"}},
            "2026-03-02T12:00:00.1Z", "2026-03-02T12:01:00.5Z", 1e-6, 9,
        ),
        ({}, "2026-03-02T11:00:00Z", "2026-03-02T11:00:00Z", 1.0, 1),
        (
            {"regarding": {"name": "p"}, "note": "n", "deprecatedFirstTimestamp": "2026-03-02T12:00:00Z",
             "deprecatedLastTimestamp": "2026-03-02T12:00:10Z", "deprecatedCount": 3},
            "2026-03-02T12:00:00Z", "2026-03-02T12:00:10Z", 1.0, 3,
        ),
    ],
)  # fmt: skip
def test_event_times(fields: dict[str, Any], first: str, last: str, resolution: float, count: int) -> None:
    event = {"metadata": {"name": "e", "creationTimestamp": "2026-03-02T11:00:00Z"}, **fields}
    row = to_row("Event", event, "ADDED", 0.0)
    assert isinstance(row, rows.Event)
    assert (row.first_time, row.last_time, row.resolution, row.count) == (first, last, resolution, count)


def test_interest_covers_what_the_workload_makes_and_nothing_else() -> None:
    interest = Interest(frozenset({"node3"}))
    interest.add(next(row for row in converted("Pod") if row.name.startswith("chat-")))
    interest.add_name("chat")
    covered = [row for row in converted("Event") if interest.covers(row)]
    kinds = {row.object_kind for row in covered}
    assert {"Deployment", "ReplicaSet", "Pod"} <= kinds
    assert not [row for row in covered if (row.object_name or "").startswith(("slow-", "bad-", "stuck-"))]
    killing = next(row for row in covered if row.reason == "Killing" and row.object_name == VICTIM)
    assert killing.at - EVICTED == pytest.approx(0.054, abs=0.005)

    def event(kind: str, name: str, uid: str = "?") -> rows.Event:
        return rows.Event(
            at=0, seen="ADDED", name="e", uid="e", version="1", object_kind=kind, object_name=name, object_uid=uid
        )

    assert interest.covers(event("Pod", "chat-df8ff699f-new"))  # its Pod's own event may come later
    assert interest.covers(event("Node", "node3"))
    assert not interest.covers(event("Node", "node1"))
    assert interest.covers(event("PodDisruptionBudget", "anything"))
    assert not interest.covers(event("Pod", "chatter"))


def test_unknown_kind() -> None:
    assert set(CONVERTERS) == set(FILES)
    with pytest.raises(KeyError):
        to_row("Secret", {}, "ADDED", 0.0)


@pytest.mark.parametrize(
    ("kind", "obj"),
    [
        ("PodDisruptionBudget", {"metadata": {"name": "b", "uid": "u"}, "status": {"disruptedPods": {"chat-1": None}}}),
        ("Pod", {"metadata": {"name": "p", "uid": "u", "labels": {"app": None}}}),
    ],
)
def test_a_null_in_a_map_of_texts_keeps_its_key(kind: str, obj: dict[str, Any]) -> None:
    """JSON null is the empty string to the API server's decoder."""
    row = to_row(kind, obj, "MODIFIED", 0.0)
    kept = row.disrupted_times if isinstance(row, rows.Pdb) else row.labels if isinstance(row, rows.Pod) else {}
    assert kept == {"chat-1": ""} or kept == {"app": ""}
    assert msgspec.json.decode(msgspec.json.encode(row), type=rows.Row) == row
