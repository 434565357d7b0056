"""The lab as a program: what it prints, what it leaves behind, and plain kubectl against it."""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.lab

needs_kubectl = pytest.mark.skipif(shutil.which("kubectl") is None, reason="kubectl is not installed")


class RunningLab:
    def __init__(self, process: subprocess.Popen[str], ready: dict[str, Any]) -> None:
        self.process = process
        self.ready = ready

    def kubectl(self, *arguments: str, timeout: float = 60) -> str:
        command = ["kubectl", "--kubeconfig", self.ready["kubeconfig"], *arguments]
        done = subprocess.run(command, capture_output=True, text=True, timeout=timeout, check=False)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    def control(self, path: str) -> None:
        with urllib.request.urlopen(urllib.request.Request(self.ready["control"] + path, method="POST")) as answer:
            assert answer.status == 200

    def complete(self, tokens: int = 4) -> str:
        """Stream one completion through the gateway; returns the name of the Pod that served it."""
        body = json.dumps({"model": "tiny", "prompt": "hello", "max_tokens": tokens, "stream": True}).encode()
        headers = {"Content-Type": "application/json"}
        request = urllib.request.Request(self.ready["url"] + "/v1/completions", body, headers)
        with urllib.request.urlopen(request, timeout=10) as answer:
            assert b"data: [DONE]" in answer.read()
            return str(answer.headers["x-served-by"])

    def instants(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in Path(self.ready["log"]).read_text().splitlines()]


def members(session_of: Path) -> list[str]:
    """Command lines of running processes that name the lab's state folder."""
    listed = subprocess.run(["ps", "-Aww", "-o", "args="], capture_output=True, text=True, check=True).stdout
    return [line for line in listed.splitlines() if str(session_of) in line and "pytest" not in line.split(" ")[0]]


@contextmanager
def lab(folder: Path, *flags: str, stdin: int | None = None, **spec: Any) -> Iterator[RunningLab]:
    folder.mkdir(exist_ok=True)
    file = folder / "spec.json"
    file.write_text(json.dumps({"startup": 0.5, "model": {"tokens_per_second": 200}} | spec))
    command = [sys.executable, "-m", "chaosrunner.lab", "--spec", str(file), "--state", str(folder), *flags]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stdin=stdin, text=True)
    try:
        assert process.stdout is not None
        line = process.stdout.readline()
        assert line, f"exit code {process.wait(5)}"
        yield RunningLab(process, json.loads(line))
    finally:
        process.terminate()
        process.wait(30)


def test_a_lab_serves_logs_its_instants_and_leaves_nothing_behind(tmp_path: Path) -> None:
    with lab(tmp_path) as running:
        assert {
            "kubeconfig",
            "context",
            "state",
            "nodes",
            "namespace",
            "url",
            "prometheus",
            "toxiproxy",
            "gateway",
            "log",
            "control",
            "pod_header",
            "pid",
        } == running.ready.keys()
        pod = running.complete()
        with urllib.request.urlopen(running.ready["prometheus"] + "/api/v1/alerts") as answer:
            assert json.load(answer)["status"] == "success"
        time.sleep(0.3)
        mine = [row["what"] for row in running.instants() if row.get("pod") == pod]
        assert mine == ["created", "scheduled", "started", "endpoint_not_ready", "ready", "endpoint_ready",
                        "first_request", "first_complete"]  # fmt: skip
        walls = [row["wall"] for row in running.instants() if row.get("pod") == pod]
        assert abs(walls[-1] - time.time()) < 60
        assert members(tmp_path)
        told = Path(running.ready["state"]) / "ready.json"
        assert json.loads(told.read_text()) == {"kind": "embedded"} | running.ready
    assert not told.exists()
    assert running.process.returncode == 0
    assert members(tmp_path) == []


def test_a_lab_on_one_shared_address_serves(tmp_path: Path) -> None:
    with lab(tmp_path, addresses="shared") as running:
        assert "127.0.0.1" in running.ready["url"]
        assert {running.complete() for _ in range(8)}


def test_streams_of_a_cut_node_fall_silent_and_go_on_when_it_is_healed(tmp_path: Path) -> None:
    with lab(tmp_path, nodes=1, replicas=1) as running:
        host, _, port = running.ready["url"].removeprefix("http://").partition(":")
        body = json.dumps({"model": "tiny", "prompt": "hello", "max_tokens": 400, "ignore_eos": True, "stream": True})
        head = f"POST /v1/completions HTTP/1.1\r\nhost: lab\r\ncontent-length: {len(body)}\r\n\r\n"
        came = b""

        def until(seconds: float, text: bytes) -> bytes:
            """What came until the text did; TimeoutError after so much silence."""
            nonlocal came
            stream.settimeout(seconds)
            while text not in came:
                data = stream.recv(100_000)
                assert data, "the stream has ended"
                came += data
            return came

        with socket.create_connection((host, int(port))) as stream:
            stream.sendall((head + body).encode())
            assert until(10, b"\r\n\r\n").startswith(b"HTTP/1.1 200 OK")
            running.control("/cut?node=node1")
            with pytest.raises(TimeoutError):
                until(1, b"data: [DONE]")
            running.control("/heal?node=node1")
            until(10, b"data: [DONE]")
        assert running.complete()


