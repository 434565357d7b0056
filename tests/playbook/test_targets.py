from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from chaosrunner.playbook.base import Quantity, read_selector


@pytest.mark.parametrize(
    ("written", "candidates", "taken"),
    [
        ("one", 3, 1), ("one", 0, 0), ("all", 3, 3), ("all", 0, 0), (2, 3, 2), (3, 2, 3),
        ("50%", 2, 1),  # chaos-mesh/chaos-mesh#4476: two Running of five Pods are the candidates, half of them is one
        ("50%", 3, 1),  # rounded down: never more than asked for
        ("34%", 3, 1), ("67%", 3, 2), ("100%", 3, 3),
        ("1%", 3, 1),  # but a fault takes at least one
        ("10%", 0, 0),
        ("58%", 50, 29),  # 50 * 58 / 100 is exact only with care
        ("0.5%", 1000, 5),
    ],
)  # fmt: skip
def test_how_many_are_taken(written: object, candidates: int, taken: int) -> None:
    assert Quantity.read(written).of(candidates) == taken


@given(st.integers(1, 1000), st.integers(1, 100))
def test_a_percentage_never_takes_more_than_its_share_but_one(candidates: int, percent: int) -> None:
    taken = Quantity.read(f"{percent}%").of(candidates)
    assert 1 <= taken <= candidates
    assert taken == 1 or taken * 100 <= candidates * percent
    assert (taken + 1) * 100 > candidates * percent


@pytest.mark.parametrize("written", [0, -1, True, 1.5, "two", "0%", "101%", "%", None, [], "50"])
def test_what_is_no_quantity_is_refused(written: object) -> None:
    with pytest.raises(ValueError, match=r"expected|percentage"):
        Quantity.read(written)


@pytest.mark.parametrize("written", ["one", "all", 3, "50%", "33.3%"])
def test_quantities_are_shown_as_written(written: object) -> None:
    assert str(Quantity.read(written)) == str(written)


@pytest.mark.parametrize(
    ("written", "selector"),
    [
        ("app=chat", "app=chat"),
        ("app = chat , tier!=batch", "app = chat , tier!=batch"),
        ("model.aibrix.ai/name=qwen,ray.io/node-type=head", "model.aibrix.ai/name=qwen,ray.io/node-type=head"),
        ("env in (prod, staging),!canary,team", "env in (prod, staging),!canary,team"),
        ("a notin (b)", "a notin (b)"),
        ("a in ()", "a in ()"),  # as Kubernetes reads it: the empty value
        ("app==chat", "app==chat"),
        ("empty=", "empty="),
        ({"app": "chat", "tier": "web"}, "app=chat,tier=web"),
    ],
)
def test_selectors(written: object, selector: str) -> None:
    assert read_selector(written) == selector


@pytest.mark.parametrize("written", ["", "  ", {}])
def test_empty_selectors_are_refused(written: object) -> None:
    # chaos-mesh/chaos-mesh#1465: an empty selector took every Pod of the cluster
    with pytest.raises(ValueError, match="matches everything"):
        read_selector(written)


@pytest.mark.parametrize("written", ["app=chat,", ",", "=chat", "app=a b", "a in (b", "-a=b", 5, None, ["a"]])
def test_what_is_no_selector_is_refused(written: object) -> None:
    with pytest.raises(ValueError, match="selector"):
        read_selector(written)
