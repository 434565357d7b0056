"""What the flags of `probe` ask for: a probe, by itself or a playbook's or a drill's with parts replaced."""

from __future__ import annotations

import os
import secrets
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import urlsplit

import msgspec

from chaosrunner.analysis import Slo
from chaosrunner.cli.options import read_parameters
from chaosrunner.errors import UserError
from chaosrunner.playbook import load_drill
from chaosrunner.playbook.durations import parse_duration
from chaosrunner.playbook.endpoint import Endpoint
from chaosrunner.playbook.expressions import ExpressionError, parse, suggest
from chaosrunner.playbook.load import load_playbook
from chaosrunner.playbook.playbook import Playbook
from chaosrunner.probes.spec import PATHS, OpenLoop, ProbeSpec, Shape, Stage
from chaosrunner.timeline.redact import sensitive_values

DURATION = 30.0
"""Seconds of load where nothing says how much."""

PROMPT = "Count from {{ nonce }}."
MAX_TOKENS = 128

LIMITS = {
    "connect": "connect",
    "first_byte": "first_byte",
    "idle": "byte_idle",
    "token_idle": "token_idle",
    "total": "total",
}
"""Names of the time limits in playbooks, and in `Limits`."""

PLAIN = ("sse", "json_lines", "http")
"""Dialects whose URL is the whole address, and whose body is all that is sent."""

TERMINALS: dict[str, dict[str, Any]] = {
    "sse": {"terminal_data": "[DONE]"},
    "json_lines": {"terminal_fields": {"done": True}},
}
"""How a complete stream ends, where nothing is said."""

T = TypeVar("T")


@dataclass(frozen=True)
class Asked:
    spec: ProbeSpec
    slo: dict[str, float] = field(default_factory=dict)
    playbook: str = ""
    parameters: dict[str, Any] = field(default_factory=dict)
    sources: dict[str, str] = field(default_factory=dict)
    secrets: tuple[str, ...] = ()
    """What a drill holds as credentials."""

    @property
    def hidden(self) -> tuple[str, ...]:
        """All credentials."""
        return (*self.secrets, *({self.spec.api_key or "", *sensitive_values(self.spec.headers)} - {""}))


def asked(given: dict[str, Any]) -> Asked:
    """What is to be sent. Raises UserError for whatever cannot be understood, or does not fit together."""
    if given["playbook"] and given["drill"]:
        raise UserError("--playbook and --drill exclude each other: a drill names its playbook")
    if given["playbook"] or given["drill"]:
        found = _of_file(given)
    else:
        for name, option in (("name", "--probe"), ("parameters", "-p")):
            if given[name]:
                raise UserError(f"{option} is about a playbook: give --playbook or --drill too")
        found = Asked(_of_url(given))
    return replace(found, spec=_replaced(found.spec, given), slo=_slo(given["slo"]) if given["slo"] else found.slo)


def duration(given: dict[str, Any], spec: ProbeSpec) -> float | None:
    """Seconds of load: as asked for, else as long as the stages, else until enough requests were sent."""
    if given["duration"] is not None:
        if given["stages"]:
            raise UserError("--stage says how long: leave --duration out")
        return float(given["duration"])
    if given["requests"] is not None:
        return None
    return sum(stage.seconds for stage in spec.open.stages) if spec.open else DURATION


def expressions(texts: Iterable[str]) -> tuple[str, ...]:
    """The checks. Raises UserError where one cannot be read, and shows where."""
    for text in texts:
        try:
            parse(text)
        except ExpressionError as error:
            hint = f" ({error.hint})" if error.hint else ""
            raise UserError(f"--check: {error.message}{hint}\n  {text}\n  {' ' * error.column}^") from error
    return tuple(texts)


# --- a probe of a file --------------------------------------------------------------------------------------


