"""What events mean: frames of vLLM, OpenAI, gateways and plain servers."""

from __future__ import annotations

import pytest

from chaosrunner.probes.dialects import Frame, OpenAI, PlainHttp, PlainSse, StreamError
from chaosrunner.probes.sse import Event
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
