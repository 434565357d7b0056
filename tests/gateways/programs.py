"""Real gateways as processes on loopback: nginx, haproxy and Envoy, each with its own idea of how a stream ends.

A request says in the header `x-up` which of the upstream ports it is meant for. All wait 3 s at most for the upstream.
"""

from __future__ import annotations

import json
import os
import shutil
import socket
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

UPSTREAMS = 12
PROGRAMS = {
    "nginx": "nginx", "nginx-default": "nginx", "haproxy": "haproxy", "envoy": "envoy",
    "nginx-h2": "nginx", "haproxy-h2": "haproxy", "envoy-h2": "envoy",
}  # fmt: skip
"""Gateways, and the program that each needs. `nginx-default`: HTTP/1.0 to the upstream, and buffering. With `-h2` the
client speaks HTTP/2 by prior knowledge, and the upstream HTTP/1.1."""


@dataclass
class Gateway:
    """A running gateway."""

    name: str
    url: str
    upstreams: list[int]
    """Ports; nobody listens on them until a test does."""
    process: subprocess.Popen[bytes]

    @property
    def http2(self) -> bool:
        return self.name.endswith("-h2")


def missing(name: str) -> str | None:
    """Why a gateway cannot be started here; None if it can."""
    program = PROGRAMS[name]
    # Debian has some in /usr/sbin, which is not on every user's path.
    return None if _find(program) else f"{program} is not installed"


@contextmanager
def running(name: str, folder: Path) -> Iterator[Gateway]:
    port, *upstreams = _free_ports(1 + UPSTREAMS)
    file, command = CONFIGS[name](folder, port, upstreams)
    (folder / file[0]).write_text(file[1])
    program = _find(command[0])
    assert program is not None
    with (folder / "log").open("wb") as log:
        process = subprocess.Popen([program, *command[1:]], cwd=folder, stdout=log, stderr=log)
        try:
            _await_port(port, process, folder / "log")
            yield Gateway(name, f"http://127.0.0.1:{port}", upstreams, process)
        finally:
            process.terminate()
            try:
                process.wait(3)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


def _find(program: str) -> str | None:
    return shutil.which(program, path=f"{os.environ['PATH']}:/usr/sbin:/usr/local/sbin")


def _free_ports(count: int) -> list[int]:
    sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    ports = [each.getsockname()[1] for each in sockets]
    for each in sockets:
        each.close()
    return ports


def _await_port(port: int, process: subprocess.Popen[bytes], log: Path) -> None:
    until = time.monotonic() + 20
    while time.monotonic() < until:
        try:
            socket.create_connection(("127.0.0.1", port)).close()
        except ConnectionRefusedError:
            time.sleep(0.02)
            if process.poll() is None:
                continue
        else:
            return
        break
    raise RuntimeError(f"the gateway did not start: {log.read_text()[-2000:]}")


Config = tuple[tuple[str, str], list[str]]
"""A file (name and text), and the command."""


def _nginx(upstream: str, front: str = "") -> Callable[[Path, int, list[int]], Config]:
    def config(folder: Path, port: int, upstreams: list[int]) -> Config:
        ports = "\n".join(f"    {number} {each};" for number, each in enumerate(upstreams))
        paths = "\n".join(
            f"  {kind}_temp_path {folder}/{kind};" for kind in ("client_body", "proxy", "fastcgi", "uwsgi", "scgi")
        )
        text = f"""
            daemon off;
            master_process off;
            pid {folder}/pid;
            error_log stderr;
            events {{ }}
            http {{
              access_log off;
            {paths}
              map $http_x_up $up {{
            {ports}
              }}
              server {{
                listen 127.0.0.1:{port}{front};
                location / {{
                  proxy_pass http://127.0.0.1:$up;
                  proxy_read_timeout 3s;
                  {upstream}
                }}
              }}
            }}
            """
        return ("nginx.conf", text), ["nginx", "-e", "stderr", "-p", str(folder), "-c", str(folder / "nginx.conf")]

    return config


def _haproxy(front: str = "") -> Callable[[Path, int, list[int]], Config]:
    def config(folder: Path, port: int, upstreams: list[int]) -> Config:
        backends = "\n".join(f"backend b{n}\n  server s 127.0.0.1:{each}" for n, each in enumerate(upstreams))
        text = f"""
defaults
  mode http
  timeout connect 1s
  timeout client 10s
  timeout server 3s
frontend front
  bind 127.0.0.1:{port}{front}
  use_backend b%[req.hdr(x-up)]
{backends}
"""
        return ("haproxy.cfg", text), ["haproxy", "-db", "-f", "haproxy.cfg"]

    return config


def _envoy(folder: Path, port: int, upstreams: list[int]) -> Config:
    def address(number: int) -> dict[str, object]:
        return {"socket_address": {"address": "127.0.0.1", "port_value": number}}

    def cluster(number: int, port: int) -> dict[str, object]:
        endpoints = [{"lb_endpoints": [{"endpoint": {"address": address(port)}}]}]
        assignment = {"cluster_name": f"b{number}", "endpoints": endpoints}
        return {"name": f"b{number}", "connect_timeout": "1s", "type": "STATIC", "load_assignment": assignment}

    def route(number: int) -> dict[str, object]:
        header = {"name": "x-up", "string_match": {"exact": str(number)}}
        return {
            "match": {"prefix": "/", "headers": [header]},
            "route": {"cluster": f"b{number}", "timeout": "0s", "idle_timeout": "3s"},
        }

    types = "type.googleapis.com/envoy.extensions.filters"
    manager = {
        "@type": f"{types}.network.http_connection_manager.v3.HttpConnectionManager",
        "stat_prefix": "front",
        "route_config": {
            "virtual_hosts": [
                {"name": "all", "domains": ["*"], "routes": [route(number) for number in range(len(upstreams))]}
            ]
        },
        "http_filters": [
            {"name": "router", "typed_config": {"@type": f"{types}.http.router.v3.Router"}},
        ],
    }
    chain = {"filters": [{"name": "envoy.filters.network.http_connection_manager", "typed_config": manager}]}
    config = {
        "static_resources": {
            "listeners": [{"name": "front", "address": address(port), "filter_chains": [chain]}],
            "clusters": [cluster(number, each) for number, each in enumerate(upstreams)],
        }
    }
    command = ["envoy", "-c", "envoy.json", "--concurrency", "1", "--use-dynamic-base-id", "--log-level", "warning"]
    return ("envoy.json", json.dumps(config)), command


STREAMING = 'proxy_http_version 1.1; proxy_set_header Connection ""; proxy_buffering off;'
CONFIGS: dict[str, Callable[[Path, int, list[int]], Config]] = {
    "nginx": _nginx(STREAMING),
    "nginx-default": _nginx(""),
    "haproxy": _haproxy(),
    "envoy": _envoy,
    "nginx-h2": _nginx(STREAMING, front=" http2"),
    "haproxy-h2": _haproxy(front=" proto h2"),
    "envoy-h2": _envoy,
}