def _of_file(given: dict[str, Any]) -> Asked:
    from chaosrunner.engine.credentials import credentials
    from chaosrunner.engine.traffic import spec_of

    parameters = read_parameters(given["parameters"])
    sources: dict[str, str] = {}
    drill = None
    if given["drill"]:
        bound = load_drill(given["drill"], parameters)
        playbook, drill, values, sources = bound.playbook, bound.drill, bound.parameters, bound.sources
        endpoint = drill.endpoint
        if given["url"]:
            endpoint = endpoint.model_copy(update={"url": given["url"]})
        elif endpoint.url is None:
            raise UserError(f"{given['drill']}: the drill names no endpoint.url: give URL too")
    else:
        if not given["url"]:
            raise UserError("a playbook says what is sent, but not where to: give URL too")
        playbook, values = load_playbook(given["playbook"], parameters), dict(parameters)
        endpoint = Endpoint(url=given["url"])
    probe = _chosen(playbook, given["name"])
    if probe.target == "replicas":
        raise UserError(
            f"probe {probe.name} goes to the replicas, whose addresses only a cluster tells: choose another one, or "
            "give the URL of one replica and what is sent by flags"
        )
    spec = spec_of(probe, endpoint, seed=secrets.token_hex(4))
    slo = {name: float(limit) for name, limit in probe.slo.model_dump(exclude_none=True).items()}
    hidden = tuple(credentials(drill, [spec], {})) if drill is not None else ()
    return Asked(spec, slo, playbook.metadata.name, values, sources, hidden)


def _chosen(playbook: Playbook, name: str | None) -> Any:
    known = {probe.name: probe for probe in playbook.probes}
    if name is None and len(known) == 1:
        return playbook.probes[0]
    if name is None:
        raise UserError(
            f"playbook {playbook.metadata.name} has several probes: give --probe, one of {', '.join(known)}"
        )
    if name not in known:
        hint = suggest(name, known) or f"it has: {', '.join(known) or 'none'}"
        raise UserError(f"playbook {playbook.metadata.name} has no probe {name} ({hint})")
    return known[name]


# --- a probe by flags ---------------------------------------------------------------------------------------


def _of_url(given: dict[str, Any]) -> ProbeSpec:
    url = given["url"]
    if not url:
        raise UserError("nothing to send requests to: give URL, or --drill")
    if "://" not in url:
        url = f"http://{url}"
    dialect = given["dialect"] or next(
        (name for name, path in PATHS.items() if path != "/" and url.rstrip("/").endswith(path)), "completions"
    )
    if dialect not in PATHS:
        raise UserError(f"--dialect {dialect}: {suggest(dialect, PATHS) or 'known are ' + ', '.join(PATHS)}")
    path = None
    if dialect in PLAIN:
        parts = urlsplit(url)
        path = parts.path + (f"?{parts.query}" if parts.query else "") or "/"
        url = f"{parts.scheme}://{parts.netloc}"
        shape = Shape()
    else:
        url = url.rstrip("/").removesuffix(PATHS[dialect])
        shape = Shape(prompt=PROMPT, max_tokens=MAX_TOKENS)
    return ProbeSpec(
        name="probe",
        url=url,
        dialect=dialect,
        shapes=(shape,),
        path=path,
        connection="reused",
        seed=secrets.token_hex(4),
        **TERMINALS.get(dialect, {}),
    )


# --- parts that flags replace -------------------------------------------------------------------------------


def _replaced(spec: ProbeSpec, given: dict[str, Any]) -> ProbeSpec:
    """Raises UserError where flags exclude each other, or are not about such a probe."""
    changes: dict[str, Any] = {
        name: given[name]
        for name in (
            "model",
            "method",
            "connection",
            "proxy",
            "ramp",
            "pause",
            "concurrency",
            "ca",
            "pod_header",
            "seed",
            "workers",
        )
        if given[name] is not None
    }
    if given["headers"]:
        changes["headers"] = dict(spec.headers) | dict(map(_header, given["headers"]))
    if given["api_key_env"]:
        changes["api_key"] = os.environ.get(given["api_key_env"])
        if not changes["api_key"]:
            raise UserError(f"--api-key-env: environment variable {given['api_key_env']} is not set")
    if given["http2"]:
        changes["http2"] = True
    if given["terminal"] is not None:
        changes |= _terminal(given["terminal"], spec.dialect)
    if given["insecure"]:
        changes |= {"insecure": True, "ca": None}
    if given["fixed_length"]:
        changes["fixed_length"] = True
    if given["no_chunks"]:
        changes["record_chunks"] = False
    if given["limits"]:
        changes["limits"] = replace(spec.limits, **dict(map(_limit, given["limits"])))
    if (load := _open(spec, given)) is not None:
        changes["open"] = load
    elif given["concurrency"] is not None:
        changes["open"] = None
    return replace(spec, shapes=_shapes(spec, given), **changes)


def _shapes(spec: ProbeSpec, given: dict[str, Any]) -> tuple[Shape, ...]:
    changes: dict[str, Any] = {}
    if given["prompt"] is not None:
        changes |= {"prompt": given["prompt"], "messages": None, "prompts": ()}
    if given["max_tokens"] is not None:
        changes["max_tokens"] = given["max_tokens"]
    if changes and spec.dialect in PLAIN:
        raise UserError(f"--prompt and --max-tokens are for language models; with {spec.dialect} give --body")
    if given["body"] is not None:
        changes["body"] = _body(given["body"], spec.dialect)
    return tuple(replace(shape, **changes) for shape in spec.shapes)


