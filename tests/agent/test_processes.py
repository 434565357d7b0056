"""Frozen and killed processes of a container, whose main process is process 1 of its own namespace.

A healer looks for an entry's agents among all processes that it can see, which without a container are the machine's:
entries here have names that no other file's have.
"""

from __future__ import annotations

import os
import select
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.agent.places import Running

pytestmark = pytest.mark.timeout(600)  # the first one builds the agent

BEATS = """
import ctypes, os, signal, sys, threading, time

def beat(name):
    while True:
        os.write(1, (name + "\\n").encode())
        time.sleep(0.02)

def more():  # threads come and go
    while True:
        threading.Thread(target=time.sleep, args=(0.01,)).start()
        time.sleep(0.005)

ctypes.CDLL(None).prctl(15, sys.argv[1].encode(), 0, 0, 0)
signal.signal(signal.SIGUSR1, lambda *_: os.write(1, b"signal\\n"))
if os.fork() == 0:
    ctypes.CDLL(None).prctl(15, b"engine-core-of-a-model", 0, 0, 0)
    beat("child")
threading.Thread(target=more, daemon=True).start()
for number in (1, 2, 3):
    threading.Thread(target=beat, args=(f"thread{number}",), daemon=True).start()
beat("main")
"""
MAIN = {"main", "thread1", "thread2", "thread3"}


class Container:
    """A process namespace with processes that tell that they live."""

    def __init__(self, agent: Path, name: str) -> None:
        self._agent = agent
        command = ["unshare", "--pid", "--fork", "--kill-child", "--mount-proc", sys.executable, "-c", BEATS, name]
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
        self._agents: list[Running] = []
        assert {*MAIN, "child"} <= set(self.heard(until=lambda heard: len(heard) == 5))

    @property
    def first(self) -> int:
        """Its process 1, as seen from outside."""
        children = Path(f"/proc/{self.process.pid}/task/{self.process.pid}/children").read_text()
        return int(children.split()[0])

    def heard(self, seconds: float = 5, until: Callable[[Counter[str]], bool] = lambda _: False) -> Counter[str]:
        """How often each told that it lives."""
        assert self.process.stdout is not None
        heard: Counter[str] = Counter()
        end = time.monotonic() + seconds
        while (left := end - time.monotonic()) > 0 and not until(heard):
            if select.select([self.process.stdout], [], [], left)[0]:
                data = os.read(self.process.stdout.fileno(), 1 << 20)
                if not data:
                    break
                heard.update(data.decode().split())
        return heard

    def silent(self, seconds: float = 0.4) -> set[str]:
        """Who tells nothing for so long."""
        self.heard(0.1)  # what was told before
        return {*MAIN, "child"} - set(self.heard(seconds))

    def start(self, *arguments: str) -> Running:
        # As runtimes do: in the process namespace, with its /proc, and never process 1.
        command = ["nsenter", f"--target={self.first}", "--pid", "--mount", str(self._agent), *arguments]
        self._agents.append(Running(command))
        return self._agents[-1]

    def agent_of(self, running: Running) -> int:
        """The agent itself; `nsenter` waits for it."""
        children = Path(f"/proc/{running.process.pid}/task/{running.process.pid}/children").read_text()
        return int(children.split()[0])

    def close(self) -> None:
        self.process.kill()
        self.process.wait()
        for one in self._agents:
            one.close()
        assert self.process.stdout is not None
        self.process.stdout.close()


@pytest.fixture
def container(agent: Path, request: pytest.FixtureRequest) -> Iterator[Container]:
    made = Container(agent, getattr(request, "param", "server"))
    try:
        yield made
    finally:
        made.close()


def test_the_main_process_stands_still_and_goes_on_at_its_time_limit(container: Container) -> None:
    fault = container.start("freeze", "--entry", "p1", "--for", "1.5")
    began = time.monotonic()
    assert "stand still" in fault.event("set")["text"]
    assert container.silent() == MAIN
    assert fault.event("ended")["text"] == "time limit reached"
    assert fault.exit() == 0
    assert 1.4 < time.monotonic() - began < 3
    assert container.silent() == set()


def test_a_child_by_name_stands_still_and_its_parent_lives_on(container: Container) -> None:
    # A name is cut off at 15 bytes: proc_pid_comm(5).
    fault = container.start("freeze", "--entry", "p1", "--for", "30", "--process", "engine-core-of-a-model")
    assert "engine-core-of-" in fault.event("set")["text"]
    assert container.silent() == {"child"}
    os.kill(container.agent_of(fault), signal.SIGTERM)
    assert fault.event("ended")["text"] == "ended by signal SIGTERM"
    assert fault.exit() == 0
    assert container.silent() == set()


