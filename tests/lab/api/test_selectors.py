from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from chaosrunner.lab.embedded.errors import ApiError
from chaosrunner.lab.embedded.selectors import Requirement, Selector, match_fields, parse_fields

KEYS = st.sampled_from(["app", "tier", "example.com/role", "in", "notin"])
VALUES = st.sampled_from(["a", "b", "v1.2_x", "3"])
REQUIREMENTS = st.one_of(
    st.builds(lambda key, value: Requirement(key, "=", (value,)), KEYS, VALUES),
    st.builds(lambda key, value: Requirement(key, "!=", (value,)), KEYS, VALUES),
    st.builds(
        lambda key, operator, values: Requirement(key, operator, tuple(sorted(values))),
        KEYS,
        st.sampled_from(["in", "notin"]),
        st.sets(VALUES, min_size=1),
    ),
    st.builds(lambda key, operator: Requirement(key, operator), KEYS, st.sampled_from(["exists", "!"])),
    st.builds(
        lambda key, operator, value: Requirement(key, operator, (str(value),)),
        KEYS,
        st.sampled_from(["gt", "lt"]),
        st.integers(0, 9),
    ),
)
SELECTORS = st.lists(REQUIREMENTS, max_size=4).map(lambda found: Selector(tuple(found)))
LABELS = st.dictionaries(KEYS, VALUES)


@given(SELECTORS)
def test_parse_reads_what_str_writes(selector: Selector) -> None:
    assert Selector.parse(str(selector)) == selector


@given(SELECTORS, LABELS)
def test_a_selector_is_the_conjunction_of_its_requirements(selector: Selector, labels: dict[str, str]) -> None:
    alone = [Selector((requirement,)).matches(labels) for requirement in selector.requirements]
    assert selector.matches(labels) is all(alone)


@given(KEYS, VALUES, LABELS)
def test_each_operator_and_its_opposite_split_the_world(key: str, value: str, labels: dict[str, str]) -> None:
    for one, other in ((f"{key}={value}", f"{key}!={value}"), (key, f"!{key}"),
                       (f"{key} in ({value})", f"{key} notin ({value})")):  # fmt: skip
        assert Selector.parse(one).matches(labels) is not Selector.parse(other).matches(labels)


@pytest.mark.parametrize(
    ("text", "labels", "matches"),
    [
        ("", {}, True),
        ("a == b", {"a": "b"}, True),
        ("a=", {"a": ""}, True),
        ("a in (x, y),!b", {"a": "y"}, True),
        ("a in (x,y),!b", {"a": "y", "b": ""}, False),
        ("a>3", {"a": "10"}, True),
        ("a<3", {"a": "ten"}, False),
        ("a!=b", {}, True),
    ],
)
def test_matching(text: str, labels: dict[str, str], matches: bool) -> None:
    assert Selector.parse(text).matches(labels) is matches


@pytest.mark.parametrize("text", ["app===x", "a in x", "a in (x", "=b", "a,,b", "a b", "a>x", "!"])
def test_what_does_not_parse_is_400(text: str) -> None:
    with pytest.raises(ApiError) as refused:
        Selector.parse(text)
    assert refused.value.status == 400


def test_label_selector_objects() -> None:
    selector = Selector.of(
        {
            "matchLabels": {"app": "chat"},
            "matchExpressions": [
                {"key": "tier", "operator": "In", "values": ["a", "b"]},
                {"key": "old", "operator": "DoesNotExist"},
            ],
        }
    )
    assert selector is not None
    assert str(selector) == "app=chat,!old,tier in (a,b)"
    assert selector.matches({"app": "chat", "tier": "b"})
    assert not selector.matches({"app": "chat", "tier": "b", "old": ""})
    # kubernetes/kubernetes#119731: {} selects everything, only an absent selector selects nothing
    everything = Selector.of({})
    assert everything is not None
    assert everything.matches(None)
    assert Selector.of(None) is None


def test_field_selectors() -> None:
    pod = {"metadata": {"name": "p"}, "spec": {"nodeName": "n1"}, "status": {"phase": "Running"}}
    for text, expected in (
        ("spec.nodeName=n1", True),
        ("spec.nodeName==n1,status.phase!=Failed", True),
        ("metadata.name!=p", False),
        ("status.podIP=", True),
    ):
        assert match_fields(parse_fields("pods", text), pod) is expected, text
    assert match_fields(parse_fields("nodes", "spec.unschedulable=false"), {"metadata": {}, "spec": {}})
    event = {"involvedObject": {"name": "p"}, "source": {"component": "kubelet"}}
    assert match_fields(parse_fields("events", "involvedObject.name=p,source=kubelet"), event)
    assert match_fields(parse_fields("events", "regarding.name=p"), event)
    with pytest.raises(ApiError):
        parse_fields("pods", "nonsense")
