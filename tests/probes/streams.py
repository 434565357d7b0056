"""Streams of every dialect as real servers send them: how they end well, and how they do not.

Shapes of the events: OpenAI Responses and its errors from developers.openai.com/api/reference/resources/responses/
streaming-events; vLLM's from vllm/entrypoints/openai/responses/serving.py and vllm/entrypoints/anthropic/serving.py;
Anthropic's from platform.claude.com/docs/en/build-with-claude/streaming; Ollama's from docs.ollama.com/api/streaming
and /api/errors.
"""

from __future__ import annotations

import json
from typing import Any, NamedTuple

from chaosrunner.probes.dialects import Anthropic, Dialect, JsonLines, OpenAI, PlainSse, Responses
from chaosrunner.probes.spec import DialectName
from chaosrunner.timeline.outcomes import Outcome

TEXT = ("Grüße", " €", " 😀")


class Stream(NamedTuple):
    """One body, and what is right about it."""

    name: str
    dialect: DialectName
    body: bytes
    outcome: Outcome
    chunks: int
    """Events with content."""
    tokens: int | None = None
    finish: str | None = None
    error: str | None = None
    """How the row's error text begins."""

    @property
    def content_type(self) -> str:
        return "application/x-ndjson" if self.dialect == "json_lines" else "text/event-stream; charset=utf-8"


def dialect_of(name: DialectName) -> Dialect:
    made: dict[DialectName, Dialect] = {
        "completions": OpenAI(), "chat": OpenAI(), "responses": Responses(), "messages": Anthropic(),
        "sse": PlainSse(terminal_event="end"), "json_lines": JsonLines(),
    }  # fmt: skip
    return made[name]


def _json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))


def data(*values: Any) -> str:
    return "".join(f"data: {value if isinstance(value, str) else _json(value)}\n\n" for value in values)


# --- OpenAI chat ------------------------------------------------------------------------------------------


def chat(delta: dict[str, Any], finish: str | None = None, **more: Any) -> dict[str, Any]:
    choice = {"index": 0, "delta": delta, "logprobs": None, "finish_reason": finish}
    head = {"id": "chatcmpl-8f", "object": "chat.completion.chunk", "created": 1764460000, "model": "m"}
    return {**head, "choices": [choice], **more}


def chat_usage(tokens: int) -> dict[str, Any]:
    return {"id": "chatcmpl-8f", "object": "chat.completion.chunk", "choices": [], "usage": usage(tokens)}


def usage(tokens: int) -> dict[str, int]:
    return {"prompt_tokens": 7, "total_tokens": 7 + tokens, "completion_tokens": tokens}


ROLE = chat({"role": "assistant", "content": ""})
WORDS = [chat({"content": word}) for word in TEXT]
THINKING = [chat({"reasoning_content": word}) for word in TEXT[:2]]
CALL = [
    chat(
        {"tool_calls": [{"index": 0, "id": "call_1", "type": "function", "function": {"name": "f", "arguments": ""}}]}
    ),
    chat({"tool_calls": [{"index": 0, "function": {"arguments": '{"x":'}}]}),
    chat({"tool_calls": [{"index": 0, "function": {"arguments": "1}"}}]}),
]
ENGINE_DIED = {"error": {"message": "EngineCore encountered an issue", "type": "InternalServerError", "code": 500}}
EVERY_USAGE = [{**word, "usage": usage(number)} for number, word in enumerate(WORDS, 1)]
TWO = [
    {"choices": [{"index": index, "delta": {"content": word}, "finish_reason": None}]}
    for index in (0, 1)
    for word in TEXT
]


def ended(index: int, finish: str = "stop") -> dict[str, Any]:
    return {"choices": [{"index": index, "delta": {}, "finish_reason": finish}]}


def _chat(name: str, body: str, outcome: Outcome, chunks: int, *rest: Any) -> Stream:
    return Stream(f"chat: {name}", "chat", body.encode(), outcome, chunks, *rest)