def test_a_frozen_process_goes_on_when_the_agent_is_killed(container: Container) -> None:
    fault = container.start("freeze", "--entry", "p1", "--for", "60")
    fault.event("set")
    assert container.silent() == MAIN
    os.kill(container.agent_of(fault), signal.SIGKILL)
    assert container.silent() == set()


def test_heal_lets_go_before_the_time_and_may_be_done_twice(container: Container) -> None:
    fault = container.start("freeze", "--entry", "p1", "--for", "60")
    fault.event("set")
    other = container.start("heal", "--entry", "p2")
    assert other.exit() == 0
    assert container.silent() == MAIN, "another entry's is none of its business"
    healer = container.start("heal", "--entry", "p1")
    assert healer.event("ended")["text"] == "the frozen processes go on"
    assert healer.exit() == 0
    assert container.silent() == set()
    assert fault.exit() == 0
    assert container.start("heal", "--entry", "p1").exit() == 0


def test_a_signal_that_came_while_it_stood_still_is_not_lost(container: Container) -> None:
    fault = container.start("freeze", "--entry", "p1", "--for", "1")
    fault.event("set")
    os.kill(container.first, signal.SIGUSR1)
    assert container.heard(0.3)["signal"] == 0
    assert fault.exit() == 0
    assert container.heard(5, lambda heard: heard["signal"] > 0)["signal"] == 1


def test_a_frozen_process_can_be_killed_and_the_agent_ends(container: Container) -> None:
    fault = container.start("freeze", "--entry", "p1", "--for", "60", "--process", "engine-core-of-a-model")
    fault.event("set")
    child = next(iter(Path(f"/proc/{container.first}/task/{container.first}/children").read_text().split()))
    os.kill(int(child), signal.SIGKILL)
    assert "ended meanwhile" in fault.event("ended")["text"]
    assert fault.exit() == 0


def test_process_1_is_killed_though_it_ignores_signals_from_inside(container: Container) -> None:
    ignored = ["nsenter", f"--target={container.first}", "--pid", "--mount", "kill", "-KILL", "1"]
    subprocess.run(ignored, check=True)
    assert container.silent() == set()
    fault = container.start("kill", "--entry", "p1")
    assert "SIGKILL sent to server" in fault.event("set")["text"]
    assert container.process.wait(10) != 0
    container.heard(0.1)  # what was told before
    assert container.heard(0.3) == Counter()


def test_a_child_is_killed_and_its_parent_lives_on(container: Container) -> None:
    fault = container.start("kill", "--entry", "p1", "--process", "engine-core-of-a-model")
    assert fault.event("ended")["text"].endswith(" killed")
    assert fault.exit() == 0
    assert container.silent() == {"child"}


def test_other_signals_reach_process_1_only_where_it_has_a_handler(container: Container) -> None:
    handled = container.start("kill", "--entry", "p1", "--signal", str(int(signal.SIGUSR1)))
    assert handled.exit() == 0
    assert container.heard(5, lambda heard: heard["signal"] > 0)["signal"] == 1
    ignored = container.start("kill", "--entry", "p1", "--signal", str(int(signal.SIGTERM)))
    assert "no handler for SIGTERM" in ignored.event("refused")["text"]
    assert ignored.exit() == 2


def test_what_cannot_be_meant_is_refused(container: Container) -> None:
    entry = ("--entry", "p1")
    for words, wanted in (
        (("freeze", *entry, "--for", "1", "--process", "nobody"), "no child of the main process is called nobody"),
        (("freeze", *entry), "--for"),
        (("freeze", *entry, "--for", "1", "--start-by", "1"), "too late"),
        (("kill", *entry, "--signal", str(int(signal.SIGSTOP))), "use freeze"),
        (("kill", *entry, "--signal", "999"), "no signal 999"),
        (("kill",), "--entry"),
        (("dance", *entry), "none of"),
    ):
        fault = container.start(*words)
        assert wanted in fault.event("refused")["text"]
        assert fault.exit() == 2
    assert container.silent() == set()


@pytest.mark.parametrize("container", ["pause"], indirect=True)
def test_the_sandbox_of_a_pod_that_shares_its_processes_is_never_meant(container: Container) -> None:
    for words in (("freeze", "--for", "1"), ("kill",), ("kill", "--container", "not-to-be-seen-in-any-control-group")):
        fault = container.start(*words, "--entry", "p1")
        assert "shares its process namespace" in fault.event("refused")["text"]
        assert fault.exit() == 2
    assert container.silent() == set()
