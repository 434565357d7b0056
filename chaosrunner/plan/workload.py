"""Resolves what a drill is about: its Pods by UID, their controller, Service, endpoints, nodes and budgets."""

from __future__ import annotations

from dataclasses import dataclass, field

from chaosrunner.cluster.budget import assess, risks
from chaosrunner.cluster.resources import (
    ENDPOINT_SLICES,
    KNOWN,
    NODES,
    PDBS,
    PODS,
    SERVICES,
    Object,
    Resource,
    finished,
    labels,
    meta,
    terminating,
)
from chaosrunner.cluster.roots import Roots
from chaosrunner.cluster.session import ApiError, Cluster
from chaosrunner.errors import Refused
from chaosrunner.faults.base import Problem
from chaosrunner.plan.lint import Ending, endings, kept_spec
from chaosrunner.plan.targets import Candidate, NodeCandidate, candidate, excluded
from chaosrunner.playbook.drill import Drill
from chaosrunner.timeline import manifest


@dataclass(kw_only=True)
class Resolved:
    """The workload as it is now."""

    workload: manifest.Workload
    pods: list[Object]
    """All that the selector finds in the namespace."""
    candidates: list[Candidate]
    targets: list[manifest.TargetPod]
    nodes: list[NodeCandidate]
    pdbs: list[Object]
    service: Object | None = None
    """The Service that the drill names; None where it names none, or it cannot be read."""
    ready_endpoints: int | None = None
    owners: list[Resource] = field(default_factory=list)
    """Kinds of the controllers above the candidates, as far as they are known."""
    problems: list[Problem] = field(default_factory=list)

    @property
    def size(self) -> int:
        """Pods of the workload that are neither finished nor terminating: what percentages refer to."""
        return sum(1 for pod in self.pods if not finished(pod) and not terminating(pod))

    def pod(self, uid: str) -> Object:
        return next(pod for pod in self.pods if meta(pod)["uid"] == uid)


async def resolve(drill: Drill, cluster: Cluster) -> Resolved:
    """Reads everything; changes nothing.

    Raises Refused where the workload itself cannot be read, Unreachable.
    """
    namespace, wanted, limits = drill.namespace or cluster.namespace, drill.workload, drill.limits
    try:
        pods = (await cluster.list(PODS, namespace, label_selector=wanted.selector)).items
    except ApiError as error:
        raise Refused(f"the workload cannot be read: {error}") from error
    problems: list[Problem] = []
    candidates = []
    for pod in sorted(pods, key=lambda pod: str(meta(pod)["name"])):
        reason = excluded(pod, namespace=namespace, labels=limits.labels, namespaces=limits.namespaces or ())
        if reason is None:
            candidates.append(candidate(pod))
        else:
            text = f"Pod {meta(pod)['name']} is no candidate: {reason}"
            problems.append(Problem(severity="info", code="no_candidate", text=text))
    if not candidates:
        text = f"selector {wanted.selector} finds no candidate in namespace {namespace}"
        problems.append(Problem(severity="refuse", code="no_candidates", text=text))
    roots = Roots(cluster)
    targets = []
    for c in candidates:
        pod = next(pod for pod in pods if meta(pod)["uid"] == c.uid)
        root = await roots.resolve(pod)
        targets.append(
            manifest.TargetPod(
                name=c.name, uid=c.uid, node=c.node, ip=c.ip, root=root.uid if root else None, spec=kept_spec(pod)
            )
        )
    resolved = Resolved(
        workload=manifest.Workload(
            namespace=namespace, selector=wanted.selector, service=wanted.service, controller=wanted.controller
        ),
        pods=pods,
        candidates=candidates,
        targets=targets,
        nodes=await _nodes(cluster, candidates, problems),
        pdbs=await _optional(cluster, namespace, problems),
        problems=problems,
    )
    await _controller(cluster, resolved, roots)
    resolved.owners = list(roots.asked)
    if wanted.service:
        await _endpoints(cluster, resolved, wanted.service)
    _judge(resolved)
    return resolved


async def _nodes(cluster: Cluster, candidates: list[Candidate], problems: list[Problem]) -> list[NodeCandidate]:
    hosted: dict[str, list[Candidate]] = {}
    for c in candidates:
        if c.node is not None:
            hosted.setdefault(c.node, []).append(c)
    try:
        nodes = (await cluster.list(NODES)).items
    except ApiError as error:
        problems.append(Problem(severity="warn", code="nodes_unknown", text=str(error)))
        return [NodeCandidate(name=name, pods=pods) for name, pods in sorted(hosted.items())]
    found = [
        NodeCandidate(
            name=str(meta(node)["name"]),
            uid=meta(node).get("uid"),
            labels=labels(node),
            pods=hosted.get(str(meta(node)["name"]), []),
        )
        for node in nodes
    ]
    return sorted(found, key=lambda node: node.name)


async def _optional(cluster: Cluster, namespace: str, problems: list[Problem]) -> list[Object]:
    try:
        return (await cluster.list(PDBS, namespace)).items
    except ApiError as error:
        problems.append(Problem(severity="warn", code="budgets_unknown", text=str(error)))
        return []


