"""network-policy: a partition by a NetworkPolicy, where the cluster's network enforces them."""

from __future__ import annotations

from collections.abc import Sequence
from ipaddress import ip_network
from typing import Any

import anyio
import msgspec

from chaosrunner.cluster.actions import change, target_of
from chaosrunner.cluster.answers import classify, settled
from chaosrunner.cluster.budget import matches
from chaosrunner.cluster.patience import Backoff
from chaosrunner.cluster.resources import NETWORK_POLICIES, PODS, Object, labels, meta
from chaosrunner.cluster.session import Answer, ApiError, Cluster, Unreachable
from chaosrunner.faults.base import Context, Problem, TargetResult, refuse
from chaosrunner.faults.network import ALONE, CAN, NetworkEffect, Seen, Standing
from chaosrunner.faults.reach import reached
from chaosrunner.journal import fields
from chaosrunner.journal.journal import Created, Entry, Field, new_name
from chaosrunner.journal.undo import CONFLICTS, send_patch

LABEL = "chaosrunner.dev/cut"
"""Label by which the policy chooses its one Pod; its value is the entry's id."""

PROGRAMMING = 5.0
"""Seconds that a network plugin may take until it enforces a policy: what passes before is no proof."""

LOOK = 5.0
"""Seconds for which is looked whether callers still reach the Pod."""

EVERYWHERE = ("0.0.0.0/0", "::/0")
LAST_PORT = 65535

Json = dict[str, Any]


