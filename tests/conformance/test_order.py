"""Workloads go through the same states in the same order, on both labs and in the recording of a real Kubernetes 1.37.

Compared are sequences of derived states per object and partial orders across objects, never times.
"""

from __future__ import annotations

from typing import Any

import pytest

from tests.conformance import transitions as tr
from tests.conformance.differences import side
from tests.conformance.episodes import AtOnce, Episode, all_episodes
from tests.labs import Lab

RECORDED = {
    # Episode: when it began and ended (seconds of the recording), and the names of those who play a part.
    "eviction": (6.28, 12.8, {"victim": "chat-df8ff699f-7q65j", "replacement": "chat-df8ff699f-mkdnf"}),
    "kill": (36.88, 42.9, {"victim": "chat-df8ff699f-mkdnf"}),
    "force_delete": (42.94, 47.3, {"victim": "chat-df8ff699f-q5lxx", "replacement": "chat-df8ff699f-mbk7n"}),
    "grace_exceeded": (
        59.2,
        66.9,
        {"victim": "slow-d6dc9cbff-4hkpt", "app": "slow", "replacement": "slow-d6dc9cbff-sks7p",
         "replicaset": "slow-d6dc9cbff"},
    ),
    "node_cut": (67.2, 93.0, {"victim": "chat-df8ff699f-mbk7n", "node": "node2"}),
    "rolling_restart": (93.05, 111.9, {"old": "chat-df8ff699f", "new": "chat-78fd9f8ccd"}),
    "scale": (112.0, 118.3, {"replicaset": "chat-78fd9f8ccd"}),
}  # fmt: skip
Episodes = AtOnce[Episode] | dict[str, Episode]


@pytest.fixture(scope="session")
def episodes(lab: Lab) -> Episodes:
    """All episodes, done once on a lab."""
    return all_episodes(lab)


@pytest.fixture(scope="module")
def recording() -> Episodes:
    changes = tr.recorded()
    found: dict[str, Episode] = {}
    for name, (start, end, names) in RECORDED.items():
        inside = [index for index, change in enumerate(changes) if start <= change.at < end]
        part = tr.window(changes, inside[0], inside[-1] + 1)
        part = [change for change in part if change.type == "BEFORE" or start <= change.at < end]
        found[name] = Episode(part, {"app": "chat", "replicaset": "chat-df8ff699f"} | names)
    return found


def both(episodes: Episodes, recording: Episodes, name: str, kind: str, part: str, state: Any) -> Any:
    """(on the lab, in the recording): the sequence of states of the object that plays this part."""
    return tuple(tr.sequence(run[name].changes, kind, run[name].names[part], state) for run in (episodes, recording))


def states(episodes: Episodes, name: str, kind: str, part: str, state: Any) -> list[Any]:
    return tr.sequence(episodes[name].changes, kind, episodes[name].names[part], state)


def assert_goes_through(seen: list[Any], expected: list[Any], lab: Lab) -> None:
    """The embedded lab writes each state. Busy kubelets and controllers write only the newest: they skip states that
    pass quickly, but add none, and change no order."""
    if lab.name == "embedded":
        assert seen == expected
    assert (seen[0], seen[-1]) == (expected[0], expected[-1])
    assert tr.is_subsequence(seen, expected), seen


# -- Pods --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["eviction", "kill", "grace_exceeded", "node_cut"])
def test_the_victim_goes_through_the_recorded_states(
    episodes: Episodes, recording: Episodes, lab: Lab, name: str
) -> None:
    assert_goes_through(*both(episodes, recording, name, "pods", "victim", tr.pod), lab)


@pytest.mark.parametrize("name", ["eviction", "force_delete", "grace_exceeded"])
def test_the_replacement_goes_through_the_recorded_states(
    episodes: Episodes, recording: Episodes, lab: Lab, name: str
) -> None:
    assert_goes_through(*both(episodes, recording, name, "pods", "replacement", tr.pod), lab)


def test_a_forced_delete_removes_the_object_at_once(episodes: Episodes, recording: Episodes) -> None:
    seen, expected = both(episodes, recording, "force_delete", "pods", "victim", tr.pod)
    assert seen == expected
    assert seen[-2]["deletion"] == "now"
    assert seen[-2]["Ready"] == ("True", "")


