"""What the events of a stream mean, one small class for each API."""

from chaosrunner.probes.dialects.anthropic import Anthropic
from chaosrunner.probes.dialects.base import ANSWER, LAST, MALFORMED, NOTHING, THOUGHT, Dialect, Frame, StreamError
from chaosrunner.probes.dialects.json_lines import JsonLines
from chaosrunner.probes.dialects.openai import OpenAI
from chaosrunner.probes.dialects.plain import PlainHttp, PlainSse
from chaosrunner.probes.dialects.responses import Responses

__all__ = [
    "ANSWER",
    "LAST",
    "MALFORMED",
    "NOTHING",
    "THOUGHT",
    "Anthropic",
    "Dialect",
    "Frame",
    "JsonLines",
    "OpenAI",
    "PlainHttp",
    "PlainSse",
    "Responses",
    "StreamError",
]
