"""network: the network between Pods and a peer, disturbed by whichever driver can do it here."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple, Protocol

import msgspec

from chaosrunner.cluster.actions import target_of
from chaosrunner.cluster.resources import PODS, Object, finished, meta
from chaosrunner.cluster.session import Cluster
from chaosrunner.errors import UserError
from chaosrunner.faults.base import (
    Context,
    FaultResult,
    PlanContext,
    Preview,
    Problem,
    TargetResult,
    Touch,
    verdict_of,
)
from chaosrunner.journal.journal import Entry
from chaosrunner.journal.undo import UndoResult

Kind = Literal["partition", "reject", "loss", "latency", "rate"]


class NetworkEffect(msgspec.Struct, kw_only=True, frozen=True, omit_defaults=True):
    """What is to be done to the packets of one Pod; enough for whoever does it."""

    kind: Kind
    percent: float | None = None
    """Of `loss`."""
    seconds: float | None = None
    """Of `latency`."""
    jitter: float = 0.0
    """Of `latency`, seconds more or less."""
    bits_per_second: float | None = None
    """Of `rate`."""
    peer: str = "everywhere"
    """The other end in words."""
    peers: tuple[str, ...] = ()
    """Its networks (CIDR); empty: everywhere, or, where `peer` says otherwise, not known."""
    spare: tuple[str, ...] = ()
    """Networks that are never hit: where the kubelet's probes come from."""
    spare_gateway: bool = False
    """Whether the next hop of the Pod's default route is spared too: many networks let a node's own connections to its
    Pods come from there."""
    direction: Literal["both", "in", "out"] = "both"
    """Which packets, as the Pod sees it."""
    ports: tuple[int, ...] = ()
    """Ports of the Pod; empty: all."""
    duration: float
    """Seconds after which it ends by itself, where the driver can do that."""

    def text(self) -> str:
        """In words."""
        match self.kind:
            case "loss":
                what = f"lose {self.percent:g} % of the packets"
            case "latency":
                jitter = f" ± {self.jitter:g} s" if self.jitter else ""
                what = f"delay packets by {self.seconds:g} s{jitter}"
            case "rate":
                what = f"let {self.bits_per_second:g} bit/s through"
            case "partition":
                what = "drop packets"
            case "reject":
                what = "reset connections"
        way = {"both": "from and to", "in": "from", "out": "to"}[self.direction]
        ports = f", ports {', '.join(map(str, self.ports))}" if self.ports else ""
        return f"{what} {way} {self.peer}{ports}, for {self.duration:g} s"


class Seen(NamedTuple):
    """What somebody saw who looked at an effect from outside."""

    there: bool | None
    """Whether the effect is there; None where that could not be told."""
    by: str
    """How it was looked at."""
    detail: str


class Standing(NamedTuple):
    """What this run does to a Pod's network already."""

    entries: frozenset[str] = frozenset()
    """Entries of the journal that are to be undone still, of other Pods too."""
    effects: tuple[NetworkEffect, ...] = ()
    """Effects that are not there yet: a plan's, of the steps before."""


ALONE = Standing()


class Driver(Protocol):
    """One way to make network effects."""

    name: str
    can: frozenset[Kind]
    """Kinds of effects."""
    needs_addresses: bool
    """Whether it must know the peer's networks."""
    heals_itself: bool
    """Whether the target ends the effect by itself, whatever became of us and of the API server."""

    async def check(
        self, cluster: Cluster, pod: Object, effect: NetworkEffect, standing: Standing = ALONE
    ) -> list[Problem]:
        """Whether it can work here, as far as reading and dry runs tell; a refusal says why not."""
        ...

    async def apply(
        self, context: Context, pod: Object, effect: NetworkEffect, fault: str
    ) -> tuple[TargetResult, Entry | None]:
        """Makes the effect: journals it, then calls. The entry is what undoes it; None where nothing was begun.

        Raises Unreachable and JournalLost.
        """
        ...

    async def verify(self, context: Context, pod: Object, effect: NetworkEffect, entry: Entry) -> Seen:
        """Whether it bites. Raises Unreachable."""
        ...

    async def verify_healed(self, context: Context, pod: Object, effect: NetworkEffect, entry: Entry) -> Seen:
        """The same after its end: `there` is to be False. Raises Unreachable."""
        ...