CHAT = [
    _chat("good", data(ROLE, *WORDS, chat({}, "stop"), chat_usage(3), "[DONE]"), Outcome.COMPLETE, 3, 3, "stop"),
    _chat("at its length, in the last word", data(ROLE, WORDS[0], chat({"content": "x"}, "length"), chat_usage(2),
          "[DONE]"), Outcome.COMPLETE, 2, 2, "length"),
    _chat("reasoning first", data(ROLE, *THINKING, *WORDS, chat({}, "stop"), chat_usage(5), "[DONE]"),
          Outcome.COMPLETE, 5, 5, "stop"),
    _chat("a tool call", data(ROLE, *CALL, chat({}, "tool_calls"), chat_usage(9), "[DONE]"),
          Outcome.COMPLETE, 3, 9, "tool_calls"),
    _chat("usage in every chunk", data(*EVERY_USAGE, chat({}, "stop"), chat_usage(3), "[DONE]"),
          Outcome.COMPLETE, 3, 3, "stop"),
    _chat("refusal", data(ROLE, chat({"refusal": "No."}), chat({}, "content_filter"), chat_usage(1), "[DONE]"),
          Outcome.COMPLETE, 1, 1, "content_filter"),
    _chat("keep-alives", ": ping\n\n" + data(ROLE) + ": ping\n\n\n" + data(*WORDS[:1]) + "data:\n\n"
          + data(*WORDS[1:], chat({}, "stop"), chat_usage(3), "[DONE]"), Outcome.COMPLETE, 3, 3, "stop"),
    _chat("two choices", data(*TWO, ended(0), ended(1), chat_usage(6), "[DONE]"), Outcome.COMPLETE, 6, 6, "stop"),
    _chat("one choice of two", data(*TWO, ended(0), chat_usage(6), "[DONE]"), Outcome.UNTERMINATED_STREAM, 6, 6, "stop",
          "no finish_reason for choice 1"),
    _chat("truncated", data(ROLE, *WORDS), Outcome.UNTERMINATED_STREAM, 3, None, None, "no finish_reason"),
    _chat("truncated within an event", data(ROLE, *WORDS)[:-9], Outcome.UNTERMINATED_STREAM, 2, None, None,
          "no finish_reason"),
    _chat("aborted", data(ROLE, *WORDS, chat({}, "abort"), chat_usage(3), "[DONE]"), Outcome.ABORTED, 3, 3, "abort",
          "finish_reason abort"),
    _chat("error inside", data(ROLE, *WORDS, ENGINE_DIED, "[DONE]"), Outcome.ERROR_IN_STREAM, 3, None, None,
          "EngineCore encountered an issue"),
    _chat("error at once", data(ENGINE_DIED, "[DONE]"), Outcome.ERROR_IN_STREAM, 0, None, None, "EngineCore"),
    _chat("error event", data(ROLE, WORDS[0]) + "event: error\ndata: upstream went away\n\n", Outcome.ERROR_IN_STREAM,
          1, None, None, "upstream went away"),
]  # fmt: skip


# --- OpenAI Responses -------------------------------------------------------------------------------------


def named(*events: dict[str, Any]) -> str:
    return "".join(f"event: {event['type']}\ndata: {_json(event)}\n\n" for event in events)


def response(status: str, tokens: int | None = None, **more: Any) -> dict[str, Any]:
    counted = None if tokens is None else {"input_tokens": 7, "output_tokens": tokens, "total_tokens": 7 + tokens}
    base = {"id": "resp_1", "object": "response", "created_at": 1764460000, "status": status, "error": None}
    return {**base, "incomplete_details": None, "model": "m", "output": [], "usage": counted, **more}


def delta(kind: str, text: str) -> dict[str, Any]:
    return {"type": f"response.{kind}.delta", "item_id": "msg_1", "output_index": 0, "content_index": 0, "delta": text,
            "logprobs": [], "sequence_number": 4}  # fmt: skip


def end(kind: str, inner: dict[str, Any]) -> dict[str, Any]:
    return {"type": f"response.{kind}", "response": inner, "sequence_number": 9}


