"""What is sent: shapes, placeholders, unique prompts; and that a spec crosses a process border."""

from __future__ import annotations

import pickle
from collections import Counter
from dataclasses import replace
from typing import Any

import msgspec
import pytest

from chaosrunner.errors import UserError
from chaosrunner.probes import Overrides, ProbeSpec, Shape
from chaosrunner.probes.maker import RequestMaker
from chaosrunner.probes.spec import CancelAfter, OpenLoop, Prompt, Stage

SPEC = ProbeSpec(name="chat", url="http://127.0.0.1:1", model="tiny", seed="run-1")


def bodies(count: int, **changes: Any) -> list[dict[str, Any]]:
    maker = RequestMaker(replace(SPEC, **changes))
    return [msgspec.json.decode(maker.make(number, worker=3).content or b"") for number in range(1, count + 1)]


def test_completions() -> None:
    planned = RequestMaker(SPEC).make(1)
    body = msgspec.json.decode(planned.content or b"")
    nonce = body.pop("prompt").removeprefix("Count from ").removesuffix(".")
    assert len(nonce) == 12
    assert body == {"model": "tiny", "max_tokens": 128, "stream": True, "stream_options": {"include_usage": True}}
    assert (planned.id, planned.method, planned.path) == ("chat-1", "POST", "/v1/completions")
    assert planned.headers == {"accept": "text/event-stream", "content-type": "application/json"}


def test_chat_with_placeholders() -> None:
    shape = Shape(messages=({"role": "user", "content": [{"text": "{{ request }} {{probe}} {{ worker }} {{nonce}}"}]},))
    (body,) = bodies(1, dialect="chat", shapes=(shape,), stream=False)
    text = body["messages"][0]["content"][0]["text"]
    assert text.startswith("chat-1 chat 3 ")
    assert body["stream"] is False
    assert "stream_options" not in body


def test_responses_and_messages() -> None:
    """Each API has its own names for prompt and length, and its own headers."""
    made = {}
    for dialect in ("responses", "messages"):
        maker = RequestMaker(replace(SPEC, dialect=dialect, shapes=(Shape(prompt="hi {{ nonce }}", max_tokens=9),)))
        planned = maker.make(1)
        body = msgspec.json.decode(planned.content or b"")
        made[dialect] = (planned.path, body | {"input": None} if dialect == "responses" else body)
        text = body["input"] if dialect == "responses" else body["messages"][0]["content"]
        assert text.startswith("hi ")
        assert len(text) == 15
        assert planned.headers.get("anthropic-version") == ("2023-06-01" if dialect == "messages" else None)
    assert made["responses"] == (
        "/v1/responses",
        {"model": "tiny", "input": None, "max_output_tokens": 9, "stream": True},
    )
    path, body = made["messages"]
    assert path == "/v1/messages"
    assert set(body) == {"model", "messages", "max_tokens", "stream"}
    messages = Shape(messages=({"role": "user", "content": "hi"},))
    (asked,) = bodies(1, dialect="responses", shapes=(messages,))
    assert asked["input"][0]["role"] == "user"
    for dialect in ("responses", "messages"):
        with pytest.raises(UserError, match="fixed length"):
            replace(SPEC, dialect=dialect, fixed_length=True)


def test_json_lines() -> None:
    body = {"model": "gemma3", "prompt": "Count from {{ nonce }}."}
    planned = RequestMaker(replace(SPEC, dialect="json_lines", path="/api/generate", shapes=(Shape(body=body),))).make(
        1
    )
    assert (planned.method, planned.path) == ("POST", "/api/generate")
    assert planned.headers == {"accept": "application/x-ndjson", "content-type": "application/json"}
    assert set(msgspec.json.decode(planned.content or b"")) == {"model", "prompt"}, (
        "nothing is added to a body of one's own"
    )


def test_every_prompt_is_unique_and_the_same_again_for_the_same_seed() -> None:
    def prompts(**changes: Any) -> list[str]:
        return [body["prompt"] for body in bodies(50, shapes=(Shape(prompt="no placeholder"),), **changes)]

    first = prompts()
    assert len(set(first)) == 50
    assert all(prompt.endswith(" no placeholder") for prompt in first), "the nonce is in front: prefixes differ"
    assert prompts() == first
    assert not set(prompts(seed="run-2")) & set(first)
    system = Shape(messages=({"role": "system", "content": "be brief"}, {"role": "user", "content": "hi"}))
    messages = bodies(1, dialect="chat", shapes=(system,))[0]["messages"]
    assert messages[0]["content"].endswith(" be brief")
    assert messages[1]["content"] == "hi"


def test_a_fixed_length_is_asked_for_and_expected() -> None:
    planned = RequestMaker(replace(SPEC, fixed_length=True)).make(1)
    body = msgspec.json.decode(planned.content or b"")
    assert (body["ignore_eos"], body["min_tokens"], body["max_tokens"]) == (True, 128, 128)
    assert planned.expected_tokens == 128
    assert RequestMaker(SPEC).make(1).expected_tokens is None


