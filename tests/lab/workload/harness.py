"""Starts the workload's programs as real processes, and speaks raw HTTP/1.1 to them."""

from __future__ import annotations

import asyncio
import json
import re
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

DATA = Path(__file__).parents[2] / "data"


class Program:
    """One process of the workload, known by its log."""

    def __init__(self, name: str, folder: Path, arguments: list[str]) -> None:
        self.log = folder / f"{name}-{time.monotonic_ns()}.jsonl"
        command = [sys.executable, "-m", f"chaosrunner.lab.workload.{name}", "--port", "0", "--log", str(self.log)]
        self.process = subprocess.Popen([*command, *arguments], stdout=subprocess.DEVNULL)

    def rows(self, event: str | None = None) -> list[dict[str, Any]]:
        """What it has logged so far; a row that is being written is not there yet."""
        text = self.log.read_text() if self.log.exists() else ""
        rows = [json.loads(line) for line in text.splitlines(keepends=True) if line.endswith("\n")]
        return [row for row in rows if event in (None, row["event"])]

    async def logged(
        self, event: str, condition: Callable[[dict[str, Any]], bool] = lambda row: True, timeout: float = 30.0
    ) -> dict[str, Any]:
        """Wait for a row."""
        async with asyncio.timeout(timeout):
            while True:
                for row in self.rows(event):
                    if condition(row):
                        return row
                await asyncio.sleep(0.01)

    async def listening(self) -> int:
        """Wait until it serves; the port."""
        return int((await self.logged("listening"))["port"])

    async def ended(self, timeout: float = 30.0) -> int:
        """Wait for its end; the exit code."""
        async with asyncio.timeout(timeout):
            while True:
                if (code := self.process.poll()) is not None:
                    return code
                await asyncio.sleep(0.01)

    def kill(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()


@dataclass
class Call:
    """What a raw client saw of one answer."""

    data: bytes = b""
    reads: list[tuple[float, bytes]] = field(default_factory=list)
    """Receive times on time.monotonic, with what came."""
    error: Exception | None = None

    @property
    def head(self) -> str:
        return self.data.partition(b"\r\n\r\n")[0].decode("latin-1")

    @property
    def status(self) -> int:
        return int(self.head.split(" ")[1]) if self.head else 0

    @property
    def headers(self) -> list[tuple[str, str]]:
        return [(name, value) for name, _, value in (line.partition(": ") for line in self.head.split("\r\n")[1:])]

    def header(self, name: str) -> str | None:
        return dict(self.headers).get(name)

    @property
    def body(self) -> bytes:
        """As it was on the wire."""
        return self.data.partition(b"\r\n\r\n")[2]

    @property
    def chunks(self) -> list[bytes]:
        """Whole chunks, the empty last one included."""
        result, rest = [], self.body
        while match := re.match(rb"([0-9a-f]+)\r\n", rest):
            size = int(match[1], 16)
            if len(rest) < match.end() + size + 2:
                break
            result.append(rest[match.end() : match.end() + size])
            rest = rest[match.end() + size + 2 :]
        return result

    @property
    def whole(self) -> bool:
        """Whether a chunked body had its last chunk."""
        return bool(self.chunks) and self.chunks[-1] == b""

    @property
    def events(self) -> list[Any]:
        """The stream's events, read as JSON; `[DONE]` as text."""
        texts = [text.removeprefix(b"data: ") for text in b"".join(self.chunks).split(b"\n\n") if text]
        return [text.decode() if text == b"[DONE]" else json.loads(text) for text in texts]

    @property
    def finish_reasons(self) -> list[str]:
        choices = [event["choices"][0] for event in self.events if isinstance(event, dict) and event.get("choices")]
        return [choice["finish_reason"] for choice in choices if choice["finish_reason"]]


def request(method: str, path: str, body: Any = None, headers: dict[str, str] | None = None) -> bytes:
    payload = b"" if body is None else body if isinstance(body, bytes) else json.dumps(body).encode()
    lines = {"Host": "lab", **(headers or {})}
    if payload:
        lines |= {"Content-Type": "application/json", "Content-Length": str(len(payload))}
    head = "".join(f"{name}: {value}\r\n" for name, value in lines.items())
    return f"{method} {path} HTTP/1.1\r\n{head}\r\n".encode() + payload


class Client:
    """One connection whose answers are read as they come."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader, self._writer = reader, writer
        self.call = Call()

    @classmethod
    async def send(cls, port: int, data: bytes) -> Client:
        client = cls(*await asyncio.open_connection("127.0.0.1", port))
        client._writer.write(data)
        return client

    def next(self, data: bytes) -> None:
        """Send another request on the same connection."""
        self.call = Call()
        self._writer.write(data)

    async def until(self, condition: Callable[[Call], bool], timeout: float = 30.0) -> Call:
        """Read until the condition holds, or the connection ends."""
        async with asyncio.timeout(timeout):
            while not condition(self.call):
                try:
                    data = await self._reader.read(65536)
                except ConnectionError as error:
                    self.call.error = error
                    break
                if not data:
                    break
                self.call.reads.append((time.monotonic(), data))
                self.call.data += data
        return self.call

    async def end(self, timeout: float = 30.0) -> Call:
        """Read until the connection ends."""
        return await self.until(lambda call: False, timeout)

    def close(self) -> None:
        self._writer.close()


def answered(call: Call) -> bool:
    """Whether the answer is whole."""
    if not call.head or b"\r\n\r\n" not in call.data:
        return False
    if (length := call.header("content-length")) is not None:
        return len(call.body) >= int(length)
    return call.whole


async def fetch(port: int, data: bytes, timeout: float = 30.0) -> Call:
    """One request on a connection of its own, until its answer is whole or the connection ends."""
    client = await Client.send(port, data)
    try:
        return await client.until(answered, timeout)
    finally:
        client.close()


async def get(port: int, path: str) -> Call:
    return await fetch(port, request("GET", path))


async def get_json(port: int, path: str) -> Any:
    return json.loads((await get(port, path)).body)


def stream(tokens: int, prompt: str = "hello world", **fields: Any) -> bytes:
    """A completion request that streams a fixed number of tokens and asks for usage."""
    body = {"model": "tiny", "prompt": prompt, "max_tokens": tokens, "stream": True, "ignore_eos": True}
    return request("POST", "/v1/completions", {**body, "stream_options": {"include_usage": True}, **fields})


async def refused(port: int, within: float = 2.0) -> bool:
    """Whether the port is closed, or becomes so in time."""
    end = time.monotonic() + within
    while time.monotonic() < end:
        try:
            _, writer = await asyncio.open_connection("127.0.0.1", port)
        except ConnectionRefusedError:
            return True
        writer.close()
        await asyncio.sleep(0.01)
    return False


async def eventually(condition: Callable[[], Awaitable[bool]], timeout: float = 5.0) -> None:
    """Wait until an awaitable condition is true."""
    async with asyncio.timeout(timeout):
        while True:
            if await condition():
                return
            await asyncio.sleep(0.02)
