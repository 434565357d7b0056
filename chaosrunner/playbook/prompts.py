"""Files of prompts: one a line, or JSON lines.

    Count from 1 to 40.
    {"prompt": "Summarise: ...", "max_tokens": 64}
    {"messages": [{"role": "user", "content": "Hello"}]}

The name decides: `.jsonl` is JSON lines, anything else is one prompt a line. Empty lines are left out.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec

from chaosrunner.errors import UserError


class Entry(msgspec.Struct, forbid_unknown_fields=True):
    """One request; exactly one of `prompt`, `messages`."""

    prompt: str | None = None
    messages: list[dict[str, Any]] | None = None
    max_tokens: int | None = None
    """Longest answer, tokens; the probe's where absent."""


def read_prompts(path: str, *, chat: bool) -> list[Entry]:
    """All entries in the file's order; `messages` need a chat.

    Raises UserError with file and line for what cannot be used.
    """
    try:
        lines = Path(path).read_text(encoding="utf-8").split("\n")
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"{path} cannot be read: {error}") from None
    numbered = [(number, line.rstrip("\r")) for number, line in enumerate(lines, start=1) if line.strip()]
    if not numbered:
        raise UserError(f"{path}: no prompt in it; write one a line")
    if not path.endswith(".jsonl"):
        return [Entry(prompt=line) for _, line in numbered]
    return [_entry(f"{path}:{number}", line, chat) for number, line in numbered]


def _entry(place: str, line: str, chat: bool) -> Entry:
    try:
        entry = msgspec.json.decode(line, type=Entry)
    except msgspec.MsgspecError as error:
        raise UserError(f'{place}: {error}; a line is like {{"prompt": "...", "max_tokens": 64}}') from None
    if (entry.prompt is None) == (entry.messages is None):
        raise UserError(f"{place}: needs exactly one of prompt, messages")
    if entry.messages is not None and not chat:
        raise UserError(f"{place}: messages belong to a chat; set api: chat, or use prompt")
    if entry.messages == [] or any("role" not in message for message in entry.messages or []):
        raise UserError(f'{place}: each message is like {{"role": "user", "content": "..."}}')
    if entry.max_tokens is not None and entry.max_tokens < 1:
        raise UserError(f"{place}: max_tokens must be 1 or more")
    return entry
