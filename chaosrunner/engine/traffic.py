"""Turns the playbook's probes into what the probes room sends, and one-off requests into overrides."""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple
from urllib.parse import urlsplit

from chaosrunner.errors import UserError
from chaosrunner.playbook import loads
from chaosrunner.playbook.endpoint import Endpoint, resolve_headers
from chaosrunner.playbook.probe import Probe
from chaosrunner.playbook.prompts import read_prompts
from chaosrunner.playbook.requests import Message, TextRequest
from chaosrunner.playbook.secret import Secret
from chaosrunner.playbook.steps import ProbeOnce
from chaosrunner.probes.spec import (
    CancelAfter,
    DialectName,
    Limits,
    OpenLoop,
    Overrides,
    ProbeSpec,
    Prompt,
    Shape,
    Stage,
)
from chaosrunner.timeline import manifest
from chaosrunner.timeline.redact import is_sensitive


def spec_of(probe: Probe, endpoint: Endpoint, *, seed: str) -> ProbeSpec:
    """The probe, aimed at the drill's endpoint. Reads credentials now.

    Raises UserError where the endpoint has no URL, a credential cannot be had, or parts do not fit.
    """
    if endpoint.url is None:
        raise UserError("the drill names no endpoint: set endpoint.url, or use `chaosrunner rehearse`")
    dialect, method, path = _kind(probe)
    terminal = probe.sse.terminal if probe.sse else None
    last_line = probe.json_lines.terminal if probe.json_lines else None
    timeouts = probe.timeouts
    closed = probe.load.closed or loads.Closed(concurrency=1)
    direct = probe.target == "replicas"
    way = _direct(endpoint) if direct else _by_url(endpoint)
    return ProbeSpec(
        name=probe.name,
        url=way.url,
        replicas=direct,
        dialect=dialect,
        shapes=_shapes(probe),
        model=(probe.text.model or endpoint.model) if probe.text else None,
        method=method,
        path=path,
        open=_open(probe.load.open),
        concurrency=closed.concurrency,
        pause=closed.pause,
        jitter=closed.jitter,
        ramp=closed.ramp,
        workers=probe.workers,
        connection=probe.connection,
        limits=Limits(
            connect=timeouts.connect,
            first_byte=timeouts.first_byte,
            byte_idle=timeouts.idle,
            token_idle=timeouts.token_idle,
            total=timeouts.total,
        ),
        headers=resolve_headers(
            {
                name: value
                for name, value in endpoint.headers.items()
                if (way.credentials or not (isinstance(value, Secret) or is_sensitive(name)))
                and (way.host is None or name.lower() != "host")
            }
        ),
        api_key=endpoint.api_key.resolve() if endpoint.api_key and way.credentials else None,
        ca=way.ca,
        insecure=way.insecure,
        http2=way.http2,
        proxy=way.proxy,
        pod_header=None if direct else endpoint.pod_header,
        unique=probe.text.unique if probe.text else True,
        fixed_length=probe.fixed_length,
        record_chunks=probe.record_chunks,
        seed=seed,
        terminal_event=terminal.event if terminal else None,
        terminal_data=terminal.data if terminal else last_line.data if last_line else None,
        terminal_fields=last_line.fields if last_line else None,
    )


class _Way(NamedTuple):
    """How requests get to whoever answers them."""

    url: str
    ca: str | None
    insecure: bool
    http2: bool
    proxy: str | None
    credentials: bool
    """Whether those of the endpoint go along."""
    host: str | None
    """Host header instead of the endpoint's."""


def _by_url(endpoint: Endpoint) -> _Way:
    assert endpoint.url is not None
    return _Way(endpoint.url, endpoint.ca, endpoint.insecure, endpoint.http2, endpoint.proxy, True, None)


def _direct(endpoint: Endpoint) -> _Way:
    assert endpoint.url is not None
    way = endpoint.replicas
    # A way to trust that is given here replaces the endpoint's.
    own = way.ca is not None or way.insecure is not None
    host = way.host or urlsplit(endpoint.url).netloc
    return _Way(
        url=f"{way.scheme}://{host}",
        ca=way.ca if own else endpoint.ca,
        insecure=bool(way.insecure) if own else endpoint.insecure,
        http2=way.http2,
        proxy=way.proxy,
        credentials=way.credentials,
        host=way.host,
    )