def test_a_force_deleted_pod_runs_on(episodes: Episodes) -> None:
    assert episodes["force_delete"].facts["runs_on"]


def test_a_plain_delete_is_an_eviction_without_the_mark(episodes: Episodes, recording: Episodes, lab: Lab) -> None:
    evicted = states(recording, "eviction", "pods", "victim", tr.pod)
    unmarked = tr.collapsed(state if state == "DELETED" else state | {"DisruptionTarget": None} for state in evicted)
    assert_goes_through(states(episodes, "delete", "pods", "victim", tr.pod), unmarked, lab)


def test_a_second_eviction_changes_nothing(episodes: Episodes) -> None:
    """The second eviction only rewrites the mark, if anything; deadline and budget stay."""
    episode = episodes["evicted_twice"]
    assert episode.facts["second"]["code"] == 201
    victims = [
        change for change in tr.of(episode.changes, "pods", episode.names["victim"]) if change.type == "MODIFIED"
    ]
    deadlines = tr.collapsed(
        change.object["metadata"].get("deletionTimestamp")
        for change in victims
        if change.object["metadata"].get("deletionGracePeriodSeconds") != 0
    )
    assert len([deadline for deadline in deadlines if deadline]) == 1
    assert states(episodes, "evicted_twice", "poddisruptionbudgets", "app", tr.budget("disrupted")) == [0, 1, 0]


def test_a_pending_pod_is_evicted_past_its_budget(episodes: Episodes) -> None:
    """The budget allows nothing and is not looked at; the Pod has no node and goes at once."""
    seen = states(episodes, "pending_eviction", "pods", "victim", tr.pod)
    assert [state if state == "DELETED" else (state["phase"], state["deletion"]) for state in seen] == [
        ("Pending", None),
        ("Pending", None),
        ("Pending", "now"),
        "DELETED",
    ]
    assert seen[1]["DisruptionTarget"] == ("True", "EvictionByEvictionAPI")
    assert states(episodes, "pending_eviction", "poddisruptionbudgets", "app", tr.budget("disrupted")) == [0]
    replacement = states(episodes, "pending_eviction", "pods", "replacement", tr.pod)
    assert [state["PodScheduled"] for state in replacement] == [None, ("False", "Unschedulable")]


def test_a_drained_pod_goes_as_an_evicted_one(episodes: Episodes, recording: Episodes, lab: Lab) -> None:
    expected = states(recording, "eviction", "pods", "victim", tr.pod)
    for part in ("victim", "other"):
        assert_goes_through(states(episodes, "drain", "pods", part, tr.pod), expected, lab)


def test_a_cut_node_s_pods_run_on(episodes: Episodes, lab: Lab) -> None:
    facts = episodes["node_cut"].facts
    assert facts["same_process"]
    assert facts["reached"] == side("a cut node's Pods can be reached", lab.name)


# -- endpoints ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "part"),
    [("eviction", "victim"), ("eviction", "replacement"), ("kill", "victim"), ("node_cut", "victim"),
     ("force_delete", "replacement")],
)  # fmt: skip
def test_endpoints_go_through_the_recorded_conditions(
    episodes: Episodes, recording: Episodes, lab: Lab, name: str, part: str
) -> None:
    seen, expected = (tr.endpoint(run[name].changes, run[name].names[part]) for run in (episodes, recording))
    assert_goes_through(seen, expected, lab)


def test_a_forced_delete_takes_the_endpoint_away(episodes: Episodes, recording: Episodes) -> None:
    """The object is marked and gone within milliseconds; the controller may not see the Pod terminating in between."""
    seen, expected = (
        tr.endpoint(run["force_delete"].changes, run["force_delete"].names["victim"]) for run in (episodes, recording)
    )
    assert expected == [(True, True, False), (False, True, True), None]
    assert seen[0] == expected[0]
    assert seen[-1] == expected[-1]
    assert tr.is_subsequence(seen, expected)