BEGIN = [
    end("created", response("in_progress")),
    end("in_progress", response("in_progress")),
    {
        "type": "response.output_item.added",
        "output_index": 0,
        "item": {"id": "msg_1", "type": "message", "content": []},
    },
    {"type": "response.content_part.added", "item_id": "msg_1", "part": {"type": "output_text", "text": ""}},
]
DELTAS = [delta("output_text", word) for word in TEXT]
FINISHED = [
    {"type": "response.output_text.done", "item_id": "msg_1", "text": "".join(TEXT), "logprobs": []},
    {"type": "response.output_item.done", "output_index": 0, "item": {"id": "msg_1", "type": "message"}},
]
AT_LENGTH = {"incomplete_details": {"reason": "max_output_tokens"}}
FAILED = response("failed", error={"code": "server_error", "message": "The model failed to generate a response."})


def _responses(name: str, body: str, outcome: Outcome, chunks: int, *rest: Any) -> Stream:
    return Stream(f"responses: {name}", "responses", body.encode(), outcome, chunks, *rest)


RESPONSES = [
    _responses("good", named(*BEGIN, *DELTAS, *FINISHED, end("completed", response("completed", 3))),
               Outcome.COMPLETE, 3, 3, "completed"),
    _responses("reasoning and a call", named(*BEGIN, delta("reasoning_text", "hm"),
               delta("reasoning_summary_text", "hm"), delta("function_call_arguments", '{"x":1}'),
               end("completed", response("completed", 9))), Outcome.COMPLETE, 3, 9, "completed"),
    _responses("at its length", named(*BEGIN, *DELTAS, end("incomplete", response("incomplete", 3, **AT_LENGTH))),
               Outcome.COMPLETE, 3, 3, "max_output_tokens"),
    # vLLM has one last event for all ends; the status in it tells them apart.
    _responses("at its length, from vLLM", named(*BEGIN, *DELTAS, delta("output_text", ""),
               end("completed", response("incomplete", 3, **AT_LENGTH))), Outcome.COMPLETE, 3, 3, "max_output_tokens"),
    _responses("aborted by vLLM", named(*BEGIN, *DELTAS, end("completed", response("cancelled", 3))),
               Outcome.ABORTED, 3, 3, "cancelled", "finish_reason cancelled"),
    _responses("refusal", named(*BEGIN, delta("refusal", "No."), end("completed", response("completed", 1))),
               Outcome.COMPLETE, 1, 1, "completed"),
    _responses("filtered", named(*BEGIN, *DELTAS, end("incomplete", response("incomplete", 3,
               incomplete_details={"reason": "content_filter"}))), Outcome.COMPLETE, 3, 3, "content_filter"),
    _responses("keep-alives", ": keepalive\n\n" + named(*BEGIN, *DELTAS[:1]) + ": keepalive\n\n"
               + named({"type": "keepalive", "sequence_number": 6}, *DELTAS[1:],
               end("completed", response("completed", 3))), Outcome.COMPLETE, 3, 3, "completed"),
    _responses("truncated", named(*BEGIN, *DELTAS), Outcome.UNTERMINATED_STREAM, 3, None, None, "no finish_reason"),
    _responses("all said but the end", named(*BEGIN, *DELTAS, *FINISHED), Outcome.UNTERMINATED_STREAM, 3, None, None,
               "no finish_reason"),
    _responses("failed", named(*BEGIN, *DELTAS, end("failed", FAILED)), Outcome.ERROR_IN_STREAM, 3, None, None,
               "The model failed to generate a response."),
    _responses("error event", named(*BEGIN, DELTAS[0], {"type": "error", "code": "ERR_SOMETHING", "message": "gone",
               "param": None, "sequence_number": 5}), Outcome.ERROR_IN_STREAM, 1, None, None, "gone"),
    _responses("error object of a gateway", named(*BEGIN, DELTAS[0]) + data(ENGINE_DIED, "[DONE]"),
               Outcome.ERROR_IN_STREAM, 1, None, None, "EngineCore"),
]  # fmt: skip


# --- Anthropic Messages -----------------------------------------------------------------------------------

START = {"type": "message_start", "message": {
    "id": "msg_1", "type": "message", "role": "assistant", "content": [], "model": "m", "stop_reason": None,
    "stop_sequence": None, "usage": {"input_tokens": 3, "cache_read_input_tokens": 4, "output_tokens": 1}}}  # fmt: skip
