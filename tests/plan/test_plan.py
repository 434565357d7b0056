"""Plans against the lab's API server: what is found out without changing anything."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest

from chaosrunner.cluster.lease import name_for
from chaosrunner.errors import Refused
from chaosrunner.faults.base import PlanContext
from chaosrunner.faults.cordon import Cordon
from chaosrunner.lab.embedded.access import Account, Rule
from chaosrunner.plan.plan import Plan, StepPlan, make_plan
from chaosrunner.playbook.load import BoundDrill, load_drill
from tests.faults.world import NAMESPACE, Object, World, running
from tests.toxiproxy.links import PROXY
from tests.toxiproxy.links import running as link_running

CHAT = {"app": "chat"}
EVICT = "evict: {pods: 1}"
NONE_ALLOWED = {"disruptionsAllowed": 0, "observedGeneration": 1}


def bound(
    folder: Path,
    *steps: str,
    drill: str = "",
    limits: str = "{}",
    endpoint: str = '{url: "http://127.0.0.1:1"}',
    connection: str = "reused",
) -> BoundDrill:
    lines = "\n".join(f"  - {step}" for step in steps)
    (folder / "book.yaml").write_text(f"""
apiVersion: chaosrunner.dev/v1
kind: Playbook
metadata: {{name: book}}
probes:
  - name: chat
    openai: {{prompt: "Count from {{{{ nonce }}}}."}}
    connection: {connection}
steps:
  - baseline: {{for: 1s}}
{lines}
""")
    (folder / "drill.yaml").write_text(f"""
