"""Command-line value types shared by the programs of the workload."""

from __future__ import annotations

import argparse
import os
import re

_UNITS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0}
_PART = re.compile(r"(\d+(?:\.\d+)?)(ms|s|m|h)")


def duration(text: str) -> float:
    """Read a length of time and return seconds: `500ms`, `2s`, `1h30m`, or a plain number of seconds."""
    text = text.strip()
    try:
        seconds = float(text)
    except ValueError:
        parts = _PART.findall(text)
        if not parts or "".join(number + unit for number, unit in parts) != text:
            raise argparse.ArgumentTypeError(f"{text!r} is no duration (500ms, 2s, 1h30m, or seconds)") from None
        seconds = sum(float(number) * _UNITS[unit] for number, unit in parts)
    if not 0 <= seconds < float("inf"):
        raise argparse.ArgumentTypeError(f"{text!r} is no duration: it must be finite and not negative")
    return seconds


def positive(text: str) -> float:
    """A number greater than zero."""
    return _bounded(float(text), text, above=0.0)


def count(text: str) -> int:
    """A whole number, one or more."""
    return int(_bounded(int(text), text, above=0))


def whole(text: str) -> int:
    """A whole number, zero or more."""
    return int(_bounded(int(text), text, above=-1))


def share(text: str) -> float:
    """A share between 0 and 1; `5%` is 0.05."""
    value = float(text[:-1]) / 100 if text.endswith("%") else float(text)
    if not 0 <= value <= 1:
        raise argparse.ArgumentTypeError(f"{text!r} is no share between 0 and 1")
    return value


def borders(text: str) -> tuple[int, ...]:
    """Ascending whole numbers separated by commas, such as `64,512`; an empty text is no border at all."""
    values = tuple(int(part) for part in text.split(",") if part.strip())
    if list(values) != sorted(set(values)):
        raise argparse.ArgumentTypeError(f"{text!r} is not in ascending order")
    return values


def _bounded(value: float, text: str, *, above: float) -> float:
    if not above < value < float("inf"):
        raise argparse.ArgumentTypeError(f"{text!r} must be finite and greater than {above:g}")
    return value


def parser(program: str, description: str, *, port: int) -> argparse.ArgumentParser:
    """The options that every program of the workload has: where it listens (on `port` by default), where it logs."""
    result = argparse.ArgumentParser(
        prog=f"python -m chaosrunner.lab.workload.{program}",
        description=description,
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )
    result.add_argument("--host", default="127.0.0.1", help="address to listen on")
    result.add_argument("--port", type=whole, default=port, help="port to listen on; 0 picks one (see the log)")
    result.add_argument("--log", metavar="FILE", help="append instants and requests to FILE as JSON lines")
    return result


def follow(group: argparse._ArgumentGroup, *, required: bool) -> None:
    """The options of a program that follows the EndpointSlices of a Service."""
    group.add_argument("--kubeconfig", metavar="FILE", help="how to reach the API server; by default as this Pod does")
    group.add_argument("--context", help="context of the kubeconfig; the current one by default")
    group.add_argument("--namespace", help="namespace of the Service; the context's or the Pod's by default")
    group.add_argument("--service", required=required, help="Service whose EndpointSlices are followed")


def environment(name: str, default: str) -> str:
    """An environment variable as a default, as the downward API sets it (POD_NAME and the like)."""
    return os.environ.get(name) or default
