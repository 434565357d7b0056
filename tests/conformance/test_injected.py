"""Ephemeral containers on nodes: how they run, what is told of them, and what the agent of faults does in them."""

from __future__ import annotations

import json
import time
from typing import Any

import pytest

from chaosrunner import __version__
from tests.conformance.differences import side
from tests.conformance.episodes import is_ready
from tests.labs import Json, Lab, Namespace

AGENT = f"chaosrunner/agent:{__version__}"
TICKS = "import time\nwhile True: print('tick', flush=True); time.sleep(0.05)"


def start(ns: Namespace, container: Json) -> None:
    spec = {"terminationGracePeriodSeconds": 1, "automountServiceAccountToken": False, "containers": [container]}
    ns.create("pods", {"metadata": {"name": "pod"}, "spec": spec})
    ns.until(lambda: is_ready(ns.get("pods/pod")), what="the Pod is not Ready")


def inject(ns: Namespace, name: str, **container: Any) -> None:
    added = {"spec": {"ephemeralContainers": [{"name": name, "imagePullPolicy": "Never", **container}]}}
    ns.patch("pods/pod/ephemeralcontainers", added, "strategic-merge")


def status(ns: Namespace, name: str) -> Json:
    statuses = ns.get("pods/pod")["status"].get("ephemeralContainerStatuses") or ()
    return dict(next((entry for entry in statuses if entry["name"] == name), {}))


def in_state(ns: Namespace, name: str, state: str) -> Json:
    """The state's own fields, as soon as the container is in it."""

    def found() -> Any:
        return status(ns, name).get("state", {}).get(state)

    return dict(ns.until(found, what=f"{name} is not {state}"))


@pytest.fixture
def pod(ns: Namespace, lab: Lab) -> Namespace:
    """A namespace with a Ready Pod, `pod`, whose container `main` ticks."""
    start(ns, lab.container(["python3", "-S", "-c", TICKS]))
    return ns


def image(ns: Namespace) -> str:
    """The image of the Pod's own container, which its node has."""
    return str(ns.get("pods/pod")["spec"]["containers"][0]["image"])


def test_it_runs_once_beside_the_containers(pod: Namespace) -> None:
    inject(pod, "look", image=image(pod), command=["sh", "-c", "echo hello; sleep 1; exit 3"])
    running = in_state(pod, "look", "running")
    assert list(running) == ["startedAt"]
    ended = in_state(pod, "look", "terminated")
    assert (ended["exitCode"], ended["reason"]) == (3, "Error")
    assert pod.log("pod", container="look") == "hello\n"
    time.sleep(1.5)  # longer than a kubelet takes to start a container again
    found = status(pod, "look")
    assert found["state"]["terminated"] == ended
    assert (found["restartCount"], found["ready"], found["lastState"]) == (0, False, {})
    assert is_ready(pod.get("pods/pod"))
    assert pod.get("pods/pod")["status"]["phase"] == "Running"


def test_kubectl_debug_puts_one_in(pod: Namespace, lab: Lab) -> None:
    options = ["--image", image(pod), "--image-pull-policy=Never", "--profile=general", "--target=main", "-c", "look"]
    lab.kubectl("-n", pod.name, "debug", "pod", *options, "--", "sh", "-c", "echo hello")
    assert in_state(pod, "look", "terminated")["exitCode"] == 0
    assert pod.log("pod", container="look") == "hello\n"


def test_its_status_has_the_fields_of_a_real_one(pod: Namespace) -> None:
    inject(pod, "look", image=image(pod), command=["sleep", "60"])
    in_state(pod, "look", "running")
    found = status(pod, "look")
    fields = {"containerID", "image", "imageID", "lastState", "name", "ready", "restartCount", "state"}
    assert fields <= found.keys()
    assert "started" not in found


def test_an_image_that_the_node_lacks_is_waited_for(pod: Namespace) -> None:
    inject(pod, "look", image="nobody/nothing:1", command=["true"])
    waiting = in_state(pod, "look", "waiting")
    pod.until(lambda: status(pod, "look")["state"]["waiting"]["reason"] == "ErrImageNeverPull")
    waiting = status(pod, "look")["state"]["waiting"]
    assert waiting["message"] == 'Container image "nobody/nothing:1" is not present with pull policy of Never'
    assert pod.ask("GET", "pods/pod/log", query={"container": "look"}).status == 400
    assert is_ready(pod.get("pods/pod"))


