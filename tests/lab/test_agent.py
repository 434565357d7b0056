"""The node agent by what Pods and their logs show."""

from __future__ import annotations

import socket
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import anyio
import pytest

from chaosrunner.lab.embedded.agent.addresses import PerPod, addresses
from chaosrunner.lab.embedded.agent.containers import Backoff
from tests.lab.inside import FAST, NAMESPACE, Inside, Json, inside_a_lab, is_ready

pytestmark = [pytest.mark.anyio, pytest.mark.lab]


@pytest.fixture
async def lab(tmp_path: Path) -> AsyncIterator[Inside]:
    async with inside_a_lab(tmp_path / "state", nodes=1, kubelet=FAST | {"backoff": 0.6, "relist": 0.1}) as inside:
        yield inside


def run(lab: Inside, name: str, *command: str, pod: Json | None = None, **container: Any) -> None:
    """Create a bare Pod of one container."""
    entry: Json = {"name": "main", "image": "lab/test:1", **container}
    if command:
        entry["command"] = list(command)
    spec = {"containers": [entry], "terminationGracePeriodSeconds": 2, **(pod or {})}
    lab.store.create("pods", {"metadata": {"name": name, "namespace": NAMESPACE}, "spec": spec})


def status(lab: Inside, name: str) -> Json:
    return dict(lab.store.get("pods", name, NAMESPACE)["status"])


def container(lab: Inside, name: str) -> Json:
    return dict((status(lab, name).get("containerStatuses") or [{"state": {}, "restartCount": 0}])[0])


def reasons(lab: Inside, name: str) -> list[str]:
    return [event["reason"] for event in lab.store.list("events", NAMESPACE) if event["involvedObject"]["name"] == name]


def condition(lab: Inside, name: str, type_: str) -> Json:
    return dict(next(entry for entry in status(lab, name)["conditions"] if entry["type"] == type_))


async def log(lab: Inside, name: str, **options: Any) -> str:
    asked: dict[str, Any] = {
        "follow": False,
        "previous": False,
        "timestamps": False,
        "tail_lines": None,
        "since_seconds": None,
        "limit_bytes": None,
    } | options
    return b"".join([chunk async for chunk in lab.lab.read_log(NAMESPACE, name, "main", **asked)]).decode()


def ended(lab: Inside, name: str) -> Callable[[], bool]:
    return lambda: status(lab, name)["phase"] in ("Succeeded", "Failed")


async def test_the_environment_of_a_container(lab: Inside) -> None:
    fields = {"WHO": "metadata.name", "WHERE": "spec.nodeName", "UID": "metadata.uid", "IP": "status.podIP"}
    env = [{"name": name, "valueFrom": {"fieldRef": {"fieldPath": path}}} for name, path in fields.items()]
    env += [{"name": "GREETING", "value": "hello $(WHO)"}]
    script = "echo $GREETING $WHERE $UID $IP; echo $(GREETING) '$$(WHO)' '$(NOBODY)'; "
    script += "echo $CONTAINER_PORT_HTTP $POD_IP; pwd"
    ports = [{"name": "http", "containerPort": 8123}]
    run(lab, "env", "sh", "-c", script, env=env, ports=ports, pod={"restartPolicy": "Never"})
    await lab.until(ended(lab, "env"))
    pod = lab.store.get("pods", "env", NAMESPACE)
    ip = pod["status"]["podIP"]
    lines = (await log(lab, "env")).splitlines()
    assert lines[0] == f"hello env node1 {pod['metadata']['uid']} {ip}"
    assert lines[1] == "hello env $(WHO) $(NOBODY)"
    assert lines[2] == f"8123 {ip}"
    assert str(lab.lab.state) in lines[3]


@pytest.mark.parametrize(("code", "phase", "reason"), [(0, "Succeeded", "PodCompleted"), (4, "Failed", "PodFailed")])
async def test_a_pod_that_is_never_restarted_ends(lab: Inside, code: int, phase: str, reason: str) -> None:
    run(lab, "once", "sh", "-c", f"exit {code}", pod={"restartPolicy": "Never"})
    await lab.until(ended(lab, "once"))
    assert status(lab, "once")["phase"] == phase
    assert container(lab, "once")["state"]["terminated"]["exitCode"] == code
    assert condition(lab, "once", "Ready")["reason"] == reason


