"""Both labs, reached by the same code: a plain client of the Kubernetes API, watches, and what no API offers.

Fixtures (import them in a conftest): `embedded_lab` starts the embedded lab once a session; `real_lab` takes the real
lab that stands in the state folder $CHAOSRUNNER_TEST_LAB, or puts one up for the session, and moves this process into
its network. Nothing here asks by the product's own client: a conformance test that did would prove less.
"""

from __future__ import annotations

import base64
import json
import os
import secrets
import shutil
import socket
import ssl
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from http.client import HTTPConnection, HTTPException, HTTPSConnection
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import urlencode, urlsplit

import pytest
import yaml

from chaosrunner.lab.real.state import DEFAULT
from chaosrunner.lab.real.syscalls import enter_network

Json = dict[str, Any]
JSON = "application/json"
STANDING = "CHAOSRUNNER_TEST_LAB"
"""Environment variable: the state folder of a real lab that stands already."""

GROUPS = {
    "deployments": "apis/apps/v1",
    "endpointslices": "apis/discovery.k8s.io/v1",
    "leases": "apis/coordination.k8s.io/v1",
    "networkpolicies": "apis/networking.k8s.io/v1",
    "poddisruptionbudgets": "apis/policy/v1",
    "replicasets": "apis/apps/v1",
}
"""Where a kind's paths begin, unless with api/v1."""
_PATIENCE = 30.0
"""Seconds until something awaited counts as not coming."""


class Answer(NamedTuple):
    """An HTTP answer; `body` is parsed if it is JSON, else text."""

    status: int
    headers: Any
    body: Any


class NotReached(AssertionError):
    """What a test waited for did not come."""