@dataclass(frozen=True)
class Peers:
    """The other end, as the playbook and the drill name it."""

    name: str
    """gateway, everywhere, or the peer in words."""
    networks: tuple[str, ...] = ()
    selector: str | None = None
    namespace: str | None = None

    async def resolve(self, cluster: Cluster) -> tuple[str, ...]:
        """The networks that it is now. Raises UserError where there is nobody, ApiError, Unreachable."""
        if self.selector is None:
            return self.networks  # of a gateway that the drill does not name, none
        pods = (await cluster.list(PODS, self.namespace, label_selector=self.selector)).items
        found = sorted({network for pod in pods if not finished(pod) for network in addresses(pod)})
        if not found:
            raise UserError(f"{self.name}: no Pod with {self.selector} in {self.namespace} has an address")
        return tuple(found)


def addresses(pod: Object) -> list[str]:
    """A Pod's addresses as networks."""
    status = pod.get("status") or {}
    ips = [item["ip"] for item in status.get("podIPs") or [] if item.get("ip")] or [status.get("podIP")]
    return [f"{ip}/128" if ":" in ip else f"{ip}/32" for ip in ips if ip]


@dataclass
class _Made:
    pod: Object
    driver: Driver
    effect: NetworkEffect
    entry: Entry

    def tell(self, context: Context, seen: Seen, event: Any) -> None:
        entry = self.entry
        context.saw(event, entry.fault, entry.target, by=seen.by, detail=seen.detail, entry=entry.entry)