class NetworkPolicyDriver:
    """Cuts a Pod off by a NetworkPolicy that allows all but the peers.

    A label that only this Pod has is put on it for that. Policies are about connections, by who opens them: `in` cuts
    those to the Pod, `out` those that it opens, each in both directions; whether connections that exist live on is up
    to the network plugin. The kubelet's probes pass always. What is created stays until it is undone.
    """

    name = "network-policy"
    can = CAN[name]
    needs_addresses = True
    heals_itself = False

    def __init__(self, *, probed: bool) -> None:
        """`probed`: whether the probes' requests come from the side that is cut."""
        self._probed = probed

    async def check(
        self, cluster: Cluster, pod: Object, effect: NetworkEffect, standing: Standing = ALONE
    ) -> list[Problem]:
        name, namespace = meta(pod)["name"], meta(pod)["namespace"]
        if (pod.get("spec") or {}).get("hostNetwork"):
            return [refuse("host_network", f"{name} is in its node's network, which no policy is about")]
        if not effect.peers and not effect.spare and not effect.spare_gateway:
            text = "a NetworkPolicy never cuts a Pod off from its own node, so its kubelet finds it ready"
            return [refuse("ready_kept", text, "ready: kept, or another driver")]
        if effect.ports and effect.direction == "out":
            text = "a NetworkPolicy knows no ports of the Pod for connections that the Pod opens"
            return [refuse("ports_of_others", text, "direction: in")]
        try:
            policies = (await cluster.list(NETWORK_POLICIES, namespace)).items
        except ApiError as error:
            return [refuse("policies_unseen", f"NetworkPolicies cannot be seen: {error}")]
        types = _types(effect)
        others = [policy for policy in policies if _selects(policy, pod) and types & _types_of(policy)]
        if others:
            names = ", ".join(str(meta(policy)["name"]) for policy in others)
            text = f"{name} is under {names} already: policies only allow, so one more would allow more, not less"
            return [refuse("other_policy", text, "another driver")]
        entry = new_name()
        answer = await cluster.request(
            "POST",
            NETWORK_POLICIES.path(namespace),
            body=_policy(entry, namespace, policy_spec(entry, effect), "{}"),
            query={"dryRun": "All"},
        )
        if not answer.ok and not cluster.passing(answer):
            said = f"{answer.status} {answer.message}".strip()
            return [refuse("policy_refused", f"no NetworkPolicy may be made in {namespace}: {said}")]
        text = "whether this cluster enforces NetworkPolicies is seen only when one is there"
        return [Problem(severity="info", code="enforcement_unknown", text=text)]

    async def apply(
        self, context: Context, pod: Object, effect: NetworkEffect, fault: str
    ) -> tuple[TargetResult, Entry | None]:
        name, namespace = new_name(), str(meta(pod)["namespace"])
        spec = policy_spec(name, effect)
        path = NETWORK_POLICIES.path(namespace, _called(name))
        entry = await context.journal.intend(
            fault=fault,
            target=target_of(pod),
            resource=PODS.path(namespace, meta(pod)["name"]),
            fields=[Field(path="/metadata/labels/" + LABEL.replace("/", "~1"), previous=None, desired=name)],
            made=Created(path=path, spec=spec),
            name=name,
        )
        # An abort waits for the answers: a call that is cancelled on its way may be carried out after the undo.
        with anyio.CancelScope(shield=True):
            result = await self._mark(context, pod, entry)
            if not result.expected:
                if not result.unknown:
                    await context.journal.mark(entry, "not_applied", result.detail)
                return result, entry
            alone = msgspec.structs.replace(entry, fields=())
            policy = _policy(name, namespace, spec, fields.note(alone))
            result = await self._create(context, entry, NETWORK_POLICIES.path(namespace), policy)
            if not result.unknown:
                await context.journal.mark(entry, "applied", result.detail)  # the label at least
        return result, entry

    async def verify(self, context: Context, pod: Object, effect: NetworkEffect, entry: Entry) -> Seen:
        """Seen from the side that should be cut: which requests reached the Pod, and which reached others."""
        if not self._probed or effect.direction == "out":
            return Seen(None, self.name, "no request of the probes comes from the side that should be cut")
        await anyio.sleep(min(PROGRAMMING, effect.duration / 4))
        found = await reached(context, pod, min(LOOK, effect.duration / 2))
        if found is None:
            return Seen(None, self.name, "nobody sends requests")
        if found.here:
            text = f"{found.text()}: the policy is not enforced, or connections that existed live on"
            return Seen(False, "requests", text)
        return Seen(True if found.elsewhere else None, "requests", found.text())

    async def verify_healed(self, context: Context, pod: Object, effect: NetworkEffect, entry: Entry) -> Seen:
        assert isinstance(entry.made, Created)
        answer = await context.cluster.request("GET", entry.made.path)
        if not answer.ok and answer.status != 404:
            return Seen(None, self.name, f"{answer.status} {answer.message}".strip())
        return Seen(answer.ok, self.name, f"{entry.made.path} is {'there' if answer.ok else 'gone'}")

    async def _mark(self, context: Context, pod: Object, entry: Entry) -> TargetResult:
        """Puts the label on the Pod. Raises Unreachable."""
        backoff, until = Backoff(), context.now + context.patience
        attempts, conflicts = 0, 0
        while conflicts < CONFLICTS:
            now = await context.look(pod)
            if now.status == 404 or (now.ok and meta(now.body)["uid"] != meta(pod)["uid"]):
                return _failed(entry, "not_found", "the Pod is gone", now.status)
            if not now.ok:
                return _answered(context, entry, now)
            if labels(now.body).get(LABEL) == entry.entry:
                break  # an earlier call whose answer was lost
            if LABEL in labels(now.body):
                return _failed(entry, "rejected", f"it is marked by {labels(now.body)[LABEL]} already", None)
            if "labels" not in meta(now.body):
                return _failed(entry, "rejected", "it has no labels at all", None)
            attempts += 1
            operations = fields.change(now.body, entry)
            try:
                answer = await send_patch(
                    context.cluster, context.emit, entry, operations, "label_pod", step=context.step
                )
            except Unreachable:
                if context.now > until:
                    raise
            else:
                if answer.ok:
                    break
                if answer.status in (409, 422):
                    conflicts += 1
                    continue
                if not context.cluster.passing(answer) or context.now > until:
                    return _answered(context, entry, answer)
            await anyio.sleep(backoff.next())
        else:
            return _failed(entry, "rejected", f"the Pod changed {CONFLICTS} times between read and patch", None)
        return TargetResult(target=entry.target, answer="accepted", expected=True, attempts=attempts)

    async def _create(self, context: Context, entry: Entry, path: str, policy: Json) -> TargetResult:
        """Creates the policy. Raises Unreachable."""
        backoff, until, attempts = Backoff(), context.now + context.patience, 0
        while True:
            attempts, began = attempts + 1, context.now
            try:
                answer = await change(
                    context.cluster,
                    context.emit,
                    "create_network_policy",
                    entry.target,
                    "POST",
                    path,
                    policy,
                    query={"fieldManager": fields.MANAGER},
                    step=context.step,
                )
            except Unreachable:
                if context.now > until:
                    raise
            else:
                # Its name is the entry's: if it is there already, an earlier call came through whose answer did not.
                if answer.ok or (answer.status == 409 and attempts > 1):
                    return TargetResult(
                        target=entry.target,
                        answer="accepted",
                        expected=True,
                        status=answer.status,
                        attempts=attempts,
                        sent=began,
                    )
                if not context.cluster.passing(answer) or context.now > until:
                    return _answered(context, entry, answer)
            await anyio.sleep(backoff.next())