async def test_a_crashing_container_backs_off(lab: Inside) -> None:
    run(lab, "crash", "sh", "-c", "echo run; exit 3")
    await lab.until(lambda: container(lab, "crash")["restartCount"] >= 1)
    await lab.until(lambda: container(lab, "crash")["state"].get("waiting", {}).get("reason") == "CrashLoopBackOff")
    seen = container(lab, "crash")
    assert seen["lastState"]["terminated"]["exitCode"] == 3
    assert "back-off 0.6s restarting failed container=main" in seen["state"]["waiting"]["message"]
    assert "BackOff" in reasons(lab, "crash")
    assert status(lab, "crash")["phase"] == "Running"
    restarts = seen["restartCount"]
    await lab.until(lambda: container(lab, "crash")["restartCount"] > restarts)
    assert await log(lab, "crash", previous=True) == "run\n"


def test_back_off_doubles_up_to_its_limit() -> None:
    backoff = Backoff(10, 300)
    waits = []
    now = 0.0
    for _ in range(8):
        waits.append(backoff.next(now, now))
        now += waits[-1]
        backoff.started(now)
    assert waits == [0, 10, 20, 40, 80, 160, 300, 300]
    assert backoff.next(now + 700, now + 700) == 0


async def test_a_failing_liveness_probe_restarts_the_container(lab: Inside) -> None:
    probe = {"exec": {"command": ["test", "!", "-e", "broken"]}, "periodSeconds": 1, "failureThreshold": 1}
    script = "trap 'exit 0' TERM; rm broken 2>/dev/null || touch broken; while :; do sleep 0.1; done"
    run(lab, "live", "sh", "-c", script, livenessProbe=probe | {"initialDelaySeconds": 1})
    await lab.until(lambda: container(lab, "live")["restartCount"] == 1)
    messages = [event["message"] for event in lab.store.list("events", NAMESPACE) if event["reason"] == "Killing"]
    assert "Container main failed liveness probe, will be restarted" in messages


async def test_a_failing_startup_probe_restarts_the_container(lab: Inside) -> None:
    probe = {"tcpSocket": {"port": 1}, "periodSeconds": 1, "failureThreshold": 1}
    run(lab, "start", "sleep", "60", startupProbe=probe)
    await lab.until(lambda: container(lab, "start")["restartCount"] == 1)
    message = next(event["message"] for event in lab.store.list("events", NAMESPACE) if event["reason"] == "Unhealthy")
    ip = status(lab, "start")["podIP"]
    assert message == f"Startup probe failed: dial tcp {ip}:1: connect: connection refused"


async def test_readiness_follows_its_probe(lab: Inside) -> None:
    probe = {"exec": {"command": ["test", "-e", "ok"]}, "periodSeconds": 1, "failureThreshold": 1}
    run(lab, "ready", "sh", "-c", "sleep 0.5; touch ok; sleep 1.5; rm ok; sleep 60", readinessProbe=probe)
    await lab.until(lambda: is_ready(lab.store.get("pods", "ready", NAMESPACE)))
    await lab.until(lambda: not is_ready(lab.store.get("pods", "ready", NAMESPACE)))
    assert condition(lab, "ready", "Ready")["reason"] == "ContainersNotReady"
    assert container(lab, "ready")["restartCount"] == 0


async def test_init_containers_run_one_after_the_other(lab: Inside) -> None:
    first = {"name": "first", "image": "x", "command": ["sh", "-c", "sleep 0.3; echo one > ../main-input"]}
    second = {"name": "second", "image": "x", "command": ["sh", "-c", "cat ../main-input && echo two >> ../main-input"]}
    run(lab, "init", "sh", "-c", "cat ../main-input; sleep 60", pod={"initContainers": [first, second]})
    await lab.until(lambda: "conditions" in status(lab, "init") and len(status(lab, "init")["conditions"]) == 5)
    assert condition(lab, "init", "Initialized")["reason"] == "ContainersNotInitialized"
    assert container(lab, "init")["state"]["waiting"]["reason"] == "PodInitializing"
    await lab.until(lambda: is_ready(lab.store.get("pods", "init", NAMESPACE)))
    await anyio.sleep(0.1)
    assert await log(lab, "init") == "one\ntwo\n"
    assert [entry["state"]["terminated"]["exitCode"] for entry in status(lab, "init")["initContainerStatuses"]] == [
        0,
        0,
    ]


