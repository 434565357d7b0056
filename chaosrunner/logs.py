"""Logging: structlog to standard error, as text on a terminal or JSON lines for machines."""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable
from typing import Any, TextIO

import structlog


def configure(
    *,
    level: str = "warning",
    json: bool = False,
    stream: TextIO | None = None,
    mask: Callable[[str], str] | None = None,
) -> None:
    """Sets up logging for the process. `mask` takes secrets out of every value that is text."""

    def masked(_logger: Any, _method: str, event: structlog.types.EventDict) -> structlog.types.EventDict:
        if mask is None:
            return event
        return {key: mask(value) if isinstance(value, str) else value for key, value in event.items()}

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
        logger_factory=structlog.PrintLoggerFactory(stream),
        cache_logger_on_first_use=False,
    )