def policy_spec(entry: str, effect: NetworkEffect) -> Json:
    """The spec of a policy that allows the Pod of an entry all but the effect's peers.

    Policies are lists of what is allowed (https://kubernetes.io/docs/concepts/services-networking/network-policies/):
    a Pod that one selects may be reached by what any of them allows, and by nothing else.
    """
    spec: Json = {"podSelector": {"matchLabels": {LABEL: entry}}, "policyTypes": sorted(_types(effect))}
    cut = effect.peers or EVERYWHERE
    for kind, way, end in (("Ingress", "ingress", "from"), ("Egress", "egress", "to")):
        if kind not in spec["policyTypes"]:
            continue
        rules: list[Json] = []
        others = _but(cut)
        if others:
            rules.append({end: others})
        if effect.ports:
            rules.append({end: [{"ipBlock": {"cidr": network}} for network in cut], "ports": _but_ports(effect.ports)})
        if rules:
            spec[way] = rules
    return spec


def _types(effect: NetworkEffect) -> set[str]:
    if effect.direction == "both":
        return {"Ingress"} if effect.ports else {"Ingress", "Egress"}
    return {"Ingress"} if effect.direction == "in" else {"Egress"}


def _but(cut: Sequence[str]) -> list[Json]:
    """Blocks of all addresses but these networks."""
    blocks: list[Json] = []
    for everything in EVERYWHERE:
        family = ip_network(everything).version
        excepted = [network for network in cut if ip_network(network).version == family]
        if any(ip_network(network).prefixlen == 0 for network in excepted):
            continue  # an exception must be smaller than its block
        blocks.append({"ipBlock": {"cidr": everything} | ({"except": excepted} if excepted else {})})
    return blocks


def _but_ports(ports: Sequence[int]) -> list[Json]:
    """All ports but these, which are of TCP."""
    found: list[Json] = [{"protocol": "UDP", "port": 1, "endPort": LAST_PORT}]
    found.append({"protocol": "SCTP", "port": 1, "endPort": LAST_PORT})
    start = 1
    for port in [*sorted(set(ports)), LAST_PORT + 1]:
        if start < port - 1:
            found.append({"protocol": "TCP", "port": start, "endPort": port - 1})
        elif start == port - 1:
            found.append({"protocol": "TCP", "port": start})
        start = port + 1
    return found


def _called(entry: str) -> str:
    return f"chaosrunner-{entry}"


def _policy(entry: str, namespace: str, spec: Json, note: str) -> Json:
    return {
        "apiVersion": NETWORK_POLICIES.api_version,
        "kind": NETWORK_POLICIES.kind,
        "metadata": {
            "name": _called(entry),
            "namespace": namespace,
            "labels": {"app.kubernetes.io/managed-by": "chaosrunner"},
            "annotations": {fields.ANNOTATION + entry: note},
        },
        "spec": spec,
    }


def _selects(policy: Object, pod: Object) -> bool:
    return matches((policy.get("spec") or {}).get("podSelector"), labels(pod))


def _types_of(policy: Object) -> set[str]:
    """What a policy is about; where it does not say, ingress, and egress if it has rules for that."""
    spec = policy.get("spec") or {}
    return set(spec.get("policyTypes") or ["Ingress", *(["Egress"] if spec.get("egress") else [])])


def _failed(entry: Entry, answer: str, detail: str, status: int | None, *, unknown: bool = False) -> TargetResult:
    return TargetResult(
        target=entry.target, answer=answer, expected=False, detail=detail, status=status, unknown=unknown
    )


def _answered(context: Context, entry: Entry, answer: Answer) -> TargetResult:
    kind = classify(answer.status, answer.body, answer.headers)
    passing = context.cluster.passing(answer) or not settled(answer.status, answer.body)
    return _failed(entry, kind, f"{answer.status} {answer.message}".strip(), answer.status, unknown=passing)
