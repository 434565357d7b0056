"""What must fit together in a playbook and its drill, beyond the shape of each part."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import suppress
from typing import Any, NamedTuple

from chaosrunner.errors import UserError
from chaosrunner.playbook.drill import Drill
from chaosrunner.playbook.durations import format_duration
from chaosrunner.playbook.expressions import (
    Comparison,
    Expression,
    Literal,
    Metric,
    metrics,
    reads_target,
    suggest,
    walk,
)
from chaosrunner.playbook.playbook import Playbook
from chaosrunner.playbook.probe import PROBE_KINDS, Probe
from chaosrunner.playbook.prompts import read_prompts
from chaosrunner.playbook.secret import Secret
from chaosrunner.playbook.source import Keys
from chaosrunner.playbook.steps import (
    LASTING,
    Baseline,
    Command,
    Cordon,
    DeletePod,
    Drain,
    Evict,
    Heal,
    Hold,
    Network,
    NodeTarget,
    PodTarget,
    ProbeOnce,
    ProcessFault,
    RolloutRestart,
    Scale,
    Step,
    Taint,
    Trigger,
    Wait,
)
from chaosrunner.timeline.redact import is_sensitive

TEMPLATES = ("nonce", "request", "probe", "worker")
"""Names that `{{ name }}` may have inside what a probe sends; they are filled in per request."""

_TEMPLATE = re.compile(r"\{\{(.*?)\}\}", re.DOTALL)
_AFTER_A_FAULT = frozenset(
    {
        "loss_on_victim", "exposed", "unplaced", "time_to_serve", "time_to_ready", "time_to_first_stream",
        "replacements", "routing_delay",
    }
)  # fmt: skip
_OF_THE_VICTIM = frozenset({"loss_on_victim", "exposed"})
_OF_THE_SERVICE = frozenset({"ready_endpoints", "endpoints_back", "zero_ready_seconds", "replacement.endpoint_ready"})
_PERCENTILES = frozenset({"p50", "p90", "p95", "p99"})
_OF_A_PROBE = _PERCENTILES | {
    "success_rate", "incomplete_200", "requests", "outcome", "loss_on_victim", "exposed", "unplaced", "in_flight",
    "goodput", "good_share",
}  # fmt: skip
"""What the requests of one probe tell alone; the others are about Pods, the Service or the run."""


class Finding(NamedTuple):
    """A problem of one file, placed by keys."""

    keys: Keys
    message: str
    hint: str = ""
    warning: bool = False
    offset: int = 0
    """Character inside the text at `keys`."""


def takes_pods(step: Step) -> bool:
    """Whether a step really takes Pods away, or has somebody take them."""
    match step.body:
        case Evict(dry_run=dry_run):
            return not dry_run
        case DeletePod() | Drain() | RolloutRestart() | Scale() | Command():
            return True
        case Taint(effect=effect):
            return effect == "NoExecute"
    return False


def hits_pods(step: Step) -> bool:
    """Whether a step takes Pods away, or keeps them from serving."""
    return takes_pods(step) or isinstance(step.body, Network | ProcessFault)


def changes(step: Step) -> bool:
    """Whether a step changes anything."""
    return hits_pods(step) or isinstance(step.body, Cordon | Taint)


def review_playbook(playbook: Playbook) -> Iterator[Finding]:
    """Findings about a playbook by itself."""
    yield from _names(playbook)
    yield from _steps(playbook)
    yield from _targets(playbook)
    for index, probe in enumerate(playbook.probes):
        yield from _probe(("probes", index), probe)
    for keys, expression in expressions(playbook):
        yield from _expression(playbook, keys, expression)
    if playbook.abort is not None and not any(isinstance(step.body, Baseline) for step in playbook.steps):
        yield Finding(("abort",), "abort is watched from the end of a baseline on, and there is none", "add a baseline")
    if not playbook.checks:
        yield Finding(("metadata",), "there are no checks, so nothing can fail", "add checks", warning=True)


def expressions(playbook: Playbook) -> Iterator[tuple[Keys, Expression]]:
    """Every expression of a playbook with its place."""
    for index, step in enumerate(playbook.steps):
        keys: Keys = ("steps", index, step.kind)
        match step.body:
            case Baseline(until=until) | Wait(until=until):
                yield (*keys, "until"), until
            case Trigger(when=when) as fault:
                if when is not None:
                    yield (*keys, "when"), when
                if isinstance(fault, PodTarget) and fault.from_ and fault.from_.expression is not None:
                    yield (*keys, "from", "expression"), fault.from_.expression
    if playbook.abort is not None:
        yield ("abort",), playbook.abort
    for index, check in enumerate(playbook.checks):
        yield ("checks", index, "check"), check.check


def _names(playbook: Playbook) -> Iterator[Finding]:
    named: dict[str, list[str | None]] = {
        "probes": [probe.name for probe in playbook.probes],
        "steps": [step.name for step in playbook.steps],
        "checks": [check.name for check in playbook.checks],
    }
    for section, names in named.items():
        for index, name in enumerate(names):
            if name is not None and name in names[:index]:
                message = f'"{name}" is also the name of number {names.index(name) + 1} of {section}'
                yield Finding((section, index, "name"), message)


def _steps(playbook: Playbook) -> Iterator[Finding]:
    taken = cordoned = measured = False
    for index, step in enumerate(playbook.steps):
        keys: Keys = ("steps", index, step.kind)
        body = step.body
        if isinstance(body, Baseline):
            if taken:
                yield Finding(keys, "a baseline after a fault does not show the service at rest", warning=True)
            measured = True
        if not measured and changes(step):
            message = "a fault before any baseline: no fault is sent to a service that was not seen healthy"
            yield Finding(keys, message, "begin with a baseline step")
            measured = True
        if isinstance(body, NodeTarget) and not isinstance(body, Cordon):
            named = body.node is not None or body.of == "workload"
            if not cordoned and (body.of == "cordoned" or (step.kind == "uncordon" and not named)):
                yield Finding(keys, "no earlier step cordons a node", "add a cordon step before it")
        if isinstance(body, Trigger) and body.when is None and "within" in body.model_fields_set:
            yield Finding((*keys, "within"), '"within" without "when" waits for nothing', 'add "when"', warning=True)
        if isinstance(body, Evict) and body.dry_run and (body.retry_for or body.grace_period is not None):
            key = "retry_for" if body.retry_for else "grace_period"
            yield Finding((*keys, key), f'a dry run takes nothing away, so "{key}" does nothing', warning=True)
        if isinstance(body, Heal):
            yield from _healed(playbook, index)
        if isinstance(body, Wait) and not taken and (need := _needs_fault(body.until)):
            message = f"{need} is never known before Pods were taken away"
            yield Finding((*keys, "until"), message, "wait after a fault")
        if step.probe_once is not None:
            yield from _known_probe((*keys, "probe"), step.probe_once.probe, playbook)
            yield from _once(keys, step.probe_once, playbook)
        taken = taken or hits_pods(step)
        cordoned = cordoned or isinstance(body, Cordon | Drain)


def _healed(playbook: Playbook, index: int) -> Iterator[Finding]:
    """A step that ends the fault of an earlier one."""
    step = playbook.steps[index].heal
    assert step is not None
    keys: Keys = ("steps", index, "heal", "step")
    lasting = [earlier.title for earlier in playbook.steps[:index] if isinstance(earlier.body, LASTING)]
    if step.step not in lasting:
        hint = suggest(step.step, lasting) or f"known: {', '.join(lasting) or 'none'}"
        yield Finding(keys, f'no earlier step "{step.step}" makes a fault that lasts', hint)


def _targets(playbook: Playbook) -> Iterator[Finding]:
    direct = [index for index, probe in enumerate(playbook.probes) if probe.target == "replicas"]
    if direct and len(direct) == len(playbook.probes):
        message = "every probe goes to the replicas directly, so what the service gives its users is not measured"
        yield Finding(("probes", direct[0], "target"), message, "add a probe without target")


def _of_the_endpoint(playbook: Playbook) -> list[Probe]:
    """Those whose requests are the service's."""
    return [probe for probe in playbook.probes if probe.target == "endpoint"]