async def test_a_failing_init_container_fails_a_pod_that_is_never_restarted(lab: Inside) -> None:
    bad = {"name": "bad", "image": "x", "command": ["false"]}
    run(lab, "initbad", "sleep", "60", pod={"initContainers": [bad], "restartPolicy": "Never"})
    await lab.until(ended(lab, "initbad"))
    assert status(lab, "initbad")["phase"] == "Failed"
    assert "Started" in reasons(lab, "initbad")


async def test_what_is_wrong_with_a_command_shows_in_the_status(lab: Inside) -> None:
    run(lab, "none")
    run(lab, "typo", "no-such-program", pod={"restartPolicy": "Never"})
    await lab.until(lambda: "reason" in container(lab, "none")["state"].get("waiting", {}))
    await lab.until(lambda: container(lab, "none")["state"]["waiting"]["reason"] == "CreateContainerConfigError")
    assert "needs a command" in container(lab, "none")["state"]["waiting"]["message"]
    await lab.until(ended(lab, "typo"))
    state = container(lab, "typo")["state"]["terminated"]
    assert (state["exitCode"], state["reason"]) == (128, "StartError")
    assert "no-such-program" in state["message"]


async def test_logs_by_their_options(lab: Inside) -> None:
    run(lab, "log", "sh", "-c", "echo one; echo two; sleep 0.6; echo three; printf four")
    await lab.until(lambda: container(lab, "log")["state"].get("running") is not None)
    await anyio.sleep(0.2)
    assert await log(lab, "log") == "one\ntwo\n"
    assert await log(lab, "log", tail_lines=1) == "two\n"
    assert await log(lab, "log", limit_bytes=6) == "one\ntw"
    stamped = (await log(lab, "log", timestamps=True)).splitlines()
    assert stamped[0].endswith("Z one")
    with anyio.fail_after(5):
        assert await log(lab, "log", follow=True, tail_lines=1) == "two\nthree\nfour\n"
    assert await log(lab, "log", since_seconds=3600) == "one\ntwo\nthree\nfour\n"


async def test_a_forced_delete_ends_the_process_a_little_later(lab: Inside) -> None:
    run(lab, "force", "sh", "-c", "trap '' TERM; while :; do sleep 0.1; done")
    await lab.until(lambda: container(lab, "force")["state"].get("running") is not None)
    found = lab.lab.container(NAMESPACE, "force", None)
    assert found is not None
    assert found.process is not None
    lab.store.delete("pods", "force", NAMESPACE, grace=0)
    assert lab.store.find("pods", "force", NAMESPACE) is None
    assert found.is_running
    begun = anyio.current_time()
    with anyio.fail_after(5):
        assert await found.process.wait() == 137
    assert 1.5 < anyio.current_time() - begun < 3.5


async def test_a_shorter_grace_period_counts_from_when_it_is_given(lab: Inside) -> None:
    run(
        lab,
        "shorter",
        "sh",
        "-c",
        "trap '' TERM; while :; do sleep 0.1; done",
        pod={"terminationGracePeriodSeconds": 60},
    )
    await lab.until(lambda: container(lab, "shorter")["state"].get("running") is not None)
    lab.store.delete("pods", "shorter", NAMESPACE)
    await anyio.sleep(0.3)
    lab.store.delete("pods", "shorter", NAMESPACE, grace=1)
    await lab.until(lambda: lab.store.find("pods", "shorter", NAMESPACE) is None, 4)


async def test_a_prestop_hook_that_fails_is_told_and_sigterm_follows(lab: Inside) -> None:
    hook = {"preStop": {"exec": {"command": ["false"]}}}
    run(lab, "hook", "sleep", "60", lifecycle=hook)
    await lab.until(lambda: container(lab, "hook")["state"].get("running") is not None)
    lab.store.delete("pods", "hook", NAMESPACE)
    await lab.until(lambda: lab.store.find("pods", "hook", NAMESPACE) is None, 2)
    assert "FailedPreStopHook" in reasons(lab, "hook")


