"""Bare Pods whose server notes when it was probed and signalled: what a kubelet does, and when.

All experiments of a lab run side by side, each in a namespace of its own. Instants are unix seconds: server, watch and
test have the same clock. Bounds are in `test_timing.py`.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from datetime import datetime
from typing import Any

from tests.conformance.episodes import AtOnce, Stage, is_ready, seen, server
from tests.labs import Change, Json, Lab

Found = dict[str, Any]
EXPERIMENTS: dict[str, Callable[[Trial], Found]] = {}
FOREVER = 1e9


def experiment(function: Callable[[Trial], Found]) -> Callable[[Trial], Found]:
    EXPERIMENTS[function.__name__] = function
    return function


def all_experiments(lab: Lab) -> AtOnce[Found]:
    lab.recorder.of("pods")  # record before anything happens
    return AtOnce(EXPERIMENTS, lambda name: Trial(lab, name))


class Trial(Stage):
    """One Pod, named `pod`."""

    def start(
        self, options: Json | None = None, *, grace: int = 30, container: Json | None = None, **more: Any
    ) -> None:
        """Create the Pod, with its server unless another container is given, on no node that is cut off."""
        spec = {
            "automountServiceAccountToken": False,
            "terminationGracePeriodSeconds": grace,
            "containers": [container or server(self.lab, options, **more)],
            **self._away_from(self.lab.nodes[-1]),
        }
        self.ns.create("pods", {"metadata": {"name": "pod", "labels": {"app": self.app}}, "spec": spec})

    @property
    def pod(self) -> Json:
        return self.of("pods")["pod"]

    def running(self) -> Json:
        """The Pod, as soon as its container runs and has an address."""

        def runs() -> bool:
            status = self.of("pods").get("pod", {}).get("status", {})
            states = [entry["state"] for entry in status.get("containerStatuses") or ()]
            return bool(status.get("podIP")) and all("running" in state for state in states)

        self.until(runs, "the container does not run")
        return self.pod

    def delete(self) -> float:
        """Delete the Pod; when the request was sent."""
        sent = time.time()
        self.ns.do("DELETE", "pods/pod")
        return sent

    def noted(self, what: str | None = None) -> list[float]:
        """When the server noted this, or anything."""
        return [at for at, name in seen(self.pod) if what in (None, name)]

    def wait_for(self, what: str, times: int = 1, seconds: float = 60) -> list[float]:
        """Ask the server until it has noted this so many times."""
        found: list[float] = []

        def enough() -> bool:
            nonlocal found
            try:
                found = self.noted(what)
            except OSError:
                return False
            return len(found) >= times

        self.ns.until(enough, seconds, f"{self.app}: {what} was not noted {times} times")
        return found

    def changes(self) -> list[Change]:
        return [change for change in self.lab.recorder.history(self.ns.name) if change.name == "pod"]

    def slice_when(self, ready: bool, after: float) -> float:
        """When the Pod's endpoint was first seen to be ready, or not to be, after an instant; waits for it."""
        offset = time.time() - time.monotonic()

        def first() -> float | None:
            instants = (
                change.at + offset
                for change in self.lab.recorder.history(self.ns.name)
                if change.kind == "endpointslices"
                and any(entry["conditions"]["ready"] is ready for entry in change.object["endpoints"] or ())
            )
            return next((at for at in instants if at > after), None)

        return float(self.until(first, "the endpoint was never seen so"))

    def when(self, holds: Callable[[Json], Any], after: float = 0.0) -> float:
        """When the Pod was first seen so, after an instant; waits for it."""
        offset = time.time() - time.monotonic()

        def first() -> float | None:
            instants = (
                change.at + offset
                for change in self.changes()
                if change.kind == "pods" and change.type != "DELETED" and holds(change.object)
            )
            return next((at for at in instants if at > after), None)

        return float(self.until(first, "the Pod was never seen so"))


def container_status(pod: Json) -> Json:
    statuses = pod["status"].get("containerStatuses") or [{"state": {}, "restartCount": 0, "lastState": {}}]
    return dict(statuses[0])


def started_at(pod: Json) -> float:
    """When the container was started, as kubelet tells it, cut off to the second."""
    return instant(container_status(pod)["state"]["running"]["startedAt"])