def _needs_fault(expression: Expression) -> str:
    """A metric of the expression that is known only after Pods were taken away."""
    names = (n for n in sorted(metrics(expression)) if n in _AFTER_A_FAULT or n.startswith("replacement."))
    return next(names, "")


def _known_probe(keys: Keys, name: str, playbook: Playbook) -> Iterator[Finding]:
    known = [probe.name for probe in playbook.probes]
    if name not in known:
        yield Finding(keys, f'unknown probe "{name}"', suggest(name, known) or f"known: {', '.join(known)}")


def _once(keys: Keys, once: ProbeOnce, playbook: Playbook) -> Iterator[Finding]:
    for probe in playbook.probes:
        if probe.name == once.probe and probe.target == "replicas":
            message = f'probe "{probe.name}" goes to the replicas directly, and one request to one of them'
            yield Finding((*keys, "probe"), message, "name a probe of the endpoint")
        for key in ("prompt", "messages", "max_tokens"):
            if probe.name != once.probe or key not in once.model_fields_set:
                continue
            if probe.text is None:
                yield Finding((*keys, key), f'probe "{probe.name}" is {probe.kind}, which has no {key}')
            elif key == "messages" and not probe.text.is_chat:
                yield Finding((*keys, key), f'probe "{probe.name}" sends completions', "use prompt")
    yield from _templates(keys, once.model_dump(include={"prompt", "messages", "body"}, exclude_unset=True))


