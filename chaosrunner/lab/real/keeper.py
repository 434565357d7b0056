"""`python -m chaosrunner.lab.real.keeper STATE`: the process that a real lab lives and dies with.

It gives itself namespaces of its own (processes, mounts, network) and forks into them. Process 1 there only reaps what
others leave behind; its child, the keeper proper, starts etcd, the control plane and the nodes, and then serves what no
Kubernetes API offers over a socket in the state folder. When process 1 dies, however it dies, the kernel ends every
process of the lab and frees its mounts and networks: control groups and files are all that is left to clear.

Until the lab is ready it tells on standard output what it does, a JSON object a line: {"doing": TEXT}, and at last
{"ready": {...}} or {"failed": TEXT}. It ends when the pipe named by --owner is closed, if one is.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import socketserver
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from chaosrunner.errors import UserError
from chaosrunner.lab.objects import condition
from chaosrunner.lab.real import cgroups, dns, mounts, network, node, pki, seed, syscalls
from chaosrunner.lab.real.api import Api, ApiError, NotAvailable, Unreachable
from chaosrunner.lab.real.binaries import Binaries, cache
from chaosrunner.lab.real.components import API_SERVER, Component, control_plane
from chaosrunner.lab.real.network import Node
from chaosrunner.lab.real.state import State
from chaosrunner.lab.real.watching import note_cable
from chaosrunner.lab.real.workload import noted

_PATIENCE = 90.0
"""Longest start of the API server, of containerd and of the nodes, seconds each."""
_POLL = 0.05


class Failed(Exception):
    """The lab does not come up; the text says which part of it and what it said."""


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("state", type=Path)
    parser.add_argument("--binaries", type=Path, required=True)
    parser.add_argument("--nodes", type=int, required=True)
    parser.add_argument("--pause", required=True, help="image of the pause container")
    parser.add_argument("--image", type=Path, action="append", default=[], help="archive that each node imports")
    parser.add_argument("--dns", required=True, help="image of CoreDNS")
    parser.add_argument("--owner", type=int, help="descriptor of a pipe that closes when the lab is to end")
    options = parser.parse_args()
    state = State(options.state)
    syscalls.unshare(syscalls.NEW_PIDS | syscalls.NEW_NETWORK)
    first = os.fork()
    if first:
        state.note_keeper(first)
        return 0
    mounts.make_private([state.folder, cache()])
    os.environ["TMPDIR"] = str(mounts.TEMPORARY)
    keeper = os.fork()
    if keeper:
        return _reap(keeper)
    try:
        _keep(state, options)
    except Failed as error:
        _tell(failed=str(error))
    return 1


def _reap(keeper: int) -> int:
    """Process 1: wait for all whose parents are gone, until the keeper ends."""
    os.close(sys.stdout.fileno())
    while os.wait()[0] != keeper:
        pass
    return 0


def _keep(state: State, options: argparse.Namespace) -> None:
    keeper = Keeper(state, Binaries(options.binaries), network.nodes(options.nodes))
    if options.owner is not None:
        threading.Thread(target=_await_owner, args=(options.owner,), daemon=True).start()
    try:
        keeper.up(options.pause, options.dns, options.image, temporary=options.owner is not None)
    except (RuntimeError, OSError, UserError, ApiError, Unreachable, NotAvailable) as error:
        raise Failed(str(error)) from error
    keeper.serve()


def _await_owner(pipe: int) -> None:
    """End the whole lab when nobody holds the other end of the pipe any more."""
    while os.read(pipe, 1):
        pass
    os._exit(0)


def _tell(**line: Any) -> None:
    # Whoever started the lab may be gone; the lab is not to fail for that.
    try:
        sys.stdout.write(json.dumps(line) + "\n")
        sys.stdout.flush()
    except OSError:
        pass


class Keeper:
    """All processes of a lab."""

    def __init__(self, state: State, binaries: Binaries, nodes: list[Node]) -> None:
        self._state = state
        self._binaries = binaries
        self._nodes = nodes
        self._components: dict[str, Component] = {}
        self._processes: dict[str, subprocess.Popen[bytes]] = {}
        self._cut: set[str] = set()
        self._lock = threading.Lock()
        self._noting = ExitStack()
        """Logs of instants; they end with the lab."""

    # -- start ---------------------------------------------------------------------------------------------------------

    def up(self, pause: str, coredns: str, images: list[Path], *, temporary: bool) -> None:
        """Start everything; returns when all nodes are Ready and names are resolved. RuntimeError when some part does
        not come up.

        `temporary`: whether the lab goes with whoever started it.
        """
        state = self._state
        _tell(doing="network, keys and certificates")
        network.lay(self._nodes)
        pki.write(state, self._nodes)
        cgroups.make(state.name, [one.name for one in self._nodes])
        _tell(doing="control plane and containerd")
        etcd, api_server, *controllers = control_plane(state, self._binaries)
        self._start(etcd)
        self._start(api_server)
        with ThreadPoolExecutor(len(self._nodes)) as pool:
            store = seed.prepare(self._binaries, images)
            prepared = [pool.submit(self._prepare, one, pause, store) for one in self._nodes]
            api = Api.of_kubeconfig(state.kubeconfig)
            self._wait(API_SERVER, lambda: _answers(api))
            for component in controllers:
                self._start(component)
            agents = [component for future in prepared for component in future.result()]
        _tell(doing="nodes")
        for component in agents:
            self._start(component)
        self._wait(None, lambda: _ready_nodes(api) == len(self._nodes))
        _tell(doing="DNS")
        dns.deploy(api, coredns)
        _make_account(api, state)
        outside = state.noted_keeper()
        ready = {
            "kubeconfig": str(state.kubeconfig),
            "context": pki.CONTEXT,
            "state": str(state.folder),
            "pid": outside,
            "network": f"/proc/{outside}/ns/net",
            "nodes": [one.name for one in self._nodes],
            "temporary": temporary,
        }
        state.tell(ready)
        _tell(ready=ready)

    def _prepare(self, one: Node, pause: str, images: Path) -> list[Component]:
        """Start a node's containerd with its images; returns the node's other programs."""
        runtime, *agents = node.components(self._state, self._binaries, one, pause)
        seed.plant(images, self._state.node(one.name) / "containerd")
        self._start(runtime)
        return agents

    def _start(self, component: Component) -> None:
        name = component.name
        with self._lock:
            known = self._processes.get(name)
            if known is not None and known.poll() is None:
                raise UserError(f"{name} runs already")
            self._components[name] = component
            if component.is_runtime and component.node:
                # One that was killed leaves its socket, and nobody behind it.
                self._state.containerd(component.node.name).unlink(missing_ok=True)
            search = f"{self._binaries.folder}{os.pathsep}{os.environ['PATH']}"
            with (self._state.logs / f"{name}.log").open("ab") as log:
                self._processes[name] = subprocess.Popen(
                    component.whole_command,
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=log,
                    env={"PATH": search, "HOME": str(self._state.folder)},
                    start_new_session=True,
                )
        if component.is_runtime and component.node:
            self._wait(name, self._state.containerd(component.node.name).is_socket)
            self._follow_events(component.node)

    def _follow_events(self, one: Node) -> None:
        """Keep what containerd tells of its containers, with its own times, until it ends."""
        with (self._state.events / f"{one.name}.jsonl").open("ab") as events:
            command = [str(self._binaries.ctr), "-a", str(self._state.containerd(one.name)), "events"]
            process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=events, stderr=subprocess.DEVNULL)
        threading.Thread(target=process.wait, daemon=True).start()

    def _wait(self, name: str | None, holds: Callable[[], bool]) -> None:
        """Wait until something holds. RuntimeError if the process `name`, or any, ends meanwhile, or takes too long."""
        deadline = time.monotonic() + _PATIENCE
        while not holds():
            for one in [name] if name else list(self._processes):
                if (code := self._processes[one].poll()) is not None:
                    raise RuntimeError(f"{one} ended with code {code}: {self._last_words(one)}")
            if time.monotonic() > deadline:
                last = f": {self._last_words(name)}" if name else ""
                raise RuntimeError(f"{name or 'the nodes'} did not become ready in {_PATIENCE:g} s{last}")
            time.sleep(_POLL)

    def _last_words(self, name: str) -> str:
        lines = (self._state.logs / f"{name}.log").read_text(errors="replace").strip().splitlines()
        return lines[-1][:500] if lines else "it said nothing"

    # -- what the socket offers ----------------------------------------------------------------------------------------

    def serve(self) -> None:
        """Answer one request a connection, a JSON object a line, until the process ends."""
        keeper = self

        class Handler(socketserver.StreamRequestHandler):
            def handle(self) -> None:
                try:
                    answer: Any = {"answer": keeper.do(json.loads(self.rfile.readline()))}
                except (UserError, RuntimeError, OSError, ValueError) as error:
                    answer = {"error": str(error)}
                self.wfile.write(json.dumps(answer).encode() + b"\n")

        with socketserver.ThreadingUnixStreamServer(str(self._state.control), Handler) as server:
            server.daemon_threads = True
            self._state.control.chmod(0o600)
            server.serve_forever()

    def do(self, request: dict[str, Any]) -> Any:
        """What one request asks for. UserError for what cannot be done."""
        match request:
            case {"do": "status"}:
                return self._status()
            case {"do": "cut", "node": name}:
                network.cut(self._node(name))
                if name not in self._cut:
                    note_cable(self._state.events, "cut", name)
                    self._cut.add(name)
            case {"do": "heal", "node": name}:
                network.heal(self._node(name))
                if name in self._cut:
                    note_cable(self._state.events, "healed", name)
                    self._cut.discard(name)
            case {"do": "kill", "component": name, "signal": number}:
                self._kill(name, signal.Signals(number))
            case {"do": "start", "component": name}:
                self._start(self._component(name))
            case {"do": "signal", "namespace": namespace, "pod": pod, "container": container, "signal": number}:
                self._signal_container(namespace, pod, container, signal.Signals(number))
            case {"do": "note", "namespaces": namespaces, "requests": requests, "log": log}:
                api, events = Api.of_kubeconfig(self._state.kubeconfig), self._state.events
                self._noting.enter_context(noted(api, namespaces, Path(requests), log=Path(log), events=events))
            case {"do": "import", "image": tar, "nodes": names}:
                for one in [self._node(name) for name in names] or self._nodes:
                    seed.import_image(self._binaries, self._state.containerd(one.name), Path(tar))
            case _:
                raise UserError(f"the lab does not know how to do this: {request}")
        return None

    def _status(self) -> dict[str, Any]:
        return {
            "components": {name: process.poll() is None for name, process in self._processes.items()},
            "cut": sorted(self._cut),
        }

    def _node(self, name: str) -> Node:
        for one in self._nodes:
            if one.name == name:
                return one
        raise UserError(f"no node {name!r}; there are {', '.join(one.name for one in self._nodes)}")

    def _component(self, name: str) -> Component:
        if name not in self._components:
            raise UserError(f"no component {name!r}; there are {', '.join(self._components)}")
        return self._components[name]

    def _kill(self, name: str, number: signal.Signals) -> None:
        """Signal a component; one that is told to end has ended on return."""
        process = self._processes[self._component(name).name]
        if process.poll() is not None:
            raise UserError(f"{name} does not run")
        process.send_signal(number)
        if number in (signal.SIGKILL, signal.SIGTERM):
            try:
                process.wait(_PATIENCE)
            except subprocess.TimeoutExpired:
                raise UserError(f"{name} did not end within {_PATIENCE:g} s of {number.name}") from None

    def _signal_container(self, namespace: str, pod: str, container: str | None, number: signal.Signals) -> None:
        """Signal the first process of a Pod's container, past Kubernetes."""
        labels = {"pod.namespace": namespace, "pod.name": pod} | ({"container.name": container} if container else {})
        found = [(one, running) for one in self._nodes for running in self._containers(one, labels)]
        if not found:
            raise UserError(f"no running container {container or ''} in pod {namespace}/{pod}")
        if len(found) > 1:
            raise UserError(f"pod {namespace}/{pod} has {len(found)} running containers: say which one")
        one, running = found[0]
        self._ctr(one, "tasks", "kill", "--signal", number.name, running)

    def _containers(self, one: Node, labels: dict[str, str]) -> Iterator[str]:
        """Ids of a Pod's running containers on a node, by the labels that kubelet gives them."""
        wanted = [f'labels."io.kubernetes.{name}"=={value}' for name, value in labels.items()]
        wanted.append('labels."io.cri-containerd.kind"==container')
        running = {
            line.split()[0] for line in self._ctr(one, "tasks", "ls").splitlines()[1:] if line.split()[2] == "RUNNING"
        }
        for found in self._ctr(one, "containers", "ls", "-q", ",".join(wanted)).split():
            if found in running:
                yield found

    def _ctr(self, one: Node, *arguments: str) -> str:
        command = [str(self._binaries.ctr), "-a", str(self._state.containerd(one.name)), "-n", "k8s.io", *arguments]
        found = subprocess.run(command, capture_output=True, text=True, check=False)
        if found.returncode:
            raise UserError(f"{one.name}: {found.stderr.strip()}")
        return found.stdout


def _answers(api: Api) -> bool:
    """Whether the API server takes requests."""
    try:
        return api.request("GET", "/readyz") == {"text": "ok"}
    except (ApiError, Unreachable):
        return False


def _make_account(api: Api, state: State) -> None:
    """A ServiceAccount without any right, and its kubeconfig: for trying out what rights a drill needs."""
    api.apply({"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": "chaosrunner"}})
    request = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": {"expirationSeconds": 86400}}
    path = "/api/v1/namespaces/default/serviceaccounts/chaosrunner/token"
    token = api.request("POST", path, request)["status"]["token"]
    pki.write_token_kubeconfig(state, state.account_kubeconfig, token, "default")


def _ready_nodes(api: Api) -> int:
    """How many nodes are Ready."""
    try:
        found = api.items("/api/v1/nodes")
    except (ApiError, Unreachable):
        return 0
    return sum((condition(one, "Ready") or {}).get("status") == "True" for one in found)


if __name__ == "__main__":
    sys.exit(main())