def test_the_body_is_merged_over_the_rest() -> None:
    (body,) = bodies(1, shapes=(Shape(prompt="x", body={"temperature": 0.5, "stream": False, "user": "{{ probe }}"}),))
    assert (body["temperature"], body["stream"], body["user"]) == (0.5, False, "chat")


def test_shapes_are_drawn_by_weight() -> None:
    shapes = (Shape("short", weight=3, prompt="s"), Shape("long", weight=1, prompt="l"))
    maker = RequestMaker(replace(SPEC, shapes=shapes))
    drawn = Counter(maker.make(number).shape.name for number in range(1, 2001))
    assert 1400 < drawn["short"] < 1600


def test_headers_of_a_shape() -> None:
    shape = Shape(prompt="x", headers={"X-Tenant": "t-{{ worker }}", "x-request-id": "{{request}}", "accept": "*/*"})
    maker = RequestMaker(replace(SPEC, shapes=(shape,)))
    assert dict(maker.make(7, worker=3).headers) == {
        "accept": "*/*", "content-type": "application/json", "x-tenant": "t-3", "x-request-id": "chat-7",
    }  # fmt: skip
    fixed = RequestMaker(replace(SPEC, shapes=(Shape(prompt="x", headers={"a": "b"}),)))
    assert fixed.make(1).headers is fixed.make(2).headers


def test_prompts_are_taken_in_turn() -> None:
    prompts = (Prompt("100 % of {{ user }}", max_tokens=5), Prompt("b {{ nonce }}"), Prompt("c"))
    shape = Shape(prompts=prompts, max_tokens=9)
    found = bodies(6, shapes=(shape,), unique=False)
    assert [body["max_tokens"] for body in found] == [5, 9, 9] * 2
    assert [body["prompt"] for body in found[::3]] == ["100 % of {{ user }}"] * 2
    assert found[1]["prompt"] != found[4]["prompt"]
    assert found[2]["prompt"] == "c"
    assert bodies(1, shapes=(shape,))[0]["prompt"].endswith(" 100 % of {{ user }}")
    fixed = RequestMaker(replace(SPEC, shapes=(shape,), fixed_length=True))
    assert [fixed.make(number).expected_tokens for number in (1, 2)] == [5, 9]


def test_a_share_is_cancelled_and_pauses_differ() -> None:
    cancel = CancelAfter(chunks=3, share=0.25)
    spec = replace(SPEC, shapes=(Shape(prompt="x", cancel_after=cancel),), pause=1.0, jitter=0.5)
    planned = [RequestMaker(spec).make(number) for number in range(1, 1001)]
    cancelled = [one for one in planned if one.cancel_after is not None]
    assert 200 < len(cancelled) < 300
    assert {one.cancel_after for one in cancelled} == {cancel}
    pauses = [one.pause for one in planned]
    assert 0.5 <= min(pauses) < 0.51
    assert 1.49 < max(pauses) < 1.5
    assert spec.with_overrides(Overrides()).shapes[0].cancel_after is None


def test_plain_requests() -> None:
    def make(**changes: Any) -> Any:
        return RequestMaker(replace(SPEC, dialect="http", **changes)).make(1)

    get = make(shapes=(Shape(),), path="/health")
    assert (get.method, get.path, get.content, get.headers) == ("GET", "/health", None, {"accept": "*/*"})
    text = make(shapes=(Shape(body="n={{ worker }}"),), method="PUT")
    assert (text.method, text.content, text.headers) == ("PUT", b"n=0", {"accept": "*/*"})
    assert make(shapes=(Shape(body={"a": 1}),)).content == b'{"a":1}'


def test_overrides() -> None:
    spec = replace(SPEC, shapes=(Shape("a", prompt="x", max_tokens=5), Shape("b", prompt="y")))
    single = spec.with_overrides(Overrides(max_tokens=9000))
    assert single.shapes == (Shape("a", prompt="x", max_tokens=9000),)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"concurrency": 0}, "concurrency"),
        ({"shapes": ()}, "shape"),
        ({"open": OpenLoop((Stage(0, 1),))}, "rate above 0"),
        ({"open": OpenLoop((Stage(1, 0),))}, "duration above 0"),
        ({"open": OpenLoop((Stage(1, 1),), max_in_flight=0)}, "max_in_flight"),
        ({"name": 'a"b'}, "a name has"),
        ({"shapes": (Shape(headers={"a": "{{ tenant }}"}),)}, "tenant"),
        ({"shapes": (Shape(weight=0),)}, "weight"),
        ({"shapes": (Shape(prompt="{{ nonse }}"),)}, "nonse.*nonce"),
        ({"shapes": (Shape(body={"a": [{"b": "{{ x }}"}]}),)}, "unknown"),
        ({"shapes": (Shape(prompt="x"),), "fixed_length": True}, "max_tokens"),
        ({"shapes": (Shape(body="x"),)}, "mapping"),
    ],
)
def test_parts_that_do_not_fit(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError, match=message):
        replace(SPEC, **changes)


def test_plain_data() -> None:
    spec = replace(SPEC, api_key="sk-1", headers={"authorization": "Basic x"})
    assert pickle.loads(pickle.dumps(spec)) == spec
    assert "sk-1" not in repr(spec)
    assert "Basic x" not in repr(spec)
