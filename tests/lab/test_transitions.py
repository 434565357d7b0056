"""The embedded lab goes through the same transitions as a real Kubernetes 1.37 did, in the same order.

Compared are sequences of derived states per object, never times: what the recording's three kubelets took seconds for,
the lab does in a fraction.
"""

from __future__ import annotations

from typing import Any

import anyio
import pytest

from tests.lab import transitions as tr
from tests.lab.episodes import Episode, all_episodes

pytestmark = pytest.mark.lab

REAL = {
    # Episode: when it began and ended (seconds of the recording), and the names of those who play a part.
    "eviction": (6.28, 12.8, {"victim": "chat-df8ff699f-7q65j", "replacement": "chat-df8ff699f-mkdnf"}),
    "kill": (36.88, 42.9, {"victim": "chat-df8ff699f-mkdnf"}),
    "force_delete": (42.94, 47.3, {"victim": "chat-df8ff699f-q5lxx", "replacement": "chat-df8ff699f-mbk7n"}),
    "grace_exceeded": (
        59.2,
        66.9,
        {"victim": "slow-d6dc9cbff-4hkpt", "app": "slow", "replacement": "slow-d6dc9cbff-sks7p"},
    ),
    "node_cut": (67.2, 93.0, {"victim": "chat-df8ff699f-mbk7n", "node": "node2"}),
    "rolling_restart": (93.05, 111.9, {"old": "chat-df8ff699f", "new": "chat-78fd9f8ccd"}),
    "scale": (112.0, 118.3, {"replicaset": "chat-78fd9f8ccd"}),
}
EPISODES = sorted(REAL)


@pytest.fixture(scope="module")
def lab(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Episode]:
    """All episodes, done once in one lab."""
    return anyio.run(all_episodes, tmp_path_factory.mktemp("lab"))


@pytest.fixture(scope="module")
def real() -> dict[str, Episode]:
    changes = tr.recorded()
    found: dict[str, Episode] = {}
    for episode, (start, end, names) in REAL.items():
        inside = [index for index, change in enumerate(changes) if start <= change.at < end]
        part = tr.window(changes, inside[0], inside[-1] + 1)
        part = [change for change in part if change.type == "BEFORE" or start <= change.at < end]
        found[episode] = (part, {"app": "chat", "replicaset": "chat-df8ff699f"} | names)
    return found


def both(lab: dict[str, Episode], real: dict[str, Episode], episode: str, kind: str, part: str, state: Any) -> Any:
    """(in the lab, in the recording): the sequence of states of the object that plays this part."""
    return tuple(tr.sequence(run[episode][0], kind, run[episode][1][part], state) for run in (lab, real))


@pytest.mark.parametrize("episode", ["eviction", "kill", "grace_exceeded", "node_cut"])
def test_the_victim_goes_through_the_same_states(lab: Any, real: Any, episode: str) -> None:
    seen, expected = both(lab, real, episode, "pods", "victim", tr.pod)
    assert seen == expected


@pytest.mark.parametrize("episode", ["eviction", "force_delete", "grace_exceeded"])
def test_the_replacement_goes_through_the_same_states(lab: Any, real: Any, episode: str) -> None:
    seen, expected = both(lab, real, episode, "pods", "replacement", tr.pod)
    assert seen == expected


def test_a_forced_delete_removes_the_object_at_once(lab: Any, real: Any) -> None:
    seen, expected = both(lab, real, "force_delete", "pods", "victim", tr.pod)
    assert seen == expected
    assert seen[-2]["deletion"] == "now"
    assert seen[-2]["Ready"] == ("True", "")


@pytest.mark.parametrize(
    ("episode", "part"),
    [("eviction", "victim"), ("eviction", "replacement"), ("kill", "victim"), ("node_cut", "victim"),
     ("force_delete", "replacement")],
)  # fmt: skip
def test_endpoints_go_through_the_same_conditions(lab: Any, real: Any, episode: str, part: str) -> None:
    seen, expected = (tr.endpoint(run[episode][0], run[episode][1][part]) for run in (lab, real))
    assert seen == expected


def test_a_forced_delete_takes_the_endpoint_away(lab: Any, real: Any) -> None:
    """The lab's two writes are one step, so its controller may not see the Pod terminating in between."""
    seen, expected = (tr.endpoint(run["force_delete"][0], run["force_delete"][1]["victim"]) for run in (lab, real))
    assert expected == [(True, True, False), (False, True, True), None]
    assert seen[0] == expected[0]
    assert seen[-1] == expected[-1]
    assert tr.is_subsequence(seen, expected)


@pytest.mark.parametrize("episode", ["eviction", "kill"])
@pytest.mark.parametrize("name", ["disrupted", "allowed", "currentHealthy", "desiredHealthy", "expectedPods"])
def test_the_budget_goes_through_the_same_counts(lab: Any, real: Any, episode: str, name: str) -> None:
    seen, expected = both(lab, real, episode, "poddisruptionbudgets", "app", tr.budget(name))
    assert seen == expected


REPLICASET_FIELDS = ("replicas", "readyReplicas", "availableReplicas", "fullyLabeledReplicas", "terminatingReplicas")