def _probe(keys: Keys, probe: Probe) -> Iterator[Finding]:
    openai = probe.openai
    if openai is not None and probe.fixed_length and not openai.ignore_eos and openai.min_tokens != openai.max_tokens:
        yield Finding(
            (*keys, "fixed_length"), "the model may end an answer before max_tokens", "set openai.ignore_eos: true",
            warning=True,
        )  # fmt: skip
    slo = probe.slo
    if probe.http is None and slo.ttft is not None and slo.chunk_gap is slo.tpot is slo.e2e is None:
        message = "a stream that stands still after its first token counts as good"
        yield Finding((*keys, "slo", "ttft"), message, "add chunk_gap", warning=True)
    sent = probe.model_dump(include={*PROBE_KINDS, "mix", "headers"}, exclude_unset=True)
    yield from _templates(keys, sent)
    for place, path, chat in _files(keys, probe):
        try:
            read_prompts(path, chat=chat)
        except UserError as error:
            yield Finding(place, str(error))


def _files(keys: Keys, probe: Probe) -> Iterator[tuple[Keys, str, bool]]:
    """Files of prompts: where each is named, its path, whether it is for a chat."""
    if probe.text is None:
        return
    named: list[tuple[Keys, str | None]] = [((probe.kind,), probe.text.prompts)]
    named += [(("mix", index), shape.prompts) for index, shape in enumerate(probe.mix or [])]
    for part, path in named:
        if path is not None:
            yield (*keys, *part, "prompts"), path, probe.text.is_chat


def _templates(keys: Keys, data: Any) -> Iterator[Finding]:
    """Unknown names in `{{ }}` anywhere in what is sent."""
    if isinstance(data, dict):
        for key, value in data.items():
            yield from _templates((*keys, key), value)
    elif isinstance(data, list):
        for index, value in enumerate(data):
            yield from _templates((*keys, index), value)
    elif isinstance(data, str):
        for match in _TEMPLATE.finditer(data):
            name = match[1].strip()
            if name not in TEMPLATES:
                hint = suggest(name, TEMPLATES) or f"known: {', '.join(TEMPLATES)}"
                yield Finding(keys, f'unknown template "{name}"', hint, offset=match.start())


def _expression(playbook: Playbook, keys: Keys, expression: Expression) -> Iterator[Finding]:
    used = [node for node in walk(expression) if isinstance(node, Metric)]
    names = {metric.name for metric in used}
    of_target = keys[-1] in ("when", "expression")
    if not of_target and any("target" in metric.args for metric in used):
        yield Finding(keys, '"target" has a meaning only in "when" and "from" of a fault', "write in_flight")
    probes = _of_the_endpoint(playbook)
    if keys[0] == "checks":
        check = playbook.checks[int(keys[1])]
        if check.probe is not None:
            yield from _known_probe((*keys[:2], "probe"), check.probe, playbook)
            probes = [probe for probe in playbook.probes if probe.name == check.probe]
            for name in sorted(names - _OF_A_PROBE):
                hint = "take it into a check of its own" if names & _OF_A_PROBE else "leave it out"
                yield Finding((*keys[:2], "probe"), f"probe: does nothing for {name}", hint)
        if check.confidence is not None and not _has_bound(expression):
            yield Finding((*keys[:2], "confidence"), "only a comparison of success_rate has a confidence interval")
    if (
        keys[0] in ("checks", "abort")
        and not any(map(hits_pods, playbook.steps))
        and (need := _needs_fault(expression))
    ):
        yield Finding(
            keys, f"no step takes or hits a Pod, so {need} is never known", "add a fault, or remove the check"
        )
    if names & {"goodput", "good_share"} and all(probe.slo.empty for probe in probes):
        yield Finding(keys, "no probe says what a good request is", "give the probe an slo")
    if "routing_delay" in names and len(_of_the_endpoint(playbook)) == len(playbook.probes):
        hint = "add a probe with target: replicas"
        yield Finding(keys, "routing_delay is never known: no probe asks the replicas directly", hint)
    if "evictions" in names and not any(isinstance(step.body, Evict | Drain) for step in playbook.steps):
        yield Finding(keys, "no step evicts a Pod, so there are no evictions to count")
    for metric in used:
        if metric.name in _PERCENTILES and (why := _no_latency(metric.args[0], probes)):
            yield Finding(keys, f"{metric} is never known: {why}")
    yield from _too_many_tokens(playbook, keys, expression)


