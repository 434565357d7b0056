"""What a finish_reason says about the end of a stream, in lower case.

The API's own words are stop, length, tool_calls, content_filter and function_call (older); the rest are what servers
say instead: Text Generation Inference (eos_token, stop_sequence), those that translate Anthropic's API (end_turn,
max_tokens, tool_use), Zhipu (sensitive, network_error), DeepSeek (insufficient_system_resource: the generation was
broken off), vLLM and SGLang (abort).
"""

from __future__ import annotations

GOOD_FINISH = frozenset(
    {
        "stop", "length", "tool_calls", "content_filter", "function_call", "eos_token", "stop_sequence", "end_turn",
        "max_tokens", "tool_use", "sensitive",
    }
)  # fmt: skip
"""The stream ended as meant."""
ABORT_FINISH = frozenset({"abort", "aborted", "cancelled", "canceled", "insufficient_system_resource"})
ERROR_FINISH = frozenset({"error", "network_error"})
BAD_FINISH = ABORT_FINISH | ERROR_FINISH
"""What ends a choice badly stays, whatever politeness follows."""