def _body(text: str, dialect: str) -> Any:
    if text.startswith("@"):
        try:
            text = Path(text[1:]).read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise UserError(f"--body {text}: cannot be read: {error}") from error
    try:
        body = msgspec.json.decode(text)
    except msgspec.DecodeError as error:
        if dialect in PLAIN:
            return text
        raise UserError(f"--body is not JSON: {error}") from error
    if dialect not in PLAIN and not isinstance(body, dict):
        raise UserError("--body is merged into the request: write a mapping, like '{\"temperature\": 0}'")
    return body if isinstance(body, dict | list) else text


def _terminal(text: str, dialect: str) -> dict[str, Any]:
    """The rule for the end of a stream. Raises UserError."""
    if dialect not in TERMINALS:
        raise UserError(f"--terminal is about sse and json_lines; {dialect} says itself how its streams end")
    kind, _, value = text.partition("=")
    rules: dict[str, Any] = {"terminal_data": None, "terminal_event": None, "terminal_fields": None}
    match kind:
        case "eof" if not value:
            return rules
        case "data":
            return rules | {"terminal_data": value}
        case "event" if dialect == "sse" and value:
            return rules | {"terminal_event": value}
        case "fields" if dialect == "json_lines":
            fields = _read("--terminal", text, 'fields={"done": true}', lambda: msgspec.json.decode(value))
            if isinstance(fields, dict):
                return rules | {"terminal_fields": fields}
    known = "data=TEXT, event=NAME or eof" if dialect == "sse" else 'data=TEXT, fields={"done": true} or eof'
    raise UserError(f"--terminal {text}: write {known}")


def _open(spec: ProbeSpec, given: dict[str, Any]) -> OpenLoop | None:
    """Open-loop load, where the flags ask for it."""
    if given["rps"] is not None and given["stages"]:
        raise UserError("--rps and --stage exclude each other")
    stages: tuple[Stage, ...]
    if given["rps"] is not None:
        stages = (Stage(given["rps"], given["duration"] or DURATION),)
    elif given["stages"]:
        stages = tuple(map(_stage, given["stages"]))
    else:
        stages = spec.open.stages if spec.open and given["concurrency"] is None else ()
    shape = {name: given[name] for name in ("arrivals", "max_in_flight") if given[name] is not None}
    if not stages:
        if shape:
            raise UserError("--arrivals and --max-in-flight are about load by a schedule: give --rps or --stage")
        return None
    for name in ("concurrency", "ramp", "pause"):
        if given[name] is not None:
            raise UserError(f"--{name} is about users who wait for their answers, not about --rps and --stage")
    return replace(spec.open or OpenLoop(stages), stages=stages, **shape)


def _stage(text: str) -> Stage:
    time, _, rate = text.partition(":")
    first, _, last = rate.partition("-")
    return _read(
        "--stage",
        text,
        "TIME:RATE or TIME:RATE-RATE, like 30s:5-50",
        lambda: Stage(float(first), parse_duration(time), float(last) if last else None),
    )


def _header(text: str) -> tuple[str, str]:
    name, colon, value = text.partition(":")
    if not colon or not name.strip():
        raise UserError(f"-H {text}: write NAME:VALUE")
    return name.strip(), value.strip()


def _limit(text: str) -> tuple[str, float]:
    name, limit = _named("--limit", text, LIMITS)
    return LIMITS[name], limit


def _slo(text: str) -> dict[str, float]:
    """Raises UserError."""
    known = [limit.name for limit in msgspec.structs.fields(Slo)]
    return dict(_named("--slo", part, known) for part in text.split(","))


def _named(option: str, text: str, known: Iterable[str]) -> tuple[str, float]:
    name, _, limit = text.partition("=")
    name = name.strip()
    if name not in known:
        raise UserError(f"{option} {text}: {suggest(name, known) or 'known are ' + ', '.join(known)}")
    value = _read(option, text, f"{name}=TIME, like {name}=500ms", lambda: parse_duration(limit))
    if value <= 0:
        raise UserError(f"{option} {text}: a limit is above 0")
    return name, value


def _read(option: str, text: str, form: str, read: Callable[[], T]) -> T:
    try:
        return read()
    except ValueError:
        raise UserError(f"{option} {text}: write {form}") from None