PING = {"type": "ping"}


def block(kind: str, index: int = 0, **more: Any) -> dict[str, Any]:
    return {"type": "content_block_start", "index": index, "content_block": {"type": kind, **more}}


def part(kind: str, **more: Any) -> dict[str, Any]:
    return {"type": "content_block_delta", "index": 0, "delta": {"type": kind, **more}}


def stopped(reason: str | None, tokens: int) -> tuple[dict[str, Any], ...]:
    last = {"stop_reason": reason, "stop_sequence": None}
    return {"type": "message_delta", "delta": last, "usage": {"output_tokens": tokens}}, {"type": "message_stop"}


PARTS = [block("text", text=""), *(part("text_delta", text=word) for word in TEXT),
         {"type": "content_block_stop", "index": 0}]  # fmt: skip
THOUGHTS = [block("thinking", thinking="", signature=""), part("thinking_delta", thinking="hm"),
            part("signature_delta", signature="EqQB"), {"type": "content_block_stop", "index": 0}]  # fmt: skip
TOOL = [block("tool_use", id="toolu_1", name="f", input={}), part("input_json_delta", partial_json=""),
        part("input_json_delta", partial_json='{"x": 1}'), {"type": "content_block_stop", "index": 0}]  # fmt: skip
OVERLOADED = {"type": "error", "error": {"type": "overloaded_error", "message": "Overloaded"}, "request_id": None}
VLLM_DIED = {"type": "error", "error": {"type": "internal_error", "message": "1 validation error"}}


def _messages(name: str, body: str, outcome: Outcome, chunks: int, *rest: Any) -> Stream:
    return Stream(f"messages: {name}", "messages", body.encode(), outcome, chunks, *rest)


MESSAGES = [
    _messages("good", named(START, PING, *PARTS, *stopped("end_turn", 15)), Outcome.COMPLETE, 3, 15, "end_turn"),
    _messages("good, from vLLM", named(START, *PARTS, *stopped("end_turn", 15)) + data("[DONE]"),
              Outcome.COMPLETE, 3, 15, "end_turn"),
    _messages("thinking, then a tool", named(START, *THOUGHTS, *TOOL, *stopped("tool_use", 30)),
              Outcome.COMPLETE, 3, 30, "tool_use"),
    _messages("at its length", named(START, *PARTS, *stopped("max_tokens", 3)), Outcome.COMPLETE, 3, 3, "max_tokens"),
    _messages("refusal", named(START, *PARTS, *stopped("refusal", 3)), Outcome.COMPLETE, 3, 3, "refusal"),
    _messages("keep-alives", named(START, PING, *PARTS[:2], PING) + ": ping\n\n" + named(PING, *PARTS[2:],
              *stopped("end_turn", 3)), Outcome.COMPLETE, 3, 3, "end_turn"),
    _messages("an event nobody knows yet", named(START, {"type": "mood"}, *PARTS, *stopped("end_turn", 3)),
              Outcome.COMPLETE, 3, 3, "end_turn"),
    _messages("no message_stop", named(START, *PARTS, *stopped("end_turn", 3)[:1]), Outcome.COMPLETE_MISSING_DONE,
              3, 3, "end_turn", "no message_stop"),
    _messages("truncated", named(START, *PARTS), Outcome.UNTERMINATED_STREAM, 3, None, None, "no finish_reason"),
    # vLLM's stop_reason_map has no word for an abort.
    _messages("aborted by vLLM", named(START, *PARTS, *stopped(None, 3)) + data("[DONE]"), Outcome.UNTERMINATED_STREAM,
              3, 3, None, "no finish_reason"),
    _messages("error inside", named(START, *PARTS[:2], OVERLOADED), Outcome.ERROR_IN_STREAM, 1, None, None,
              "Overloaded"),
    _messages("error inside, from vLLM", named(START, *PARTS[:2], VLLM_DIED) + data("[DONE]"), Outcome.ERROR_IN_STREAM,
              1, None, None, "1 validation error"),
]  # fmt: skip


# --- JSON lines, as Ollama ----------------------------------------------------------------------------------


