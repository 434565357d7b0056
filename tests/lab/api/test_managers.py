"""Who wrote which fields, as undo asks it of `metadata.managedFields`."""

from __future__ import annotations

from typing import Any

import pytest

from chaosrunner.lab.embedded.requests import Target
from chaosrunner.lab.embedded.resources import STORED
from chaosrunner.lab.embedded.store import Store
from chaosrunner.lab.embedded.verbs import patch

NODE = Target(STORED["nodes"], None, "n1", "")


@pytest.fixture
def store() -> Store:
    made = Store()
    made.create("nodes", {"metadata": {"name": "n1", "labels": {"zone": "a"}}})
    return made


def write(store: Store, manager: str, body: bytes) -> dict[str, Any]:
    """By manager, the fields that are its own after its merge patch."""
    _, node = patch(store, NODE, body, "application/merge-patch+json", {}, manager)
    return {entry["manager"]: entry["fieldsV1"] for entry in node["metadata"].get("managedFields", ())}


CORDONED: dict[str, Any] = {"f:spec": {"f:unschedulable": {}}}


def test_a_field_is_its_last_writers(store: Store) -> None:
    assert write(store, "us", b'{"spec":{"unschedulable":true}}') == {"us": CORDONED}
    assert write(store, "them", b'{"metadata":{"labels":{"zone":"b"}}}') == {
        "us": CORDONED,
        "them": {"f:metadata": {"f:labels": {"f:zone": {}}}},
    }


def test_the_same_value_again_changes_no_writer(store: Store) -> None:
    write(store, "us", b'{"spec":{"unschedulable":true}}')
    assert write(store, "them", b'{"spec":{"unschedulable":true}}') == {"us": CORDONED}


def test_a_field_that_goes_and_comes_again_is_who_brought_its(store: Store) -> None:
    write(store, "us", b'{"spec":{"unschedulable":true}}')
    assert write(store, "them", b'{"spec":{"unschedulable":null}}') == {}
    assert write(store, "them", b'{"spec":{"unschedulable":true}}') == {"them": CORDONED}


def test_the_labs_own_controllers_take_fields_too(store: Store) -> None:
    write(store, "us", b'{"metadata":{"annotations":{"a":"1","b":"1"}}}')
    node = store.mutate("nodes", "n1", None, lambda new: new["metadata"]["annotations"].update(a="2"))
    owned = {entry["manager"]: entry["fieldsV1"]["f:metadata"] for entry in node["metadata"]["managedFields"]}
    assert owned == {
        "us": {"f:annotations": {"f:b": {}}},
        "kube-controller-manager": {"f:annotations": {"f:a": {}}},
    }


def test_a_status_has_no_writer(store: Store) -> None:
    write(store, "us", b'{"spec":{"unschedulable":true}}')
    node = store.mutate("nodes", "n1", None, lambda new: new["status"].update(phase="x"), subresource="status")
    assert [entry["manager"] for entry in node["metadata"]["managedFields"]] == ["us"]
