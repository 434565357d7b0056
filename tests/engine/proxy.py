"""A TCP proxy before the API server: notes the requests that pass, and breaks what can break on such a way."""

from __future__ import annotations

import contextlib
import json
import re
import socket
import struct
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import parse_qs, urlsplit

REVIEW = re.compile(r"/self(subjectaccessreviews|subjectrulesreviews)$")


@dataclass(frozen=True)
class Call:
    method: str
    path: str
    body: Any

    @property
    def dry_run(self) -> bool:
        options = self.body.get("deleteOptions", self.body) if isinstance(self.body, dict) else {}
        return "dryRun=All" in self.path or options.get("dryRun") == ["All"]

    @property
    def mutating(self) -> bool:
        """Whether it changes the cluster: no read, no dry run, no question about access."""
        return self.method not in ("GET", "HEAD") and not self.dry_run and not REVIEW.search(self.path.split("?")[0])

    @property
    def watch(self) -> bool:
        return "watch=true" in self.path


@dataclass(frozen=True)
class Refusal:
    """An answer in the server's place, as a real API server words it."""

    status: int
    reason: str
    message: str
    headers: tuple[tuple[str, str], ...] = ()

    def encode(self) -> bytes:
        body = {"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure", "message": self.message}
        text = json.dumps(body | {"reason": self.reason, "code": self.status}).encode()
        more = "".join(f"{name}: {value}\r\n" for name, value in self.headers)
        head = (
            f"HTTP/1.1 {self.status} X\r\nContent-Type: application/json\r\nContent-Length: {len(text)}\r\n{more}\r\n"
        )
        return head.encode() + text


UNAUTHORIZED = Refusal(401, "Unauthorized", "Unauthorized")
NO_ROLE = Refusal(
    403,
    "Forbidden",
    'pods is forbidden: User "drill" cannot list resource "pods" in API group "" in the namespace "lab": '
    'RBAC: clusterrole.rbac.authorization.k8s.io "chaosrunner" not found',
)
DENIED = Refusal(403, "Forbidden", 'pods is forbidden: User "drill" cannot list resource "pods" in API group ""')
"""What a server says whose caches of RBAC objects are still empty: no word of it."""
OVERLOADED = Refusal(
    429,
    "TooManyRequests",
    "too many requests, please try again later",
    (
        ("Retry-After", "1"),
        ("X-Kubernetes-PF-FlowSchema-UID", "1a2b"),
        ("X-Kubernetes-PF-PriorityLevel-UID", "3c4d"),
    ),
)
ETCD_SLOW = Refusal(500, "InternalError", "etcdserver: request timed out")
NO_LEADER = Refusal(500, "InternalError", "etcdserver: leader changed")
UNAVAILABLE = Refusal(503, "ServiceUnavailable", "apiserver not ready")
TIMED_OUT = Refusal(
    504, "Timeout", "Timeout: request did not complete within requested timeout - context deadline exceeded"
)
EXPIRED = (
    b'{"type":"ERROR","object":{"kind":"Status","apiVersion":"v1","metadata":{},"status":"Failure",'
    b'"message":"too old resource version: 1 (820)","reason":"Expired","code":410}}\n'
)


class _Connection:
    """A client's connection and ours to the server for it."""

    def __init__(self, client: socket.socket, server: socket.socket) -> None:
        self.client = client
        self.server = server
        self.stranded = False
        """Nothing that the server says reaches the client any more, and nobody tells it."""

    def reset(self) -> None:
        for end in (self.client, self.server):
            with contextlib.suppress(OSError):
                end.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
                end.shutdown(socket.SHUT_RDWR)