def test_it_ends_with_its_pod(pod: Namespace) -> None:
    inject(pod, "look", image=image(pod), command=["sleep", "60"])
    in_state(pod, "look", "running")
    pod.do("DELETE", "pods/pod")
    pod.until(lambda: pod.ask("GET", "pods/pod").status == 404, 20, "the Pod does not go")


# -- the agent ---------------------------------------------------------------------------------------------------------


def agent(ns: Namespace, name: str, *words: str, **more: Any) -> None:
    rights = {"capabilities": {"add": ["SYS_PTRACE", "KILL"]}}
    inject(ns, name, image=AGENT, args=list(words), targetContainerName="main", securityContext=rights, **more)


def told(ns: Namespace, name: str) -> list[Json]:
    """What the agent told so far."""
    text = ns.ask("GET", "pods/pod/log", query={"container": name})
    return [json.loads(line) for line in text.body.splitlines()] if text.status == 200 and text.body else []


def ticks(ns: Namespace, seconds: float) -> int:
    def count() -> int:
        return ns.log("pod", container="main").count("tick")

    before = count()
    time.sleep(seconds)
    return count() - before


def test_the_agent_freezes_and_thaws(pod: Namespace) -> None:
    assert ticks(pod, 0.5) > 0
    agent(pod, "fault", "freeze", "--entry", "e1", "--for", "2")
    pod.until(lambda: told(pod, "fault"), what="the agent tells nothing")
    assert ticks(pod, 0.8) <= 1
    ended = in_state(pod, "fault", "terminated")
    assert (ended["exitCode"], ended["reason"]) == (0, "Completed")
    assert json.loads(ended["message"]) == {"event": "ended", "entry": "e1", "text": "time limit reached"}
    assert [event["event"] for event in told(pod, "fault")] == ["set", "ended"]
    assert ticks(pod, 0.5) > 0


def test_the_agent_heals_before_time(pod: Namespace) -> None:
    agent(pod, "fault", "freeze", "--entry", "e1", "--for", "60")
    pod.until(lambda: told(pod, "fault"), what="the agent tells nothing")
    agent(pod, "heal", "heal", "--entry", "e1")
    healed = json.loads(in_state(pod, "heal", "terminated")["message"])
    assert healed == {"event": "ended", "entry": "e1", "text": "the frozen processes go on"}
    assert json.loads(in_state(pod, "fault", "terminated")["message"])["text"] == "ended by signal SIGTERM"
    assert ticks(pod, 0.5) > 0


def test_the_agent_kills_the_main_process(pod: Namespace) -> None:
    agent(pod, "fault", "kill", "--entry", "e1")

    def main() -> Json:
        return dict(pod.get("pods/pod")["status"]["containerStatuses"][0])

    pod.until(lambda: main()["restartCount"] == 1, what="the container was not restarted")
    assert main()["lastState"]["terminated"]["exitCode"] == 137
    assert told(pod, "fault")[0]["event"] == "set"


def test_the_agent_refuses_in_one_sentence(pod: Namespace) -> None:
    agent(pod, "fault", "freeze", "--entry", "e1", "--for", "5", "--process", "nobody")
    ended = in_state(pod, "fault", "terminated")
    assert ended["exitCode"] == 2
    said = json.loads(ended["message"])
    assert (said["event"], said["entry"]) == ("refused", "e1")
    assert said["text"].startswith("no child of the main process is called nobody; there are: python")


def test_only_a_pod_with_a_network_of_its_own_lets_it_be_changed(pod: Namespace, lab: Lab) -> None:
    rights = {"capabilities": {"add": ["NET_ADMIN"]}}
    added = {"name": "net", "image": AGENT, "args": ["heal", "--entry", "e1"], "securityContext": rights}
    answer = pod.ask(
        "PATCH",
        "pods/pod/ephemeralcontainers",
        {"spec": {"ephemeralContainers": [added]}},
        content_type="application/strategic-merge-patch+json",
        query={"dryRun": "All"},
    )
    assert answer.status == side("a container with NET_ADMIN: status", lab.name)
