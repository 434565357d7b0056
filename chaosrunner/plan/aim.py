"""From a step of the playbook and the targets chosen for it to the fault."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from chaosrunner.cluster.drain import DrainOptions
from chaosrunner.cluster.resources import Object
from chaosrunner.errors import UserError
from chaosrunner.faults import command, cordon, delete_pod, drain, evict, network, process, restart, scale, taint
from chaosrunner.faults.base import Fault
from chaosrunner.faults.ephemeral import IMAGE, Agent, EphemeralContainer
from chaosrunner.faults.policy import NetworkPolicyDriver
from chaosrunner.faults.toxiproxy import ToxiproxyDriver
from chaosrunner.plan.access import CONTROLLERS, kind_of
from chaosrunner.plan.limits import Guard
from chaosrunner.playbook import steps
from chaosrunner.playbook.drill import Drill
from chaosrunner.timeline import manifest, rows

PodStep = steps.Evict | steps.DeletePod | steps.Network | steps.Freeze | steps.Kill | steps.Command
NodeStep = steps.Cordon | steps.Uncordon | steps.Drain | steps.Taint
WorkloadStep = steps.Scale | steps.RolloutRestart
FaultStep = PodStep | NodeStep | WorkloadStep


@dataclass(frozen=True)
class Means:
    """What faults are made with, beside their targets: what the drill says of its environment."""

    drill: Drill
    workload: manifest.Workload

    def pod_fault(self, body: PodStep, pods: Sequence[Object]) -> Fault:
        """The fault of a step that is aimed at Pods. Raises UserError where the drill does not say by what."""
        match body:
            case steps.Evict():
                return evict.Evict(
                    pods,
                    dry_run=body.dry_run,
                    grace_period=body.grace_period,
                    expect=body.expect,
                    retry_for=body.retry_for,
                )
            case steps.DeletePod():
                return delete_pod.DeletePod(pods, grace_period=body.grace_period, force=body.force, expect=body.expect)
            case steps.Network():
                effect, keep_ready = effect_of(body), body.ready == "kept"
                return network.Network(
                    pods, effect, self.peers(body.peer), self.drivers(body.peer), keep_ready=keep_ready
                )
            case steps.Freeze():
                which = process.Which(body.container, body.process)
                return process.Freeze(pods, which, self.agent(), duration=body.for_)
            case steps.Kill():
                which = process.Which(body.container, body.process)
                return process.Kill(pods, which, self.agent(), signal=body.signal)
            case steps.Command():
                return command.Command(pods, commands_of(body))

    def workload_fault(self, body: WorkloadStep) -> Fault:
        """The fault of a step that is about the workload's controller. Raises UserError where it has none."""
        if self.workload.controller is None:
            raise UserError("the workload's Pods have no controller that could be changed")
        kind, _, name = self.workload.controller.partition("/")
        if kind_of(self.workload.controller) not in CONTROLLERS:
            raise UserError(f"it is not known how to change a {kind}")
        resource = CONTROLLERS[kind_of(self.workload.controller)][-1]
        target = rows.Target(
            kind=resource.kind, name=name, namespace=self.workload.namespace, uid=self.workload.controller_uid
        )
        match body:
            case steps.Scale():
                return scale.Scale(resource, target, replicas=body.replicas, by=body.by or 0)
            case steps.RolloutRestart():
                return restart.RolloutRestart(resource, target)

    def peers(self, peer: steps.Peer) -> network.Peers:
        """The other end of a network fault; without addresses where the drill does not name its gateway's Pods."""
        match peer:
            case steps.PodSet():
                return network.Peers(f"peer {peer.selector}", (), peer.selector, peer.namespace or self._namespace)
            case steps.Networks():
                return network.Peers(", ".join(peer.cidr), tuple(peer.cidr))
            case "everywhere":
                return network.Peers("everywhere")
        gateway = self.drill.workload.gateway
        if gateway is None:
            return network.Peers("gateway")
        return network.Peers("gateway", (), gateway.selector, gateway.namespace or self._namespace)

    def agent(self) -> Agent:
        """The container that makes faults inside Pods."""
        given = self.drill.drivers.agent
        return Agent(given.image or IMAGE, given.pull_policy)

    def drivers(self, peer: steps.Peer) -> list[network.Driver]:
        """The drill's network drivers, as preferred."""
        drivers = self.drill.drivers
        made: dict[str, Callable[[], network.Driver]] = {
            "ephemeral-container": lambda: EphemeralContainer(self.agent()),
            "network-policy": lambda: NetworkPolicyDriver(probed=peer == "gateway" or peer == "everywhere"),
            "toxiproxy": lambda: ToxiproxyDriver(drivers.toxiproxy.url, drivers.toxiproxy.proxy),
        }
        return [made[name]() for name in drivers.network]

    @property
    def _namespace(self) -> str:
        return self.workload.namespace


def node_fault(body: NodeStep, nodes: Sequence[rows.Target], guard: Guard) -> Fault:
    """The fault of a step that takes nodes. A drain evicts no Pod that the drill's limits exclude."""
    match body:
        case steps.Cordon():
            return cordon.Cordon(nodes)
        case steps.Uncordon():
            return cordon.Uncordon(nodes)
        case steps.Taint():
            return taint.Taint(
                nodes,
                key=body.key,
                value=body.value,
                effect=body.effect,
                off_limits=guard.off_limits,
                too_many=guard.too_many_evictions,
            )
        case steps.Drain():
            return drain.Drain(
                nodes,
                timeout=body.timeout,
                options=DrainOptions(
                    ignore_daemonsets=body.ignore_daemonsets,
                    delete_emptydir_data=body.delete_emptydir_data,
                    force=body.force,
                ),
                grace_period=body.grace_period,
                retry_every=body.retry_every,
                off_limits=guard.off_limits,
                too_many=guard.too_many_evictions,
            )


def commands_of(body: steps.Command) -> command.Commands:
    """The commands that a step asks for."""
    return command.Commands(
        apply=tuple(body.apply),
        verify=tuple(body.verify) if body.verify else None,
        undo=tuple(body.undo) if body.undo else None,
        verify_undone=tuple(body.verify_undone) if body.verify_undone else None,
        timeout=body.timeout,
        environment=body.environment,
    )


def effect_of(body: steps.Network) -> network.NetworkEffect:
    """The effect that a step asks for; peers and spared networks are looked up when it is made."""
    return network.NetworkEffect(
        kind=body.effect,
        percent=body.loss,
        seconds=body.latency,
        jitter=body.jitter,
        bits_per_second=body.rate,
        direction=body.direction,
        ports=tuple(body.ports or ()),
        duration=body.for_,
    )