@dataclass
class Proxy:
    target: tuple[str, int]
    listener: socket.socket
    url: str
    kubeconfig: str = ""
    calls: list[Call] = field(default_factory=list)
    away: bool = False
    delays: list[tuple[str, str, float]] = field(default_factory=list)
    """(method, part of the path, seconds): how long a request is kept back before it goes on."""
    before_it_goes_on: Callable[[Call], None] = lambda call: None
    """Told of each request when it has come; while this runs, only that request waits."""
    refusal: Refusal | None = None
    """The answer to every request, in the server's place."""
    lose: str | None = None
    """Part of a path: the next request that changes something there is carried out, and its answer lost."""
    _open: list[_Connection] = field(default_factory=list)
    _flowing: threading.Event = field(default_factory=threading.Event)
    _forgotten: bool = False
    """The server has been started anew: it knows no version from before."""
    _listed: set[str] = field(default_factory=set)
    """Paths that were listed since then."""
    _troubles: int = 0

    @classmethod
    @contextmanager
    def before(cls, server: str) -> Iterator[Proxy]:
        parts = urlsplit(server)
        assert parts.hostname is not None
        assert parts.port is not None
        listener = socket.create_server(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{listener.getsockname()[1]}{parts.path}"
        proxy = cls((parts.hostname, parts.port), listener, url)
        proxy._flowing.set()
        threading.Thread(target=proxy._accept, daemon=True).start()
        try:
            yield proxy
        finally:
            listener.close()
            proxy.cut()
            proxy._flowing.set()

    # --- what can break ---------------------------------------------------------------------------------

    def cut(self) -> None:
        """From now on connections break, and new ones are closed at once."""
        self.away = True
        self.drop()

    def drop(self) -> None:
        """Every connection breaks; new ones are taken."""
        for connection in self._open:
            connection.reset()
        self._open.clear()

    def strand(self) -> None:
        """Connections fall silent for good, without an end; new ones are taken."""
        for connection in self._open:
            connection.stranded = True

    def freeze(self) -> None:
        """Packets are held: nothing passes in either direction, no connection ends."""
        self._flowing.clear()

    def forget(self) -> None:
        """As after a new start of the API server: each watch is refused until its collection was listed again."""
        self._forgotten = True
        self._listed.clear()

    def restore(self) -> None:
        self.away = False
        self.refusal = None
        self._flowing.set()

    def restore_after(self, seconds: float) -> None:
        """The trouble of this moment ends then, unless another one has begun since."""
        self._troubles += 1
        mine = self._troubles

        def restore() -> None:
            if self._troubles == mine:
                self.restore()

        threading.Timer(seconds, restore).start()

    # --- what was asked ---------------------------------------------------------------------------------

    def mutating(self) -> list[tuple[str, str]]:
        return [(call.method, call.path.split("?")[0]) for call in self.calls if call.mutating]

    # --- how it works -----------------------------------------------------------------------------------

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self.listener.accept()
            except OSError:
                return
            if self.away:
                client.close()
                continue
            connection = _Connection(client, socket.create_connection(self.target))
            self._open.append(connection)
            threading.Thread(target=self._requests, args=(connection,), daemon=True).start()
            threading.Thread(target=self._answers, args=(connection,), daemon=True).start()

    def _requests(self, connection: _Connection) -> None:
        client, server = connection.client, connection.server
        with contextlib.suppress(OSError), client.makefile("rb") as stream:
            while head := _head(stream):
                lines = head.decode("latin-1").split("\r\n")
                method, path, _ = lines[0].split(" ")
                headers = dict(line.lower().split(": ", 1) for line in lines[1:] if line)
                body = stream.read(int(headers.get("content-length", 0)))
                call = Call(method, path, json.loads(body) if body else None)
                self.calls.append(call)
                self.before_it_goes_on(call)
                time.sleep(sum(pause for verb, part, pause in self.delays if verb == method and part in path))
                self._flowing.wait()
                if connection.stranded:
                    continue
                if self.refusal is not None:
                    client.sendall(self.refusal.encode())
                elif self._expired(call):
                    client.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % len(EXPIRED) + EXPIRED)
                else:
                    if self.lose is not None and call.mutating and self.lose in path:
                        self.lose, connection.stranded = None, True
                        threading.Timer(0.1, connection.client.shutdown, (socket.SHUT_RDWR,)).start()
                    server.sendall(head + body)
        with contextlib.suppress(OSError):
            server.shutdown(socket.SHUT_WR)

    def _expired(self, call: Call) -> bool:
        if not self._forgotten or call.method != "GET":
            return False
        query = {key: value for key, value in parse_qs(urlsplit(call.path).query).items() if "Selector" in key}
        collection = f"{urlsplit(call.path).path}?{sorted(query.items())}"
        if not call.watch:
            self._listed.add(collection)
        return call.watch and collection not in self._listed

    def _answers(self, connection: _Connection) -> None:
        with contextlib.suppress(OSError):
            while data := connection.server.recv(65536):
                self._flowing.wait()
                if not connection.stranded:
                    connection.client.sendall(data)
        if not connection.stranded:
            with contextlib.suppress(OSError):
                connection.client.shutdown(socket.SHUT_WR)


def _head(stream: Any) -> bytes:
    head = b""
    while not head.endswith(b"\r\n\r\n"):
        line = stream.readline()
        if not line:
            return b""
        head += line
    return head