def test_a_killed_lab_leaves_nothing_behind(tmp_path: Path) -> None:
    with lab(tmp_path) as running:
        running.process.kill()
        running.process.wait()
        end = time.monotonic() + 5
        while members(tmp_path):
            assert time.monotonic() < end
            time.sleep(0.05)


def test_a_lab_ends_with_its_standard_input(tmp_path: Path) -> None:
    with lab(tmp_path, "--until-stdin-closes", stdin=subprocess.PIPE, replicas=1) as running:
        assert running.process.stdin is not None
        running.process.stdin.close()
        assert running.process.wait(30) == 0
    assert members(tmp_path) == []


def test_a_bad_spec_is_one_line_and_exit_code_2(tmp_path: Path) -> None:
    file = tmp_path / "spec.json"
    file.write_text('{"replicsa": 2}')
    command = [sys.executable, "-m", "chaosrunner.lab", "--spec", str(file), "--state", str(tmp_path / "state")]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == "lab: Object contains unknown field `replicsa`\n"


def test_a_manifest_of_an_unknown_kind_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "spec.json"
    file.write_text(json.dumps({"manifests": [{"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": "x"}}]}))
    command = [sys.executable, "-m", "chaosrunner.lab", "--spec", str(file), "--state", str(tmp_path / "state")]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert "the embedded lab has no batch/v1 Job" in done.stderr


@needs_kubectl
def test_kubectl_logs_rollout_and_drain(tmp_path: Path) -> None:
    with lab(tmp_path, pdb={"min_available": 1}, grace=5) as running:
        pod = running.kubectl("get", "pods", "-o", "name").split()[0]
        assert running.kubectl("logs", pod).startswith("serving tiny on 127.")
        assert " serving tiny" in running.kubectl("logs", "--timestamps", "--tail=1", pod)
        name = pod.removeprefix("pod/")
        running.control(f"/signal?pod={name}&signal=KILL")
        running.kubectl("wait", pod, "--for=jsonpath={.status.containerStatuses[0].restartCount}=1", "--timeout=10s")
        assert running.kubectl("logs", "--previous", pod).startswith("serving tiny")
        running.kubectl("wait", pod, "--for=condition=Ready", "--timeout=10s")
        running.kubectl("rollout", "restart", "deployment/model")
        told = running.kubectl("rollout", "status", "deployment/model", "--timeout=30s")
        assert "successfully rolled out" in told
        node = running.kubectl("get", "pods", "-o", "jsonpath={.items[0].spec.nodeName}")
        drained = running.kubectl("drain", node, "--ignore-daemonsets", "--timeout=30s")
        assert f"node/{node} drained" in drained
        on_node = running.kubectl("get", "pods", "-A", "-o", "name", f"--field-selector=spec.nodeName={node}")
        assert on_node == ""
        running.kubectl("uncordon", node)
        assert "node/node1" in running.kubectl("get", "nodes", "-o", "name")


@needs_kubectl
@pytest.mark.slow
def test_200_pods_with_watchers_and_a_drain_that_is_blocked_for_a_while(tmp_path: Path) -> None:
    """A few model servers and many sleepers, watchers of each kind, and a drain that a budget holds up until every
    Pod was asked for twice."""
    sleepers = {
        "apiVersion": "policy/v1",
        "kind": "PodDisruptionBudget",
        "metadata": {"name": "sleeper"},
        "spec": {"minAvailable": 197, "selector": {"matchLabels": {"app": "sleeper"}}},
    }
    with lab(tmp_path, nodes=8, replicas=3, sleepers=197, manifests=[sleepers]) as running:
        running.kubectl("rollout", "status", "deployment/sleeper", "--timeout=90s", timeout=100)
        others = ("endpointslices", "events", "nodes", "poddisruptionbudgets", "deployments", "replicasets")
        kinds = ("pods",) * 3 + others
        files = [tmp_path / f"watch-{kind}-{number}" for number, kind in enumerate(kinds)]
        base = ["kubectl", "--kubeconfig", running.ready["kubeconfig"], "get", "-A", "-o", "name", "--watch"]
        watchers = []
        for file in files:
            with file.open("w") as output:
                kind = file.name.split("-")[1]
                watchers.append(subprocess.Popen([*base, kind], stdout=output, env=os.environ | {"GOMAXPROCS": "1"}))
        try:
            node = running.kubectl("get", "nodes", "-o", "name").split()[1].removeprefix("node/")
            drain = ["kubectl", "--kubeconfig", running.ready["kubeconfig"], "drain", node, "--timeout=60s"]
            draining = subprocess.Popen(drain, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
            assert draining.stdout is not None
            refused = Counter[str]()
            while not refused or min(refused.values()) < 2:
                line = draining.stdout.readline()
                assert line, refused
                if "Cannot evict pod as it would violate the pod's disruption budget" in line:
                    refused[line] += 1
            patch = '{"spec":{"minAvailable":50}}'
            running.kubectl("patch", "poddisruptionbudget", "sleeper", "--type=merge", "-p", patch)
            told, _ = draining.communicate(timeout=60)
            assert draining.returncode == 0, told[-2000:]
            assert running.complete()

            def pods() -> list[int]:
                return [len(file.read_text().splitlines()) for file in files if "-pods-" in file.name]

            while min(pods()) <= 300 or len(set(pods())) > 1:
                time.sleep(0.1)
        finally:
            for watcher in watchers:
                watcher.send_signal(signal.SIGTERM)
            for watcher in watchers:
                watcher.wait(30)
    assert members(tmp_path) == []
