"""The real Toxiproxy, built once from its Go module into the user's cache: `python -m tests.toxiproxy` builds it."""

from __future__ import annotations

import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from chaosrunner.lab.real import binaries

_MODULE = binaries._Module(
    "toxiproxy",
    ("github.com/Shopify/toxiproxy/v2/cmd/server",),
    "github.com/Shopify/toxiproxy/v2",
    ("github.com/Shopify/toxiproxy/v2.Version={version}",),
    folder=Path(__file__).parent / "source",
)
MISSING = "Toxiproxy is not built: python -m tests.toxiproxy"


def program() -> Path | None:
    """Toxiproxy's server; None where it has not been built."""
    found = _cache() / binaries._key((_MODULE,)) / "server"
    return found if found.exists() else None


def build() -> Path:
    """Builds the server, where it is missing; half a minute. Raises UserError where there is no Go."""
    return binaries._build((_MODULE,), _cache(), print) / "server"


def _cache() -> Path:
    return binaries.cache().parent / "tests"


@contextmanager
def running(folder: Path) -> Iterator[str]:
    """A server on loopback, without proxies; yields the URL of its API."""
    found = program()
    assert found is not None, MISSING
    with socket.create_server(("127.0.0.1", 0)) as held:
        port = held.getsockname()[1]
    with (folder / "toxiproxy.log").open("wb") as log:
        process = subprocess.Popen([found, "-host", "127.0.0.1", "-port", str(port)], stdout=log, stderr=log)
        try:
            _await_port(port, process)
            yield f"http://127.0.0.1:{port}"
        finally:
            process.terminate()
            process.wait()


def _await_port(port: int, process: subprocess.Popen[bytes]) -> None:
    until = time.monotonic() + 20
    while time.monotonic() < until and process.poll() is None:
        try:
            socket.create_connection(("127.0.0.1", port)).close()
        except ConnectionRefusedError:
            time.sleep(0.02)
        else:
            return
    raise RuntimeError("Toxiproxy did not start")