def lines(*values: Any, newline: str = "\n") -> str:
    return "".join(f"{value if isinstance(value, str) else _json(value)}{newline}" for value in values)


def ollama(done: bool = False, **more: Any) -> dict[str, Any]:
    return {"model": "gemma3", "created_at": "2025-10-26T17:15:24.097767Z", **more, "done": done}


GENERATED = [ollama(response=word) for word in TEXT]
SAID = [ollama(message={"role": "assistant", "content": word}) for word in TEXT]
STOP = {"done_reason": "stop", "total_duration": 4883583458, "prompt_eval_count": 7, "eval_count": 3}


def _lines(name: str, body: str, outcome: Outcome, chunks: int, *rest: Any) -> Stream:
    return Stream(f"json lines: {name}", "json_lines", body.encode(), outcome, chunks, *rest)


LINES = [
    _lines("good", lines(*GENERATED, ollama(True, response="", **STOP)), Outcome.COMPLETE, 3, 3, "stop"),
    _lines("text in the last line, which has no LF", lines(*GENERATED, ollama(True, response="!", **STOP))[:-1],
           Outcome.COMPLETE, 4, 3, "stop"),
    _lines("chat", lines(*SAID, ollama(True, message={"role": "assistant", "content": ""}, **STOP)),
           Outcome.COMPLETE, 3, 3, "stop"),
    _lines("thinking and a tool", lines(ollama(message={"role": "assistant", "content": "", "thinking": "hm"}),
           ollama(message={"role": "assistant", "content": "", "tool_calls": [{"function": {"name": "f"}}]}),
           ollama(True, message={"role": "assistant", "content": ""}, **STOP)), Outcome.COMPLETE, 2, 3, "stop"),
    _lines("at its length", lines(*GENERATED, ollama(True, response="", **{**STOP, "done_reason": "length"})),
           Outcome.COMPLETE, 3, 3, "length"),
    _lines("an older server", lines(*GENERATED, ollama(True, response=""), newline="\r\n"), Outcome.COMPLETE, 3),
    _lines("keep-alives", lines(GENERATED[0], "", *GENERATED[1:], " ", ollama(True, response="", **STOP)),
           Outcome.COMPLETE, 3, 3, "stop"),
    _lines("empty", lines(ollama(True, response="", **STOP)), Outcome.EMPTY_COMPLETION, 0, 3, "stop"),
    _lines("truncated", lines(*GENERATED), Outcome.UNTERMINATED_STREAM, 3, None, None, "no terminal event"),
    _lines("truncated within a line", lines(*GENERATED)[:-20], Outcome.UNTERMINATED_STREAM, 2, None, None,
           "no terminal event"),
    _lines("error inside", lines(*GENERATED, {"error": "an error was encountered while running the model"}),
           Outcome.ERROR_IN_STREAM, 3, None, None, "an error was encountered"),
    _lines("a page instead", "<html>\n<body>Bad gateway</body>\n\n</html>\n", Outcome.NOT_A_STREAM, 0, None, None,
           "content-type application/x-ndjson, no event"),
    _lines("nothing", "", Outcome.UNTERMINATED_STREAM, 0, None, None, "no terminal event"),
]  # fmt: skip


# --- server-sent events of any make -------------------------------------------------------------------------


def _sse(name: str, body: str, outcome: Outcome, chunks: int, *rest: Any) -> Stream:
    return Stream(f"sse: {name}", "sse", body.encode(), outcome, chunks, *rest)


SSE = [
    _sse("good", data(*TEXT) + "event: end\ndata: x\n\n", Outcome.COMPLETE, 3),
    _sse("keep-alives", "event: ping\ndata: 1\n\n" + data(*TEXT) + ": x\n\nevent: end\ndata\n\n", Outcome.COMPLETE, 3),
    _sse("truncated", data(*TEXT), Outcome.UNTERMINATED_STREAM, 3, None, None, "no terminal event"),
    _sse("error inside", data(*TEXT) + "event: error\ndata: lost it\n\n", Outcome.ERROR_IN_STREAM, 3, None, None,
         "lost it"),
]  # fmt: skip

STREAMS = [*CHAT, *RESPONSES, *MESSAGES, *LINES, *SSE]