@pytest.mark.parametrize("episode", ["eviction", "kill", "grace_exceeded", "node_cut", "scale"])
@pytest.mark.parametrize("name", REPLICASET_FIELDS)
def test_the_replicaset_goes_through_the_same_counts(lab: Any, real: Any, episode: str, name: str) -> None:
    if episode == "grace_exceeded":
        real[episode][1]["replicaset"] = "slow-d6dc9cbff"
    seen, expected = both(lab, real, episode, "replicasets", "replicaset", tr.field("status", name))
    if episode == "node_cut":
        # There two Pods of the app were on the lost node, here one.
        seen, expected = [seen[0], seen[-1]], [expected[0], expected[-1]]
    assert_same_counts(seen, expected, episode, name)


DEPLOYMENT_FIELDS = (
    "replicas",
    "updatedReplicas",
    "readyReplicas",
    "availableReplicas",
    "unavailableReplicas",
    "terminatingReplicas",
)


@pytest.mark.parametrize("episode", ["eviction", "kill", "grace_exceeded", "scale", "rolling_restart"])
@pytest.mark.parametrize("name", DEPLOYMENT_FIELDS)
def test_the_deployment_goes_through_the_same_counts(lab: Any, real: Any, episode: str, name: str) -> None:
    seen, expected = both(lab, real, episode, "deployments", "app", tr.field("status", name))
    if episode == "rolling_restart" or name in ("replicas", "updatedReplicas"):
        # How many old Pods terminate at the same time depends on how long each takes; two ReplicaSets change side by
        # side; and a Pod is replaced within milliseconds: the Deployment may see the sum or one after the other.
        assert (seen[0], seen[-1]) == (expected[0], expected[-1])
        assert name == "terminatingReplicas" or tr.is_subsequence(seen, expected)
    else:
        assert_same_counts(seen, expected, episode, name)


def assert_same_counts(seen: list[Any], expected: list[Any], episode: str, name: str) -> None:
    """The same counts one after the other; two Pods that are scaled away may end in the same moment or not."""
    if (episode, name) == ("scale", "terminatingReplicas"):
        assert (seen[0], max(seen), seen[-1]) == (expected[0], max(expected), expected[-1])
        assert tr.is_subsequence(seen, expected)
    else:
        assert seen == expected


@pytest.mark.parametrize("where", ["lab", "real"])
def test_a_rollout_is_observed(lab: Any, real: Any, where: str) -> None:
    run = (lab if where == "lab" else real)["rolling_restart"]
    seen = tr.sequence(run[0], "deployments", run[1]["app"], tr.field("status", "observedGeneration"))
    assert seen == [1, 2]


@pytest.mark.parametrize("episode", ["eviction", "kill", "scale", "rolling_restart"])
@pytest.mark.parametrize("type_", ["Available", "Progressing"])
def test_the_deployment_goes_through_the_same_conditions(lab: Any, real: Any, episode: str, type_: str) -> None:
    seen, expected = both(lab, real, episode, "deployments", "app", lambda obj: tr.condition(obj, type_))
    assert seen == expected


@pytest.mark.parametrize("part", ["old", "new"])
def test_a_rollout_steps_through_the_same_scales(lab: Any, real: Any, part: str) -> None:
    seen, expected = both(lab, real, "rolling_restart", "replicasets", part, tr.field("spec", "replicas"))
    assert seen == expected


def test_a_lost_node_goes_through_the_same_states(lab: Any, real: Any) -> None:
    seen, expected = both(lab, real, "node_cut", "nodes", "node", tr.node)
    assert seen == expected


@pytest.mark.parametrize(
    ("episode", "part"),
    [("eviction", "victim"), ("eviction", "replacement"), ("force_delete", "victim"), ("force_delete", "replacement"),
     ("grace_exceeded", "victim"), ("node_cut", "victim"), ("rolling_restart", "app"), ("rolling_restart", "old"),
     ("rolling_restart", "new"), ("scale", "app"), ("scale", "replicaset")],
)  # fmt: skip
def test_the_same_events_are_told(lab: Any, real: Any, episode: str, part: str) -> None:
    seen, expected = (tr.events(run[episode][0], run[episode][1][part]) for run in (lab, real))
    assert seen == expected


def milestones(episode: Episode) -> dict[str, int]:
    """The order (place in the sequence of all changes) of what an eviction consists of."""
    changes, names = episode
    victim, replacement = names["victim"], names["replacement"]
    found: dict[str, int] = {}

    def reached(what: str, holds: bool, place: int) -> None:
        if holds:
            found.setdefault(what, place)

    for place, change in enumerate(changes):
        obj, meta = change.object, change.object["metadata"]
        if change.type == "BEFORE":
            continue
        match change.kind, change.name:
            case "poddisruptionbudgets", name if name == names["app"]:
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


CHAINS = (
    ("budget spent", "marked", "deleting", "endpoint terminating", "endpoint gone"),
    ("deleting", "killing", "terminated", "endpoint gone"),
    ("deleting", "created", "scheduled", "started", "endpoint present", "ready", "endpoint ready"),
    ("deleting", "budget confirmed", "budget back", "forgotten"),
    ("ready", "budget back"),
    ("terminated", "rewritten", "gone", "forgotten"),
)


@pytest.mark.parametrize("where", ["lab", "real"])
@pytest.mark.parametrize("chain", CHAINS, ids="-".join)
def test_an_eviction_has_its_order_across_objects(lab: Any, real: Any, where: str, chain: tuple[str, ...]) -> None:
    order = milestones((lab if where == "lab" else real)["eviction"])
    places = [order[what] for what in chain]
    assert places == sorted(places)