async def _controller(cluster: Cluster, resolved: Resolved, roots: Roots) -> None:
    """The controller that the drill names, or the root of the candidates; and how many Pods it wants."""
    workload, problems = resolved.workload, resolved.problems
    owners = {}
    for c in resolved.candidates:
        owner = await roots.resolve(resolved.pod(c.uid))
        if owner is not None:
            owners[owner.uid] = owner
    if workload.controller is None:
        if len(owners) > 1:
            names = ", ".join(sorted(f"{o.kind}/{o.name}" for o in owners.values()))
            text = f"the selector finds Pods of several controllers: {names}"
            problems.append(Problem(severity="warn", code="several_controllers", text=text))
        if len(owners) != 1:
            return
        (owner,) = owners.values()
        workload.controller = f"{owner.kind.lower()}/{owner.name}"
        workload.controller_uid = owner.uid
    kind, _, name = workload.controller.partition("/")
    resource = next((r for (_, k), r in KNOWN.items() if k.lower() == kind.lower()), None)
    if resource is None:
        match = next((o for o in owners.values() if o.kind.lower() == kind.lower() and o.name == name), None)
        workload.controller_uid = match.uid if match else workload.controller_uid
        return
    answer = await cluster.get(resource, name, workload.namespace)
    if not answer.ok:
        missing = answer.status == 404
        text = f"controller {workload.controller}: {answer.status} {answer.message}"
        problems.append(Problem(severity="refuse" if missing else "warn", code="controller_unknown", text=text))
        return
    workload.controller_uid = meta(answer.body).get("uid")
    spec, status = answer.body.get("spec") or {}, answer.body.get("status") or {}
    workload.replicas = spec.get("replicas")
    strangers = sorted(o.name for o in owners.values() if o.uid != workload.controller_uid)
    if strangers:
        text = f"candidates belong to {', '.join(strangers)}, not to {workload.controller}"
        problems.append(Problem(severity="warn", code="other_controller", text=text))
    if workload.replicas and resource.kind == "Deployment" and status.get("updatedReplicas", 0) < workload.replicas:
        text = (
            f"{workload.controller} is rolling out: {status.get('updatedReplicas', 0)} of {workload.replicas} updated"
        )
        problems.append(Problem(severity="warn", code="rollout_in_progress", text=text, how="wait for it to end"))


async def _endpoints(cluster: Cluster, resolved: Resolved, service: str) -> None:
    namespace, problems = resolved.workload.namespace, resolved.problems
    answer = await cluster.get(SERVICES, service, namespace)
    if answer.status == 404:
        text = f"there is no Service {service} in namespace {namespace}"
        problems.append(Problem(severity="refuse", code="no_such_service", text=text))
        return
    resolved.service = answer.body if answer.ok else None
    try:
        slices = await cluster.list(ENDPOINT_SLICES, namespace, label_selector=f"kubernetes.io/service-name={service}")
    except ApiError as error:
        problems.append(Problem(severity="warn", code="endpoints_unknown", text=str(error)))
        return
    ready = {
        (endpoint.get("targetRef") or {}).get("uid") or tuple(endpoint.get("addresses") or ())
        for item in slices.items
        for endpoint in item.get("endpoints") or []
        if (endpoint.get("conditions") or {}).get("ready") is not False  # absent means ready (discovery/v1)
    }
    resolved.ready_endpoints = len(ready)
    if not ready:
        text = f"Service {service} has no ready endpoint"
        problems.append(Problem(severity="warn", code="no_ready_endpoint", text=text))


def _judge(resolved: Resolved) -> None:
    """What placement, budgets and specs of the Pods make of any drill."""
    problems = resolved.problems
    living = [pod for pod in resolved.pods if not finished(pod) and not terminating(pod)]
    for risk in risks(living, resolved.pdbs):
        budgets = f" ({', '.join(risk.pdbs)})" if risk.pdbs else ""
        text = f"{', '.join(risk.pods)}: {risk.detail}{budgets}"
        problems.append(Problem(severity="warn", code=risk.code, text=text))
    for pdb in resolved.pdbs:
        verdict = assess(pdb, living, resolved.workload.replicas)
        if verdict.verdict not in ("ok", "scaled_to_zero") and (verdict.blocks or verdict.verdict != "blocked_now"):
            text = f"budget {verdict.pdb}: {verdict.detail}"
            problems.append(Problem(severity="warn", code=verdict.verdict, text=text))
    by_ending: dict[Ending, list[str]] = {}
    for pod in living:
        for ending in endings(pod):
            by_ending.setdefault(ending, []).append(str(meta(pod)["name"]))
    for ending, names in by_ending.items():
        problems += _lint(ending, names)


def _lint(ending: Ending, pods: list[str]) -> list[Problem]:
    who = f"container {ending.container} of {', '.join(pods)}"
    parts = f"grace {ending.grace:g} s"
    parts += f" - preStop {ending.prestop:g} s" if ending.prestop is not None else ""
    parts += f" - drain {ending.drain:g} s" if ending.drain is not None else ""
    needed = (ending.prestop or 0) + (ending.drain or 0)
    found = []
    wrong = None
    if ending.margin is not None and ending.margin <= 0:
        wrong = f"{parts} leaves {ending.margin:g} s before SIGKILL"
    elif ending.prestop is not None and ending.prestop >= ending.grace:
        wrong = f"{parts}: the hook takes all of it, SIGTERM has no time left"
    if wrong is not None:
        how = f"set terminationGracePeriodSeconds well above {needed:g}"
        found.append(Problem(severity="warn", code="no_grace_margin", text=f"{who}: {wrong}", how=how))
    if ending.vllm and ending.drain == 0:
        found.append(
            Problem(
                severity="info",
                code="aborts_at_sigterm",
                text=f"{who}: vLLM with --shutdown-timeout 0 (its default) ends every stream at SIGTERM; "
                "a longer grace period changes nothing",
                how="set --shutdown-timeout to the longest stream, and the grace period above preStop + that",
            )
        )
    return found