def _has_bound(expression: Expression) -> bool:
    match expression:
        case Comparison(Metric(name="success_rate", window=None), _, Literal()):
            return True
        case Comparison(Literal(), _, Metric(name="success_rate", window=None)):
            return True
    return False


def _no_latency(latency: str, probes: list[Probe]) -> str:
    """Why no probe measures this latency, or nothing."""
    if latency in ("ttft_answer", "tpot") and not any(probe.text for probe in probes):
        return "it takes an openai or anthropic probe"
    if latency in ("ttft", "chunk_gap") and all(probe.http for probe in probes):
        return "no probe streams"
    if latency == "chunk_gap" and not any(probe.record_chunks for probe in probes if not probe.http):
        return "record_chunks is false"
    return ""


def _too_many_tokens(playbook: Playbook, keys: Keys, expression: Expression) -> Iterator[Finding]:
    """`replacement.tokens >= N` where no probe asks for as many."""
    most = max((_most_tokens(probe) for probe in _of_the_endpoint(playbook)), default=0)
    for node in walk(expression):
        match node:
            case Comparison(Metric(name="replacement.tokens"), (">=" | ">" | "==") as sign, Literal(value=wanted)):
                if wanted > most or (sign == ">" and wanted == most):  # type: ignore[operator]
                    yield Finding(keys, f"{node} never holds: no probe asks for more than {most} tokens")


def _most_tokens(probe: Probe) -> int:
    if probe.text is None:
        return 0
    most = [probe.text.max_tokens, *(shape.max_tokens or 0 for shape in probe.mix or [])]
    for _, path, chat in _files((), probe):
        with suppress(UserError):
            most += [entry.max_tokens or 0 for entry in read_prompts(path, chat=chat)]
    return max(most)


def review_drill(drill: Drill, playbook: Playbook) -> Iterator[tuple[bool, Finding]]:
    """Findings about a drill with its playbook; the flag says whether the place is in the playbook."""
    for finding in _environment(drill):
        yield False, finding
    for finding in [*_gateway(drill, playbook), *_limits(drill, playbook)]:
        yield False, finding
    for keys, expression in expressions(playbook):
        names = metrics(expression)
        if drill.workload.service is None and (unknown := sorted(names & _OF_THE_SERVICE)):
            hint = "give workload.service in the drill"
            yield True, Finding(keys, f"{unknown[0]} is never known: the drill names no Service", hint)
        for node in walk(expression):
            if isinstance(node, Metric) and node.name in ("alert", "alert_fired"):
                for finding in _alert(keys, node, drill):
                    yield True, finding
        if reads_target(expression) and drill.endpoint.pod_header is None and keys[-1] in ("when", "expression"):
            message = (
                "in_flight(target) can only be known if the URL reaches a single Pod directly: no response header "
                "names the serving Pod, so the step may never fire"
            )
            yield True, Finding(keys, message, "give endpoint.pod_header in the drill", warning=True)
    for finding in _direct(drill, playbook):
        yield False, finding
    placed = drill.endpoint.pod_header
    if placed is None and any(metrics(check.check) & _OF_THE_VICTIM for check in playbook.checks):
        yield False, Finding(
            ("endpoint",), "no response header names the serving Pod, so losses cannot be placed on the victim",
            "give endpoint.pod_header", warning=True,
        )  # fmt: skip


def _alert(keys: Keys, node: Metric, drill: Drill) -> Iterator[Finding]:
    rules = [rule.name for rule in drill.lab.alerts.rules] if drill.lab and drill.lab.alerts else []
    elsewhere = drill.prometheus is not None and drill.prometheus.url is not None
    if not elsewhere and not rules:
        yield Finding(keys, f"{node} is never known: the drill names no Prometheus", "give prometheus.url in the drill")
    elif drill.lab is not None and node.args[0] not in rules:
        hint = suggest(node.args[0], rules) or f"known in the lab: {', '.join(rules) or 'none'}"
        yield Finding(keys, f'the lab has no alert "{node.args[0]}"', hint, warning=elsewhere)