def instant(text: str) -> float:
    return datetime.fromisoformat(text).timestamp()


def http(path: str, **more: Any) -> Json:
    return {"httpGet": {"path": path, "port": "http"}, "periodSeconds": 1, **more}


@experiment
def periods(t: Trial) -> Found:
    """Startup probe first, then readiness each second and liveness every two."""
    t.start(
        {"ok": {"/started": [[2.5, FOREVER]]}},
        startupProbe=http("/started", failureThreshold=30),
        readinessProbe=http("/ready"),
        livenessProbe=http("/live", periodSeconds=2),
    )
    t.running()
    t.wait_for("/live", 4)
    return {what: t.noted(what) for what in ("start", "/started", "/ready", "/live")}


@experiment
def initial_delay(t: Trial) -> Found:
    t.start(readinessProbe=http("/ready", initialDelaySeconds=4))
    t.running()
    first = t.wait_for("/ready")[0]
    return {"started": started_at(t.pod), "first": first, "ready": t.when(is_ready)}


@experiment
def thresholds(t: Trial) -> Found:
    """Ready after two successes, not ready after three failures."""
    t.start(
        {"ok": {"/ready": [[0, 6], [12, FOREVER]]}},
        readinessProbe=http("/ready", successThreshold=2),
    )
    t.running()
    ready = t.when(is_ready)
    unready = t.when(lambda pod: not is_ready(pod), ready)
    again = t.when(is_ready, unready)
    probes = t.noted("/ready")
    return {"start": t.noted("start")[0], "probes": probes, "ready": ready, "unready": unready, "again": again}


@experiment
def endpoint(t: Trial) -> Found:
    """What a Service knows of a Pod that is ready, then not, then ready again."""
    ports = [{"name": "http", "port": 80, "targetPort": "http"}]
    t.ns.create("services", {"metadata": {"name": "web"}, "spec": {"selector": {"app": t.app}, "ports": ports}})
    probe = http("/ready", failureThreshold=1)
    t.start({"ok": {"/ready": [[0, 5], [9, FOREVER]]}}, readinessProbe=probe)
    found: Found = {"pod": [], "endpoint": []}
    for wanted in (True, False, True):
        after = found["pod"][-1] if found["pod"] else 0.0
        found["pod"].append(t.when(lambda pod, wanted=wanted: is_ready(pod) is wanted, after))
        found["endpoint"].append(t.slice_when(wanted, after))
    return found


@experiment
def liveness(t: Trial) -> Found:
    """Two failures end the container as a delete would; it is started again at once."""
    t.start(
        {"ok": {"/live": [[0, 4]]}, "drain": 1.5},
        # Nobody may ask for its life before it can answer.
        startupProbe=http("/started", failureThreshold=60),
        livenessProbe=http("/live", failureThreshold=2),
    )
    t.running()
    first = t.wait_for("start")[0]
    ended = t.wait_for("SIGTERM")[0]
    probes = t.noted("/live")
    restarted = t.when(lambda pod: container_status(pod)["restartCount"] == 1)
    last = container_status(t.pod)["lastState"]["terminated"]
    log = t.ns.log("pod", previous="true")
    return {"start": first, "ended": ended, "probes": probes, "restarted": restarted, "last": last, "log": log}


@experiment
def startup(t: Trial) -> Found:
    """A startup probe that never succeeds."""
    t.start(
        {"ok": {"/started": []}},
        startupProbe=http("/started", failureThreshold=3, initialDelaySeconds=4),
        readinessProbe=http("/ready"),
    )
    t.running()
    restarted = t.when(lambda pod: container_status(pod)["restartCount"] == 1)
    last = container_status(t.pod)["lastState"]["terminated"]
    lines = t.ns.log("pod", previous="true").splitlines()
    started = instant(last["startedAt"])
    return {"started": started, "lines": [json_line(line) for line in lines], "restarted": restarted}


def json_line(line: str) -> tuple[float, str]:
    at, _, what = line.strip("[]").partition(", ")
    return float(at), what.strip('"')


