"""Ephemeral containers as a node of the embedded lab runs them, and what the agent of faults does to processes."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import anyio
import pytest

from chaosrunner.lab.embedded.store import ApiError
from tests.lab.inside import FAST, NAMESPACE, Inside, Json, inside_a_lab

pytestmark = [pytest.mark.anyio, pytest.mark.lab]

AGENT = "chaosrunner/agent:0.1.0"
TICKS = "import time\nwhile True: print('tick', flush=True); time.sleep(0.05)"
FAMILY = f"""
import subprocess, sys, time
child = subprocess.Popen(["VLLM::EngineCore", "-c", {TICKS!r}], executable=sys.executable)
child.wait()
print("alone", flush=True)
while True: time.sleep(60)
"""


@pytest.fixture
async def lab(tmp_path: Path) -> AsyncIterator[Inside]:
    async with inside_a_lab(tmp_path / "state", nodes=1, kubelet=FAST | {"backoff": 0.3, "relist": 0.1}) as inside:
        yield inside


async def start(lab: Inside, script: str = TICKS) -> None:
    container = {"name": "main", "image": "lab/test:1", "command": ["python3", "-S", "-c", script]}
    spec = {"containers": [container], "terminationGracePeriodSeconds": 1}
    lab.store.create("pods", {"metadata": {"name": "pod", "namespace": NAMESPACE}, "spec": spec})
    await lab.until(lambda: pod(lab)["status"]["phase"] == "Running")
    await ticking(lab)


def pod(lab: Inside) -> Json:
    return dict(lab.store.get("pods", "pod", NAMESPACE))


def inject(lab: Inside, name: str, *args: str, image: str = AGENT, target: str = "main", **more: Any) -> None:
    entry = {"name": name, "image": image, "args": list(args), "targetContainerName": target, **more}

    def add(new: Json) -> None:
        new["spec"]["ephemeralContainers"] = [*new["spec"].get("ephemeralContainers", ()), entry]

    lab.store.mutate("pods", "pod", NAMESPACE, add, subresource="ephemeralcontainers")


def state(lab: Inside, name: str) -> Json:
    statuses = pod(lab)["status"].get("ephemeralContainerStatuses") or ()
    return dict(next((entry["state"] for entry in statuses if entry["name"] == name), {}))


async def ended(lab: Inside, name: str) -> Json:
    await lab.until(lambda: "terminated" in state(lab, name))
    found: Json = state(lab, name)["terminated"]
    return found | {"told": json.loads(found["message"])} if found.get("message") else found


async def log(lab: Inside, container: str) -> str:
    asked: dict[str, Any] = dict.fromkeys(("tail_lines", "since_seconds", "limit_bytes"))
    asked |= dict.fromkeys(("follow", "previous", "timestamps"), False)
    return b"".join([chunk async for chunk in lab.lab.read_log(NAMESPACE, "pod", container, **asked)]).decode()


async def told(lab: Inside, name: str, event: str = "set") -> None:
    """The agent has said so."""
    with anyio.fail_after(10):
        while True:
            try:
                if event in await log(lab, name):
                    return
            except ApiError:
                pass
            await anyio.sleep(0.02)


async def ticks(lab: Inside, seconds: float) -> int:
    """How often the main container's child or itself ticked in so many seconds."""
    before = (await log(lab, "main")).count("tick")
    await anyio.sleep(seconds)
    return (await log(lab, "main")).count("tick") - before


async def ticking(lab: Inside) -> None:
    with anyio.fail_after(10):
        while not await ticks(lab, 0.1):
            pass


async def test_a_frozen_process_stands_still_and_goes_on_by_itself(lab: Inside) -> None:
    await start(lab)
    inject(lab, "fault", "freeze", "--entry", "E1", "--for", "1")
    await told(lab, "fault")
    assert await ticks(lab, 0.4) <= 1
    found = await ended(lab, "fault")
    assert (found["exitCode"], found["reason"]) == (0, "Completed")
    assert found["told"] == {"event": "ended", "entry": "E1", "text": "time limit reached"}
    await ticking(lab)
    events = [json.loads(line)["event"] for line in (await log(lab, "fault")).splitlines()]
    assert events == ["set", "ended"]


async def test_a_child_is_frozen_by_its_name(lab: Inside) -> None:
    await start(lab, FAMILY)
    inject(lab, "fault", "freeze", "--entry", "E1", "--for=30", "--process", "VLLM::EngineCore")
    await told(lab, "fault")
    assert await ticks(lab, 0.4) <= 1
    inject(lab, "heal", "heal", "--entry", "E1")
    assert (await ended(lab, "fault"))["told"]["text"] == "ended by signal SIGTERM"
    assert (await ended(lab, "heal"))["told"]["text"] == "the frozen processes go on"
    await ticking(lab)
    inject(lab, "again", "heal", "--entry", "E1")
    assert (await ended(lab, "again"))["told"]["text"] == "nothing of it was left"


async def test_a_child_is_killed_and_its_parent_lives_on(lab: Inside) -> None:
    await start(lab, FAMILY)
    inject(lab, "fault", "kill", "--entry", "E1", "--process", "VLLM::EngineCore")
    found = await ended(lab, "fault")
    assert found["exitCode"] == 0
    assert found["told"]["text"].endswith(" killed")
    await told(lab, "main", "alone")
    assert pod(lab)["status"]["containerStatuses"][0]["restartCount"] == 0