# -- budgets -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["eviction", "kill"])
@pytest.mark.parametrize("count", ["disrupted", "allowed", "currentHealthy", "desiredHealthy", "expectedPods"])
def test_the_budget_goes_through_the_recorded_counts(
    episodes: Episodes, recording: Episodes, lab: Lab, name: str, count: str
) -> None:
    assert_goes_through(*both(episodes, recording, name, "poddisruptionbudgets", "app", tr.budget(count)), lab)


def test_a_terminating_pod_counts_as_expected_while_the_minimum_is_an_integer(episodes: Episodes) -> None:
    assert states(episodes, "eviction", "poddisruptionbudgets", "app", tr.budget("expectedPods")) == [3, 4, 3]


def test_a_drain_spends_the_budget_twice_one_after_the_other(episodes: Episodes) -> None:
    seen = states(episodes, "drain", "poddisruptionbudgets", "app", tr.budget("allowed"))
    assert [allowed for allowed, _ in seen] == [1, 0, 1, 0, 1]


# -- counts of controllers ---------------------------------------------------------------------------------------------


REPLICASET_FIELDS = ("replicas", "readyReplicas", "availableReplicas", "fullyLabeledReplicas", "terminatingReplicas")


@pytest.mark.parametrize("name", ["eviction", "kill", "grace_exceeded", "node_cut", "scale"])
@pytest.mark.parametrize("count", REPLICASET_FIELDS)
def test_the_replicaset_goes_through_the_recorded_counts(
    episodes: Episodes, recording: Episodes, lab: Lab, name: str, count: str
) -> None:
    seen, expected = both(episodes, recording, name, "replicasets", "replicaset", tr.field("status", count))
    if name == "node_cut":
        # There three Pods, two of them on the lost node; here one.
        seen, expected = [value == max(seen) for value in seen], [value == max(expected) for value in expected]
        seen, expected = tr.collapsed(seen), tr.collapsed(expected)
    assert_same_counts(seen, expected, name, count, lab)


DEPLOYMENT_FIELDS = (
    "replicas",
    "updatedReplicas",
    "readyReplicas",
    "availableReplicas",
    "unavailableReplicas",
    "terminatingReplicas",
)


@pytest.mark.parametrize("name", ["eviction", "kill", "grace_exceeded", "scale", "rolling_restart"])
@pytest.mark.parametrize("count", DEPLOYMENT_FIELDS)
def test_the_deployment_goes_through_the_recorded_counts(
    episodes: Episodes, recording: Episodes, lab: Lab, name: str, count: str
) -> None:
    seen, expected = both(episodes, recording, name, "deployments", "app", tr.field("status", count))
    if name == "rolling_restart" or count in ("replicas", "updatedReplicas"):
        # How many old Pods terminate at the same time depends on how long each takes; two ReplicaSets change side by
        # side; and a Pod is replaced within milliseconds: the Deployment may see the sum or one after the other. A busy
        # real one adds up two ReplicaSets of different moments, and so may be off by one for a while.
        assert (seen[0], seen[-1]) == (expected[0], expected[-1])
        if lab.name == "real":
            assert min(expected) - 1 <= min(seen) <= max(seen) <= max(expected) + 1
        else:
            assert count == "terminatingReplicas" or tr.is_subsequence(seen, expected)
    else:
        assert_same_counts(seen, expected, name, count, lab)


def assert_same_counts(seen: list[Any], expected: list[Any], name: str, count: str, lab: Lab) -> None:
    """The same counts one after the other; two Pods that are scaled away may end in the same moment or not."""
    if (name, count) == ("scale", "terminatingReplicas"):
        assert (seen[0], max(seen), seen[-1]) == (expected[0], max(expected), expected[-1])
        assert tr.is_subsequence(seen, expected)
    else:
        assert_goes_through(seen, expected, lab)


def test_a_rollout_is_observed(episodes: Episodes) -> None:
    seen = states(episodes, "rolling_restart", "deployments", "app", tr.field("status", "observedGeneration"))
    assert seen == [1, 2]