def describe(probe: Probe, spec: ProbeSpec, warm_streams: int) -> manifest.Probe:
    """What the manifest keeps of a probe."""
    return manifest.Probe(
        name=probe.name,
        dialect=spec.dialect,
        target=probe.target,
        stream=spec.streams,
        shapes=[shape.name for shape in spec.shapes],
        slo=probe.slo.model_dump(exclude_none=True),
        warm_streams=warm_streams,
        concurrency=spec.concurrency if spec.open is None else None,
        load=probe.describe(),
        workers=spec.workers,
        connection=spec.connection,
        pod_header=spec.pod_header,
    )


def overrides_of(step: ProbeOnce) -> Overrides:
    return Overrides(
        prompt=step.prompt,
        messages=_messages(step.messages),
        max_tokens=step.max_tokens,
        body=step.body or None,
    )


def _kind(probe: Probe) -> tuple[DialectName, str | None, str | None]:
    if probe.openai:
        return probe.openai.api, None, None
    if probe.anthropic:
        return "messages", None, None
    if probe.sse:
        return "sse", probe.sse.method, probe.sse.path
    if probe.json_lines:
        return "json_lines", probe.json_lines.method, probe.json_lines.path
    assert probe.http is not None  # the model sees to it that there is one of them
    return "http", probe.http.method, probe.http.path


def _open(load: loads.Open | None) -> OpenLoop | None:
    if load is None:
        return None
    stages = tuple(Stage(rps=stage.rps, seconds=stage.for_, to=stage.to) for stage in load.stages)
    return OpenLoop(stages=stages, arrivals=load.arrivals, max_in_flight=load.max_in_flight)


def _shapes(probe: Probe) -> tuple[Shape, ...]:
    cancel = _cancel(probe.cancel_after)
    base = probe.text
    if base is None:
        plain = probe.sse or probe.json_lines or probe.http
        assert plain is not None
        return (Shape(body=plain.body, headers=probe.headers, cancel_after=cancel),)
    extra: dict[str, object] = {"temperature": base.temperature}
    if probe.openai is not None:
        extra |= {"ignore_eos": probe.openai.ignore_eos, "min_tokens": probe.openai.min_tokens}
    body = {key: value for key, value in extra.items() if value is not None} | base.body
    whole = Shape(
        prompt=base.prompt,
        messages=_messages(base.messages),
        prompts=_prompts(base.prompts, base),
        max_tokens=base.max_tokens,
        body=body or None,
        headers=probe.headers,
        cancel_after=cancel,
    )
    if not probe.mix:
        return (whole,)
    made = []
    for shape in probe.mix:
        least = {} if shape.min_tokens is None else {"min_tokens": shape.min_tokens}
        own = replace(
            whole,
            name=shape.name,
            weight=shape.weight,
            max_tokens=shape.max_tokens or base.max_tokens,
            body=(body | least | shape.body) or None,
            headers=probe.headers | shape.headers,
            cancel_after=_cancel(shape.cancel_after) or cancel,
        )
        if shape.has_text:
            prompts = _prompts(shape.prompts, base)
            own = replace(own, prompt=shape.prompt, messages=_messages(shape.messages), prompts=prompts)
        made.append(own)
    return tuple(made)


def _cancel(cancel: loads.CancelAfter | None) -> CancelAfter | None:
    if cancel is None:
        return None
    return CancelAfter(chunks=cancel.chunks, time=cancel.time, share=cancel.share / 100)


def _prompts(path: str | None, request: TextRequest) -> tuple[Prompt, ...]:
    """Reads the file now. Raises UserError."""
    if path is None:
        return ()
    return tuple(
        Prompt(entry.prompt, None if entry.messages is None else tuple(entry.messages), entry.max_tokens)
        for entry in read_prompts(path, chat=request.is_chat)
    )


def _messages(messages: list[Message] | None) -> tuple[dict[str, object], ...] | None:
    return None if messages is None else tuple(message.model_dump() for message in messages)
