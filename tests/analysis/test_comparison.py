"""Two recordings beside each other."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from chaosrunner.analysis import aggregate
from chaosrunner.analysis.comparison import Comparison, align, between_shares, compare, inversions
from chaosrunner.analysis.reading import Reading
from chaosrunner.analysis.transitions import DELIVERY, Transition
from chaosrunner.timeline.manifest import Check, TargetPod
from chaosrunner.timeline.reader import Recording
from tests.analysis.sides import REFERENCE, of_kubernetes, of_real_drill, of_reference, reading
from tests.analysis.tape import Tape, time


def alone(found: Comparison) -> list[tuple[str, str]]:
    return [(line.role, line.what) for line in found.timeline if line.a is None or line.b is None]


# --- the same and the same ----------------------------------------------------------------------------------


def nothing_differs(found: Comparison) -> None:
    assert (found.same_verdict, found.same_outcomes, found.same_transitions, found.same) == (True,) * 4
    assert (found.settings, found.texts, alone(found), found.inversions) == ([], [], [], [])
    assert all(line.difference == 0 for line in found.timeline)
    assert {share.difference.value for share in found.shares} == {0.0}
    assert {share.chance for share in found.shares} == {True}
    assert {stage.ratio for stage in found.stages} == {1.0}
    assert {one.difference for one in found.latency} == {0.0}


def test_a_recording_differs_in_nothing_from_itself() -> None:
    read = of_reference()
    nothing_differs(compare(read, of_reference()))
    real = of_real_drill()
    found = compare(real, real)
    assert (found.same, found.same_transitions, alone(found)) == (True, True, [])


def test_names_addresses_and_ids_make_no_difference(tmp_path: Path) -> None:
    """The reference with every Pod, node, UID and address called otherwise, so that they sort the other way round."""
    names = sorted(set(re.findall(r"model-[0-9a-f]+-[a-z0-9]{5}|node[1-3]", (REFERENCE / "rows.jsonl").read_text())))
    uids = sorted(set(re.findall(r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f-]{22}", (REFERENCE / "rows.jsonl").read_text())))
    swap = {name: f"thing-{len(names) - number}-x" for number, name in enumerate(names)}
    swap |= {uid: f"uid-{len(uids) - number:04}" for number, uid in enumerate(uids)}
    pattern = re.compile("|".join(map(re.escape, sorted(swap, key=len, reverse=True))))
    copy = tmp_path / "copy"
    copy.mkdir()
    for name in ("manifest.json", "rows.jsonl"):
        text = (REFERENCE / name).read_text()
        text = pattern.sub(lambda match: swap[match[0]], text).replace("127.185.1.", "127.99.7.")
        (copy / name).write_text(text)
    other = Reading(Recording.open(copy))
    assert not {pod.name for pod in other.picture.replacements} & {
        pod.name for pod in of_reference().picture.replacements
    }
    nothing_differs(compare(of_reference(), other))


def story(
    shift: float = 0.0,
    *,
    lost: int = 2,
    streams: int = 2,
    leaves: float = 1.5,
    alert: bool = False,
    names: tuple[str, str, str] = ("a", "b", "c"),
) -> Tape:
    """Two replicas; one is evicted at 10 s + `shift` with `streams` on it, of which `lost` are lost; it is gone after
    `leaves` seconds, its replacement Ready after 5 s."""
    victim, other, new = names
    tape = Tape()
    for name in (victim, other):
        tape.pod(0.1, name, "LISTED", ready=True)
    tape.endpoints(0.1, "LISTED", **{victim: True, other: True})
    zero = 10.0 + shift
    for number in range(4):
        tape.request(zero - 9 + 2 * number, zero - 8 + 2 * number, pod=other)
    tape.evict(zero, victim)
    for number in range(streams):
        if number < lost:
            tape.request(
                zero - 0.5, zero + 0.1 + number / 100, "aborted", pod=victim, status=200, first_token=zero - 0.4
            )
        else:
            tape.request(zero - 0.5, zero + 1.0, pod=victim)
    tape.pod(zero + 0.02, victim, ready=True, deletion_time=time(zero + 30), deletion_grace=30.0)
    tape.endpoints(zero + 0.03, **{victim: False, other: True})
    tape.pod(zero + 0.05, new, "ADDED", phase="Pending", created_time=time(zero))
    tape.pod(zero + leaves, victim, "DELETED", ready=False, deletion_time=time(zero + 30), deletion_grace=30.0)
    tape.pod(zero + 5.0, new, ready=True)
    tape.endpoints(zero + 5.1, **{other: True, new: True})
    for number in range(4):
        tape.request(zero + 6 + number, zero + 7 + number, pod=new)
    tape.end(zero + 15)
    return tape


CHECKS = [Check(expression="loss_on_victim == 0")]


def test_when_it_began_makes_no_difference() -> None:
    found = compare(reading(story().rows), reading(story(7.25, names=("z", "y", "x")).rows))
    assert (found.same, found.same_transitions, found.inversions) == (True, True, [])
    assert (found.a.zero, found.b.zero) == (10.0, 17.25)
    assert all(line.difference == pytest.approx(0, abs=1e-9) for line in found.timeline)
    created = next(line for line in found.timeline if line.what == "created")
    assert created.a is not None
    assert created.a.at == pytest.approx(0.05)


# --- what differs -------------------------------------------------------------------------------------------


def test_before_and_after_a_prestop_hook() -> None:
    def pod(spec: dict[str, object]) -> list[TargetPod]:
        return [TargetPod(name="a", uid="u-a", spec=spec)]

    container = {"name": "m", "command": ["serve", "--sigterm=abort", "--log=/tmp/lab-1/x"]}
    hooked = {
        "name": "m",
        "command": ["serve", "--sigterm=drain", "--log=/tmp/lab-2/x"],
        "lifecycle": {"preStop": {"sleep": {"seconds": 3}}},
    }
    before = reading(
        story().rows,
        checks=CHECKS,
        parameters={"concurrency": 4, "hold": 3.0},
        candidates=pod({"terminationGracePeriodSeconds": 30, "containers": [container]}),
        sources={"d.yaml": "kind: Drill\n# a comment\nlab: {pre_stop: 0s}\n", "p.yaml": "kind: Playbook\n"},
    )
    after = reading(
        story(lost=0, leaves=3.5).rows,
        checks=CHECKS,
        parameters={"concurrency": 8, "hold": 3.0},
        candidates=pod({"terminationGracePeriodSeconds": 30, "containers": [hooked]}),
        sources={"other.yaml": "kind: Drill\nlab: {pre_stop: 3s}\n", "p.yaml": "kind: Playbook\n"},
        versions={"kubernetes": "v1.37.2"},
    )
    found = compare(before, after)
    assert [(item.what, item.a, item.b) for item in found.settings] == [
        ("parameters.concurrency", 4, 8),
        ("container m --sigterm", "abort", "drain"),
        ("versions.kubernetes", None, "v1.37.2"),
        ("container m lifecycle.preStop.sleep.seconds", None, 3),
    ]
    assert [(text.kind, text.lines) for text in found.texts] == [
        ("drill", ["-lab: {pre_stop: 0s}", "+lab: {pre_stop: 3s}"])
    ]
    assert (found.same_verdict, found.same_outcomes, found.same) == (False, False, False)
    assert [(pair.a and pair.a.verdict, pair.b and pair.b.verdict) for pair in found.checks] == [("failed", "passed")]
    assert [(pair.phase, pair.outcome, pair.a, pair.b) for pair in found.outcomes if pair.outcome == "aborted"] == [
        ("baseline", "aborted", 2, 0)
    ]
    (loss,) = [share for share in found.shares if share.what == "lost on the victim"]
    assert (loss.a and loss.a.value, loss.b and loss.b.value, loss.chance) == (1.0, 0.0, False)
    assert set(alone(found)) == {
        ("requests on victim 1", "first aborted 200"),
        ("requests on victim 1", "last aborted 200"),
    }
    gone = next(line for line in found.timeline if (line.role, line.what) == ("victim 1", "gone"))
    assert gone.difference == pytest.approx(2.0)


def test_evidence_is_of_its_own_side() -> None:
    before, after = reading(story().rows), reading(story(2.0, lost=1).rows)
    found = compare(before, after)
    for side, read in (("a", before), ("b", after)):
        ids = {row.id: row for row in story(0.0 if side == "a" else 2.0, lost=2 if side == "a" else 1).rows}
        for pair in found.outcomes:
            rows = [ids[row] for row in getattr(pair.evidence, side)]
            assert len(rows) == getattr(pair, side)
            assert {getattr(row, "outcome", None) for row in rows} <= {pair.outcome}
        for one in found.latency:
            (row,) = [ids[row] for row in getattr(one.evidence, side)]
            if one.metric == "e2e":
                assert row.at - row.sent == pytest.approx(getattr(one, side))  # type: ignore[union-attr]
        assert read.facts.exposure.victims


def test_chance() -> None:
    few = compare(reading(story(lost=1, streams=1).rows), reading(story(lost=0, streams=1).rows))
    (loss,) = [share for share in few.shares if share.what == "lost on the victim"]
    assert (loss.difference.value, loss.chance) == (-1.0, True)  # 1 of 1 and 0 of 1: chance may do that
    many = compare(reading(story(lost=6, streams=6).rows), reading(story(lost=0, streams=6).rows))
    (loss,) = [share for share in many.shares if share.what == "lost on the victim"]
    assert loss.chance is False


@pytest.mark.parametrize(
    ("a", "b", "low", "high"),
    [((48, 80), (56, 70), 0.0524, 0.3339), ((3, 10), (9, 10), 0.1705, 0.8090), ((0, 10), (10, 10), 0.6075, 1.0)],
)
def test_the_interval_of_a_difference(a: tuple[int, int], b: tuple[int, int], low: float, high: float) -> None:
    # R. G. Newcombe, Statistics in Medicine 17 (1998) 873, table II, method 10
    found = between_shares(aggregate.estimate(*a), aggregate.estimate(*b))
    assert found.value == pytest.approx(b[0] / b[1] - a[0] / a[1])
    assert (found.low, found.high) == (pytest.approx(low, abs=1e-4), pytest.approx(high, abs=1e-4))


def test_a_share_of_nothing_is_not_compared() -> None:
    found = compare(reading(story(lost=0, streams=0).rows), reading(story().rows))
    (loss,) = [share for share in found.shares if share.what == "lost on the victim"]
    assert (loss.difference.value, loss.chance) == (None, None)


# --- order --------------------------------------------------------------------------------------------------


def one(role: str, at: float, width: float = DELIVERY, row: int = 1) -> Transition:
    return Transition(role=role, what="x", at=at, window=(at - width, at), row=row)


def turned(a: list[Transition], b: list[Transition]) -> list[tuple[str, str]]:
    return [(item.earlier[0], item.later[0]) for item in inversions(align(a, b))]


def test_an_order_is_turned_only_beyond_the_uncertainty_of_both() -> None:
    assert turned([one("p", 1.0), one("q", 2.0)], [one("q", 1.0), one("p", 2.0)]) == [("p", "q")]
    assert turned([one("p", 1.0), one("q", 2.0)], [one("q", 1.0), one("p", 1.2)]) == []
    assert turned([one("p", 1.0), one("q", 1.2)], [one("q", 1.0), one("p", 2.0)]) == []
    assert turned([one("p", 1.0), one("q", 2.0)], [one("q", 1.0), one("p", 2.0, width=1.5)]) == []
    calls = [one("p", 1.0, 0.0), one("q", 1.1, 0.0)]
    assert turned(calls, [one("q", 1.0, 0.0), one("p", 1.1, 0.0)]) == [("p", "q")]
    (found,) = inversions(
        align([one("p", 1.0, row=7), one("q", 2.0, row=8)], [one("q", 1.0, row=3), one("p", 3.0, row=4)])
    )
    assert (found.margin_a, found.margin_b) == (pytest.approx(0.75), pytest.approx(1.75))
    assert (found.evidence.a, found.evidence.b) == ([7, 8], [3, 4])


def test_what_only_one_side_has_stands_where_it_happened() -> None:
    a = [one("p", 1.0), one("q", 20.0)]
    b = [one("p", 5.0), one("new", 6.0), one("q", 7.0), one("end", 8.0)]
    assert [(line.role, line.a is None, line.b is None) for line in align(a, b)] == [
        ("p", False, False),
        ("new", True, False),
        ("q", False, False),
        ("end", True, False),
    ]


def test_the_same_again_is_matched_by_its_number_on_each_side_of_the_fault() -> None:
    a = [one("p", -4.0), one("p", 1.0), one("p", 2.0)]
    b = [one("p", 1.5), one("p", 2.5), one("p", 3.5)]
    pairs = [(line.a and line.a.at, line.b and line.b.at) for line in align(a, b)]
    assert pairs == [(-4.0, None), (1.0, 1.5), (2.0, 2.5), (None, 3.5)]


sides = st.lists(
    st.builds(one, st.sampled_from("pqrs"), st.floats(-10, 10, allow_nan=False), st.floats(0, 3)), max_size=12
).map(lambda found: sorted(found, key=lambda item: item.when))


@given(sides, sides)
def test_alignment_keeps_everything_and_the_order_of_each_side(a: list[Transition], b: list[Transition]) -> None:
    lines = align(a, b)
    assert sorted((line.a for line in lines if line.a), key=id) == sorted(a, key=id)
    assert sorted((line.b for line in lines if line.b), key=id) == sorted(b, key=id)
    assert [line.a for line in lines if line.a] == a
    assert all(line.a is None or line.b is None or line.a.role == line.b.role for line in lines)
    assert inversions(align(a, a)) == []
    mirrored = inversions(align(b, a))
    assert len(mirrored) == len(inversions(lines))


# --- real and embedded --------------------------------------------------------------------------------------


def test_a_real_drill_beside_one_on_the_embedded_lab() -> None:
    real, embedded = of_real_drill(), of_reference()
    found = compare(real, embedded)
    # Neither the endings nor the gateways are the same: one stream got an error object, two were aborted.
    assert [(pair.outcome, pair.a, pair.b) for pair in found.outcomes if pair.phase == "baseline"] == [
        ("complete", 12, 14),
        ("aborted", 0, 2),
        ("error_in_stream", 1, 0),
    ]
    stages = {stage.stage: stage for stage in found.stages}
    assert stages["ready"].a.value == pytest.approx(287.46, abs=0.02)
    assert stages["ready"].ratio == pytest.approx(2.035 / 287.46, abs=0.001)
    # The same things happened to the same roles. Only the vLLM Pod stopped serving before it ended.
    of_pods = re.compile(r"^(endpoint of )?(victim|replacement) 1$")
    only = {pair for pair in alone(found) if of_pods.match(pair[0]) and not pair[1].startswith("Event")}
    assert ("endpoint of victim 1", "terminating") in only
    both = {(line.role, line.what) for line in found.timeline if line.a and line.b}
    assert {
        ("victim 1", "deletion requested"),
        ("victim 1", "containers ended"),
        ("victim 1", "gone"),
        ("endpoint of victim 1", "gone"),
        ("replacement 1", "created"),
        ("replacement 1", "Ready"),
        ("endpoint of replacement 1", "ready"),
    } <= both


def test_an_eviction_on_a_real_cluster_beside_one_on_the_embedded_lab() -> None:
    found = compare(of_kubernetes(begin=6.29, until=12.8), of_reference())
    turned_ = {(item.earlier[0], item.later[0]) for item in found.inversions}
    # The real replacement was Ready before the victim had ended, the other one after.
    assert ("replacement 1", "victim 1") in turned_


def test_it_is_one_json_document(tmp_path: Path) -> None:
    found = compare(of_reference(), of_real_drill())
    assert msgspec.json.decode(msgspec.json.encode(found), type=Comparison) == found


def test_without_a_fault_times_are_from_the_start(tmp_path: Path) -> None:
    found = compare(of_kubernetes(begin=200.0, until=12.0), of_reference())
    assert (found.a.fault, found.a.zero, found.b.fault) == (False, 0.0, True)
    assert found.stages[0].a.value is None


def test_of_a_run_that_died(tmp_path: Path) -> None:
    copy = tmp_path / "dead"
    copy.mkdir()
    lines = (REFERENCE / "rows.jsonl").read_text().splitlines(keepends=True)
    (copy / "rows.jsonl").write_text("".join(lines[:180]))
    shutil.copy(REFERENCE / "manifest.json", copy)
    manifest = (copy / "manifest.json").read_text().replace('"state": "ended"', '"state": "running"')
    (copy / "manifest.json").write_text(manifest)
    found = compare(Reading(Recording.open(copy)), of_reference())
    assert found.a.verdict == "inconclusive"
    assert not found.same
