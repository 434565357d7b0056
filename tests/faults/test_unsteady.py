"""Faults on an API server that loses answers, or is not up to it for a while."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from chaosrunner.cluster.session import Answer, Unreachable
from chaosrunner.faults.cordon import Cordon
from chaosrunner.faults.delete_pod import DeletePod
from chaosrunner.faults.evict import Evict
from chaosrunner.journal.undo import undo_all
from tests.faults.test_faults import CHAT, answers
from tests.faults.world import NAMESPACE, World, running

pytestmark = pytest.mark.anyio

Call = Callable[[], Awaitable[Answer]]
Instead = Callable[[Call, dict[str, Any]], Awaitable[Answer]]


def between(world: World, method: str, part: str, *instead: Instead) -> None:
    """The next requests of this kind go through `instead`, one each."""
    real, left = world.cluster.request, list(instead)

    async def request(verb: str, path: str, **options: Any) -> Any:
        if left and verb == method and part in path:
            return await left.pop(0)(lambda: real(verb, path, **options), options)
        return await real(verb, path, **options)

    world.cluster.request = request  # type: ignore[method-assign,assignment]


def lost(world: World) -> Unreachable:
    return Unreachable(world.cluster.server, "closed", "reset by peer", sent=True)


def refusing(world: World, status: int, message: str) -> Instead:
    async def refuse(call: Call, options: dict[str, Any]) -> Answer:
        now = world.cluster.clock.now()
        body = {"kind": "Status", "status": "Failure", "message": message, "code": status}
        return Answer(status=status, body=body, headers={}, sent=now, received=now)

    return refuse


NO_ROLE = 'nodes "n1" is forbidden: RBAC: clusterrole.rbac.authorization.k8s.io "chaosrunner" not found'


async def test_a_budget_that_a_lost_eviction_may_hold_tells_nothing_about_the_workload(tmp_path: Path) -> None:
    """The server dies after it spent the budget and before it deleted the Pod."""
    async with running(tmp_path) as world:
        owner = world.deployment("chat", 2)
        pods = [world.pod(f"chat-{i}", owner=owner) for i in (1, 2)]
        world.budget("chat", CHAT, minAvailable=1)
        await world.settled("chat", disruptionsAllowed=1)

        async def die(call: Call, options: dict[str, Any]) -> Answer:
            options["body"]["deleteOptions"]["preconditions"]["uid"] = "of nobody"  # spends the budget, deletes nothing
            await call()
            raise lost(world)

        between(world, "POST", "/eviction", die)
        context = world.context()
        result = await Evict([pods[0]]).apply(context)
        assert (result.result, answers(result)) == ("inconclusive", ["blocked_by_budget"])
        assert result.targets[0].self_inflicted
        assert "whose answer was lost" in (result.reason or "")
        (later,) = (await Evict([pods[1]]).apply(context)).targets
        assert later.self_inflicted
        assert "deletionTimestamp" not in world.store.get("pods", "chat-1", NAMESPACE)["metadata"]


@pytest.mark.parametrize("carried_out", [True, False])
@pytest.mark.parametrize("timed_out", [True, False])
async def test_an_eviction_without_an_answer_is_asked_again_while_the_step_retries(
    tmp_path: Path, carried_out: bool, timed_out: bool
) -> None:
    """Beyond what a fault waits for by itself: what the first one came to is not forgotten between the tries."""
    async with running(tmp_path) as world:
        owner = world.deployment("chat", 2)
        pods = [world.pod(f"chat-{i}", owner=owner) for i in (1, 2)]
        world.budget("chat", CHAT, minAvailable=1)
        await world.settled("chat", disruptionsAllowed=1)

        async def lose(call: Call, options: dict[str, Any]) -> Answer:
            if carried_out:
                assert (await call()).ok
            if timed_out:
                return await refusing(world, 504, "Timeout: request did not complete")(call, options)
            raise lost(world)

        between(world, "POST", "/eviction", lose)
        context = world.context()
        context.patience = 0.0
        fault = Evict([pods[0]], retry_for=5.0, retry_every=0.2)
        result = await fault.apply(context)
        assert (result.result, answers(result)) == ("ok", ["accepted"])
        (target,) = result.targets
        assert target.attempts == 2
        asked = world.actions("sent")
        said = f"{pods[0]['metadata']['name']}: its answer was lost, but the Pod is seen to go"
        assert result.reason == (said if carried_out else None)
        assert target.sent == asked[0 if carried_out else 1].at
        assert (await fault.verify(context)).result == "ok"
        assert "deletionTimestamp" not in world.store.get("pods", "chat-2", NAMESPACE)["metadata"]


async def test_an_eviction_that_is_refused_in_passing_is_sent_again_and_a_missing_right_is_not(tmp_path: Path) -> None:
    async with running(tmp_path) as world:
        pod = world.pod("chat-1")
        denied = 'pods "chat-1" is forbidden: User "drill" cannot create resource "pods/eviction"'
        between(world, "POST", "/eviction", refusing(world, 403, denied))
        result = await Evict([pod]).apply(world.context())
        assert (result.result, answers(result)) == ("failed", ["forbidden"])
        between(
            world,
            "POST",
            "/eviction",
            refusing(world, 503, "apiserver not ready"),
            refusing(world, 403, NO_ROLE),
            refusing(world, 429, "storage is (re)initializing"),
        )
        result = await Evict([pod]).apply(world.context("run-2"))
        assert (result.result, answers(result)) == ("ok", ["accepted"])
        classes = [row.answer for row in world.actions("answered")]
        assert classes == ["forbidden", "server_error", "forbidden", "throttled", "accepted"]


@pytest.mark.parametrize("force", [False, True])
async def test_a_delete_whose_answer_is_lost_is_seen_by_its_effect(tmp_path: Path, force: bool) -> None:
    async with running(tmp_path) as world:
        pod = world.pod("chat-1")

        async def lose(call: Call, options: dict[str, Any]) -> Answer:
            assert (await call()).ok
            raise lost(world)

        between(world, "DELETE", "/pods/", lose)
        fault = DeletePod([pod], force=force, grace_period=0 if force else None)
        context = world.context()
        applied = await fault.apply(context)
        assert (applied.result, answers(applied)) == ("ok", ["accepted"])
        assert (await fault.verify(context)).targets[0].bitten
        assert applied.targets[0].sent == pytest.approx(world.actions()[0].at, abs=0.1)
        assert len(world.actions()) == 1


BUSY = "too many requests, please try again later"


@pytest.mark.parametrize(
    ("status", "message", "answer"),
    [(429, BUSY, "throttled"), (503, "apiserver not ready", "server_error")],
)
async def test_a_server_that_answers_that_it_is_busy_was_reached(
    tmp_path: Path, status: int, message: str, answer: str
) -> None:
    async with running(tmp_path) as world:
        pod, node = world.pod("chat-1"), world.node("n1")
        refuse = refusing(world, status, message)
        between(world, "DELETE", "/pods/", *[refuse] * 20)
        between(world, "PATCH", "/nodes/n1", *[refuse] * 20)
        context = world.context()
        context.patience = 0.3
        for fault in (DeletePod([pod]), Cordon([node])):
            result = await fault.apply(context)
            assert (result.result, answers(result), result.targets[0].status) == ("inconclusive", [answer], status)
            assert f"{status} {message}" in (result.reason or "")


async def test_a_delete_that_was_lost_before_the_server_became_busy_may_have_been_carried_out(tmp_path: Path) -> None:
    async with running(tmp_path) as world:
        pod = world.pod("chat-1")

        async def lose(call: Call, options: dict[str, Any]) -> Answer:
            raise lost(world)

        between(world, "DELETE", "/pods/", lose, *[refusing(world, 429, BUSY)] * 20)
        context = world.context()
        context.patience = 0.3
        result = await DeletePod([pod]).apply(context)
        assert (result.result, answers(result)) == ("inconclusive", ["unreachable"])
        assert "reset by peer" in (result.reason or "")


async def test_a_cordon_that_arrives_late_is_ours_all_the_same(tmp_path: Path) -> None:
    """Its answer is lost; it is carried out when we have looked and are about to send it again."""
    async with running(tmp_path) as world:
        node, late = world.node("n1"), list[Call]()

        async def hold_back(call: Call, options: dict[str, Any]) -> Answer:
            late.append(call)
            raise lost(world)

        async def after_it(call: Call, options: dict[str, Any]) -> Answer:
            assert (await late[0]()).ok
            return await call()

        between(world, "PATCH", "/nodes/n1", hold_back, after_it)
        context = world.context()
        result = await Cordon([node]).apply(context)
        assert (result.result, answers(result)) == ("ok", ["accepted"])
        assert world.states() == ["intent", "applied"]
        (undone,) = await undo_all(world.cluster, context.journal, context.emit)
        assert undone.state == "undone"
        assert world.store.get("nodes", "n1")["spec"] == {}
        assert world.store.get("nodes", "n1")["metadata"]["annotations"] == {"made": "here"}


async def test_a_cordon_that_stays_without_an_answer_waits_for_the_undo(tmp_path: Path) -> None:
    async with running(tmp_path) as world:
        node, late = world.node("n1"), list[Call]()

        async def hold_back(call: Call, options: dict[str, Any]) -> Answer:
            late.append(call)
            raise lost(world)

        between(world, "PATCH", "/nodes/n1", *[hold_back] * 20)
        context = world.context()
        context.patience = 0.3
        result = await Cordon([node]).apply(context)
        assert (result.result, answers(result)) == ("inconclusive", ["unreachable"])
        assert world.states() == ["intent"]
        del world.cluster.request
        (undone,) = await undo_all(world.cluster, context.journal, context.emit)
        assert undone.state == "not_applied"
        assert not (await late[-1]()).ok  # it comes too late: the undo has fenced the node
        assert not world.unschedulable("n1")
        assert world.store.get("nodes", "n1")["metadata"]["annotations"] == {"made": "here"}


async def test_an_undo_waits_for_a_server_that_is_not_up_to_it_until_its_limit(tmp_path: Path) -> None:
    async with running(tmp_path) as world:
        nodes = [world.node("n1"), world.node("n2")]
        context = world.context()
        await Cordon(nodes).apply(context)
        troubles = [(503, "apiserver not ready"), (401, "Unauthorized"), (403, NO_ROLE), (500, "etcdserver: no leader")]
        between(world, "GET", "/nodes/n2", *[refusing(world, *trouble) for trouble in troubles])
        between(world, "GET", "/nodes/n1", *[refusing(world, 503, "apiserver not ready")] * 50)
        second, first = await undo_all(world.cluster, context.journal, context.emit, patience=4.0)
        assert (second.state, second.ok) == ("undone", True)
        assert (first.state, first.ok) == ("undo_failed", False)
        assert "apiserver not ready" in (first.detail or "")
        assert first.command is not None
        assert "patch node n1 --type=merge" in first.command
        assert [world.unschedulable(node) for node in ("n1", "n2")] == [True, None]
