"""The driver `network-policy`, on an API server that takes policies as the real one does, and enforces none."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from chaosrunner.cluster import ClusterConfig, connect
from chaosrunner.faults.base import Context
from chaosrunner.faults.network import NetworkEffect
from chaosrunner.faults.policy import LABEL, NetworkPolicyDriver, policy_spec
from chaosrunner.journal import finding
from chaosrunner.journal.journal import NAME, Connection, Created, Entry, Journal, Reopened
from chaosrunner.journal.undo import command, undo_all, undo_entry
from chaosrunner.lab.embedded.access import Account, Rule
from chaosrunner.timeline.clock import Clock
from tests.faults.killed import begun, kill_after
from tests.faults.world import NAMESPACE, World, running

pytestmark = pytest.mark.anyio
Json = dict[str, Any]


@pytest.fixture
async def world(tmp_path: Path) -> AsyncIterator[World]:
    async with running(tmp_path) as world:
        yield world


def effect_of(**values: Any) -> NetworkEffect:
    given = {"kind": "partition", "peers": ("10.1.2.3/32",), "spare": ("10.0.0.1/32",), "duration": 30.0} | values
    return NetworkEffect(**given)  # type: ignore[arg-type]


async def cut(context: Context, pod: Json, **effect: Any) -> Entry:
    result, entry = await NetworkPolicyDriver(probed=True).apply(context, pod, effect_of(**effect), "network")
    assert entry is not None
    assert (result.answer, result.expected) == ("accepted", True), result
    return entry


def policies(world: World) -> list[Json]:
    return world.store.list("networkpolicies", NAMESPACE)


def kept(obj: Json) -> Json:
    """What is wanted of an object and said of it, without what every write changes."""
    metadata = {key: value for key, value in obj["metadata"].items() if key not in ("resourceVersion", "managedFields")}
    return {"metadata": metadata, "spec": obj["spec"]}


async def undo(world: World, context: Context, entry: Entry) -> tuple[str, str | None]:
    result = await undo_entry(world.cluster, context.journal, entry, world.emitted.append)
    return result.state, result.detail


# What a policy says


@pytest.mark.parametrize(
    ("effect", "expected"),
    [
        ({"direction": "in"}, {"policyTypes": ["Ingress"], "ingress": ["all but"]}),
        ({"direction": "out"}, {"policyTypes": ["Egress"], "egress": ["all but"]}),
        ({"direction": "both"}, {"policyTypes": ["Egress", "Ingress"], "ingress": ["all but"], "egress": ["all but"]}),
        ({"direction": "both", "peers": ()}, {"policyTypes": ["Egress", "Ingress"]}),
    ],
)
def test_a_policy_allows_all_but_the_peers(effect: Json, expected: Json) -> None:
    spec = policy_spec("abc", effect_of(**effect))
    assert spec.pop("podSelector") == {"matchLabels": {LABEL: "abc"}}
    for way, end in (("ingress", "from"), ("egress", "to")):
        if way in spec:
            blocks = [
                {"ipBlock": {"cidr": "0.0.0.0/0", "except": ["10.1.2.3/32"]}},
                {"ipBlock": {"cidr": "::/0"}},
            ]
            assert spec[way] == [{end: blocks}]
            spec[way] = ["all but"]
    assert spec == expected


def test_other_ports_stay_open_to_the_peers() -> None:
    spec = policy_spec("abc", effect_of(ports=(8000, 1, 8002), peers=("10.0.0.0/8", "fd00::/8")))
    assert spec["policyTypes"] == ["Ingress"]
    others, peers = spec["ingress"]
    assert others == {
        "from": [
            {"ipBlock": {"cidr": "0.0.0.0/0", "except": ["10.0.0.0/8"]}},
            {"ipBlock": {"cidr": "::/0", "except": ["fd00::/8"]}},
        ]
    }
    assert peers["from"] == [{"ipBlock": {"cidr": "10.0.0.0/8"}}, {"ipBlock": {"cidr": "fd00::/8"}}]
    tcp = [(port["port"], port.get("endPort")) for port in peers["ports"] if port["protocol"] == "TCP"]
    assert tcp == [(2, 7999), (8001, None), (8003, 65535)]
    assert {port["protocol"] for port in peers["ports"]} == {"TCP", "UDP", "SCTP"}


def test_an_exception_is_never_its_whole_block() -> None:
    spec = policy_spec("abc", effect_of(direction="in", peers=("0.0.0.0/0",)))
    assert spec["ingress"] == [{"from": [{"ipBlock": {"cidr": "::/0"}}]}]


# On a cluster


async def test_a_policy_is_about_one_pod_and_goes_without_a_trace(world: World) -> None:
    pod, other = world.pod("chat-1"), world.pod("chat-2")
    context, before = world.context(), kept(pod)
    entry = await cut(context, pod)
    (policy,) = policies(world)
    assert policy["spec"]["podSelector"] == {"matchLabels": {LABEL: entry.entry}}
    marked = [
        each["metadata"]["name"] for each in world.store.list("pods", NAMESPACE) if LABEL in each["metadata"]["labels"]
    ]
    assert marked == ["chat-1"]
    assert await undo(world, context, entry) == ("undone", None)
    assert policies(world) == []
    assert kept(world.store.get("pods", "chat-1", NAMESPACE)) == before
    assert kept(world.store.get("pods", "chat-2", NAMESPACE)) == kept(other)
    assert await undo(world, context, entry) == ("already_undone", None)
    assert world.states() == ["intent", "applied", "undone", "already_undone"]
    assert [row.action for row in world.actions()] == [
        "label_pod",
        "create_network_policy",
        "undo_network",
        "undo_network",
    ]


async def test_a_policy_that_somebody_changed_is_theirs(world: World) -> None:
    pod, context = world.pod("chat-1"), world.context()
    entry = await cut(context, pod)

    def widen(obj: Json) -> None:
        obj["spec"]["policyTypes"] = ["Ingress"]

    world.store.mutate("networkpolicies", f"chaosrunner-{entry.entry}", NAMESPACE, widen)
    state, detail = await undo(world, context, entry)
    assert state == "changed_by_others"
    assert detail is not None
    assert "another spec" in detail
    assert [policy["spec"]["policyTypes"] for policy in policies(world)] == [["Ingress"]]
    # What was ours alone is put back.
    assert LABEL not in world.store.get("pods", "chat-1", NAMESPACE)["metadata"]["labels"]


async def test_a_policy_that_somebody_made_their_own_is_left(world: World) -> None:
    pod, context = world.pod("chat-1"), world.context()
    entry = await cut(context, pod)

    def adopt(obj: Json) -> None:
        del obj["metadata"]["annotations"]

    world.store.mutate("networkpolicies", f"chaosrunner-{entry.entry}", NAMESPACE, adopt)
    assert (await undo(world, context, entry))[0] == "changed_by_others"
    assert len(policies(world)) == 1


async def test_a_change_beside_the_spec_keeps_it_ours(world: World) -> None:
    pod, context = world.pod("chat-1"), world.context()
    entry = await cut(context, pod)

    def label(obj: Json) -> None:
        obj["metadata"]["labels"]["team"] = "red"

    world.store.mutate("networkpolicies", f"chaosrunner-{entry.entry}", NAMESPACE, label)
    world.store.mutate("pods", "chat-1", NAMESPACE, label)
    assert await undo(world, context, entry) == ("undone", None)
    assert world.store.get("pods", "chat-1", NAMESPACE)["metadata"]["labels"] == {"app": "chat", "team": "red"}


async def test_a_label_that_somebody_changed_is_theirs(world: World) -> None:
    pod, context = world.pod("chat-1"), world.context()
    entry = await cut(context, pod)

    def change(obj: Json) -> None:
        obj["metadata"]["labels"][LABEL] = "mine"

    world.store.mutate("pods", "chat-1", NAMESPACE, change)
    assert (await undo(world, context, entry))[0] == "changed_by_others"
    assert policies(world) == []
    assert world.store.get("pods", "chat-1", NAMESPACE)["metadata"]["labels"][LABEL] == "mine"


async def test_the_policy_of_a_pod_that_is_gone_is_deleted(world: World) -> None:
    pod, context = world.pod("chat-1"), world.context()
    entry = await cut(context, pod)
    world.store.delete("pods", "chat-1", NAMESPACE, grace=0)
    assert (await undo(world, context, entry))[0] == "undone"
    assert policies(world) == []


async def test_a_lost_journal_loses_nothing(world: World) -> None:
    pod = world.pod("chat-1")
    before = kept(pod)
    entry = await cut(world.context(), pod)
    found, unseen = await finding.annotated(world.cluster, world.connection)
    assert unseen == []
    assert {each.entry for each in found} == {entry.entry}
    for each in found:
        ledger = world.context("run-2").journal
        await ledger.mark(each, "applied")
        assert (await undo_entry(world.cluster, ledger, each, world.emitted.append)).ok
    assert policies(world) == []
    assert kept(world.store.get("pods", "chat-1", NAMESPACE)) == before


async def test_a_policy_that_only_its_own_note_tells_of_is_deleted(world: World) -> None:
    pod = world.pod("chat-1")
    await cut(world.context(), pod)
    world.store.delete("pods", "chat-1", NAMESPACE, grace=0)
    (found,), _ = await finding.annotated(world.cluster, world.connection)
    assert isinstance(found.made, Created)
    ledger = world.context("run-2").journal
    await ledger.mark(found, "applied")
    assert (await undo_entry(world.cluster, ledger, found, world.emitted.append)).state == "undone"
    assert policies(world) == []


async def test_a_policy_that_may_not_be_made_leaves_no_label(tmp_path: Path) -> None:
    rules = Rule(("*",), ("pods",)), Rule(("get", "list"), ("networkpolicies",))
    account = Account("limited", rules)
    async with running(tmp_path, {"limited": account}, "limited") as world:
        pod, context = world.pod("chat-1"), world.context()
        driver = NetworkPolicyDriver(probed=True)
        assert [each.code for each in await driver.check(world.cluster, pod, effect_of())] == ["policy_refused"]
        result, entry = await driver.apply(context, pod, effect_of(), "network")
        assert (result.answer, result.expected, result.status) == ("forbidden", False, 403)
        assert entry is not None
        assert await undo(world, context, entry) == ("undone", None)
        assert LABEL not in world.store.get("pods", "chat-1", NAMESPACE)["metadata"]["labels"]


async def test_the_rights_that_a_plan_names_are_enough(tmp_path: Path) -> None:
    rules = Rule(("get", "patch"), ("pods",)), Rule(("get", "list", "create", "delete"), ("networkpolicies",))
    async with running(tmp_path, {"enough": Account("enough", rules)}, "enough") as world:
        pod, context = world.pod("chat-1"), world.context()
        problems = await NetworkPolicyDriver(probed=True).check(world.cluster, pod, effect_of())
        assert [problem.severity for problem in problems] == ["info"]
        entry = await cut(context, pod)
        assert await undo(world, context, entry) == ("undone", None)


async def test_a_plan_says_why_it_cannot_work_here(world: World) -> None:
    pod = world.pod("chat-1")

    async def found(pod: Json = pod, **effect: Any) -> list[tuple[str, str]]:
        problems = await NetworkPolicyDriver(probed=True).check(world.cluster, pod, effect_of(**effect))
        return [(problem.severity, problem.code) for problem in problems]

    version = world.store.resource_version
    assert await found() == [("info", "enforcement_unknown")]
    assert world.store.resource_version == version
    assert await found(world.pod("host", hostNetwork=True)) == [("refuse", "host_network")]
    assert await found(peers=(), spare=()) == [("refuse", "ready_kept")]
    assert await found(peers=(), spare=(), spare_gateway=True) == [("info", "enforcement_unknown")]
    assert await found(direction="out", ports=(8000,)) == [("refuse", "ports_of_others")]
    # Policies add up: one more that allows nearly everybody would open what this one closes.
    theirs = {"metadata": {"name": "deny"}, "spec": {"podSelector": {}, "policyTypes": ["Ingress"]}}
    world.store.create("networkpolicies", theirs, namespace=NAMESPACE)
    assert await found() == [("refuse", "other_policy")]
    assert await found(direction="out") == [("info", "enforcement_unknown")]
    world.store.create("namespaces", {"metadata": {"name": "other"}})
    assert await found(world.pod("x", labels={"app": "x"}, namespace="other")) == [("info", "enforcement_unknown")]


@pytest.mark.parametrize(
    ("answered", "there"), [((3, 0), False), ((1, 9), False), ((0, 9), True), ((0, 0), None), (None, None)]
)
async def test_it_is_seen_from_the_side_that_should_be_cut(
    world: World, answered: tuple[int, int] | None, there: bool | None
) -> None:
    pod, context = world.pod("chat-1"), world.context()
    entry = await cut(context, pod)
    asked = []

    def count(uid: str, since: float) -> tuple[int, int]:
        asked.append((uid, since))
        assert answered is not None
        return answered

    context.answered = None if answered is None else count
    began = context.now
    seen = await NetworkPolicyDriver(probed=True).verify(context, pod, effect_of(duration=0.8), entry)
    assert seen.there is there, seen
    # Requests sent before the policy was there, and while it was being put into force, tell nothing.
    assert all(uid == pod["metadata"]["uid"] and since >= began + 0.19 for uid, since in asked)
    assert (await NetworkPolicyDriver(probed=False).verify(context, pod, effect_of(), entry)).there is None


async def test_the_command_for_a_person_names_both(world: World) -> None:
    entry = await cut(world.context(), world.pod("chat-1"))
    said = command(entry)
    assert f"--namespace {NAMESPACE} delete networkpolicies chaosrunner-{entry.entry}; kubectl" in said
    assert "patch pod chat-1" in said


async def victim(kubeconfig: str, folder: str) -> None:
    """Cuts a Pod off and undoes it, again and again until it is killed."""
    async with connect(ClusterConfig(kubeconfig=kubeconfig, context="lab"), Clock()) as cluster:
        journal = Journal(Path(folder) / NAME, run="r", drill="d", connection=Connection(kubeconfig=kubeconfig))
        context = Context(cluster=cluster, journal=journal, emit=lambda _: None, run="r", drill="d")
        pod = (await cluster.request("GET", f"/api/v1/namespaces/{NAMESPACE}/pods/chat-1")).body
        begun()
        while True:
            entry = await cut(context, pod)
            await undo_entry(cluster, journal, entry, lambda _: None)


@pytest.mark.parametrize("after", [0.04, *(pytest.param(after, marks=pytest.mark.slow) for after in (0.0, 0.09, 0.2))])
async def test_a_killed_run_leaves_nothing_that_recovery_does_not_find(
    world: World, tmp_path: Path, after: float
) -> None:
    before = kept(world.pod("chat-1"))
    folder = tmp_path / "killed"
    folder.mkdir()
    await kill_after(after, "test_policy", str(world.connection.kubeconfig), str(folder))
    results = await undo_all(world.cluster, Reopened(folder / NAME), world.emitted.append)
    assert {result.state for result in results} <= {"undone", "not_applied", "already_undone"}
    assert policies(world) == []
    assert kept(world.store.get("pods", "chat-1", NAMESPACE)) == before