@dataclass(frozen=True)
class Client:
    """Requests with one identity. `url` may end with a path, `headers` go with every request."""

    url: str
    headers: Mapping[str, str]
    tls: ssl.SSLContext | None = None

    def with_headers(self, **headers: str) -> Client:
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        return replace(self, headers={**self.headers, **named})

    def open(self, timeout: float = _PATIENCE) -> HTTPConnection:
        parts = urlsplit(self.url)
        host, port = parts.hostname or "", parts.port
        if self.tls is not None:
            return HTTPSConnection(host, port, context=self.tls, timeout=timeout)
        return HTTPConnection(host, port, timeout=timeout)

    def send(
        self,
        connection: HTTPConnection,
        method: str,
        path: str,
        body: Any = None,
        *,
        query: Mapping[str, Any] | None = None,
        content_type: str | None = JSON,
        accept: str = JSON,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        whole = {"Accept": accept, **self.headers, **(headers or {})}
        if body is not None and content_type is not None:
            whole["Content-Type"] = content_type
        data = body if isinstance(body, str | bytes | None) else json.dumps(body)
        target = urlsplit(self.url).path.rstrip("/") + path + (f"?{urlencode(query)}" if query else "")
        connection.request(method, target, data, whole)

    def request(self, method: str, path: str, body: Any = None, **options: Any) -> Answer:
        """One request on a connection of its own; see `send` for the options."""
        connection = self.open()
        try:
            self.send(connection, method, path, body, **options)
            answer = connection.getresponse()
            data = answer.read()
        finally:
            connection.close()
        text = data.decode(errors="backslashreplace")
        is_json = answer.headers.get_content_type() == JSON and text
        return Answer(answer.status, answer.headers, json.loads(text) if is_json else text)


class Watch:
    """A watch that is read by a thread of its own. `events`: (monotonic time of receipt, event)."""

    def __init__(self, client: Client, path: str, query: Mapping[str, Any], notify: Callable[[Json], None]) -> None:
        self.events: list[tuple[float, Json]] = []
        self.status = 0
        self.headers: Any = {}
        self.ended = threading.Event()
        self._grown = threading.Condition()
        self._notify = notify
        self._connection = client.open(timeout=600)
        client.send(self._connection, "GET", path, query={"watch": "true", **query})
        self._socket = self._connection.sock
        self._thread = threading.Thread(target=self._read, daemon=True)
        self._thread.start()

    def _read(self) -> None:
        try:
            answer = self._connection.getresponse()
            self.status, self.headers = answer.status, answer.headers
            while line := answer.readline():
                event = json.loads(line)
                with self._grown:
                    self.events.append((time.monotonic(), event))
                    self._grown.notify_all()
                self._notify(event)
        except (OSError, HTTPException, ValueError):
            # Closed by the test.
            pass
        finally:
            self.ended.set()
            with self._grown:
                self._grown.notify_all()

    def wait(self, holds: Callable[[list[Json]], Any], seconds: float = _PATIENCE) -> list[Json]:
        """The events, as soon as `holds` of them. NotReached when the watch ends before, or time is up."""
        with self._grown:
            self._grown.wait_for(lambda: holds(self.seen()) or self.ended.is_set(), seconds)
        events = self.seen()
        if not holds(events):
            raise NotReached(f"the watch shows {[event['type'] for event in events]}")
        return events

    def seen(self) -> list[Json]:
        return [event for _, event in self.events]

    def close(self) -> None:
        try:
            self._socket.shutdown(socket.SHUT_RDWR)
        except OSError:
            pass
        self._thread.join(5)
        self._connection.close()


@contextmanager
def watching(
    client: Client, path: str, notify: Callable[[Json], None] = lambda _: None, **query: Any
) -> Iterator[Watch]:
    watch = Watch(client, path, query, notify)
    try:
        yield watch
    finally:
        watch.close()


@dataclass(frozen=True)
class Change:
    """One watch event. `version`: the resourceVersion, which orders all kinds. `at`: seconds, of some clock."""

    version: int
    kind: str
    type: str
    object: Json
    at: float = 0.0

    @property
    def name(self) -> str:
        return str(self.object["metadata"]["name"])

    @property
    def namespace(self) -> str:
        return str(self.object["metadata"].get("namespace", ""))


class Recorder:
    """Every change of the kinds that a drill looks at, in the whole cluster, from the first use on."""

    KINDS = ("pods", "endpointslices", "poddisruptionbudgets", "nodes", "events", "deployments", "replicasets")

    def __init__(self, client: Client) -> None:
        self.changes: list[Change] = []
        self.latest: dict[tuple[str, str, str], Json] = {}
        self._grown = threading.Condition()
        self._watches: list[Watch] = []
        for kind in self.KINDS:
            path = f"/{GROUPS.get(kind, 'api/v1')}/{kind}"
            listed = client.request("GET", path).body
            for obj in listed["items"]:
                self._keep(kind, "BEFORE", obj)
            query = {"resourceVersion": listed["metadata"]["resourceVersion"], "timeoutSeconds": 3600}
            self._watches.append(Watch(client, path, query, lambda event, kind=kind: self._event(kind, event)))

    def _event(self, kind: str, event: Json) -> None:
        if event["type"] in ("ADDED", "MODIFIED", "DELETED"):
            self._keep(kind, event["type"], event["object"])

    def _keep(self, kind: str, type_: str, obj: Json) -> None:
        change = Change(int(obj["metadata"]["resourceVersion"]), kind, type_, obj, time.monotonic())
        key = (kind, change.namespace, change.name)
        with self._grown:
            self.changes.append(change)
            if type_ == "DELETED":
                self.latest.pop(key, None)
            else:
                self.latest[key] = obj
            self._grown.notify_all()

    def until(self, holds: Callable[[], Any], seconds: float = _PATIENCE, what: str = "") -> Any:
        """What `holds` returns, as soon as it is true."""
        found: Any = None

        def check() -> bool:
            nonlocal found
            found = holds()
            return bool(found)

        with self._grown:
            if not self._grown.wait_for(check, seconds):
                raise NotReached(what or "what the test waited for did not come")
        return found

    def of(self, kind: str, namespace: str = "") -> dict[str, Json]:
        """The present objects of a kind in a namespace, by name."""
        with self._grown:
            return {name: obj for (of, where, name), obj in self.latest.items() if (of, where) == (kind, namespace)}

    def history(self, namespace: str, *, nodes: bool = False) -> list[Change]:
        """Changes of a namespace (and of nodes), in the order of their versions; the same for all kinds."""
        wanted = {namespace, ""} if nodes else {namespace}
        with self._grown:
            return sorted(
                (change for change in self.changes if change.namespace in wanted), key=lambda change: change.version
            )

    def close(self) -> None:
        for watch in self._watches:
            watch.close()


class Namespace:
    """A fresh namespace with helpers; nothing in it is shared with another test."""

    def __init__(self, lab: Lab, name: str) -> None:
        self.lab = lab
        self.name = name
        self.client = lab.admin

    def path(self, where: str) -> str:
        """`pods/NAME/eviction` as a whole path in this namespace; what begins with a slash stays as it is."""
        if where.startswith("/"):
            return where.replace("{ns}", self.name)
        kind = where.partition("/")[0].partition("?")[0]
        return f"/{GROUPS.get(kind, 'api/v1')}/namespaces/{self.name}/{where}"

    def ask(self, method: str, where: str, body: Any = None, **options: Any) -> Answer:
        return self.client.request(method, self.path(where), body, **options)

    def do(self, method: str, where: str, body: Any = None, **options: Any) -> Json:
        """As `ask`, for what must succeed."""
        answer = self.ask(method, where, body, **options)
        assert answer.status < 300, f"{method} {where}: {answer.status} {answer.body}"
        return dict(answer.body)

    def get(self, where: str) -> Json:
        return self.do("GET", where)

    def items(self, kind: str, **query: Any) -> list[Json]:
        return list(self.do("GET", kind, query=query)["items"])

    def create(self, kind: str, body: Json) -> Json:
        return self.do("POST", kind, body)

    def patch(self, where: str, body: Any, form: str = "merge") -> Json:
        return self.do("PATCH", where, body, content_type=f"application/{form}-patch+json")

    def watch(self, where: str, **query: Any) -> Any:
        return watching(self.client, self.path(where), **query)

    def until(self, holds: Callable[[], Any], seconds: float = _PATIENCE, what: str = "") -> Any:
        """What `holds` returns, as soon as it is true; asked every 50 ms."""
        end = time.monotonic() + seconds
        while not (found := holds()):
            if time.monotonic() > end:
                raise NotReached(what or "what the test waited for did not come")
            time.sleep(0.05)
        return found

    def log(self, pod: str, **query: Any) -> str:
        return str(self.ask("GET", f"pods/{pod}/log", query=query).body)


class Lab(ABC):
    """A running lab. `name` is "embedded" or "real"."""

    name: str
    nodes: tuple[str, ...]

    def __init__(self, kubeconfig: Path) -> None:
        self.kubeconfig = kubeconfig
        self.admin, self.stranger = clients(kubeconfig)
        self._recorder: Recorder | None = None
        self._namespaces: list[str] = []
        self._lock = threading.Lock()

    @property
    def recorder(self) -> Recorder:
        with self._lock:
            if self._recorder is None:
                self._recorder = Recorder(self.admin)
            return self._recorder

    def namespace(self, purpose: str = "test") -> Namespace:
        """A fresh namespace, ready for Pods."""
        name = f"{purpose}-{secrets.token_hex(3)}"
        made = Namespace(self, name)
        made.do("POST", "/api/v1/namespaces", {"metadata": {"name": name}})
        self._namespaces.append(name)
        # A Pod is refused until its namespace has the ServiceAccount that it runs as.
        made.until(lambda: made.ask("GET", "serviceaccounts/default").status == 200, what="no ServiceAccount default")
        return made

    def close(self) -> None:
        if self._recorder is not None:
            self._recorder.close()
        for name in self._namespaces:
            self.admin.request("DELETE", f"/api/v1/namespaces/{name}")

    def clear(self, seconds: float = 120) -> None:
        """Remove the namespaces made so far, and wait until no Pod of them is left on a node."""
        for name in self._namespaces:
            self.admin.request("DELETE", f"/api/v1/namespaces/{name}")
            self.admin.request("DELETE", f"/api/v1/namespaces/{name}/pods", {"gracePeriodSeconds": 1})
        end = time.monotonic() + seconds
        for name in self._namespaces:
            while left := self.admin.request("GET", f"/api/v1/namespaces/{name}/pods").body["items"]:
                if time.monotonic() > end:
                    raise NotReached(f"still there: {[pod['metadata']['name'] for pod in left]} in {name}")
                time.sleep(0.2)
        self._namespaces.clear()

    def kubectl(self, *arguments: str, check: bool = True, timeout: float = 60) -> subprocess.CompletedProcess[str]:
        command = ["kubectl", f"--kubeconfig={self.kubeconfig}", *arguments]
        done = subprocess.run(command, capture_output=True, text=True, timeout=timeout, check=False)
        assert not check or done.returncode == 0, done.stdout + done.stderr
        return done

    @abstractmethod
    def container(self, command: list[str], port: int | None = None, **more: Any) -> Json:
        """A container that runs a command. $(POD_IP) and $(PORT) in the command say where to listen."""

    @abstractmethod
    def kill(self, pod: Json, signal: str = "KILL") -> None:
        """Signal the first process of a Pod's first container, from outside of Kubernetes."""

    @abstractmethod
    def cut(self, node: str) -> None:
        """Cut a node off from the API server."""

    @abstractmethod
    def heal(self, node: str) -> None: ...


def _address_variable() -> list[Json]:
    return [{"name": "POD_IP", "valueFrom": {"fieldRef": {"fieldPath": "status.podIP"}}}]


class EmbeddedLab(Lab):
    name = "embedded"
    nodes = ("node1", "node2", "node3")

    def __init__(self, ready: Json) -> None:
        super().__init__(Path(ready["kubeconfig"]))
        self._control = ready["control"]

    def container(self, command: list[str], port: int | None = None, **more: Any) -> Json:
        words = [word.replace("$(PORT)", "$(CONTAINER_PORT_HTTP)") for word in command]
        found: Json = {"name": "main", "image": "lab/workload:1", "imagePullPolicy": "Never", "command": words}
        if port is not None:
            found["ports"] = [{"name": "http", "containerPort": port}]
            found["env"] = _address_variable()
        return found | more

    def kill(self, pod: Json, signal: str = "KILL") -> None:
        meta = pod["metadata"]
        self._post("signal", namespace=meta["namespace"], pod=meta["name"], signal=signal)

    def cut(self, node: str) -> None:
        self._post("cut", node=node)

    def heal(self, node: str) -> None:
        self._post("heal", node=node)

    def _post(self, verb: str, **query: str) -> None:
        url = f"{self._control}/{verb}?{urlencode(query)}"
        with urllib.request.urlopen(urllib.request.Request(url, method="POST")) as answer:
            assert answer.status == 200


class RealLab(Lab):
    name = "real"

    def __init__(self, state: Path, ready: Json) -> None:
        super().__init__(Path(ready["kubeconfig"]))
        self.state = state
        self.nodes = tuple(name for name in ready["nodes"] if name != "infra")
        self.image = str(json.loads((state / "images.json").read_text())["workload"])

    def container(self, command: list[str], port: int | None = None, **more: Any) -> Json:
        words = [word.replace("$(PORT)", str(port)) for word in command]
        found: Json = {"name": "main", "image": self.image, "imagePullPolicy": "Never", "command": words}
        if port is not None:
            found["ports"] = [{"name": "http", "containerPort": port}]
            found["env"] = _address_variable()
        return found | more

    def kill(self, pod: Json, signal: str = "KILL") -> None:
        meta = pod["metadata"]
        asked = ("--namespace", meta["namespace"], "--signal", signal, meta["name"])
        real_lab_command("signal", *asked, state=self.state)

    def cut(self, node: str) -> None:
        real_lab_command("cut", node, state=self.state)

    def heal(self, node: str) -> None:
        real_lab_command("heal", node, state=self.state)


def clients(kubeconfig: Path) -> tuple[Client, Client]:
    """The identity of a kubeconfig's current context, and one without credentials for the same server."""
    config = yaml.safe_load(kubeconfig.read_text())

    def named(section: str, entry: str, name: str) -> Json:
        return next(dict(found[entry]) for found in config[section] if found["name"] == name)

    context = named("contexts", "context", config["current-context"])
    cluster, user = named("clusters", "cluster", context["cluster"]), named("users", "user", context["user"])
    server = str(cluster["server"])
    if server.startswith("http://"):
        # The embedded lab keeps an administrator's token in the path, for kubectl.
        bare = server.partition("/token/")[0]
        return Client(server, {}), Client(bare, {})
    authority = _text(cluster, "certificate-authority")
    known, unknown = ssl.create_default_context(cadata=authority), ssl.create_default_context(cadata=authority)
    if certificate := _text(user, "client-certificate"):
        with tempfile.NamedTemporaryFile("w") as file:
            file.write(f"{certificate}\n{_text(user, 'client-key')}")
            file.flush()
            known.load_cert_chain(file.name)
    headers = {"Authorization": f"Bearer {user['token']}"} if "token" in user else {}
    return Client(server, headers, known), Client(server, {}, unknown)


def _text(entry: Json, name: str) -> str:
    """A PEM of a kubeconfig: within it, or in a file that it names."""
    if f"{name}-data" in entry:
        return base64.b64decode(entry[f"{name}-data"]).decode()
    return Path(entry[name]).read_text() if name in entry else ""


def real_lab_command(*arguments: str, state: Path, timeout: float = 900) -> Json:
    """Run a verb of `python -m chaosrunner.lab.real`; returns the JSON line that it prints, if any."""
    command = [sys.executable, "-m", "chaosrunner.lab.real", *arguments, "--state", str(state)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=timeout, check=False)
    assert done.returncode == 0, f"{' '.join(arguments)}: {done.stderr[-2000:]}"
    return dict(json.loads(done.stdout)) if done.stdout.startswith("{") else {}


@pytest.fixture(scope="session")
def embedded_lab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lab]:
    """The embedded lab with three nodes and nothing on them, as a program of its own."""
    folder = tmp_path_factory.mktemp("embedded")
    (folder / "spec.json").write_text(json.dumps({"replicas": 0, "nodes": 3}))
    command = [sys.executable, "-m", "chaosrunner.lab", "--spec", str(folder / "spec.json"), "--state"]
    with (
        (folder / "log").open("wb") as log,
        subprocess.Popen(
            [*command, str(folder / "state"), "--until-stdin-closes"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=log,
        ) as process,
    ):
        assert process.stdin is not None
        assert process.stdout is not None
        line = process.stdout.readline()
        assert line, (folder / "log").read_text()
        lab = EmbeddedLab(json.loads(line))
        yield lab
        lab.close()
        process.stdin.close()


_present: list[Lab] = []


@pytest.fixture(scope="session")
def real_lab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lab]:
    """The standing real lab, or one for this session, in a folder beside the default one.

    From then on this process is in the lab's network.

    To pytest the fixture is another one in each conftest that imports it; the lab is the same for all.
    """
    if _present:
        yield _present[0]
        return
    standing = os.environ.get(STANDING)
    state = Path(standing) if standing else Path(tempfile.mkdtemp(prefix="lab-", dir=DEFAULT.parent))
    if not standing:
        real_lab_command("up", "--nodes", "3", state=state)
    try:
        ready = json.loads((state / "ready.json").read_text())
        enter_network(Path(ready["network"]))
        lab = RealLab(state, ready)
        _present.append(lab)
        yield lab
        lab.close()
    finally:
        _present.clear()
        if not standing:
            real_lab_command("down", state=state)
            shutil.rmtree(state, ignore_errors=True)