apiVersion: chaosrunner.dev/v1
kind: Drill
metadata: {{name: drill}}
playbook: ./book.yaml
namespace: {NAMESPACE}
workload: {{selector: app=chat, controller: deployment/chat, service: chat}}
endpoint: {endpoint}
limits: {limits}
{drill}
""")
    return load_drill(folder / "drill.yaml")


async def planned(world: World, *steps: str, environ: dict[str, str] | None = None, **options: str) -> Plan:
    """The plan, made without a single change of the cluster."""
    version = await world.quiet()
    drill = bound(world.folder, *steps, **options)
    plan = await make_plan(drill, world.cluster, environ=environ or {}, host="laptop")
    assert world.store.resource_version == version
    msgspec.json.encode(plan)
    return plan


def codes(plan: Plan, severity: str) -> list[str]:
    return [problem.code for problem in plan.problems if problem.severity == severity]


def predicted(step: StepPlan) -> list[tuple[str, str, str | None]]:
    return [(touch.action, touch.target.name, touch.predicted) for touch in step.touches]


async def chat(world: World, replicas: int = 3, *, nodes: tuple[str, ...] = ("n1", "n2", "n3"), **spec: Any) -> Object:
    """A healthy workload, spread over the nodes, with a budget of one."""
    for name in nodes:
        world.node(name)
    owner = world.deployment("chat", replicas)
    pods = [
        world.pod(f"chat-{i}", owner=owner, node=nodes[(i - 1) % len(nodes)], **spec) for i in range(1, replicas + 1)
    ]
    world.service("chat", pods)
    world.budget("chat", CHAT, maxUnavailable=1)
    await world.settled("chat", disruptionsAllowed=1, expectedPods=replicas)
    return owner


@pytest.mark.anyio
async def test_the_plan_of_an_eviction_names_the_workload_the_choice_and_the_answers(tmp_path: Path) -> None:
    # asobti/kube-monkey#115, lwolf/kube-cleanup-operator#47: nothing but reads and dry runs, and every answer is
    # called predicted. The second eviction meets the budget that the first has spent, though each dry run alone is
    # accepted.
    async with running(tmp_path) as world:
        await chat(world)
        plan = await planned(
            world,
            'evict: {pods: 1, when: "in_flight(target) >= 1", within: 30s}',
            "evict: {pods: 1, dry_run: true, expect: 429}",
            "wait: {until: replacement.warm}",
            "hold: {for: 2s}",
        )
        assert not plan.refused
        assert plan.problems == []
        assert plan.ready_endpoints == 3
        workload = plan.workload
        assert (workload.controller, workload.replicas) == ("deployment/chat", 3)
        assert workload.controller_uid == world.store.get("deployments", "chat", NAMESPACE)["metadata"]["uid"]
        assert {t.root for t in plan.targets} == {workload.controller_uid}
        assert [c.name for c in plan.candidates] == ["chat-1", "chat-2", "chat-3"]
        assert [n.name for n in plan.nodes] == ["n1", "n2", "n3"]
        assert plan.targets[0].spec["terminationGracePeriodSeconds"] == 1
        _, evict, again, _, _ = plan.steps
        assert predicted(evict) == [("evict", "chat-1", "accepted")]
        assert [(t.target.name, t.predicted) for t in evict.alternatives] == [
            (f"chat-{i}", "accepted") for i in (1, 2, 3)
        ]
        assert "in_flight(target) >= 1" in evict.text
        assert predicted(again) == [("evict", "chat-2", "blocked_by_budget")]
        assert again.touches[0].pdbs == ["chat"]


@pytest.mark.anyio
async def test_budgets_and_limits_count_what_is_away_and_forget_it_after_a_wait(tmp_path: Path) -> None:
    async with running(tmp_path) as world:
        await chat(world)
        twice = await planned(world, EVICT, EVICT)
        assert twice.refused
        assert codes(twice, "refuse") == ["max_pods"]
        assert codes(twice, "warn") == ["blocked_by_budget"]
        waited = await planned(world, EVICT, "wait: {until: replacement.warm}", EVICT)
        assert not waited.refused
        assert [predicted(waited.steps[i]) for i in (1, 3)] == [
            [("evict", "chat-1", "accepted")],
            [("evict", "chat-2", "accepted")],
        ]
        share = await planned(world, "delete-pod: {pods: 2}", limits="{max_pods: 3, max_percent: 50%}")
        assert codes(share, "refuse") == ["max_percent"]
        assert "2 of 3 Pods (67 %)" in next(p.text for p in share.problems if p.code == "max_percent")


@pytest.mark.anyio
async def test_candidates_are_running_pods_frozen_by_uid(tmp_path: Path) -> None:
    # chaos-mesh/chaos-mesh#4476, #4276, #1465
    async with running(tmp_path) as world:
        owner = await chat(world, 2)
        world.store.create("namespaces", {"metadata": {"name": "other"}})
        world.pod("done", owner=owner, phase="Succeeded")
        world.pod("going", owner=owner, terminationGracePeriodSeconds=60)
        world.store.delete("pods", "going", NAMESPACE)
        world.pod("chat-9", owner=owner, namespace="other")
        plan = await planned(world, 'evict: {pods: "50%"}')
        uids = [world.store.get("pods", n, NAMESPACE)["metadata"]["uid"] for n in ("chat-1", "chat-2")]
        assert [c.uid for c in plan.candidates] == uids
        assert len(plan.steps[1].touches) == 1
        assert [p.text for p in plan.problems if p.code == "no_candidate"] == [
            "Pod done is no candidate: phase Succeeded",
            "Pod going is no candidate: terminating",
        ]


@pytest.mark.anyio
async def test_a_selector_that_finds_nothing_is_refused(tmp_path: Path) -> None:
    async with running(tmp_path) as world:
        plan = await planned(world, EVICT)
        assert plan.refused
        assert {"no_candidates", "controller_unknown", "no_such_service", "too_few_candidates"} <= set(
            codes(plan, "refuse")
        )


@pytest.mark.anyio
async def test_more_pods_than_there_are_is_refused_unless_replacements_count(tmp_path: Path) -> None:
    async with running(tmp_path) as world:
        await chat(world, 2)
        wait = "wait: {until: replacement.warm}"
        limits = "{max_pods: 3}"
        assert codes(await planned(world, "evict: {pods: 3}", limits=limits), "refuse") == ["too_few_candidates"]
        used_up = await planned(world, EVICT, wait, EVICT, wait, EVICT, limits=limits)
        assert codes(used_up, "refuse") == ["too_few_candidates"]
        again = "evict: {pods: 1, including: replacements}"
        replaced = await planned(world, EVICT, wait, EVICT, wait, again, limits=limits)
        assert not replaced.refused
        assert "replacements" in replaced.steps[5].text


@pytest.mark.anyio
async def test_two_budgets_on_a_pod_refuse_its_eviction_and_are_named(tmp_path: Path) -> None:
    # kubernetes/kubernetes#75957, #113891; eksctl-io/eksctl#783
    async with running(tmp_path) as world:
        await chat(world)
        world.budget("every", CHAT, minAvailable=0)
        await world.settled("every", expectedPods=3)
        plan = await planned(world, EVICT)
        assert codes(plan, "refuse") == ["multiple_budgets"]
        (refusal,) = [p for p in plan.problems if p.severity == "refuse"]
        assert "chat-1" in refusal.text
        assert "chat and every" in refusal.text
        expected = await planned(world, "evict: {pods: 1, expect: 500}")
        assert not expected.refused


@pytest.mark.anyio
async def test_a_budget_that_the_server_does_not_enforce_is_a_finding(tmp_path: Path) -> None:
    # kubernetes/kubernetes#119731: the budget says 0, the server evicts all the same. (The lab's server enforces
    # budgets, so here it is one that the server does not know of.)
    async with running(tmp_path) as world:
        await chat(world)
        budget = world.store.get("poddisruptionbudgets", "chat", NAMESPACE)
        world.store.delete("poddisruptionbudgets", "chat", NAMESPACE)
        context = PlanContext(cluster=world.cluster, pdbs=[{**budget, "status": {**budget["status"], **NONE_ALLOWED}}])
        predicted = await context.predict(world.store.get("pods", "chat-1", NAMESPACE), spend=True)
        assert predicted.answer == "accepted"
        assert [(p.severity, p.code) for p in context.problems] == [("warn", "budget_not_enforced")]
        assert "chat" in context.problems[0].text


@pytest.mark.anyio
async def test_verdicts_on_budgets(tmp_path: Path) -> None:
    # bucketeer-io/bucketeer#2609, jupyterhub/zero-to-jupyterhub-k8s#1934: what a budget really does, before the drill
    async with running(tmp_path) as world:
        await chat(world, 1, nodes=("n1",))
        world.store.delete("poddisruptionbudgets", "chat", NAMESPACE)
        world.budget("chat", CHAT, minAvailable=1)
        world.budget("typo", {"app": "caht"}, minAvailable=1)
        await world.settled("chat", desiredHealthy=1, expectedPods=1)
        await world.settled("typo", observedGeneration=1)
        plan = await planned(world, EVICT)
        assert {"drain_would_never_finish", "matches_nothing", "single_replica", "blocked_by_budget"} <= set(
            codes(plan, "warn")
        )


@pytest.mark.anyio
async def test_replicas_that_share_a_node_and_have_no_budget_are_told(tmp_path: Path) -> None:
    # Systemorph/MeshWeaver#3772: two replicas, one node, no budget: a drain is an outage.
    async with running(tmp_path) as world:
        await chat(world, 2, nodes=("n1",))
        world.store.delete("poddisruptionbudgets", "chat", NAMESPACE)
        plan = await planned(world, "drain: {node: n1}", limits="{max_pods: 2}")
        assert not plan.refused
        assert {"all_on_one_node", "no_budget"} <= set(codes(plan, "warn"))
        assert predicted(plan.steps[1]) == [
            ("cordon", "n1", "accepted"),
            ("evict", "chat-1", "accepted"),
            ("evict", "chat-2", "accepted"),
        ]
        assert plan.steps[1].undo == "restore"
        assert codes(await planned(world, "drain: {node: n1}"), "refuse") == ["max_pods"]


@pytest.mark.anyio
async def test_a_drain_is_refused_for_each_pod_that_blocks(tmp_path: Path) -> None:
    # kubernetes-sigs/headlamp#7268, kubernetes/kubernetes#26667
    async with running(tmp_path) as world:
        owner = await chat(world)
        world.pod("d", owner=owner, labels={"app": "x"}, volumes=[{"name": "scratch", "emptyDir": {}}])
        world.pod("e", labels={"app": "x"})
        plan = await planned(world, "drain: {node: n1}")
        assert codes(plan, "refuse") == ["drain_blocked", "drain_blocked"]
        options = "drain: {node: n1, force: true, delete_emptydir_data: true}"
        assert not (await planned(world, options, limits="{max_pods: 3}")).refused
        # A limit on Pods counts every Pod that a drain evicts, whosever it is.
        assert codes(await planned(world, options), "refuse") == ["max_pods"]
        assert world.unschedulable("n1") is None


@pytest.mark.anyio
async def test_a_drain_of_some_node_takes_one_that_hosts_the_workload_and_is_taken_back(tmp_path: Path) -> None:
    async with running(tmp_path) as world:
        await chat(world, nodes=("n1", "n2", "n3"))
        world.node("empty")
        plan = await planned(
            world, "drain: {nodes: 1, of: workload}", "wait: {until: replacement.warm}", "uncordon: {of: cordoned}"
        )
        assert not plan.refused
        assert predicted(plan.steps[1])[0] == ("cordon", "n1", "accepted")
        assert predicted(plan.steps[3]) == [("uncordon", "n1", "accepted")]
        both = await planned(world, "cordon: {node: n1}", "cordon: {node: n2}")
        assert codes(both, "refuse") == ["max_nodes"]
        assert codes(await planned(world, "cordon: {node: nowhere}"), "refuse") == ["no_such_node"]


@pytest.mark.anyio
async def test_a_drain_stays_inside_the_namespaces_of_the_limits(tmp_path: Path) -> None:
    async with running(tmp_path) as world:
        await chat(world)
        owner = {"apiVersion": "apps/v1", "kind": "ReplicaSet", "metadata": {"name": "dns", "uid": "r-1"}}
        world.pod("dns-1", owner=owner, namespace="kube-system", labels={"k8s-app": "dns"})
        assert codes(await planned(world, "drain: {node: n1}"), "refuse") == ["drain_blocked"]
        wide = await planned(world, "drain: {node: n1}", limits="{max_pods: 2, namespaces: [demo, kube-system]}")
        assert not wide.refused


@pytest.mark.anyio
async def test_limits_by_label_take_candidates_away(tmp_path: Path) -> None:
    async with running(tmp_path) as world:
        await chat(world)
        plan = await planned(world, EVICT, limits="{labels: chaos=yes}")
        assert {"no_candidates", "too_few_candidates"} <= set(codes(plan, "refuse"))


@pytest.mark.anyio
async def test_the_runner_does_not_take_itself_away(tmp_path: Path) -> None:
    async with running(tmp_path) as world:
        owner = await chat(world)
        me = {"POD_NAME": "chat-1", "POD_NAMESPACE": NAMESPACE}
        assert codes(await planned(world, EVICT, environ=me), "refuse") == ["runner_is_target"]
        world.pod("runner", owner=owner, labels={"app": "runner"})
        inside = {"POD_NAME": "runner", "POD_NAMESPACE": NAMESPACE, "NODE_NAME": "n1"}
        drain = await planned(world, "drain: {node: n1}", environ=inside, limits="{max_pods: 2}")
        assert codes(drain, "refuse") == ["drain_blocked", "runner_on_node"]
        elsewhere = {**inside, "NODE_NAME": "n3"}
        assert not (await planned(world, "drain: {node: n2}", environ=elsewhere)).refused


@pytest.mark.anyio
async def test_a_node_that_still_carries_another_runs_undo_is_refused(tmp_path: Path) -> None:
    async with running(tmp_path) as world:
        await chat(world)
        target = next(n.target for n in (await planned(world, EVICT)).nodes if n.name == "n1")
        await Cordon([target]).apply(world.context("old-run"))
        plan = await planned(world, "cordon: {node: n1}")
        assert codes(plan, "refuse") == ["undo_pending"]
        assert "old-run" in plan.problems[0].text


@pytest.mark.anyio
async def test_missing_rights_are_named_and_only_the_needed_ones_refuse(tmp_path: Path) -> None:
    reader = Account("reader", (Rule(("get", "list"), ("*",)), Rule(("watch",), ("pods", "endpointslices"))))
    selves = Rule(("create",), ("selfsubjectaccessreviews",))
    reader = Account("reader", (*reader.rules, selves))
    async with running(tmp_path, {"reader": reader}, "reader") as world:
        await chat(world)
        plan = await planned(world, "evict: {pods: 1, dry_run: true, expect: forbidden}")
        lease = name_for("deployment/chat")
        needed = [
            "create pods/eviction in demo",
            "create leases.coordination.k8s.io in demo",
            f"update leases.coordination.k8s.io {lease} in demo",
        ]
        assert [p.text.split(" (")[0] for p in plan.problems if p.severity == "refuse"] == [
            f"not allowed to {right}" for right in needed
        ]
        assert [p.text.split(" (")[0] for p in plan.problems if p.code == "forbidden" and p.severity == "warn"] == [
            "not allowed to watch poddisruptionbudgets.policy in demo",
            "not allowed to watch events in demo",
            "not allowed to watch nodes",
            "not allowed to watch events in default",
            f"not allowed to delete leases.coordination.k8s.io {lease} in demo",
        ]
        assert any(p.text.endswith("without it Events are not on the timeline") for p in plan.problems)
        real = await planned(world, EVICT)
        assert [r.right for r in real.rbac if r.required and not r.allowed] == needed
        # Only what changes something is announced.
        assert {r.right for r in real.rbac} - {r.right for r in plan.rbac} == {"create events in demo"}


@pytest.mark.anyio
async def test_a_workload_that_cannot_be_read_at_all_refuses_with_the_servers_words(tmp_path: Path) -> None:
    nobody = Account("nobody")
    async with running(tmp_path, {"nobody": nobody}, "nobody") as world:
        # The server's words, and every right that is missing.
        with pytest.raises(Refused, match=r"(?s)forbidden.*not allowed to list pods in demo .*create pods/eviction"):
            await make_plan(bound(tmp_path, EVICT), world.cluster, environ={}, host="laptop")


@pytest.mark.anyio
async def test_a_grace_period_without_slack_is_told_before_the_drill(tmp_path: Path) -> None:
    # kserve/kserve#5496, vllm-project/vllm#43208: 60 - 15 - 45
    async with running(tmp_path) as world:
        container = {
            "name": "engine",
            "image": "vllm/vllm-openai:v0.32.0",
            "args": ["--shutdown-timeout", "45"],
            "lifecycle": {"preStop": {"sleep": {"seconds": 15}}},
        }
        await chat(world, terminationGracePeriodSeconds=60, containers=[container])
        plan = await planned(world, EVICT)
        (warning,) = [p for p in plan.problems if p.code == "no_grace_margin"]
        assert "grace 60 s - preStop 15 s - drain 45 s leaves 0 s" in warning.text
        assert not plan.refused


@pytest.mark.anyio
async def test_a_rollout_under_way_and_an_expectation_that_will_not_hold_are_warnings(tmp_path: Path) -> None:
    async with running(tmp_path) as world:
        await chat(world)
        top = world.store.get("deployments", "chat", NAMESPACE)
        world.store.load("deployments", [{**top, "status": {"replicas": 3, "updatedReplicas": 1}}])
        plan = await planned(world, "evict: {pods: 1, expect: 429}")
        assert codes(plan, "warn") == ["rollout_in_progress", "accepted"]
        assert "expects 429, predicted is accepted" in plan.problems[1].text


EXPOSED = 'evict: {pods: 1, when: "in_flight(target) >= 1"}'
WARM = "wait: {until: replacement.warm}"


@pytest.mark.anyio
@pytest.mark.parametrize(
    ("host", "header", "connection", "steps", "told"),
    [
        ("ClusterIP", "", "new", [EXPOSED], ["pod_unknown"]),
        ("ClusterIP", "x-pod", "new", [EXPOSED, WARM], []),
        ("ClusterIP", "x-pod", "reused", [EXPOSED], []),  # whichever Pod the streams are on
        ("ClusterIP", "x-pod", "reused", [EXPOSED.replace("1,", "one,")], []),
        ("ClusterIP", "x-pod", "reused", [EXPOSED, WARM], ["sticky_connections"]),
        ("ClusterIP", "x-pod", "reused", [EXPOSED.replace("pods: 1", "pods: 2")], ["sticky_connections"]),
        ("ClusterIP", "x-pod", "reused", [EXPOSED.replace("1,", "1, from: {node: n1},")], ["sticky_connections"]),
        ("ClusterIP", "", "reused", ["evict: {pods: 2}"], []),
        (f"chat.{NAMESPACE}.svc.cluster.local", "", "reused", [EXPOSED, WARM], ["pod_unknown", "sticky_connections"]),
        ("chat", "x-pod", "reused", [WARM], ["sticky_connections"]),
        (f"gateway.{NAMESPACE}", "x-pod", "reused", [EXPOSED, WARM], []),
    ],
)
async def test_what_the_address_of_the_service_keeps_from_being_seen_is_told(
    tmp_path: Path, host: str, header: str, connection: str, steps: list[str], told: list[str]
) -> None:
    async with running(tmp_path) as world:
        await chat(world)
        spec = world.store.get("services", "chat", NAMESPACE)["spec"]
        url = f"http://{spec['clusterIP'] if host == 'ClusterIP' else host}:80"
        endpoint = f'{{url: "{url}"' + (f", pod_header: {header}" if header else "") + "}"
        if WARM in steps and EXPOSED not in steps:
            steps = ["evict: {pods: 1}", *steps]
        plan = await planned(world, *steps, endpoint=endpoint, connection=connection, limits="{max_pods: 2}")
        routed = [problem for problem in plan.problems if problem.code in ("pod_unknown", "sticky_connections")]
        assert [problem.code for problem in routed] == told
        assert {problem.severity for problem in routed} <= {"warn"}


@pytest.mark.anyio
async def test_a_headless_service_shows_the_pod_and_keeps_connections(tmp_path: Path) -> None:
    async with running(tmp_path) as world:
        await chat(world)
        service = world.store.get("services", "chat", NAMESPACE)
        world.store.load("services", [{**service, "spec": {**service["spec"], "clusterIP": "None"}}])
        plan = await planned(world, EXPOSED, WARM, endpoint='{url: "http://chat:80"}')
        assert codes(plan, "warn") == ["sticky_connections"]


@pytest.mark.anyio
async def test_effects_on_one_network_that_cannot_be_told_apart_are_refused(tmp_path: Path) -> None:
    async with link_running("gateway") as link, running(tmp_path) as world:
        await chat(world, 1)
        pod = world.store.get("pods", "chat-1", NAMESPACE)
        world.store.load("pods", [{**pod, "status": {**pod["status"], "podIP": "127.0.0.1"}}])
        drivers = f"drivers: {{network: toxiproxy, toxiproxy: {{url: '{link.url}', proxy: {PROXY}}}}}"
        slow = "{name: slow, network: {latency: 100ms, for: 30s}}"

        async def refused(*steps: str) -> list[str]:
            plan = await planned(world, slow, *steps, drill=drivers)
            return [problem.text for problem in plan.problems if problem.severity == "refuse"]

        why = f"step 3 (network): on proxy {PROXY} stands an effect of this run: two toxics latency downstream cannot"
        (found,) = await refused("network: {latency: 200ms}")
        assert found.startswith(why)
        assert await refused("network: {rate: 1mbit}") == []
        assert len(await refused("hold: {for: 20s}", "network: {latency: 200ms}")) == 1
        # By then the first has ended, or may have.
        for between in ("hold: {for: 30s}", "heal: {step: slow}", 'wait: {until: "success_rate >= 0.9"}'):
            assert await refused(between, "network: {latency: 200ms}") == []
