"""Reads and checks the body of a generation request, with vLLM's own words for what is wrong."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

from chaosrunner.lab.workload import frames

_PIECE = 8
"""A word counts as one token for each so many characters: near enough to a tokenizer for the lab."""


class Refused(Exception):
    """A request that is answered with an error."""

    def __init__(self, status: int, body: bytes) -> None:
        super().__init__(status)
        self.status = status
        self.body = body


@dataclass(frozen=True)
class Generation:
    """A valid request."""

    chat: bool
    prompt: str
    prompt_tokens: int
    max_tokens: int
    stream: bool
    ignore_eos: bool
    seed: int | None
    include_usage: bool
    continuous_usage: bool


def _bad(message: str, parameter: str, value: Any) -> Refused:
    text = f"{message} (parameter={parameter}, value={value})"
    return Refused(400, frames.error_body(text, "BadRequestError", parameter, 400))


def _invalid(kind: str, place: str, message: str, input_: str, extra: str = "") -> Refused:
    where = f"body.{place}"
    text = (
        f"1 validation error:\n  {{'type': '{kind}', 'loc': '{where}', 'msg': '{message}', 'input': {input_}{extra}}}"
    )
    return Refused(400, frames.error_body(text, "Bad Request", where, 400))


def _integer(body: dict[str, Any], name: str) -> int | None:
    value = body.get(name)
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int):
        raise _invalid("int_type", name, "Input should be a valid integer", repr(value)[:80])
    return value


def _flag(body: dict[str, Any], name: str) -> bool:
    value = body.get(name)
    if value is None:
        return False
    if not isinstance(value, bool):
        raise _invalid("bool_type", name, "Input should be a valid boolean", repr(value)[:80])
    return value


def count_tokens(text: str) -> int:
    """Tokens of a text without the one that begins every prompt."""
    return sum(-(-len(word) // _PIECE) for word in text.split())


def _completion_prompt(body: dict[str, Any]) -> tuple[str, int]:
    prompt = body["prompt"]
    if isinstance(prompt, list) and len(prompt) == 1 and isinstance(prompt[0], str):
        prompt = prompt[0]
    if isinstance(prompt, str):
        return prompt, 1 + count_tokens(prompt)
    if isinstance(prompt, list) and prompt and all(isinstance(token, int) for token in prompt):
        return ",".join(map(str, prompt)), len(prompt)
    raise _invalid("string_type", "prompt", "Input should be a valid string", f"<{type(prompt).__name__}>")


def _chat_prompt(body: dict[str, Any]) -> tuple[str, int]:
    messages = body["messages"]
    if not isinstance(messages, list) or not messages or not all(isinstance(message, dict) for message in messages):
        raise _invalid("list_type", "messages", "Input should be a valid list", f"<{type(messages).__name__}>")
    texts = []
    for message in messages:
        content = message.get("content") or ""
        if isinstance(content, list):
            content = " ".join(str(part.get("text", "")) for part in content if isinstance(part, dict))
        texts.append(str(content))
    # A chat template adds a fixed preamble and a frame around each message.
    return "\n".join(texts), 10 + sum(8 + count_tokens(text) for text in texts)


def read(body: bytes, *, chat: bool, model: str, max_model_len: int) -> Generation:
    """Check a request's body in vLLM's order; raises Refused with the answer to send."""
    try:
        values = json.loads(body)
    except json.JSONDecodeError as error:
        reason = error.msg.split(":")[0]
        extra = f", 'ctx': {{'error': '{reason}'}}"
        raise _invalid("json_invalid", str(error.pos), "JSON decode error", "'<dict of 0 items>'", extra) from None
    except UnicodeDecodeError:
        raise Refused(400, frames.error_body("There was an error parsing the body", "Bad Request", None, 400)) from None
    if not isinstance(values, dict):
        raise _invalid("model_attributes_type", "", "Input should be a valid dictionary", f"<{type(values).__name__}>")
    if (needed := "messages" if chat else "prompt") not in values:
        raise _invalid("missing", needed, "Field required", f"'<dict of {len(values)} items>'")
    max_tokens = _integer(values, "max_tokens")
    if chat and max_tokens is None:
        max_tokens = _integer(values, "max_completion_tokens")
    stream, ignore_eos = _flag(values, "stream"), _flag(values, "ignore_eos")
    seed, n = _integer(values, "seed"), _integer(values, "n")
    options = values.get("stream_options") or {}
    if not isinstance(options, dict):
        raise _invalid("dict_type", "stream_options", "Input should be a valid dictionary", repr(options)[:80])

    if (asked := values.get("model")) not in (None, model):
        text = f"The model `{asked}` does not exist. Valid aliases: {model}."
        raise Refused(404, frames.error_body(text, "NotFoundError", "model", 404))
    if n not in (None, 1):
        raise _bad(f"n must be 1 on this server, got {n}.", "n", n)
    if max_tokens is not None and max_tokens < 1:
        raise _bad(f"max_tokens must be at least 1, got {max_tokens}.", "max_tokens", max_tokens)
    if max_tokens is not None and max_tokens > max_model_len:
        text = f"max_tokens={max_tokens} cannot be greater than max_model_len={max_model_len}."
        raise _bad(f"{text} Please request fewer output tokens.", "max_tokens", max_tokens)
    prompt, prompt_tokens = _chat_prompt(values) if chat else _completion_prompt(values)
    if prompt_tokens >= max_model_len:
        # The server stops counting one past its limit.
        counted = min(prompt_tokens, max_model_len + 1)
        text = (
            f"This model's maximum context length is {max_model_len} tokens. However, your prompt contains at least "
            f"{counted} input tokens, which exceeds this limit even without any output tokens. "
            "Please reduce the length of the input prompt."
        )
        raise _bad(text, "input_tokens", counted)
    room = max_model_len - prompt_tokens
    default = room if chat else 16
    return Generation(
        chat=chat,
        prompt=prompt,
        prompt_tokens=prompt_tokens,
        max_tokens=min(max_tokens or default, room),
        stream=stream,
        ignore_eos=ignore_eos,
        seed=seed,
        include_usage=bool(stream and options.get("include_usage")),
        continuous_usage=bool(stream and options.get("include_usage") and options.get("continuous_usage_stats")),
    )
