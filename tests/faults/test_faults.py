"""Faults against the lab's API server."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import anyio
import pytest

from chaosrunner.cluster.actions import target_of
from chaosrunner.cluster.drain import DrainOptions
from chaosrunner.errors import UserError
from chaosrunner.faults.base import FaultResult, PlanContext
from chaosrunner.faults.cordon import Cordon, Uncordon
from chaosrunner.faults.delete_pod import DeletePod
from chaosrunner.faults.drain import Drain
from chaosrunner.faults.evict import Evict
from chaosrunner.journal import fields
from chaosrunner.lab.embedded.access import Account, Rule
from chaosrunner.plan.limits import Guard
from chaosrunner.playbook.limits import Limits
from tests.faults.world import NAMESPACE, Object, World, running

CHAT = {"app": "chat"}


def answers(result: FaultResult) -> list[str]:
    return [target.answer for target in result.targets]


def drain(world: World, node: str = "n1", *, timeout: float = 5.0, **options: Any) -> Drain:
    target = target_of(world.store.get("nodes", node), "Node")
    return Drain([target], timeout=timeout, options=DrainOptions(**options), retry_every=0.1)


# --- evict ------------------------------------------------------------------------------------------------


@pytest.mark.anyio
async def test_an_eviction_is_sent_answered_seen_and_told_on_the_pod(tmp_path: Path) -> None:
    async with running(tmp_path) as world:
        pod = world.pod("chat-1")
        context, fault = world.context(), Evict([pod])
        applied = await fault.apply(context)
        verified = await fault.verify(context)
        assert (applied.result, answers(applied)) == ("ok", ["accepted"])
        assert [t.bitten for t in verified.targets] == [True]
        assert world.store.get("pods", "chat-1", NAMESPACE)["metadata"]["deletionTimestamp"]
        (sent,) = world.actions()
        (answered,) = world.actions("answered")
        assert (sent.action, sent.target.uid, sent.call) == ("evict", pod["metadata"]["uid"], answered.call)
        assert (answered.answer, answered.status, answered.expected) == ("accepted", 201, True)
        assert applied.targets[0].sent == sent.at
        assert world.events() == [("ChaosRunnerEvict", "chat-1")]
        assert await fault.undo(context) == []


@pytest.mark.anyio
async def test_a_dry_run_takes_nothing_away(tmp_path: Path) -> None:
    async with running(tmp_path) as world:
        pod = world.pod("chat-1")
        context, fault = world.context(), Evict([pod], dry_run=True)
        applied = await fault.apply(context)
        assert (applied.result, answers(applied)) == ("ok", ["accepted"])
        assert world.store.get("pods", "chat-1", NAMESPACE) == pod
        assert [row.dry_run for row in world.actions()] == [True]
        assert world.events() == []
        assert [t.bitten for t in (await fault.verify(context)).targets] == [None]


@pytest.mark.anyio
@pytest.mark.parametrize("expect", [429, "blocked_by_budget"])
async def test_an_expected_refusal_is_what_the_step_asked_for(tmp_path: Path, expect: int | str) -> None:
    async with running(tmp_path) as world:
        pod = world.pod("chat-1", owner=world.deployment("chat", 1))
        world.budget("chat", CHAT, minAvailable=1)
        await world.settled("chat", expectedPods=1, disruptionsAllowed=0)
        context, fault = world.context(), Evict([pod], expect=expect)
        applied = await fault.apply(context)
        assert (applied.result, answers(applied)) == ("ok", ["blocked_by_budget"])
        assert (await fault.verify(context)).result == "ok"
        other = await Evict([pod]).apply(context)
        assert other.result == "failed"
        assert "expected accepted, got blocked_by_budget" in (other.reason or "")


@pytest.mark.anyio
async def test_an_eviction_that_a_budget_refuses_is_tried_again_until_it_is_allowed(tmp_path: Path) -> None:
    # ansible-collections/kubernetes.core#474: a 429 is no failure yet.
    async with running(tmp_path) as world:
        pod = world.pod("chat-1", owner=world.deployment("chat", 1))
        world.budget("chat", CHAT, minAvailable=1)
        await world.settled("chat", expectedPods=1)

        async def allow() -> None:
            await anyio.sleep(0.3)
            world.store.delete("poddisruptionbudgets", "chat", NAMESPACE)

        world.tasks.start_soon(allow)
        applied = await Evict([pod], retry_for=5, retry_every=0.1).apply(world.context())
        assert applied.result == "ok"
        assert applied.targets[0].attempts > 1


@pytest.mark.anyio
async def test_two_budgets_on_one_pod_are_a_configuration_error_and_no_retry_heals_it(tmp_path: Path) -> None:
    # kubernetes/kubernetes#75957, #113891; eksctl-io/eksctl#783: name the Pod and both budgets, ask once.
    async with running(tmp_path) as world:
        pod = world.pod("dns-7", labels={"app": "dns", "role": "ctl"}, owner=world.deployment("dns", 1))
        world.budget("dns-ext", {"app": "dns"}, minAvailable=0)
        world.budget("dns-ctl", {"app": "dns", "role": "ctl"}, minAvailable=0)
        applied = await Evict([pod], retry_for=5, retry_every=0.1).apply(world.context())
        (target,) = applied.targets
        assert (target.answer, target.attempts, target.pdbs) == ("multiple_budgets", 1, ["dns-ctl", "dns-ext"])
        assert "dns-7" in (applied.reason or "")


@pytest.mark.anyio
async def test_a_pod_that_was_going_already_was_not_taken_away_by_us(tmp_path: Path) -> None:
    async with running(tmp_path) as world:
        pod = world.pod("chat-1", terminationGracePeriodSeconds=60)
        world.store.delete("pods", "chat-1", NAMESPACE)
        context, fault = world.context(), Evict([pod])
        applied = await fault.apply(context)
        assert (applied.result, answers(applied)) == ("ok", ["already_terminating"])
        verified = await fault.verify(context)
        assert verified.result == "inconclusive"
        assert verified.targets[0].bitten is False


@pytest.mark.anyio
async def test_another_pod_of_the_same_name_is_not_evicted_and_no_budget_is_spent(tmp_path: Path) -> None:
    async with running(tmp_path) as world:
        owner = world.deployment("chat", 2)
        frozen = world.pod("chat-1", owner=owner)
        world.store.delete("pods", "chat-1", NAMESPACE, grace=0)
        anew, other = world.pod("chat-1", owner=owner), world.pod("chat-2", owner=owner)
        world.budget("chat", CHAT, minAvailable=1)
        await world.settled("chat", disruptionsAllowed=1)
        applied = await Evict([frozen]).apply(world.context())
        assert answers(applied) == ["not_found"]
        assert world.actions() == []
        assert world.store.get("pods", "chat-1", NAMESPACE) == anew
        assert (await Evict([other]).apply(world.context())).result == "ok"


@pytest.mark.anyio
async def test_a_budget_held_by_our_own_failed_eviction_is_no_finding_about_the_workload(tmp_path: Path) -> None:
    # Recorded on a real 1.37, mark "wrong UID burns the budget": 409, and the next eviction gets 429.
    async with running(tmp_path) as world:
        owner = world.deployment("chat", 2)
        pods = [world.pod(f"chat-{i}", owner=owner) for i in (1, 2)]
        world.budget("chat", CHAT, minAvailable=1)
        await world.settled("chat", disruptionsAllowed=1)
        context = world.context()
        # The Pod is made anew between our GET and our POST.
        real, swapped = world.cluster.request, False

        async def request(method: str, path: str, **kwargs: Any) -> Any:
            nonlocal swapped
            if method == "POST" and path.endswith("/eviction") and not swapped:
                swapped = True
                world.store.delete("pods", "chat-1", NAMESPACE, grace=0)
                world.pod("chat-1", owner=owner)
                await world.settled("chat", disruptionsAllowed=1)
            return await real(method, path, **kwargs)

        world.cluster.request = request  # type: ignore[method-assign]
        burnt = await Evict([pods[0]]).apply(context)
        assert answers(burnt) == ["precondition_failed"]
        assert "held" in (burnt.targets[0].detail or "")
        blocked = await Evict([pods[1]]).apply(context)
        assert answers(blocked) == ["blocked_by_budget"]
        assert blocked.targets[0].self_inflicted
        assert "our own failed eviction" in (blocked.reason or "")


# --- delete-pod -------------------------------------------------------------------------------------------


@pytest.mark.anyio
async def test_a_delete_goes_past_budgets_with_the_pods_grace_or_the_steps(tmp_path: Path) -> None:
    async with running(tmp_path) as world:
        owner = world.deployment("chat", 2)
        first = world.pod("chat-1", owner=owner, terminationGracePeriodSeconds=60)
        second = world.pod("chat-2", owner=owner, terminationGracePeriodSeconds=60)
        world.budget("chat", CHAT, minAvailable=2)
        await world.settled("chat", disruptionsAllowed=0, expectedPods=2)
        context = world.context()
        for pod, grace, seen in ((first, None, 60), (second, 7, 7)):
            fault = DeletePod([pod], grace_period=grace)
            assert (await fault.apply(context)).result == "ok"
            assert (await fault.verify(context)).targets[0].bitten is True
            meta = world.store.get("pods", pod["metadata"]["name"], NAMESPACE)["metadata"]
            assert meta["deletionGracePeriodSeconds"] == seen
        assert world.events() == [("ChaosRunnerDeletePod", "chat-1"), ("ChaosRunnerDeletePod", "chat-2")]


@pytest.mark.anyio
async def test_only_force_removes_the_object_at_once_and_only_that_pod(tmp_path: Path) -> None:
    async with running(tmp_path) as world:
        pod = world.pod("chat-1", terminationGracePeriodSeconds=60)
        context, fault = world.context(), DeletePod([pod], force=True)
        applied = await fault.apply(context)
        assert (applied.result, (await fault.verify(context)).targets[0].bitten) == ("ok", True)
        assert world.store.find("pods", "chat-1", NAMESPACE) is None
        anew = world.pod("chat-1")
        again = await DeletePod([pod], force=True).apply(context)
        assert answers(again) == ["not_found"]
        assert world.store.get("pods", "chat-1", NAMESPACE) == anew


# --- cordon and uncordon ----------------------------------------------------------------------------------


@pytest.mark.anyio
async def test_a_cordon_is_undone_and_an_operators_cordon_stays(tmp_path: Path) -> None:
    # litmuschaos/litmus-go#668: only what was schedulable before becomes schedulable again.
    async with running(tmp_path) as world:
        n1, n2 = world.node("n1"), world.node("n2", unschedulable=True)
        context, fault = world.context(), Cordon([n1, n2])
        applied = await fault.apply(context)
        assert answers(applied) == ["accepted", "unchanged"]
        assert (await fault.verify(context)).result == "ok"
        assert [r.action for r in world.actions()] == ["cordon"]
        (note,) = fields.notes_of(world.store.get("nodes", "n1"))
        assert (note.run, note.drill, note.fields[0].previous) == ("run-1", "drill", None)
        assert not await fault.verify_undone(context)
        assert [r.state for r in await fault.undo(context)] == ["undone"]
        assert await fault.verify_undone(context)
        assert (world.unschedulable("n1"), world.unschedulable("n2")) == (None, True)
        assert await fault.undo(context) == []
        assert world.events() == [("ChaosRunnerCordon", "n1")]


@pytest.mark.anyio
async def test_a_cordon_outlasts_heartbeats_between_read_and_patch(tmp_path: Path) -> None:
    async with running(tmp_path) as world:
        n1 = world.node("n1")
        real, beats = world.cluster.request, 0

        async def request(method: str, path: str, **kwargs: Any) -> Any:
            nonlocal beats
            if method == "PATCH" and beats < 3:
                beats += 1
                beat = lambda node: node["metadata"]["annotations"].update(beat=str(beats))  # noqa: E731
                world.store.mutate("nodes", "n1", None, beat)
            return await real(method, path, **kwargs)

        world.cluster.request = request  # type: ignore[method-assign]
        context = world.context()
        (target,) = (await Cordon([n1]).apply(context)).targets
        assert (target.answer, target.attempts) == ("accepted", 4)
        assert world.unschedulable("n1") is True
        assert world.states() == ["intent", "not_applied"] * 3 + ["intent", "applied"]


@pytest.mark.anyio
async def test_a_node_that_carries_the_undo_of_another_run_is_not_touched(tmp_path: Path) -> None:
    async with running(tmp_path) as world:
        n1 = world.node("n1")
        await Cordon([n1]).apply(world.context("run-1"))
        second = Cordon([n1])
        preview = await second.plan(PlanContext(cluster=world.cluster, pdbs=[]))
        assert [(p.severity, p.code) for p in preview.problems] == [("refuse", "undo_pending")]
        applied = await second.apply(world.context("run-2"))
        assert applied.result == "failed"
        assert "run-1" in (applied.reason or "")


@pytest.mark.anyio
async def test_an_uncordon_in_mid_run_is_the_undo_of_our_cordon(tmp_path: Path) -> None:
    async with running(tmp_path) as world:
        n1 = world.node("n1")
        context = world.context()
        await Cordon([n1]).apply(context)
        fault = Uncordon([n1])
        assert answers(await fault.apply(context)) == ["undone"]
        assert world.unschedulable("n1") is None
        assert (await fault.verify(context)).result == "ok"
        assert context.journal.open() == []


@pytest.mark.anyio
async def test_an_uncordon_of_an_operators_cordon_is_put_back(tmp_path: Path) -> None:
    async with running(tmp_path) as world:
        n1 = world.node("n1", unschedulable=True)
        context, fault = world.context(), Uncordon([n1])
        assert answers(await fault.apply(context)) == ["accepted"]
        assert not world.unschedulable("n1")
        assert [r.state for r in await fault.undo(context)] == ["undone"]
        assert world.unschedulable("n1") is True


@pytest.mark.anyio
async def test_a_cordon_without_the_right_changes_nothing_and_leaves_nothing_open(tmp_path: Path) -> None:
    reader = Account("reader", (Rule(("get", "list", "watch"), ("*",)),))
    async with running(tmp_path, {"reader": reader}, "reader") as world:
        context = world.context()
        applied = await Cordon([world.node("n1")]).apply(context)
        assert applied.result == "failed"
        assert "cannot patch" in (applied.reason or "")
        assert context.journal.open() == []
        assert world.states() == ["intent", "not_applied"]


# --- drain ------------------------------------------------------------------------------------------------


def daemon(world: World) -> Object:
    return {"apiVersion": "apps/v1", "kind": "DaemonSet", "metadata": {"name": "agent", "uid": "d-1"}}


def job() -> Object:
    return {"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": "once", "uid": "j-1"}}


EMPTY_DIR = {"volumes": [{"name": "scratch", "emptyDir": {}}]}


@pytest.mark.anyio
async def test_a_refused_drain_says_why_for_each_pod_and_cordons_nothing(tmp_path: Path) -> None:
    # kubernetes-sigs/headlamp#7268, kubernetes/kubernetes#26667, #20232; longhorn/longhorn#3481
    reader = Account("no-daemonsets", (Rule(("*",), ("pods", "pods/eviction", "nodes", "poddisruptionbudgets")),))
    async with running(tmp_path, {"reader": reader}, "reader") as world:
        world.node("n1")
        owner = world.deployment("chat", 3)
        world.pod("a", annotations={"kubernetes.io/config.mirror": "x"})
        world.pod("b", owner=daemon(world))
        world.pod("c", owner=owner)
        world.pod("d", owner=owner, **EMPTY_DIR)
        world.pod("e")
        world.pod("f", owner=job(), phase="Succeeded")
        world.pod("g", owner=owner, terminationGracePeriodSeconds=60)
        world.store.delete("pods", "g", NAMESPACE)
        world.pod("h", owner=daemon(world), **EMPTY_DIR)
        fault = drain(world, ignore_daemonsets=True)

        preview = await fault.plan(PlanContext(cluster=world.cluster, pdbs=[]))

        verdicts = {t.target.name: t.action for t in preview.touches if t.target.kind == "Pod"}
        assert verdicts == {
            "a": "skip", "b": "skip", "c": "evict", "d": "block", "e": "block", "f": "evict", "g": "wait", "h": "skip",
        }  # fmt: skip
        refusals = [p for p in preview.problems if p.severity == "refuse"]
        assert [p.code for p in refusals] == ["drain_blocked"] * 2
        assert "d: has emptyDir" in refusals[0].text
        assert "e: no controller" in refusals[1].text
        applied = await fault.apply(world.context())
        assert applied.result == "failed"
        assert world.unschedulable("n1") is None
        assert world.actions() == []
        assert world.states() == []


@pytest.mark.anyio
async def test_a_drain_cordons_evicts_waits_until_they_are_gone_and_gives_the_node_back(tmp_path: Path) -> None:
    async with running(tmp_path) as world:
        world.node("n1")
        owner = world.deployment("chat", 3)
        for name in ("chat-1", "chat-2"):
            world.pod(name, owner=owner)
        elsewhere = world.pod("chat-3", owner=owner, node="n2")
        world.kubelet()
        context, fault = world.context(), drain(world)
        applied = await fault.apply(context)
        assert (applied.result, answers(applied)) == ("ok", ["accepted"] * 3)
        assert [row.action for row in world.actions()] == ["cordon", "evict", "evict"]
        assert world.unschedulable("n1") is True
        assert (await fault.verify(context)).result == "ok"
        assert world.store.list("pods", NAMESPACE) == [elsewhere]
        assert [r.state for r in await fault.undo(context)] == ["undone"]
        assert await fault.verify_undone(context)
        assert world.unschedulable("n1") is None


@pytest.mark.anyio
async def test_a_drain_asks_again_while_a_budget_refuses_and_goes_on_with_the_rest(tmp_path: Path) -> None:
    # ansible-collections/kubernetes.core#474, #797; kubernetes/kubectl#172
    async with running(tmp_path) as world:
        world.node("n1")
        owner = world.deployment("chat", 2)
        for name in ("chat-1", "chat-2"):
            world.pod(name, owner=owner)
        world.budget("chat", CHAT, minAvailable=1)
        await world.settled("chat", disruptionsAllowed=1)
        world.kubelet()

        async def replacement() -> None:
            await anyio.sleep(0.4)
            world.pod("chat-3", owner=owner, node="n2")

        world.tasks.start_soon(replacement)
        applied = await drain(world).apply(world.context())
        assert applied.result == "ok"
        assert max(target.attempts for target in applied.targets) > 1
        assert "blocked_by_budget" in {row.answer for row in world.actions("answered")}
        assert [p["metadata"]["name"] for p in world.store.list("pods", NAMESPACE)] == ["chat-3"]


@pytest.mark.anyio
async def test_a_pod_under_two_budgets_fails_for_good_and_the_rest_is_drained(tmp_path: Path) -> None:
    # kubernetes/kubernetes#75957; gardener/gardener-extension-shoot-dns-service#176
    async with running(tmp_path) as world:
        world.node("n1")
        world.pod("chat-1", owner=world.deployment("chat", 1))
        world.pod("dns-7", labels={"app": "dns", "role": "ctl"}, owner=world.deployment("dns", 1))
        world.budget("dns-ext", {"app": "dns"}, minAvailable=0)
        world.budget("dns-ctl", {"app": "dns", "role": "ctl"}, minAvailable=0)
        world.kubelet()
        context, fault = world.context(), drain(world)
        applied = await fault.apply(context)
        assert applied.result == "failed"
        wrong = [t for t in applied.targets if not t.expected]
        assert [(t.target.name, t.answer, t.attempts, t.pdbs) for t in wrong] == [
            ("dns-7", "multiple_budgets", 1, ["dns-ctl", "dns-ext"])
        ]
        assert world.store.find("pods", "chat-1", NAMESPACE) is None
        assert [r.state for r in await fault.undo(context)] == ["undone"]


@pytest.mark.anyio
async def test_a_pod_held_by_a_finalizer_is_a_timeout_and_no_success(tmp_path: Path) -> None:
    # ansible-collections/kubernetes.core#769, poseidon/fleetlock#271, openshift/runbooks#214
    async with running(tmp_path) as world:
        world.node("n1")
        world.pod("chat-1", owner=world.deployment("chat", 1), finalizers=["x/y"])
        world.kubelet()
        context, fault = world.context(), drain(world, timeout=1.5)
        applied = await fault.apply(context)
        assert applied.result == "failed"
        (stuck,) = [t for t in applied.targets if not t.expected]
        assert stuck.answer == "accepted"
        assert "stuck_terminating" in (stuck.detail or "")
        assert "x/y" in (stuck.detail or "")
        assert (await fault.verify(context)).result == "inconclusive"
        assert [r.state for r in await fault.undo(context)] == ["undone"]


@pytest.mark.anyio
async def test_a_pod_outside_the_limits_that_came_after_the_plan_keeps_the_node_from_being_drained(
    tmp_path: Path,
) -> None:
    async with running(tmp_path) as world:
        world.node("n1")
        world.pod("chat-1", owner=world.deployment("chat", 1))
        fault = drain(world)
        guard = Guard(Limits(), NAMESPACE, 1)
        fault.off_limits = guard.off_limits
        assert (await fault.plan(PlanContext(cluster=world.cluster, pdbs=[]))).problems == []
        replica_set = {"apiVersion": "apps/v1", "kind": "ReplicaSet", "metadata": {"name": "dns", "uid": "r-1"}}
        world.pod("dns-1", owner=replica_set, namespace="kube-system")
        applied = await fault.apply(world.context())
        assert applied.result == "failed"
        assert "kube-system is outside the drill's limits" in (applied.reason or "")
        assert world.actions() == []


@pytest.mark.anyio
async def test_a_drain_that_a_budget_never_allows_times_out_and_the_node_is_given_back(tmp_path: Path) -> None:
    # kubernetes/kubernetes#48307, litmuschaos/litmus-go#520: the failed drain leaves no cordoned node behind.
    async with running(tmp_path) as world:
        world.node("n1")
        world.pod("chat-1", owner=world.deployment("chat", 1))
        world.budget("chat", CHAT, minAvailable=1)
        await world.settled("chat", expectedPods=1)
        context, fault = world.context(), drain(world, timeout=0.5)
        preview = await fault.plan(PlanContext(cluster=world.cluster, pdbs=world.store.list("poddisruptionbudgets")))
        assert [(p.severity, p.code) for p in preview.problems] == [("warn", "blocked_by_budget")]
        applied = await fault.apply(context)
        assert applied.result == "failed"
        assert "not evicted in 0.5 s" in (applied.reason or "")
        await fault.undo(context)
        assert world.unschedulable("n1") is None


@pytest.mark.anyio
async def test_a_pod_that_comes_back_under_its_name_counts_as_gone(tmp_path: Path) -> None:
    async with running(tmp_path) as world:
        world.node("n1")
        owner = world.deployment("chat", 1)
        world.pod("chat-0", owner=owner)
        world.kubelet()

        def changed(kind: str, pod: Object, old: Object | None) -> None:
            if kind == "DELETED":
                world.pod("chat-0", owner=owner, node="n2")

        world.store.subscribe("pods", changed)
        applied = await drain(world, timeout=3).apply(world.context())
        assert applied.result == "ok"
        assert world.store.get("pods", "chat-0", NAMESPACE)["spec"]["nodeName"] == "n2"


@pytest.mark.anyio
async def test_a_cordon_of_a_node_that_does_not_exist_is_refused(tmp_path: Path) -> None:
    async with running(tmp_path) as world:
        n1 = world.node("n1")
        world.store.delete("nodes", "n1")
        preview = await Cordon([n1]).plan(PlanContext(cluster=world.cluster, pdbs=[]))
        assert [(p.severity, p.code) for p in preview.problems] == [("refuse", "no_such_node")]
        assert answers(await Cordon([n1]).apply(world.context())) == ["not_found"]


@pytest.mark.anyio
async def test_the_plan_of_a_cordon_needs_to_read_the_node(tmp_path: Path) -> None:
    nobody = Account("nobody")
    async with running(tmp_path, {"nobody": nobody}, "nobody") as world:
        with pytest.raises(UserError, match="forbidden"):
            await Cordon([world.node("n1")]).plan(PlanContext(cluster=world.cluster, pdbs=[]))


@pytest.mark.anyio
async def test_pods_that_come_between_the_first_look_and_the_cordon_count_too(tmp_path: Path) -> None:
    async with running(tmp_path) as world:
        world.node("n1")
        owner = world.deployment("chat", 3)
        world.pod("chat-1", owner=owner)

        def scaled_up(event: str, node: Object, old: Object | None) -> None:
            if event == "MODIFIED" and node["spec"].get("unschedulable") and len(world.store.list("pods")) == 1:
                world.pod("chat-2", owner=owner)

        world.store.subscribe("nodes", scaled_up)
        limit = Guard(Limits(max_pods=1), NAMESPACE, 3).too_many_evictions
        fault = drain(world)
        fault.too_many = limit
        context = world.context()
        applied = await fault.apply(context)
        assert applied.result == "failed"
        assert "2 Pods, limits.max_pods is 1" in str(applied.reason)
        assert [row.action for row in world.actions()] == ["cordon"]
        assert [r.state for r in await fault.undo(context)] == ["undone"]
