"""A TCP proxy before the API server: notes the requests that pass, can be cut, and can keep a request back."""

from __future__ import annotations

import contextlib
import json
import re
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlsplit

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
    _open: list[socket.socket] = field(default_factory=list)

    @classmethod
    @contextmanager
    def before(cls, server: str) -> Iterator[Proxy]:
        parts = urlsplit(server)
        assert parts.hostname is not None
        assert parts.port is not None
        listener = socket.create_server(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{listener.getsockname()[1]}{parts.path}"
        proxy = cls((parts.hostname, parts.port), listener, url)
        threading.Thread(target=proxy._accept, daemon=True).start()
        try:
            yield proxy
        finally:
            listener.close()
            proxy.cut()

    def cut(self) -> None:
        """From now on connections break, and new ones are closed at once."""
        self.away = True
        for connection in self._open:
            with contextlib.suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)

    def restore(self) -> None:
        self.away = False

    def mutating(self) -> list[tuple[str, str]]:
        return [(call.method, call.path.split("?")[0]) for call in self.calls if call.mutating]

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self.listener.accept()
            except OSError:
                return
            if self.away:
                client.close()
                continue
            server = socket.create_connection(self.target)
            self._open += [client, server]
            threading.Thread(target=self._requests, args=(client, server), daemon=True).start()
            threading.Thread(target=_pump, args=(server, client), daemon=True).start()

    def _requests(self, client: socket.socket, server: socket.socket) -> None:
        with contextlib.suppress(OSError), client.makefile("rb") as stream:
            while head := _head(stream):
                lines = head.decode("latin-1").split("\r\n")
                method, path, _ = lines[0].split(" ")
                headers = dict(line.lower().split(": ", 1) for line in lines[1:] if line)
                body = stream.read(int(headers.get("content-length", 0)))
                self.calls.append(Call(method, path, json.loads(body) if body else None))
                time.sleep(sum(pause for verb, part, pause in self.delays if verb == method and part in path))
                server.sendall(head + body)
        with contextlib.suppress(OSError):
            server.shutdown(socket.SHUT_WR)


def _head(stream: Any) -> bytes:
    head = b""
    while not head.endswith(b"\r\n\r\n"):
        line = stream.readline()
        if not line:
            return b""
        head += line
    return head


def _pump(source: socket.socket, sink: socket.socket) -> None:
    with contextlib.suppress(OSError):
        while data := source.recv(65536):
            sink.sendall(data)
    with contextlib.suppress(OSError):
        sink.shutdown(socket.SHUT_WR)