@pytest.mark.parametrize("name", ["eviction", "kill", "scale", "rolling_restart"])
@pytest.mark.parametrize("type_", ["Available", "Progressing"])
def test_the_deployment_goes_through_the_recorded_conditions(
    episodes: Episodes, recording: Episodes, name: str, type_: str
) -> None:
    seen, expected = both(episodes, recording, name, "deployments", "app", lambda obj: tr.condition(obj, type_))
    assert seen == expected


@pytest.mark.parametrize("part", ["old", "new"])
def test_a_rollout_steps_through_the_recorded_scales(episodes: Episodes, recording: Episodes, part: str) -> None:
    seen, expected = both(episodes, recording, "rolling_restart", "replicasets", part, tr.field("spec", "replicas"))
    assert seen == expected


def test_scaling_up_makes_pods_and_then_waits_for_them(episodes: Episodes) -> None:
    def seen(count: str) -> list[Any]:
        return states(episodes, "scale_up", "replicasets", "replicaset", tr.field("status", count))

    assert (seen("replicas"), seen("readyReplicas")[0], seen("readyReplicas")[-1]) == ([1, 3], 1, 3)
    assert states(episodes, "scale_up", "replicasets", "replicaset", tr.field("spec", "replicas")) == [1, 3]
    available = states(episodes, "scale_up", "deployments", "app", lambda obj: tr.condition(obj, "Available"))
    assert available == [
        ("True", "MinimumReplicasAvailable"),
        ("False", "MinimumReplicasUnavailable"),
        ("True", "MinimumReplicasAvailable"),
    ]


# -- nodes and Events --------------------------------------------------------------------------------------------------


def test_a_lost_node_goes_through_the_recorded_states(episodes: Episodes, recording: Episodes) -> None:
    seen, expected = both(episodes, recording, "node_cut", "nodes", "node", tr.node)
    assert _either_first(seen) == _either_first(expected)


def _either_first(states: list[tuple[bool, list[tuple[str, str]], Any]]) -> list[Any]:
    """The two taints of a lost node are set and taken by two loops of the node controller, in either order."""
    lone = [("unreachable", "NoExecute")], [("unreachable", "NoSchedule")]
    return [(cordoned, "one of both" if taints in lone else taints, ready) for cordoned, taints, ready in states]


def test_a_drained_node_is_cordoned_tainted_and_released(episodes: Episodes) -> None:
    seen = states(episodes, "drain", "nodes", "node", tr.node)
    ready, taint = ("True", "KubeletReady"), ("unschedulable", "NoSchedule")
    assert seen == [(False, [], ready), (True, [], ready), (True, [taint], ready), (False, [taint], ready),
                    (False, [], ready)]  # fmt: skip


def test_a_drain_tells_that_it_is_blocked_and_tries_again(episodes: Episodes) -> None:
    output = episodes["drain"].facts["output"]
    assert "(will retry after 5s): Cannot evict pod as it would violate the pod's disruption budget." in output
    assert output.count(" evicted\n") == 2


@pytest.mark.parametrize(
    ("name", "part"),
    [("eviction", "victim"), ("eviction", "replacement"), ("force_delete", "victim"), ("force_delete", "replacement"),
     ("grace_exceeded", "victim"), ("node_cut", "victim"), ("rolling_restart", "app"), ("rolling_restart", "old"),
     ("rolling_restart", "new"), ("scale", "app"), ("scale", "replicaset")],
)  # fmt: skip
def test_the_recorded_events_are_told(episodes: Episodes, recording: Episodes, name: str, part: str) -> None:
    """Each component sends its own in order, but behind its work: two components' Events come in any order."""
    seen, expected = (tr.events(run[name].changes, run[name].names[part]) for run in (episodes, recording))
    for component in {component for *_, component in seen + expected}:
        assert [one for one in seen if one[2] == component] == [one for one in expected if one[2] == component]


# -- order across objects ----------------------------------------------------------------------------------------------


