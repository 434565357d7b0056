"""The lab's description: a drill's `lab:` section, read from JSON and checked.

Every entry is optional. Durations are numbers of seconds or texts such as 500ms, 2s, 1m30s. An unknown key, a wrong
type or an impossible value is one `UserError` that names the place.
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from typing import Annotated, Any, Literal

import msgspec

from chaosrunner.errors import UserError
from chaosrunner.lab.objects import Json
from chaosrunner.lab.workload import flags, gateway, model_server


class Seconds(float):
    """A length of time, zero or more, in seconds."""


Count = Annotated[int, msgspec.Meta(ge=0)]
"""A whole number, zero or more."""
Share = Annotated[str, msgspec.Meta(pattern=r"^\d+%$")]
"""A percentage, such as 50%."""


class Warmup(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What a fresh model server costs: see the flags `--warmup-*` of the model server."""

    first_token: Seconds = Seconds(0)
    standstill: Seconds = Seconds(0)
    requests: Count = 2
    classes: tuple[Count, ...] = (64, 512)
    class_share: float = 0.1


class Budget(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A PodDisruptionBudget for the model servers; exactly one of both, as a number or a percentage."""

    min_available: Count | Share | None = None
    max_unavailable: Count | Share | None = None


class AlertRule(msgspec.Struct, frozen=True, forbid_unknown_fields=True, rename={"for_": "for"}):
    """One alert. `expr`: see `--help` of the alert source. `for_`: seconds that it must hold before it fires."""

    name: str
    expr: str
    for_: Seconds = Seconds(0)
    labels: dict[str, str] = {}


class Alerts(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Alert rules and how often they are evaluated (seconds)."""

    interval: Seconds = Seconds(1)
    rules: tuple[AlertRule, ...] = (AlertRule("NoReadyEndpoints", "ready_endpoints < 1"),)


class Agent(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Times of the node agents and of the node controller, in seconds; the first six are those of `AgentSettings`.

    node_grace: silence after which a node counts as lost. node_period: how often that is looked at.
    """

    relist: Seconds = Seconds(1)
    backoff: Seconds = Seconds(10)
    backoff_most: Seconds = Seconds(300)
    heartbeat: Seconds = Seconds(2)
    reconcile: Seconds = Seconds(1)
    teardown: Seconds = Seconds(0.1)
    node_grace: Seconds = Seconds(8)
    node_period: Seconds = Seconds(1)


class LabSpec(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A lab: nodes, one model Deployment with Service and budget, a gateway, an alert source.

    nodes: how many besides the tainted node `infra`. replicas: of the model Deployment. startup: seconds until a model
    server listens. model, gateway: further options of the two programs, named as their flags (`tokens_per_second`).
    pre_stop: seconds that the preStop hook sleeps (0: no hook). grace: terminationGracePeriodSeconds. liveness: failed
    liveness probes in a row, a second apart, that restart a model server (0: no such probe). anti_affinity:
    never two replicas on one node. sleepers: further Pods that only sleep. manifests: further objects, in the
    workload's namespace unless they name one. Of the embedded lab only, kubelet: times of its nodes, and addresses: an
    address a Pod (`per_pod`), or 127.0.0.1 with ports of their own (`shared`); by default what the system can do.
    """

    nodes: Count = 3
    replicas: Count = 2
    startup: Seconds = Seconds(2)
    warmup: Warmup = Warmup()
    model: dict[str, Any] = {}
    gateway: dict[str, Any] = {}
    pre_stop: Seconds = Seconds(0)
    grace: Count = 30
    liveness: Count = 0
    pdb: Budget | None = None
    alerts: Alerts = Alerts()
    anti_affinity: bool = False
    sleepers: Count = 0
    kubelet: Agent = Agent()
    addresses: Literal["per_pod", "shared"] | None = None
    manifests: tuple[Json, ...] = ()

    @property
    def pod_header(self) -> str | None:
        """The response header by which the gateway names the serving Pod; None where it names none."""
        return str(self.gateway.get("pod_header", gateway.parser().get_default("pod_header"))) or None


def read(text: str | bytes) -> LabSpec:
    """Read a spec from JSON text. UserError for anything that is not as it must be."""
    try:
        found = msgspec.json.decode(text)
    except msgspec.DecodeError as error:
        raise UserError(f"lab: not JSON: {error}") from None
    return build(found)


def build(found: Any) -> LabSpec:
    """Check a spec that is already parsed. UserError for anything that is not as it must be."""
    try:
        spec = msgspec.convert(found, LabSpec, dec_hook=_convert)
    except msgspec.ValidationError as error:
        what, _, where = str(error).partition(" - at ")
        raise UserError(f"lab{where.strip('`').removeprefix('$')}: {what}") from None
    if spec.nodes < 1:
        raise UserError("lab.nodes: at least one node is needed")
    if spec.pdb is not None and (spec.pdb.min_available is None) == (spec.pdb.max_unavailable is None):
        raise UserError("lab.pdb: give either min_available or max_unavailable")
    _check_options("lab.model", spec.model, model_server.parser(), reserved=MODEL_FLAGS)
    _check_options("lab.gateway", spec.gateway, gateway.parser(), reserved=GATEWAY_FLAGS)
    for index, manifest in enumerate(spec.manifests):
        if not {"apiVersion", "kind", "metadata"} <= manifest.keys():
            raise UserError(f"lab.manifests[{index}]: apiVersion, kind and metadata are needed")
    return spec


MODEL_FLAGS = ("help", "host", "port", "log", "pod_name", "control", "startup", "warmup_first_token",
               "warmup_standstill", "warmup_requests", "warmup_classes", "warmup_class_share")  # fmt: skip
"""Options of the model server that the lab sets itself, or that other entries of the spec set."""
GATEWAY_FLAGS = ("help", "host", "port", "log", "kubeconfig", "context", "namespace", "service", "port_name")


def arguments(options: Mapping[str, Any]) -> list[str]:
    """Options as command-line flags: `max_sequences: 4` is `--max-sequences 4`, true is the bare flag."""
    found: list[str] = []
    for name, value in options.items():
        flag = f"--{name.replace('_', '-')}"
        if value is True:
            found.append(flag)
        elif value is not False and value is not None:
            found.append(f"{flag}={value}")
    return found


def _check_options(
    where: str, options: Mapping[str, Any], parser: argparse.ArgumentParser, *, reserved: tuple[str, ...]
) -> None:
    """Check options against the program's own parser, so that a mistake shows here and not in a Pod's log."""
    known = {action.dest: action for action in parser._actions if action.dest not in reserved}
    for name, value in options.items():
        if name not in known:
            raise UserError(f"{where}.{name}: unknown option; known are {', '.join(sorted(known))}")
        action = known[name]
        if isinstance(value, bool) != (action.nargs == 0):
            raise UserError(f"{where}.{name}: {'true or false' if action.nargs == 0 else 'a value'} is needed")
        if action.nargs == 0:
            continue
        try:
            read_value = action.type(str(value)) if callable(action.type) else str(value)
        except (argparse.ArgumentTypeError, ValueError) as error:
            raise UserError(f"{where}.{name}: {error}") from None
        if action.choices is not None and read_value not in action.choices:
            raise UserError(f"{where}.{name}: {value!r} is none of {', '.join(map(str, action.choices))}")


def _convert(wanted: type, value: Any) -> Seconds:
    """Read a duration, the one type here that msgspec does not know."""
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        raise ValueError(f"expected a duration, got {value!r}")
    try:
        return Seconds(flags.duration(str(value)))
    except argparse.ArgumentTypeError as error:
        raise ValueError(str(error)) from None