class Network:
    """Disturbs the network of Pods, all of them by the first driver that can do it here."""

    name = "network"

    def __init__(
        self,
        pods: Sequence[Object],
        effect: NetworkEffect,
        peers: Peers,
        drivers: Sequence[Driver],
        *,
        keep_ready: bool = True,
    ) -> None:
        """`effect` without peers and spared networks, which are looked up when it is made."""
        self.pods = list(pods)
        self.effect = msgspec.structs.replace(effect, peer=peers.name)
        self.before: Mapping[str, Sequence[NetworkEffect]] = {}
        """Of a plan: what the steps before it do to the network of Pods, by UID."""
        self._peers = peers
        self._drivers = list(drivers)
        self._keep_ready = keep_ready
        self._made: list[_Made] = []

    async def plan(self, context: PlanContext) -> Preview:
        preview = Preview(undo="restore")
        for pod in self.pods:
            effect = await self._aimed(context.cluster, pod)
            standing = Standing(effects=tuple(self.before.get(str(meta(pod).get("uid")), ())))
            driver, problems = await self._choose(context.cluster, pod, effect, standing)
            preview.problems += problems
            by = f", by {driver.name}" if driver is not None else ""
            touch = Touch(action=self.name, target=target_of(pod), predicted="accepted", reason=effect.text() + by)
            preview.touches.append(touch)
            if driver is not None:
                preview.by, preview.stays = driver.name, None if driver.heals_itself else stays(driver)
        return preview

    async def apply(self, context: Context) -> FaultResult:
        """Raises Unreachable, ApiError, JournalLost, and UserError where no driver can do it."""
        result = FaultResult()
        for pod in self.pods:
            effect = await self._aimed(context.cluster, pod)
            standing = Standing(entries=frozenset(entry.entry for entry in context.journal.open()))
            driver, problems = await self._choose(context.cluster, pod, effect, standing)
            if driver is None:
                raise UserError("; ".join(problem.text for problem in problems))
            done, entry = await driver.apply(context, pod, effect, self.name)
            if entry is not None:
                self._made.append(_Made(pod, driver, effect, entry))
            result.targets.append(done)
            if not done.expected:
                result.result = verdict_of([done])
                result.reason = f"{effect.kind} of {done.target.name} by {driver.name}: {done.detail or done.answer}"
                break
            await context.announce(done.target, self.name, f"network disturbed ({effect.text()})")
        return result

    async def verify(self, context: Context) -> FaultResult:
        result = FaultResult()
        for made in self._made:
            seen = await made.driver.verify(context, made.pod, made.effect, made.entry)
            made.tell(context, seen, "unknown" if seen.there is None else "bitten" if seen.there else "not_bitten")
            done = TargetResult(target=made.entry.target, answer="seen", expected=True, bitten=seen.there)
            result.targets.append(done)
            if seen.there is False:
                result.result = "inconclusive"
                result.reason = f"the fault did not bite: {made.entry.target.name}: {seen.detail}"
        return result

    async def undo(self, context: Context) -> list[UndoResult]:
        return await context.undo(made.entry for made in self._made)

    async def verify_undone(self, context: Context) -> bool:
        healed = True
        for made in self._made:
            seen = await made.driver.verify_healed(context, made.pod, made.effect, made.entry)
            made.tell(context, seen, "unknown" if seen.there is None else "not_healed" if seen.there else "healed")
            healed = healed and not seen.there
        return healed

    async def _aimed(self, cluster: Cluster, pod: Object) -> NetworkEffect:
        peers = await self._peers.resolve(cluster)
        hosts = [host["ip"] for host in (pod.get("status") or {}).get("hostIPs") or [] if host.get("ip")]
        spare = [f"{ip}/128" if ":" in ip else f"{ip}/32" for ip in hosts] if self._keep_ready else []
        return msgspec.structs.replace(self.effect, peers=peers, spare=tuple(spare), spare_gateway=self._keep_ready)

    async def _choose(
        self, cluster: Cluster, pod: Object, effect: NetworkEffect, standing: Standing
    ) -> tuple[Driver | None, list[Problem]]:
        """The first driver that can make the effect on this Pod, with its warnings; else why each cannot."""
        refused: list[Problem] = []
        for driver in self._drivers:
            if effect.kind not in driver.can:
                able = sorted(name for name, kinds in CAN.items() if effect.kind in kinds)
                text = f"{driver.name} cannot make {effect.kind}"
                how = f"drivers.network of the drill: {' or '.join(able)}"
                refused.append(Problem(severity="refuse", code="driver_cannot", text=text, how=how))
                continue
            problems = await driver.check(cluster, pod, effect, standing)
            if any(problem.severity == "refuse" for problem in problems):
                refused += problems
            elif driver.needs_addresses and effect.peer != "everywhere" and not effect.peers:
                text = f"{driver.name} must know the addresses of the {effect.peer}"
                how = f"give workload.{effect.peer}: {{selector: ...}} in the drill"
                refused.append(Problem(severity="refuse", code="peer_unknown", text=text, how=how))
            else:
                return driver, problems
        return None, refused


CAN: Mapping[str, frozenset[Kind]] = {
    "ephemeral-container": frozenset({"partition", "reject", "loss", "latency", "rate"}),
    "network-policy": frozenset({"partition"}),
    "toxiproxy": frozenset({"partition", "reject", "latency", "rate"}),
}
"""What each driver can make."""


def stays(driver: Driver) -> str:
    """What a plan says of a driver whose effects do not end by themselves."""
    return f"what {driver.name} changed stays until undone: at its end, at the run's, or by chaosrunner recover"


def container_ports(pod: Object) -> list[int]:
    """Ports that the Pod's containers declare."""
    containers: list[dict[str, Any]] = (pod.get("spec") or {}).get("containers") or []
    return [port["containerPort"] for container in containers for port in container.get("ports") or []]


def pod_name(pod: Object) -> str:
    return str(meta(pod)["name"])