async def test_a_prestop_sleep_comes_before_sigterm(lab: Inside) -> None:
    hook = {"preStop": {"sleep": {"seconds": 1}}}
    run(lab, "nap", "sleep", "60", lifecycle=hook)
    await lab.until(lambda: container(lab, "nap")["state"].get("running") is not None)
    begun = anyio.current_time()
    lab.store.delete("pods", "nap", NAMESPACE)
    await lab.until(lambda: lab.store.find("pods", "nap", NAMESPACE) is None, 4)
    assert 1.0 < anyio.current_time() - begun < 2.0
    assert "FailedPreStopHook" not in reasons(lab, "nap")


async def test_a_cut_node_learns_of_a_deletion_when_it_is_healed(lab: Inside) -> None:
    run(lab, "far", "sleep", "60")
    await lab.until(lambda: container(lab, "far")["state"].get("running") is not None)
    found = lab.lab.container(NAMESPACE, "far", None)
    assert found is not None
    await lab.lab.cut_node("node1")
    lab.store.delete("pods", "far", NAMESPACE)
    await anyio.sleep(0.5)
    assert found.is_running
    assert lab.store.find("pods", "far", NAMESPACE) is not None
    await lab.lab.heal_node("node1")
    await lab.until(lambda: lab.store.find("pods", "far", NAMESPACE) is None)
    assert not found.is_running


async def test_a_cordon_is_told_by_the_node(lab: Inside) -> None:
    def told() -> list[str]:
        return [event["reason"] for event in lab.store.list("events", "default")]

    lab.store.mutate("nodes", "node1", None, lambda node: node["spec"].update(unschedulable=True))
    await lab.until(lambda: "NodeNotSchedulable" in told())
    lab.store.mutate("nodes", "node1", None, lambda node: node["spec"].pop("unschedulable"))
    await lab.until(lambda: "NodeSchedulable" in told())


async def test_a_pod_that_the_lab_cannot_run_harms_no_other(lab: Inside) -> None:
    run(lab, "grpc", "sleep", "60", readinessProbe={"grpc": {"port": 9}, "periodSeconds": 1})
    run(lab, "null", "echo", "a\0b", pod={"restartPolicy": "Never"})
    run(lab, "good", "sleep", "60")
    await lab.until(lambda: is_ready(lab.store.get("pods", "good", NAMESPACE)))
    await lab.until(ended(lab, "null"))
    await lab.until(lambda: "Unhealthy" in reasons(lab, "grpc"))
    assert not is_ready(lab.store.get("pods", "grpc", NAMESPACE))


async def test_pods_that_share_an_address_have_ports_of_their_own(tmp_path: Path) -> None:
    async with inside_a_lab(tmp_path / "shared", addresses="shared") as lab:
        await lab.deploy("chat", 2)
        pods = lab.pods("chat")
        assert {pod["status"]["podIP"] for pod in pods} == {"127.0.0.1"}
        ports = {pod["metadata"]["name"]: pod["spec"]["containers"][0]["ports"][0]["containerPort"] for pod in pods}
        assert len(set(ports.values())) == 2
        assert 8000 not in ports.values()
        slices = lab.store.list("endpointslices", NAMESPACE)
        found = {entry["targetRef"]["name"]: obj["ports"][0]["port"] for obj in slices for entry in obj["endpoints"]}
        assert found == ports


needs_loopback_net = pytest.mark.skipif(not PerPod.available(), reason="only 127.0.0.1 exists here")


@needs_loopback_net
def test_a_port_that_somebody_has_on_all_addresses_is_avoided() -> None:
    given = addresses("per_pod")
    with socket.socket() as other:
        other.bind(("0.0.0.0", 0))
        other.listen()
        taken = other.getsockname()[1]
        assert given.port(taken) != taken
    assert given.port(taken) == taken
    given.close()


@needs_loopback_net
async def test_pods_have_addresses_of_their_own(tmp_path: Path) -> None:
    async with inside_a_lab(tmp_path / "one") as one, inside_a_lab(tmp_path / "two") as two:
        await one.deploy("chat", 2)
        await two.deploy("chat", 1)
        addresses = [pod["status"]["podIP"] for lab in (one, two) for pod in lab.pods("chat")]
        assert len(set(addresses)) == 3