def _direct(drill: Drill, playbook: Playbook) -> Iterator[Finding]:
    """What the drill must say for probes that go to the replicas."""
    names = [probe.name for probe in playbook.probes if probe.target == "replicas"]
    if not names:
        return
    endpoint, replicas = drill.endpoint, drill.endpoint.replicas
    given = "replicas" in endpoint.model_fields_set
    place: Keys = ("endpoint", "replicas") if given else ("endpoint",)
    if drill.workload.service is None and not isinstance(replicas.port, int):
        message = f'probe "{names[0]}" goes to the replicas, and without a Service nothing tells their port'
        yield Finding(place, message, "give endpoint.replicas.port as a number, or workload.service")
    if endpoint.pod_header is None:
        message = "no response header names the serving Pod, so how late the gateway sends to a replica is not known"
        yield Finding(("endpoint",), message, "give endpoint.pod_header", warning=True)
    secret = endpoint.api_key is not None or any(
        isinstance(value, Secret) or is_sensitive(name) for name, value in endpoint.headers.items()
    )
    safe = endpoint.url is not None and endpoint.url.startswith("https:") and replicas.scheme == "http"
    if secret and safe and replicas.credentials and "credentials" not in replicas.model_fields_set:
        message = "the endpoint's credentials, which it gets over TLS, go to the replicas in the clear"
        hint = "say endpoint.replicas.credentials: true if they are meant to, false if the gateway checks them"
        yield Finding(place, message, hint, warning=True)


def _environment(drill: Drill) -> Iterator[Finding]:
    if drill.endpoint.url is None and drill.lab is None:
        yield Finding(
            ("endpoint",), "neither an endpoint to run against nor a lab to rehearse on", "give endpoint.url, or lab"
        )
    allowed = drill.limits.namespaces
    if allowed is not None and drill.namespace is not None and drill.namespace not in allowed:
        message = f'limits.namespaces leaves out "{drill.namespace}", where the workload is'
        yield Finding(("limits", "namespaces"), message)


def _gateway(drill: Drill, playbook: Playbook) -> Iterator[Finding]:
    """Network faults of a drill whose gateway is not known."""
    by_peer = any(driver != "toxiproxy" for driver in drill.drivers.network)
    if drill.workload.gateway is not None or drill.lab is not None or not by_peer:
        return
    for number, step in enumerate(playbook.steps, start=1):
        if step.network is not None and step.network.peer == "gateway":
            message = f"step {number} ({step.title}) of the playbook is between the Pods and the gateway"
            yield Finding(("workload",), message, "give workload.gateway: {selector: ...}")


def _limits(drill: Drill, playbook: Playbook) -> Iterator[Finding]:
    limits = drill.limits
    for number, step in enumerate(playbook.steps, start=1):
        body, who = step.body, f"step {number} ({step.title}) of the playbook"
        if isinstance(body, PodTarget) and hits_pods(step):
            if body.pods.mode == "fixed" and body.pods.value > limits.max_pods:
                yield Finding(("limits", "max_pods"), f"{who} takes {body.pods} Pods, max_pods is {limits.max_pods}")
            share = 100.0 if body.pods.mode == "all" else body.pods.value if body.pods.mode == "percent" else 0.0
            if share > limits.max_percent:
                message = f"{who} takes {share:g}% of the Pods, max_percent is {limits.max_percent:g}%"
                yield Finding(("limits", "max_percent"), message)
        nodes = body.nodes if isinstance(body, Cordon | Drain | Taint) else None
        if nodes is not None and nodes.mode == "fixed" and nodes.value > limits.max_nodes:
            yield Finding(("limits", "max_nodes"), f"{who} takes {nodes} nodes, max_nodes is {limits.max_nodes}")
    planned = sum(step.body.for_ for step in playbook.steps if isinstance(step.body, Baseline | Hold))
    longest = planned + sum(_patience(step) for step in playbook.steps)
    deadline = format_duration(limits.deadline)
    if planned >= limits.deadline:
        message = f"baseline and hold alone take {format_duration(planned)}, the deadline is {deadline}"
        yield Finding(("limits", "deadline"), message)
    elif longest > limits.deadline:
        message = f"with all they may wait the steps take {format_duration(longest)}, the deadline is {deadline}"
        hint = "a longer one, or a run that should fail is aborted instead"
        yield Finding(("limits", "deadline"), message, hint, warning=True)


def _patience(step: Step) -> float:
    """Seconds that a step may wait for something before it fails or is inconclusive."""
    body = step.body
    waits = body.within if isinstance(body, Trigger) and body.when is not None else 0.0
    match body:
        case Baseline(timeout=timeout) | Wait(timeout=timeout):
            waits += timeout
        case Drain(timeout=timeout, nodes=nodes):
            waits += timeout * (nodes.value if nodes is not None and nodes.mode == "fixed" else 1)
        case Evict(retry_for=retry_for, dry_run=False):
            waits += retry_for
        case Command(timeout=timeout):
            waits += timeout
    return waits
