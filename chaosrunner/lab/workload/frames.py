"""vLLM 0.32's bodies and stream frames, key by key as recorded from a running server.

`json` is compact and leaves non-ASCII text as it is; only the error object inside a stream has spaces, as there.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

VERSION = "0.32.0"
FINGERPRINT = "vllm-0.32.0-fb14115b"
DONE = b"data: [DONE]\n\n"
ENGINE_DEAD = "EngineCore encountered an issue. See stack trace (above) for the root cause."
SHUTTING_DOWN = "cannot schedule new futures after shutdown"


def dumps(value: Any) -> bytes:
    """Compact JSON."""
    return json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode()


def event(value: Any) -> bytes:
    """One server-sent event."""
    return b"data: %b\n\n" % dumps(value)


def error_body(message: str, kind: str, parameter: str | None, code: int) -> bytes:
    """The body of an error answer."""
    return dumps({"error": {"message": message, "type": kind, "param": parameter, "code": code}})


def error_event(message: str = ENGINE_DEAD) -> bytes:
    """The error object that ends a stream after HTTP 200."""
    error = {"message": message, "type": "InternalServerError", "param": None, "code": 500}
    return f"data: {json.dumps({'error': error})}\n\n".encode()


def usage(prompt: int, completion: int) -> dict[str, Any]:
    """Token counts."""
    return {"prompt_tokens": prompt, "total_tokens": prompt + completion, "completion_tokens": completion}


@dataclass(frozen=True)
class Frames:
    """The frames of one answer."""

    chat: bool
    id: str
    created: int
    model: str
    include_usage: bool
    continuous_usage: bool

    def _base(self, kind: str) -> dict[str, Any]:
        return {"id": self.id, "object": kind, "created": self.created, "model": self.model}

    def role(self, prompt: int) -> bytes:
        """The first frame of a chat: who speaks, no content."""
        delta = {"role": "assistant", "content": ""}
        choice = {"index": 0, "delta": delta, "logprobs": None, "finish_reason": None}
        frame = {**self._base("chat.completion.chunk"), "choices": [choice], **self._running(prompt, 0)}
        return event({**frame, "prompt_token_ids": None, "prompt_text": None})

    def text(self, text: str, finish: str | None, prompt: int, completion: int) -> bytes:
        """A piece of text, which may be empty; the last has the finish reason."""
        choice: dict[str, Any]
        if self.chat:
            kind = "chat.completion.chunk"
            choice = {"index": 0, "delta": {"content": text}, "logprobs": None, "finish_reason": finish}
            if finish is not None:
                choice["stop_reason"] = None
        else:
            kind = "text_completion"
            choice = {"index": 0, "text": text, "logprobs": None, "finish_reason": finish, "stop_reason": None}
            choice["prompt_token_ids"] = None
        choice["token_ids"] = None
        frame = {**self._base(kind), "choices": [choice], **self._running(prompt, completion)}
        if finish is not None and not self.include_usage:
            frame["system_fingerprint"] = FINGERPRINT
        return event(frame)

    def usage(self, prompt: int, completion: int) -> bytes:
        """The frame after the last text, where the request asked for usage."""
        kind = "chat.completion.chunk" if self.chat else "text_completion"
        counts = {"choices": [], "usage": usage(prompt, completion), "system_fingerprint": FINGERPRINT}
        return event({**self._base(kind), **counts})

    def _running(self, prompt: int, completion: int) -> dict[str, Any]:
        return {"usage": usage(prompt, completion)} if self.continuous_usage else {}

    def whole(self, text: str, finish: str, prompt: int, completion: int) -> bytes:
        """The body of an answer that is not streamed."""
        choice: dict[str, Any]
        if self.chat:
            message = {"role": "assistant", "content": text, "refusal": None, "annotations": None, "audio": None}
            message |= {"function_call": None, "reasoning": None}
            choice = {"index": 0, "message": message, "logprobs": None, "finish_reason": finish, "stop_reason": None}
            choice |= {"token_ids": None, "routed_experts": None}
            tail: dict[str, Any] = {"prompt_logprobs": None, "prompt_token_ids": None, "prompt_text": None}
        else:
            choice = {"index": 0, "text": text, "logprobs": None, "finish_reason": finish, "stop_reason": None}
            choice |= {"token_ids": None, "prompt_logprobs": None, "prompt_token_ids": None, "routed_experts": None}
            tail = {}
        counts = usage(prompt, completion) | {"prompt_tokens_details": None, "completion_tokens_details": None}
        body = self._base("chat.completion" if self.chat else "text_completion")
        body |= {"choices": [choice], "service_tier": None, "system_fingerprint": FINGERPRINT, "usage": counts}
        return dumps(body | tail | {"kv_transfer_params": None, "ec_transfer_params": None, "metrics": None})


def models(model: str, max_model_len: int, created: int, permission: str) -> bytes:
    """The body of /v1/models."""
    may = {"allow_create_engine": False, "allow_sampling": True, "allow_logprobs": True, "allow_search_indices": False}
    may |= {"allow_view": True, "allow_fine_tuning": False}
    grant = {"id": permission, "object": "model_permission", "created": created, **may, "organization": "*"}
    grant |= {"group": None, "is_blocking": False}
    card = {"id": model, "object": "model", "created": created, "owned_by": "vllm", "root": f"/srv/mods/{model}"}
    card |= {"parent": None, "max_model_len": max_model_len, "permission": [grant]}
    return dumps({"object": "list", "data": [card]})