@experiment
def pre_stop(t: Trial) -> Found:
    """preStop, then SIGTERM; the readiness probe goes on, the liveness probe does not."""
    t.start(
        {"drain": 3.5},
        readinessProbe=http("/ready"),
        livenessProbe=http("/live"),
        lifecycle={"preStop": {"httpGet": {"path": "/wait/2", "port": "http"}}},
    )
    t.running()
    t.when(is_ready)
    t.wait_for("/live", 2)
    deleted = t.delete()
    hook, ended = t.wait_for("/wait/2")[0], t.wait_for("SIGTERM")[0]
    t.wait_for("/ready", len([at for at in t.noted("/ready") if at < ended]) + 2)
    found = {"deleted": deleted, "hook": hook, "SIGTERM": ended, "live": t.noted("/live"), "ready": t.noted("/ready")}
    t.until(t.gone("pod"), "the Pod stays")
    return found | {"gone": time.time()}


@experiment
def pre_stop_beyond_grace(t: Trial) -> Found:
    """SIGTERM at the end of the grace period although preStop has not ended, SIGKILL 2 s later."""
    t.start({"drain": None}, grace=3, lifecycle={"preStop": {"httpGet": {"path": "/wait/60", "port": "http"}}})
    t.running()
    t.wait_for("start")
    deleted = t.delete()
    hook, ended = t.wait_for("/wait/60")[0], t.wait_for("SIGTERM")[0]
    return {"deleted": deleted, "hook": hook, "SIGTERM": ended, "SIGKILL": _refuses(t), **_end(t)}


@experiment
def grace(t: Trial) -> Found:
    """A server that ignores SIGTERM is killed at the end of the grace period."""
    t.start({"drain": None}, grace=4)
    t.running()
    t.wait_for("start")
    deleted = t.delete()
    return {"deleted": deleted, "SIGTERM": t.wait_for("SIGTERM")[0], "SIGKILL": _refuses(t), **_end(t)}


@experiment
def prompt_end(t: Trial) -> Found:
    """A server that ends at SIGTERM, with an exit code."""
    t.start({"drain": 0.2, "code": 7})
    t.running()
    t.wait_for("start")
    return {"deleted": t.delete(), **_end(t)}


def _refuses(t: Trial) -> float:
    """When the server could no longer be reached."""
    pod = t.pod

    def dead() -> bool:
        try:
            seen(pod, timeout=1)
        except OSError:
            return True
        return False

    t.ns.until(dead, what="the server does not end")
    return time.time()


def _end(t: Trial) -> Found:
    """How the container ended, and when the object was gone."""
    t.until(t.gone("pod"), "the Pod stays")
    last = next(
        change.object
        for change in reversed(t.changes())
        if change.kind == "pods" and "terminated" in container_status(change.object)["state"]
    )
    terminated = container_status(last)["state"]["terminated"]
    return {"code": terminated["exitCode"], "phase": last["status"]["phase"], "gone": time.time()}


@experiment
def back_off(t: Trial) -> Found:
    """A container that ends by itself: once again at once, then after 10 s."""
    t.start(container=t.lab.container(["sh", "-c", "exit 3"]))
    restarts = [t.when(lambda pod, n=n: container_status(pod)["restartCount"] == n) for n in (1, 2)]
    waiting = t.when(lambda pod: container_status(pod)["state"].get("waiting", {}).get("reason") == "CrashLoopBackOff")
    begun = t.when(lambda pod: "terminated" in container_status(pod)["state"])
    return {"ended": begun, "restarts": restarts, "waiting": waiting}


@experiment
def killed(t: Trial) -> Found:
    """A container killed from outside is noticed within about a second, and started again at once.

    When it ended the runtime tells, cut off to the second.
    """
    t.start(readinessProbe=http("/ready"))
    t.running()
    ready = t.when(is_ready)
    t.lab.kill(t.pod)
    unready = t.when(lambda pod: not is_ready(pod), ready)
    restarted = t.when(lambda pod: container_status(pod)["restartCount"] == 1)
    ended = instant(container_status(t.pod)["lastState"]["terminated"]["finishedAt"])
    again = t.when(is_ready, restarted)
    return {"killed": ended, "noticed": unready, "restarted": restarted, "again": again}
