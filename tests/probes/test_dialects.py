"""What events mean: frames of vLLM, OpenAI, gateways and plain servers."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from chaosrunner.probes.dialects import Anthropic, Frame, JsonLines, OpenAI, PlainHttp, PlainSse, Responses, StreamError
from chaosrunner.probes.dialects.base import Dialect, read_error
from chaosrunner.probes.framing import Event
from chaosrunner.timeline.rows import Usage


def openai(data: str, name: str = "message") -> Frame:
    return OpenAI().event(Event(data.encode(), name))


@pytest.mark.parametrize(
    ("data", "frame"),
    [
        ('{"choices":[{"index":0,"text":"a","finish_reason":null}]}', Frame(content=True, answer=True)),
        ('{"choices":[{"index":0,"text":"","finish_reason":"length"}]}', Frame(finish="length")),
        ('{"choices":[{"delta":{"role":"assistant","content":""},"finish_reason":null}]}', Frame()),
        ('{"choices":[{"delta":{"role":"assistant","content":null}}]}', Frame()),
        ('{"choices":[{"delta":{"content":"a"}}]}', Frame(content=True, answer=True)),
        ('{"choices":[{"delta":{"reasoning":"hm"}}]}', Frame(content=True)),
        ('{"choices":[{"delta":{"content":null,"reasoning_content":"hm"}}]}', Frame(content=True)),
        ('{"choices":[{"delta":{"tool_calls":[{"index":0}]},"finish_reason":null}]}', Frame(content=True)),
        ('{"choices":[{"delta":{"tool_calls":[]}}]}', Frame()),
        # vllm-project/vllm#35705, NousResearch/hermes-agent#94614: finish_reason inside the last content chunk
        ('{"choices":[{"delta":{"content":"."},"finish_reason":"stop"}]}', Frame(True, True, "stop")),
        # XSpoonAi/spoon-core#179: choices []
        (
            '{"choices":[],"usage":{"prompt_tokens":3,"completion_tokens":2}}',
            Frame(usage=Usage(prompt_tokens=3, completion_tokens=2)),
        ),
        ('{"choices":null,"usage":null}', Frame()),
        ('{"choices":[{"delta":null,"text":null}]}', Frame()),
        ("[DONE]", Frame(done=True)),
        ("", Frame()),
        ("upstream went away", Frame(malformed=True)),
        ("[1]", Frame(malformed=True)),
        ('{"choices":"none"}', Frame(malformed=True)),
        ('{"error":{"message":"m","code":504}}', Frame(error=StreamError("m", 504))),
        ('{"error":{"message":"m","code":"429"}}', Frame(error=StreamError("m", 429))),
        ('{"error":{"message":"m","code":"rate_limit_exceeded"}}', Frame(error=StreamError("m"))),
        ('{"error":"bad input","error_type":"validation"}', Frame(error=StreamError("bad input"))),
        ('{"object":"error","message":"m","code":400}', Frame(error=StreamError("m", 400))),
        ('{"choices":"none","error":{"message":"m"}}', Frame(error=StreamError("m"))),
        ('{"error":{"reason":1}}', Frame(error=StreamError('{"error":{"reason":1}}'))),
        ('{"error":null,"choices":[{"text":"a"}]}', Frame(content=True, answer=True)),
    ],
)  # fmt: skip
def test_openai_events(data: str, frame: Frame) -> None:
    assert openai(data) == frame


def test_error_events() -> None:
    assert openai('{"message":"m","code":500}', "error") == Frame(error=StreamError("m", 500))
    assert openai("engine died", "error") == Frame(error=StreamError("engine died"))
    assert openai("[DONE]", "error").done, "a polite end is one under any event name"
    for dialect in (OpenAI(), Responses(), Anthropic(), PlainSse()):
        assert dialect.event(Event(b"", "error")).error == StreamError(""), "an error that says nothing is one"
        assert dialect.event(Event(b"")) == Frame(), "a blank event is none"
        assert dialect.event(Event(b'{"message":"m","code":500}', "error")).error == StreamError("m", 500)


DIALECTS = [OpenAI(), Anthropic(), Responses(), JsonLines(), PlainSse("end")]


@pytest.mark.parametrize("dialect", DIALECTS)
@pytest.mark.parametrize("name", ["message", "error"])
@pytest.mark.parametrize(
    "start", ['{"error":', '{"x":', '{"choices":[{"finish_reason":', '{"type":"error","error":', ""]
)
def test_no_nesting_breaks_a_reader(dialect: Dialect, name: str, start: str) -> None:
    end = {"[": "]", "{": "}"}
    # Python stops at some depth; what decodes there may be too deep for what follows.
    for depth in (*range(900, 1010), 200_000):
        data = start + "[" * depth + "]" * depth + "".join(end[char] for char in reversed(start) if char in end)
        frame = dialect.event(Event(data.encode(), name))
        dialect.body(data.encode())
    if name == "error" and not isinstance(dialect, JsonLines):
        assert frame == Frame(error=StreamError(data)), "as much as can be said of it"
    elif not isinstance(dialect, PlainSse):
        assert frame == Frame(malformed=True)


@pytest.mark.parametrize("code", ["9" * 5000, "9" * 23, "-5", "7", "0", "10000", "true", '"' + "9" * 5000 + '"', '"²"'])
def test_a_code_that_is_none(code: str) -> None:
    for dialect in (OpenAI(), Anthropic(), Responses(), JsonLines()):
        error = dialect.event(Event(f'{{"type":"error","error":{{"message":"m","code":{code}}}}}'.encode())).error
        assert error is None or error.code is None
    assert read_error(f'{{"message":"m","code":{code}}}'.encode()).code is None


@pytest.mark.parametrize("tokens", [-1, 2**31, 2**63 + 1, 10**30])
def test_a_count_of_tokens_that_is_none(tokens: int) -> None:
    used = {"completion_tokens": tokens, "prompt_tokens": 3}
    newer = {"output_tokens": tokens, "input_tokens": 3}
    for frame in (
        openai(json.dumps({"choices": [], "usage": used})),
        openai(json.dumps({"choices": "none", "usage": used})),
        Anthropic().event(Event(json.dumps({"type": "message_delta", "usage": newer}).encode())),
        Responses().event(Event(json.dumps({"type": "response.completed", "response": {"usage": newer}}).encode())),
    ):
        assert frame.usage == Usage(prompt_tokens=3)
    assert openai(json.dumps({"usage": {"prompt_tokens": tokens, "completion_tokens": 2**31 - 1}})).usage == Usage(
        completion_tokens=2**31 - 1
    )
    assert JsonLines().event(
        Event(json.dumps({"done": True, "response": "a", "eval_count": tokens}).encode())
    ) == Frame(content=True, answer=True, terminal=True)


def test_openai_whole_answers() -> None:
    chat = b'{"choices":[{"message":{"content":"a"},"finish_reason":"stop"}],"usage":{"completion_tokens":1}}'
    assert OpenAI().body(chat) == Frame(True, True, "stop", Usage(completion_tokens=1))
    assert OpenAI().body(b"").malformed
    assert OpenAI().body(b"\xff\xfe").malformed


def test_plain() -> None:
    by_event, by_data = PlainSse(terminal_event="end"), PlainSse(terminal_data="bye")
    assert by_event.event(Event(b"x")) == Frame(content=True, answer=True)
    assert by_event.event(Event(b"x", "end")) == Frame(terminal=True)
    assert by_data.event(Event(b"bye")) == Frame(terminal=True)
    assert by_data.event(Event(b"")) == Frame()
    assert by_event.event(Event(b"lost it", "error")) == Frame(error=StreamError("lost it"))
    assert PlainSse().has_terminal is False
    assert PlainHttp().body(b"").content


def test_whole_answers_of_the_newer_apis() -> None:
    message = {"type": "message", "content": [{"type": "output_text", "text": "a"}]}
    usage = {"input_tokens": 3, "output_tokens": 2, "total_tokens": 5}
    whole = {"object": "response", "status": "completed", "error": None, "output": [message], "usage": usage}
    used = Usage(prompt_tokens=3, completion_tokens=2)
    assert Responses().body(json.dumps(whole).encode()) == Frame(True, True, "completed", used, terminal=True)
    called = whole | {"output": [{"type": "function_call", "arguments": "{}"}]}
    assert Responses().body(json.dumps(called).encode()) == Frame(True, False, "completed", used, terminal=True)
    broken = {"error": {"message": "m", "code": 400}}
    assert Responses().body(json.dumps(broken).encode()) == Frame(error=StreamError("m", 400))
    assert Responses().body(b"<html>").malformed
    assert Responses().body(b"{}").malformed

    block: dict[str, Any] = {"type": "text", "text": "a"}
    whole = {"type": "message", "content": [block], "stop_reason": "max_tokens", "usage": usage}
    assert Anthropic().body(json.dumps(whole).encode()) == Frame(True, True, "max_tokens", used)
    thought = whole | {"content": [{"type": "tool_use", "id": "t", "name": "f", "input": {}}]}
    assert Anthropic().body(json.dumps(thought).encode()) == Frame(True, False, "max_tokens", used)
    assert Anthropic().body(json.dumps(broken | {"type": "error"}).encode()) == Frame(error=StreamError("m", 400))
    assert Anthropic().body(b"{}").malformed
    assert Anthropic().body(b"x").malformed


def test_a_rule_for_the_last_line() -> None:
    def last(dialect: JsonLines, line: str) -> bool:
        return dialect.event(Event(line.encode())).terminal

    by_fields = JsonLines({"event": "end", "ok": True})
    assert last(by_fields, '{"ok":true,"event":"end","took":3}')
    assert not last(by_fields, '{"event":"end"}')
    assert not last(by_fields, '{"event":"end","ok":false}')
    by_text = JsonLines(None, "[DONE]")
    assert last(by_text, "[DONE]")
    assert by_text.event(Event(b"{}")) == Frame(content=True, answer=True), "of no make that we know: content"
    assert by_text.event(Event(b"1")) == Frame(content=True, answer=True)
    assert by_text.event(Event(b"{")).malformed
    assert JsonLines(None).has_terminal is False
    assert JsonLines().body(b'{"response":"a","done":true,"done_reason":"stop"}\n') == Frame(
        True, True, "stop", terminal=True
    )
    assert JsonLines().body(b" ") == Frame()


# --- the quick reading against a plain one ------------------------------------------------------------------

PIECES: dict[str, Any] = {
    "content": st.sampled_from([None, "", "a", "ü€😀", 'quote " and \\', 0, 1, [], ["x"], {}]),
    "reasoning_content": st.sampled_from([None, "", "hm"]),
    "reasoning": st.sampled_from([None, "", "hm"]),
    "refusal": st.sampled_from([None, "", "no"]),
    "tool_calls": st.sampled_from([None, [], [{"index": 0}]]),
    "role": st.just("assistant"),
}
DELTAS = st.none() | st.fixed_dictionaries({}, optional=PIECES)
CHOICES = st.fixed_dictionaries(
    {},
    optional={
        "index": st.sampled_from([None, 0, 0, 1]),
        "text": st.sampled_from([None, "", "a"]),
        "delta": DELTAS,
        "message": DELTAS,
        "finish_reason": st.sampled_from([None, None, "", "stop", "abort", "error", {"type": "length"}]),
        "logprobs": st.none(),
    },
)
CHUNKS = st.fixed_dictionaries(
    {},
    optional={
        "id": st.just("x"),
        "object": st.sampled_from(["chat.completion.chunk", "error", None]),
        "choices": st.none() | st.lists(CHOICES, max_size=1) | st.lists(CHOICES, max_size=3),
        "usage": st.sampled_from([None, {"completion_tokens": 2}, {"prompt_tokens": 1, "completion_tokens": 0}]),
        "error": st.sampled_from([None, None, "", "bad", {}, {"message": "m", "code": 500}]),
        "message": st.just("said beside"),
    },
)


def plainly(chunk: dict[str, Any]) -> Frame:
    """What a chunk says, by the rules and nothing else."""
    choices = chunk.get("choices") or []
    if (
        chunk.get("object") == "error"
        or chunk.get("error")
        or (chunk.get("error") is not None and not chunk.get("choices"))
    ):
        return Frame(error=read_error(json.dumps(chunk).encode()))
    content = answer = False
    finish: str | None = None
    for choice in choices:
        message = choice["delta"] if choice.get("delta") is not None else choice.get("message") or {}
        answer |= bool(choice.get("text") or message.get("content") or message.get("refusal"))
        content |= any(message.get(name) for name in ("reasoning", "reasoning_content", "tool_calls"))
        if finish not in ("abort", "error"):
            finish = ended(choice) or finish
    several = len(choices) > 1 or any(choice.get("index") for choice in choices)
    used = chunk.get("usage")
    return Frame(
        content=content or answer,
        answer=answer,
        finish=finish,
        usage=None if used is None else Usage(**used),
        choices=tuple((choice.get("index") or 0, ended(choice)) for choice in choices) if several else (),
    )


def ended(choice: dict[str, Any]) -> str | None:
    reason = choice.get("finish_reason")
    return (reason["type"] if isinstance(reason, dict) else reason) or None


@given(CHUNKS, st.booleans(), st.booleans())
@settings(max_examples=400)
def test_the_quick_reading_loses_nothing(chunk: dict[str, Any], ascii_only: bool, spaced: bool) -> None:
    written = json.dumps(chunk, ensure_ascii=ascii_only, separators=None if spaced else (",", ":"))
    assert openai(written) == plainly(chunk)
