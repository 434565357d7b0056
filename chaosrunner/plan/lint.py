"""What a Pod's spec says about its end: the hook, the grace period, the server's own drain, and their sum."""

from __future__ import annotations

import re
import shlex

import msgspec

from chaosrunner.cluster.resources import Object
from chaosrunner.timeline.redact import MASK

DEFAULT_GRACE = 30.0
"""Seconds; terminationGracePeriodSeconds of a Pod that names none (Kubernetes API, PodSpec)."""

_SECRET_FLAG = re.compile(r"(api[-_]?keys?|secrets?|passwords?|credentials?|(hf|auth|access)[-_]token)$", re.IGNORECASE)
_SLEEP = re.compile(r"(?:^|[;&|]\s*|\s)sleep\s+(\d+(?:\.\d+)?)(s|m)?\b")


class Ending(msgspec.Struct, kw_only=True, frozen=True, omit_defaults=True):
    """How one container is given time to end. Seconds; None means not known."""

    container: str
    grace: float
    prestop: float | None
    """Length of the preStop hook; 0 without one, None where its command does not tell."""
    drain: float | None
    """The server's own drain limit after SIGTERM (vLLM's --shutdown-timeout), None where no argument tells."""
    vllm: bool = False

    @property
    def margin(self) -> float | None:
        """Grace period - preStop - drain limit: what is left before SIGKILL when both take their full time.

        The grace period runs from before the preStop hook (Kubernetes, Pod lifecycle). None where a part is unknown.
        """
        if self.prestop is None or self.drain is None:
            return None
        return self.grace - self.prestop - self.drain


def endings(pod: Object) -> list[Ending]:
    """One for each container of the Pod."""
    spec = pod.get("spec") or {}
    grace = spec.get("terminationGracePeriodSeconds")
    return [
        Ending(
            container=container.get("name", ""),
            grace=DEFAULT_GRACE if grace is None else float(grace),
            prestop=_prestop(container),
            drain=shutdown_timeout(container),
            vllm=_is_vllm(container),
        )
        for container in spec.get("containers") or []
    ]


def shutdown_timeout(container: Object) -> float | None:
    """The value of `--shutdown-timeout` in a container's command or arguments, also inside `sh -c`; seconds.

    A vLLM server without it has 0, its default: every stream ends at SIGTERM.
    """
    words = _words(container)
    for index, word in enumerate(words):
        name, equals, value = word.partition("=")
        if name.replace("_", "-") != "--shutdown-timeout":
            continue
        value = value if equals else (words[index + 1] if index + 1 < len(words) else "")
        try:
            return float(value)
        except ValueError:
            return None
    return 0.0 if _is_vllm(container) else None


def kept_spec(pod: Object) -> Object:
    """The parts of a Pod's spec that explain how its streams end, for the manifest; environments are left out,
    and values of flags whose name speaks of a secret are masked."""
    spec = pod.get("spec") or {}
    kept: Object = {
        key: spec[key]
        for key in ("terminationGracePeriodSeconds", "nodeSelector", "priorityClassName", "restartPolicy")
        if spec.get(key) is not None
    }
    wanted = ("name", "image", "lifecycle", "ports", "resources", "startupProbe", "readinessProbe", "livenessProbe")
    for kind in ("initContainers", "containers"):
        if spec.get(kind):
            kept[kind] = [
                {key: container[key] for key in wanted if container.get(key) is not None}
                | {key: _masked(container[key]) for key in ("command", "args") if container.get(key)}
                for container in spec[kind]
            ]
    return kept


def _prestop(container: Object) -> float | None:
    hook = (container.get("lifecycle") or {}).get("preStop")
    if not hook:
        return 0.0
    if hook.get("sleep"):
        return float(hook["sleep"].get("seconds", 0))
    command = " ".join((hook.get("exec") or {}).get("command") or [])
    sleeps = _SLEEP.findall(command)
    if len(sleeps) != 1 or re.search(r"\b(while|for|until|curl|wget|python)\b", command):
        return None
    number, unit = sleeps[0]
    return float(number) * (60 if unit == "m" else 1)


def _words(container: Object) -> list[str]:
    words: list[str] = []
    for word in [*(container.get("command") or []), *(container.get("args") or [])]:
        if any(c.isspace() for c in word):
            try:
                words += shlex.split(word, comments=True)
            except ValueError:
                words += word.split()
        else:
            words.append(word)
    return words


def _is_vllm(container: Object) -> bool:
    words = _words(container)
    served = any(w.rsplit("/", 1)[-1] == "vllm" for w in words) or "vllm.entrypoints.openai.api_server" in words
    return served or (not container.get("command") and "vllm-openai" in (container.get("image") or ""))


def _masked(words: list[str]) -> list[str]:
    masked: list[str] = []
    hide_next = False
    for word in words:
        name, equals, _ = word.partition("=")
        secret = name.startswith("-") and _SECRET_FLAG.search(name) is not None
        masked.append(MASK if hide_next else f"{name}={MASK}" if secret and equals else word)
        hide_next = secret and not equals
    return masked
