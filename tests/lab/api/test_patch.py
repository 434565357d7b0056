from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from chaosrunner.lab.embedded.errors import ApiError
from chaosrunner.lab.embedded.patch import json_patch, merge_patch, strategic_merge
from chaosrunner.lab.embedded.store import clone

SCALARS = st.none() | st.booleans() | st.integers(-3, 3) | st.text("ab~/", max_size=2)
NAMES = st.text("ab~/", min_size=1, max_size=2)


def _nested(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    return st.lists(inner, max_size=3) | st.dictionaries(NAMES, inner, max_size=3)


JSON = st.recursive(SCALARS, _nested, max_leaves=8)
OBJECTS = st.dictionaries(NAMES, JSON, max_size=4)


def without_nulls(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: without_nulls(item) for name, item in value.items() if item is not None}
    return value


# RFC 7386, appendix A, all of it.
@pytest.mark.parametrize(
    ("target", "patch", "result"),
    [
        ({"a": "b"}, {"a": "c"}, {"a": "c"}),
        ({"a": "b"}, {"b": "c"}, {"a": "b", "b": "c"}),
        ({"a": "b"}, {"a": None}, {}),
        ({"a": "b", "b": "c"}, {"a": None}, {"b": "c"}),
        ({"a": ["b"]}, {"a": "c"}, {"a": "c"}),
        ({"a": "c"}, {"a": ["b"]}, {"a": ["b"]}),
        ({"a": {"b": "c"}}, {"a": {"b": "d", "c": None}}, {"a": {"b": "d"}}),
        ({"a": [{"b": "c"}]}, {"a": [1]}, {"a": [1]}),
        (["a", "b"], ["c", "d"], ["c", "d"]),
        ({"a": "b"}, ["c"], ["c"]),
        ({"a": "foo"}, None, None),
        ({"a": "foo"}, "bar", "bar"),
        ({"e": None}, {"a": 1}, {"e": None, "a": 1}),
        ([1, 2], {"a": "b", "c": None}, {"a": "b"}),
        ({}, {"a": {"bb": {"ccc": None}}}, {"a": {"bb": {}}}),
    ],
)
def test_merge_patch_examples_of_the_rfc(target: Any, patch: Any, result: Any) -> None:
    assert merge_patch(target, patch) == result


@given(JSON, JSON)
def test_merge_patch_is_idempotent_and_changes_nothing_given(target: Any, patch: Any) -> None:
    before = clone(target), clone(patch)
    once = merge_patch(target, patch)
    assert merge_patch(once, patch) == once
    assert (target, patch) == before


@given(OBJECTS, OBJECTS)
def test_merge_patch_reaches_any_object_without_nulls(source: Any, wanted: Any) -> None:
    wanted = without_nulls(wanted)
    patch = difference(source, wanted)
    assert merge_patch(source, patch) == wanted


def difference(source: Any, wanted: Any) -> Any:
    """The merge patch from one object to another."""
    if not isinstance(source, dict) or not isinstance(wanted, dict):
        return wanted
    patch: dict[str, Any] = {name: None for name in source if name not in wanted}
    return patch | {
        name: difference(source[name], value) if name in source else value
        for name, value in wanted.items()
        if name not in source or source[name] != value or isinstance(value, dict)
    }


# RFC 6902, appendix A: (section, document, patch, result; None where it must be refused).
RFC_6902 = [
    ("A.1", {"foo": "bar"}, [("add", "/baz", "qux")], {"baz": "qux", "foo": "bar"}),
    ("A.2", {"foo": ["bar", "baz"]}, [("add", "/foo/1", "qux")], {"foo": ["bar", "qux", "baz"]}),
    ("A.3", {"baz": "qux", "foo": "bar"}, [("remove", "/baz")], {"foo": "bar"}),
    ("A.4", {"foo": ["bar", "qux", "baz"]}, [("remove", "/foo/1")], {"foo": ["bar", "baz"]}),
    ("A.5", {"baz": "qux", "foo": "bar"}, [("replace", "/baz", "boo")], {"baz": "boo", "foo": "bar"}),
    (
        "A.6",
        {"foo": {"bar": "baz", "waldo": "fred"}, "qux": {"corge": "grault"}},
        [("move", "/qux/thud", "/foo/waldo")],
        {"foo": {"bar": "baz"}, "qux": {"corge": "grault", "thud": "fred"}},
    ),
    (
        "A.7",
        {"foo": ["all", "grass", "cows", "eat"]},
        [("move", "/foo/3", "/foo/1")],
        {"foo": ["all", "cows", "eat", "grass"]},
    ),
    (
        "A.8",
        {"baz": "qux", "foo": ["a", 2, "c"]},
        [("test", "/baz", "qux"), ("test", "/foo/1", 2)],
        {"baz": "qux", "foo": ["a", 2, "c"]},
    ),
    ("A.9", {"baz": "qux"}, [("test", "/baz", "bar")], None),
    ("A.10", {"foo": "bar"}, [("add", "/child", {"grandchild": {}})], {"foo": "bar", "child": {"grandchild": {}}}),
    ("A.12", {"foo": "bar"}, [("add", "/baz/bat", "qux")], None),
    ("A.14", {"/": 9, "~1": 10}, [("test", "/~01", 10)], {"/": 9, "~1": 10}),
    ("A.15", {"/": 9, "~1": 10}, [("test", "/~01", "10")], None),
    ("A.16", {"foo": ["bar"]}, [("add", "/foo/-", ["abc", "def"])], {"foo": ["bar", ["abc", "def"]]}),
]


def operation(op: str, path: str, *rest: Any) -> dict[str, Any]:
    field = "from" if op in ("move", "copy") else "value"
    return {"op": op, "path": path} | ({field: rest[0]} if rest else {})


@pytest.mark.parametrize(("document", "patch", "result"), [case[1:] for case in RFC_6902], ids=[c[0] for c in RFC_6902])
def test_json_patch_examples_of_the_rfc(document: Any, patch: Any, result: Any) -> None:
    before = clone(document)
    operations = [operation(*entry) for entry in patch]
    if result is None:
        with pytest.raises(ApiError) as refused:
            json_patch(document, operations)
        assert refused.value.status == 422
    else:
        assert json_patch(document, operations) == result
    assert document == before


@pytest.mark.parametrize(
    "operations",
    [
        [{"op": "remove", "path": "/missing"}],
        [{"op": "add", "path": "/list/7", "value": 1}],
        [{"op": "add", "path": "/list/01", "value": 1}],
        [{"op": "add", "path": "no-slash", "value": 1}],
        [{"op": "add", "path": "/a"}],
        [{"op": "move", "from": "/object", "path": "/object/inside"}],
        [{"op": "test", "path": "/one", "value": True}],
        [{"op": "nonsense", "path": "/one"}],
    ],
)
def test_json_patch_refuses(operations: Any) -> None:
    with pytest.raises(ApiError) as refused:
        json_patch({"list": [1], "object": {}, "one": 1}, operations)
    assert refused.value.status == 422


@given(OBJECTS, NAMES, JSON)
def test_json_patch_add_then_test_then_remove(document: Any, name: str, value: Any) -> None:
    pointer = "/" + name.replace("~", "~0").replace("/", "~1")
    added = json_patch(document, [operation("add", pointer, value), operation("test", pointer, value)])
    assert added[name] == value
    removed = json_patch(added, [operation("remove", pointer)])
    assert removed == {key: item for key, item in document.items() if key != name}


POD = {
    "containers": [
        {"name": "a", "image": "a:1", "env": [{"name": "X", "value": "1"}, {"name": "Y", "value": "2"}]},
        {"name": "b", "image": "b:1"},
    ],
    "tolerations": [{"key": "k"}],
}


@pytest.mark.parametrize(
    ("target", "patch", "result"),
    [
        (  # lists merge by their key, also lists inside of lists
            POD,
            {"containers": [{"name": "a", "env": [{"name": "Y", "value": "3"}]}]},
            POD | {"containers": [POD["containers"][0] | {"env": [{"name": "X", "value": "1"},
                                                                   {"name": "Y", "value": "3"}]},
                                  POD["containers"][1]]},
        ),
        (POD, {"containers": [{"name": "a", "$patch": "delete"}]}, POD | {"containers": [POD["containers"][1]]}),
        (POD, {"containers": [{"$patch": "replace"}, {"name": "c"}]}, POD | {"containers": [{"name": "c"}]}),
        (POD, {"$setElementOrder/containers": [{"name": "b"}]}, POD),
        (POD, {"tolerations": [{"key": "l"}]}, POD | {"tolerations": [{"key": "l"}]}),
        (  # conditions by type
            {"conditions": [{"type": "Ready", "status": "True", "reason": "x"}, {"type": "Other", "status": "True"}]},
            {"conditions": [{"type": "Ready", "status": "False"}]},
            {"conditions": [{"type": "Ready", "status": "False", "reason": "x"}, {"type": "Other", "status": "True"}]},
        ),
        ({"a": {"b": 1, "c": 2}}, {"a": {"$patch": "replace", "d": 3}}, {"a": {"d": 3}}),
        ({"a": {"b": 1}, "c": 1}, {"a": {"$patch": "delete"}}, {"a": {}, "c": 1}),
        (
            {"strategy": {"type": "RollingUpdate", "rollingUpdate": {"maxSurge": 1}}},
            {"strategy": {"$retainKeys": ["type"], "type": "Recreate"}},
            {"strategy": {"type": "Recreate"}},
        ),
        ({"finalizers": ["a", "b"]}, {"finalizers": ["c"]}, {"finalizers": ["a", "b", "c"]}),
        ({"finalizers": ["a", "b"]}, {"$deleteFromPrimitiveList/finalizers": ["a"]}, {"finalizers": ["b"]}),
        ({"a": 1, "b": 2}, {"a": None}, {"b": 2}),
        ({"taints": [{"key": "k", "effect": "NoSchedule"}]}, {"taints": None}, {}),
    ],
)  # fmt: skip
def test_strategic_merge(target: Any, patch: Any, result: Any) -> None:
    before = clone(target)
    assert strategic_merge(target, patch) == result
    assert target == before


def test_ports_merge_by_the_key_of_their_kind() -> None:
    service = {"ports": [{"port": 80, "targetPort": 1}, {"port": 81}]}
    merged = strategic_merge(service, {"ports": [{"port": 80, "targetPort": 2}]}, service=True)
    assert merged == {"ports": [{"port": 80, "targetPort": 2}, {"port": 81}]}
    container = {"ports": [{"containerPort": 80}]}
    assert strategic_merge(container, {"ports": [{"containerPort": 80, "name": "http"}]}) == {
        "ports": [{"containerPort": 80, "name": "http"}]
    }
    slice_ = {"ports": [{"port": 80}]}
    assert strategic_merge(slice_, {"ports": [{"port": 81}]}) == {"ports": [{"port": 81}]}


@given(OBJECTS, OBJECTS)
def test_strategic_merge_of_plain_objects_is_a_merge_patch(target: Any, patch: Any) -> None:
    assert strategic_merge(target, patch) == merge_patch(target, patch)