async def test_a_killed_main_process_is_restarted(lab: Inside) -> None:
    await start(lab)
    inject(lab, "fault", "kill", "--entry", "E1", "--signal", "9")
    await lab.until(lambda: pod(lab)["status"]["containerStatuses"][0]["restartCount"] == 1)
    assert pod(lab)["status"]["containerStatuses"][0]["lastState"]["terminated"]["exitCode"] == 137
    assert (await ended(lab, "fault"))["exitCode"] == 0


async def test_what_a_killed_agent_froze_goes_on(lab: Inside) -> None:
    await start(lab)
    inject(lab, "fault", "freeze", "--entry", "E1", "--for", "60")
    await told(lab, "fault")
    agent = lab.lab.container(NAMESPACE, "pod", "fault")
    assert agent is not None
    assert agent.process is not None
    os.kill(agent.process.pid, signal.SIGKILL)
    await ticking(lab)
    assert (await ended(lab, "fault"))["exitCode"] == 137


async def test_a_pod_with_a_frozen_process_ends_within_its_grace_period(lab: Inside) -> None:
    await start(lab)
    inject(lab, "fault", "freeze", "--entry", "E1", "--for", "60")
    await told(lab, "fault")
    lab.store.delete("pods", "pod", NAMESPACE)
    await lab.until(lambda: lab.store.find("pods", "pod", NAMESPACE) is None, seconds=6)


async def test_the_agent_notices_that_what_it_froze_was_ended(lab: Inside) -> None:
    await start(lab, FAMILY)
    inject(lab, "fault", "freeze", "--entry", "E1", "--for", "60", "--process", "VLLM::EngineCore")
    await told(lab, "fault")
    inject(lab, "kill", "kill", "--entry", "E2", "--process", "VLLM::EngineCore")
    assert (await ended(lab, "fault"))["told"]["text"].endswith("ended meanwhile")


@pytest.mark.parametrize(
    ("words", "target", "text"),
    [
        (["freeze", "--entry", "E1", "--for", "0"], "main", "--for wants a number of seconds above 0"),
        (["freeze", "--for", "1"], "main", '--entry wants letters and digits, not ""'),
        (["freeze", "--entry", "E1", "--for", "1", "--process", "nobody"], "main", "no child of the main process is"),
        (["freeze", "--entry", "E1", "--for", "1"], "", "no process of the container is seen here"),
        (["kill", "--entry", "E1", "--signal", "19"], "main", "a stopped process does not go on by itself"),
        (["kill", "--entry", "E1", "--signal", "99"], "main", "there is no signal 99"),
        (["kill", "--entry", "E1", "--start-by", "1"], "main", "started "),
        (["network", "{}"], "main", "Pods of the embedded lab have no network of their own"),
        (["dance"], "main", "argument verb: invalid choice"),
    ],
)
async def test_what_cannot_be_done_is_refused_in_one_sentence(
    lab: Inside, words: list[str], target: str, text: str
) -> None:
    await start(lab)
    inject(lab, "fault", *words, target=target)
    found = await ended(lab, "fault")
    assert found["exitCode"] == 2
    assert found["told"]["event"] == "refused"
    assert found["told"]["text"].startswith(text)


async def test_an_image_that_the_pod_has_runs_its_command(lab: Inside) -> None:
    await start(lab)
    inject(lab, "look", image="lab/test:1", target="", command=["sh", "-c", "echo hello; exit 3"])
    assert (await ended(lab, "look"))["exitCode"] == 3
    assert await log(lab, "look") == "hello\n"


@pytest.mark.parametrize(("policy", "reason"), [("Never", "ErrImageNeverPull"), ("IfNotPresent", "ErrImagePull")])
async def test_an_image_that_is_not_there_is_waited_for(lab: Inside, policy: str, reason: str) -> None:
    await start(lab)
    inject(lab, "look", image="nobody/nothing:1", imagePullPolicy=policy, command=["true"])
    await lab.until(lambda: state(lab, "look").get("waiting", {}).get("reason") == reason)


async def test_a_killed_engine_core_is_noticed_by_the_liveness_probe(lab: Inside) -> None:
    """The whole of a drill that kills an engine: the server stays, answers 503, and is started anew."""
    flags = ["--host=$(POD_IP)", "--port=8000", "--startup=0", "--engine-process", "--engine-death=stay"]
    check = {"httpGet": {"path": "/health", "port": 8000}, "periodSeconds": 1}
    container = {
        "name": "main",
        "image": "lab/test:1",
        "command": ["python3", "-m", "chaosrunner.lab.workload.model_server", *flags],
        "startupProbe": check | {"failureThreshold": 30},
        "livenessProbe": check | {"failureThreshold": 2},
    }
    spec = {"containers": [container], "terminationGracePeriodSeconds": 1}
    lab.store.create("pods", {"metadata": {"name": "pod", "namespace": NAMESPACE}, "spec": spec})
    await lab.until(lambda: any(entry["started"] for entry in pod(lab)["status"].get("containerStatuses", ())))
    inject(lab, "fault", "kill", "--entry", "E1", "--process", "VLLM::EngineCore")
    assert "VLLM::EngineCor" in (await ended(lab, "fault"))["told"]["text"]
    await lab.until(lambda: pod(lab)["status"]["containerStatuses"][0]["restartCount"] == 1, seconds=30)
    events = [event["message"] for event in lab.store.list("events", NAMESPACE)]
    assert "Liveness probe failed: HTTP probe failed with statuscode: 503" in events
    assert "Container main failed liveness probe, will be restarted" in events