def milestones(episode: Episode) -> dict[str, int]:
    """The order (place in the sequence of all changes) of what an eviction consists of."""
    victim, replacement = episode.names["victim"], episode.names["replacement"]
    found: dict[str, int] = {}

    def reached(what: str, holds: bool, place: int) -> None:
        if holds:
            found.setdefault(what, place)

    for place, change in enumerate(episode.changes):
        obj, meta = change.object, change.object["metadata"]
        if change.type == "BEFORE":
            continue
        match change.kind, change.name:
            case "poddisruptionbudgets", name if name == episode.names["app"]:
                status = obj["status"]
                reached("budget spent", victim in status.get("disruptedPods", {}), place)
                reached("budget confirmed", "budget spent" in found and not status.get("disruptedPods"), place)
                reached("budget back", "ready" in found and status["disruptionsAllowed"] == 1, place)
                reached("forgotten", "gone" in found and status["expectedPods"] == 3, place)
            case "pods", name if name == victim:
                reached("marked", tr.condition(obj, "DisruptionTarget") is not None, place)
                reached("deleting", meta.get("deletionGracePeriodSeconds") == 20, place)
                reached("terminated", "terminated" in obj["status"]["containerStatuses"][0]["state"], place)
                reached("rewritten", meta.get("deletionGracePeriodSeconds") == 0, place)
                reached("gone", change.type == "DELETED", place)
            case "pods", name if name == replacement:
                reached("created", True, place)
                reached("scheduled", bool(obj["spec"].get("nodeName")), place)
                running = obj["status"]["phase"] == "Running"
                reached("started", running, place)
                reached("ready", tr.condition(obj, "Ready") == ("True", ""), place)
            case "endpointslices", _:
                victims = [entry for entry in obj["endpoints"] or () if entry["targetRef"]["name"] == victim]
                news = [entry for entry in obj["endpoints"] or () if entry["targetRef"]["name"] == replacement]
                reached("endpoint terminating", bool(victims) and victims[0]["conditions"]["terminating"], place)
                reached("endpoint gone", "terminated" in found and not victims, place)
                reached("endpoint present", bool(news), place)
                reached("endpoint ready", bool(news) and news[0]["conditions"]["ready"], place)
            case "events", _ if obj["involvedObject"]["name"] == victim:
                reached("killing", obj["reason"] == "Killing", place)
    return found


# An Event is sent behind the work that it tells of; a busy kubelet writes "started" and "ready" at once.
CHAINS = (
    ("budget spent", "marked", "deleting", "endpoint terminating", "endpoint gone"),
    ("deleting", "killing"),
    ("deleting", "terminated", "endpoint gone"),
    ("deleting", "created", "scheduled", "started", "ready", "endpoint ready"),
    ("scheduled", "endpoint present", "endpoint ready"),
    ("deleting", "budget confirmed", "budget back"),
    ("deleting", "budget confirmed", "forgotten"),
    ("ready", "budget back"),
    ("terminated", "rewritten", "gone", "forgotten"),
)


@pytest.mark.parametrize("chain", CHAINS, ids="-".join)
def test_an_eviction_has_its_order_across_objects(episodes: Episodes, chain: tuple[str, ...]) -> None:
    order = milestones(episodes["eviction"])
    places = [order[what] for what in chain]
    assert places == sorted(places)


@pytest.mark.parametrize("chain", CHAINS, ids="-".join)
def test_the_recorded_eviction_has_the_same_order(recording: Episodes, chain: tuple[str, ...]) -> None:
    order = milestones(recording["eviction"])
    places = [order[what] for what in chain]
    assert places == sorted(places)


def test_a_killed_container_is_noticed_after_the_endpoint_was_wrong_for_a_while(episodes: Episodes) -> None:
    """Until kubelet looks, Pod and endpoint say ready; then first the Pod says it, then the endpoint."""
    changes, victim = episodes["kill"].changes, episodes["kill"].names["victim"]
    pod = next(
        place
        for place, change in enumerate(changes)
        if change.type == "MODIFIED" and change.name == victim and tr.condition(change.object, "Ready") != ("True", "")
    )
    endpoint = next(
        place
        for place, change in enumerate(changes)
        if change.type == "MODIFIED"
        and change.kind == "endpointslices"
        and any(
            entry["targetRef"]["name"] == victim and not entry["conditions"]["ready"]
            for entry in change.object["endpoints"]
        )
    )
    assert pod < endpoint
