"""What a finish_reason says about the end of a stream, in lower case.

The API's own words are stop, length, tool_calls, content_filter and function_call (older); the rest are what servers
say instead: Text Generation Inference (eos_token, stop_sequence), Zhipu (sensitive, network_error), DeepSeek
(insufficient_system_resource: the generation was broken off), vLLM and SGLang (abort). Anthropic's are end_turn,
max_tokens, stop_sequence, tool_use, pause_turn, refusal and model_context_window_exceeded; those of the Responses API
are `completed` and the reasons of an incomplete response, max_output_tokens and content_filter.
"""

from __future__ import annotations

GOOD_FINISH = frozenset(
    {
        "stop", "length", "tool_calls", "content_filter", "function_call", "eos_token", "stop_sequence", "end_turn",
        "max_tokens", "tool_use", "pause_turn", "refusal", "model_context_window_exceeded", "completed",
        "max_output_tokens", "sensitive",
    }
)  # fmt: skip
"""The stream ended as meant."""
ABORT_FINISH = frozenset({"abort", "aborted", "cancelled", "canceled", "insufficient_system_resource"})
ERROR_FINISH = frozenset({"error", "network_error"})
BAD_FINISH = ABORT_FINISH | ERROR_FINISH
"""What ends a choice badly stays, whatever politeness follows."""
