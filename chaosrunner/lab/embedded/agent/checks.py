"""Single checks of a container, for probes and hooks: httpGet, tcpSocket, exec, sleep; worded as a kubelet does."""

from __future__ import annotations

import asyncio
import errno
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

import anyio

from chaosrunner.lab.objects import Json

Exec = Callable[[list[str]], Awaitable[tuple[int, str]]]
"""Runs a command in the container; returns exit code and output."""


@dataclass(frozen=True)
class Target:
    """Where a check goes. `port` resolves a port's number or name."""

    host: str
    port: Callable[[int | str], int]
    run: Exec


@dataclass(frozen=True)
class Result:
    ok: bool
    output: str = ""


async def check(handler: Json, target: Target, timeout: float) -> Result:
    """Carry out one check within `timeout` seconds. `handler` is a probe or a lifecycle handler."""
    if "exec" in handler:
        return await _exec(handler["exec"]["command"], target, timeout)
    if "httpGet" in handler:
        return await _http(handler["httpGet"], target, timeout)
    if "tcpSocket" in handler:
        return await _tcp(handler["tcpSocket"], target, timeout)
    if "sleep" in handler:
        await anyio.sleep(handler["sleep"]["seconds"])
        return Result(True)
    return Result(False, "the embedded lab knows httpGet, tcpSocket, exec and sleep only")


async def _exec(command: list[str], target: Target, timeout: float) -> Result:
    try:
        with anyio.fail_after(timeout):
            code, output = await target.run(command)
    except TimeoutError:
        return Result(False, f"command timed out: {' '.join(command)!r} timed out after {timeout:g}s")
    except OSError as error:
        return Result(False, f"failed to exec in container: {error}")
    return Result(code == 0, output)


async def _http(handler: Json, target: Target, timeout: float) -> Result:
    host = handler.get("host") or target.host
    port, path = target.port(handler["port"]), "/" + handler.get("path", "/").removeprefix("/")
    url = f'Get "{handler.get("scheme", "HTTP").lower()}://{host}:{port}{path}"'
    headers = {"Host": f"{host}:{port}", "User-Agent": "kube-probe/1.37", "Accept": "*/*", "Connection": "close"}
    headers |= {entry["name"]: entry["value"] for entry in handler.get("httpHeaders") or ()}
    lines = "".join(f"{name}: {value}\r\n" for name, value in headers.items())
    try:
        async with asyncio.timeout(timeout):
            reader, writer = await asyncio.open_connection(host, port)
            try:
                writer.write(f"GET {path} HTTP/1.1\r\n{lines}\r\n".encode())
                status_line = await reader.readline()
            finally:
                writer.close()
    except TimeoutError:
        return Result(False, f"{url}: context deadline exceeded (Client.Timeout exceeded while awaiting headers)")
    except ConnectionResetError:
        return Result(False, f"{url}: read tcp {host}:{port}: read: connection reset by peer")
    except OSError as error:
        return Result(False, f"{url}: {_dial(host, port, error)}")
    try:
        status = int(status_line.split()[1])
    except (IndexError, ValueError):
        return Result(False, f"{url}: EOF")
    return Result(200 <= status < 400, f"HTTP probe failed with statuscode: {status}")


async def _tcp(handler: Json, target: Target, timeout: float) -> Result:
    host, port = handler.get("host") or target.host, target.port(handler["port"])
    try:
        async with asyncio.timeout(timeout):
            _, writer = await asyncio.open_connection(host, port)
            writer.close()
    except TimeoutError:
        return Result(False, f"dial tcp {host}:{port}: i/o timeout")
    except OSError as error:
        return Result(False, _dial(host, port, error))
    return Result(True)


def _dial(host: str, port: int, error: OSError) -> str:
    why = "connection refused" if error.errno == errno.ECONNREFUSED else str(error.strerror or error).lower()
    return f"dial tcp {host}:{port}: connect: {why}"


class ProbeClock:
    """Ticks of one probe, `period` seconds apart, the first after `delay` seconds."""

    def __init__(self, delay: float) -> None:
        self._next = anyio.current_time() + max(0.0, delay)

    async def tick(self, period: float) -> None:
        await anyio.sleep(max(0.0, self._next - anyio.current_time()))
        # A probe that took longer than its period does not catch up.
        self._next = max(self._next + period, anyio.current_time())
