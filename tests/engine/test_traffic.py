"""From a probe of a playbook to what the probes room sends and how it reads the answers."""

from __future__ import annotations

from typing import Any

import pytest

from chaosrunner.engine.traffic import spec_of
from chaosrunner.playbook.endpoint import Endpoint
from chaosrunner.playbook.probe import Probe
from chaosrunner.probes import ProbeSpec
from chaosrunner.probes.dialects import Anthropic, JsonLines, OpenAI, PlainHttp, PlainSse, Responses

ENDPOINT = Endpoint.model_validate({"url": "http://127.0.0.1:1", "model": "tiny"})


def made(**what: Any) -> ProbeSpec:
    return spec_of(Probe.model_validate({"name": "p", **what}), ENDPOINT, seed="s")


@pytest.mark.parametrize(
    ("what", "dialect", "path", "reader", "model"),
    [
        ({"openai": {"prompt": "x"}}, "completions", None, OpenAI, "tiny"),
        ({"openai": {"api": "chat", "prompt": "x", "model": "big"}}, "chat", None, OpenAI, "big"),
        ({"openai": {"api": "responses", "prompt": "x"}}, "responses", None, Responses, "tiny"),
        ({"anthropic": {"prompt": "x"}}, "messages", None, Anthropic, "tiny"),
        ({"sse": {"path": "/events"}}, "sse", "/events", PlainSse, None),
        ({"json_lines": {"path": "/api/chat", "body": {}}}, "json_lines", "/api/chat", JsonLines, None),
        ({"http": {"path": "/health"}}, "http", "/health", PlainHttp, None),
    ],
)  # fmt: skip
def test_each_kind_of_probe_has_its_dialect(
    what: dict[str, Any], dialect: str, path: str | None, reader: type, model: str | None
) -> None:
    spec = made(**what)
    assert (spec.dialect, spec.path, spec.model) == (dialect, path, model)
    assert isinstance(spec.make_dialect(), reader)
    assert spec.streams == (dialect != "http")


def test_a_rule_for_the_last_line() -> None:
    lines = {"path": "/", "body": {}}
    assert made(json_lines=lines).terminal_fields == {"done": True}
    by_text = made(json_lines={**lines, "terminal": {"data": "bye"}})
    assert (by_text.terminal_fields, by_text.terminal_data) == (None, "bye")
    by_end = made(json_lines={**lines, "terminal": {"eof": True}})
    assert by_end.make_dialect().has_terminal is False


def test_a_mix_of_messages() -> None:
    mix = [
        {"name": "short", "prompt": "a", "max_tokens": 8},
        {"name": "long", "messages": [{"role": "user", "content": "b"}]},
    ]
    short, long = made(anthropic={"temperature": 0, "max_tokens": 64}, mix=mix).shapes
    assert (short.prompt, short.max_tokens, long.max_tokens) == ("a", 8, 64)
    assert long.messages is not None
    assert short.body == long.body == {"temperature": 0}
