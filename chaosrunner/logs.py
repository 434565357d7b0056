"""Logging: structlog to standard error, as text on a terminal or JSON lines for machines."""

from __future__ import annotations

import logging
import sys
from collections.abc import Iterable
from contextlib import suppress
from typing import Any, TextIO, cast

import structlog

from chaosrunner.timeline.redact import Redactor

_hidden: set[str] = set()
_redactor = Redactor()


def hide(secrets: Iterable[str]) -> None:
    """From now on these values are masked in every log line of the process."""
    global _redactor
    _hidden.update(secrets)
    _redactor = Redactor(_hidden)


class _Lenient:
    """A stream that nobody has to read: a log line that cannot be written must not end an undo half-way."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def write(self, text: str) -> None:
        with suppress(OSError, ValueError):  # the terminal is gone; the file is closed
            self._stream.write(text)

    def flush(self) -> None:
        with suppress(OSError, ValueError):
            self._stream.flush()


def configure(
    *,
    level: str = "warning",
    json: bool = False,
    stream: TextIO | None = None,
) -> None:
    """Sets up logging for the process."""

    def masked(_logger: Any, _method: str, event: structlog.types.EventDict) -> structlog.types.EventDict:
        return {key: _redactor.text(value) if isinstance(value, str) else value for key, value in event.items()}

    stream = stream or sys.stderr
    shown = (
        structlog.processors.JSONRenderer()
        if json
        else structlog.dev.ConsoleRenderer(colors=stream.isatty(), pad_event_to=0)
    )
    structlog.configure(
        processors=[
            structlog.contextvars.merge_contextvars,
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            structlog.processors.format_exc_info,
            masked,
            shown,
        ],
        wrapper_class=structlog.make_filtering_bound_logger(getattr(logging, level.upper())),
        logger_factory=structlog.PrintLoggerFactory(cast(TextIO, _Lenient(stream))),
        cache_logger_on_first_use=False,
    )
