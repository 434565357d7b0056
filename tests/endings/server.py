"""A server that ends each answer in a way that it draws by lot, and writes down which.

    python -m tests.endings.server --seed N --log FILE

It knows nothing of the probe, and the probe cannot know the lot. One JSON line a request goes to --log once the ending
is done: {"request", "ending", "texts": chunks with text that were sent whole, "status", "gone": the client left first,
"took": seconds that the sending of the bytes took}. Prints its port; ends at SIGTERM.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import random
import signal
import socket
import struct
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, TextIO

TOKENS = 4
"""Completion tokens of a whole answer."""
TICK = 0.05
"""Seconds between two of what keeps coming without end."""

Then = Literal["keep", "fin", "reset", "hold", "ping", "trickle"]
"""What follows the bytes: the connection serves the next request, ends in order, is reset, falls silent, or goes on
with comments or with tokens."""


@dataclass
class Ending:
    """The bytes of an answer, and what follows them."""

    wire: bytes
    then: Then
    texts: int = 0


def event(payload: object) -> bytes:
    return b"data: " + (payload if isinstance(payload, bytes) else json.dumps(payload).encode()) + b"\n\n"


def frame(text: str = "", finish: str | None = None) -> bytes:
    choice = {"index": 0, "text": text, "finish_reason": finish}
    return event({"id": "c", "object": "text_completion", "choices": [choice]})


def usage(tokens: int) -> bytes:
    return event({"id": "c", "choices": [], "usage": {"prompt_tokens": 3, "completion_tokens": tokens}})


DONE = event(b"[DONE]")
PING = b": ping\n\n"
ERROR = event({"error": {"message": "EngineCore encountered an issue", "type": "InternalServerError", "code": 500}})
ERROR_EVENT = b"event: error\n" + ERROR
LAST = b"0\r\n\r\n"


class Lot:
    """The chances that one answer is made of."""

    def __init__(self, draw: random.Random) -> None:
        self.draw = draw
        self.texts = draw.randint(1, TOKENS)

    def words(self) -> list[bytes]:
        """The chunks with text, and now and then an empty one or a comment between."""
        found = []
        for number in range(self.texts):
            found.append(frame(f" wörd{number}"))
            if self.draw.random() < 0.1:
                found.append(self.draw.choice((PING, frame())))
        return found

    def said(self, finish: str = "length", *, tokens: int | None = TOKENS, done: bool = True) -> list[bytes]:
        """A whole answer."""
        words, last = self.words(), self.draw.random() < 0.5
        self.texts += last
        rest = [*([usage(tokens)] if tokens is not None else ()), *([DONE] if done else ())]
        return [*words, frame(" last" if last else "", finish), *rest]


def head(framing: str, status: str = "200 OK", kind: str = "text/event-stream; charset=utf-8", *more: str) -> bytes:
    lines = [f"HTTP/1.1 {status}", f"content-type: {kind}", *([framing] if framing else ()), *more]
    return "\r\n".join(lines).encode() + b"\r\n\r\n"


def chunked(lot: Lot, events: list[bytes], last: bytes = LAST) -> bytes:
    """Each event a chunk, as servers do; now and then two in one chunk, one over two, or a chunk with an extension."""
    wire = head("transfer-encoding: chunked")
    pending = b"".join(events) if lot.draw.random() < 0.1 else b""
    for part in [pending] if pending else events:
        cut = lot.draw.randrange(1, len(part)) if lot.draw.random() < 0.1 else len(part)
        for piece in filter(None, (part[:cut], part[cut:])):
            extension = b";x=1" if lot.draw.random() < 0.05 else b""
            wire += b"%x%s\r\n%s\r\n" % (len(piece), extension, piece)
    return wire + last


def measured(events: list[bytes], missing: int = 0) -> bytes:
    body = b"".join(events)
    return head(f"content-length: {len(body) + missing}") + body


def until_close(events: list[bytes]) -> bytes:
    return head("") + b"".join(events)


def short(status: str, *more: str) -> bytes:
    body = b'{"error": {"message": "no", "code": 1}}'
    return head(f"content-length: {len(body)}", status, "application/json", *more) + body


def plain(kind: str, body: bytes) -> bytes:
    return head(f"content-length: {len(body)}", "200 OK", kind) + body


def mid_chunk(lot: Lot) -> bytes:
    """Cut within a chunk, that is within an event."""
    torn = frame(" torn")
    return chunked(lot, lot.words(), b"") + b"%x\r\n%s" % (len(torn), torn[: lot.draw.randrange(1, len(torn) - 2)])


Make = Callable[[Lot], Ending]


def _ending(wire: Callable[[Lot], bytes], then: Then, texts: bool = True) -> Make:
    def make(lot: Lot) -> Ending:
        made = wire(lot)
        return Ending(made, then, lot.texts if texts else 0)

    return make


ENDINGS: dict[str, tuple[float, Make]] = {
    # whole answers
    "complete": (40, _ending(lambda lot: chunked(lot, lot.said()), "keep")),
    "complete, then closed": (4, _ending(lambda lot: chunked(lot, lot.said()), "fin")),
    "complete, measured": (2, _ending(lambda lot: measured(lot.said()), "keep")),
    "complete, until close": (2, _ending(lambda lot: until_close(lot.said()), "fin")),
    "complete, trailers": (1, _ending(lambda lot: chunked(lot, lot.said(), b"0\r\nx-took: 1\r\n\r\n"), "keep")),
    "complete, informed before": (
        1, _ending(lambda lot: b"HTTP/1.1 102 Processing\r\n\r\n" + chunked(lot, lot.said()), "keep"),
    ),
    "no [DONE]": (2, _ending(lambda lot: chunked(lot, lot.said(done=False)), "keep")),
    "no [DONE], until close": (1, _ending(lambda lot: until_close(lot.said(done=False)), "fin")),
    "no usage": (1, _ending(lambda lot: chunked(lot, lot.said(tokens=None)), "keep")),
    "all said, no last chunk": (1, _ending(lambda lot: chunked(lot, lot.said(), b""), "fin")),
    "all said, reset": (1, _ending(lambda lot: chunked(lot, lot.said(), b""), "reset")),
    "all said, silence": (0.5, _ending(lambda lot: chunked(lot, lot.said(), b""), "hold")),
    # whole, but not what was wanted
    "no text": (1, _ending(lambda lot: chunked(lot, [frame("", "stop"), usage(0), DONE]), "keep", texts=False)),
    "wrong length": (1, _ending(lambda lot: chunked(lot, lot.said(tokens=TOKENS - 1)), "keep")),
    "abort": (3, _ending(lambda lot: chunked(lot, lot.said("abort")), "keep")),
    "error object": (3, _ending(lambda lot: chunked(lot, [*lot.words(), ERROR, DONE]), "keep")),
    "error event": (1, _ending(lambda lot: chunked(lot, [*lot.words(), ERROR_EVENT]), "keep")),
    "error, then reset": (1, _ending(lambda lot: chunked(lot, [*lot.words(), ERROR], b""), "reset")),
    "error, then silence": (0.5, _ending(lambda lot: chunked(lot, [*lot.words(), ERROR], b""), "hold")),
    "clean end, no finish": (3, _ending(lambda lot: chunked(lot, lot.words()), "keep")),
    "clean end, [DONE] only": (1, _ending(lambda lot: chunked(lot, [*lot.words(), DONE]), "keep")),
    "until close, no finish": (2, _ending(lambda lot: until_close(lot.words()), "fin")),
    # cut
    "no last chunk": (3, _ending(lambda lot: chunked(lot, lot.words(), b""), "fin")),
    "no last chunk, finish but no [DONE]": (1, _ending(lambda lot: chunked(lot, lot.said(done=False), b""), "fin")),
    "mid chunk": (2, _ending(mid_chunk, "fin")),
    "reset": (3, _ending(lambda lot: chunked(lot, lot.words(), b""), "reset")),
    "reset mid chunk": (1, _ending(mid_chunk, "reset")),
    "until close, reset": (1, _ending(lambda lot: until_close(lot.words()), "reset")),
    "headers only": (1, _ending(lambda lot: chunked(lot, [], b""), "fin", texts=False)),
    "short body": (1, _ending(lambda lot: measured(lot.words(), missing=100), "fin")),
    "bad chunk": (1, _ending(lambda lot: chunked(lot, lot.words(), b"zz\r\n"), "fin")),
    # without end
    "silence": (0.5, _ending(lambda lot: chunked(lot, lot.words(), b""), "hold")),
    "comments without end": (0.5, _ending(lambda lot: chunked(lot, lot.words(), b""), "ping")),
    "tokens without end": (0.3, _ending(lambda lot: chunked(lot, lot.words(), b""), "trickle")),
    "no headers": (0.5, lambda _: Ending(b"", "hold")),
    "half a status line": (0.3, lambda _: Ending(b"HTTP/1.1 20", "hold")),
    # no stream at all
    "JSON": (1, lambda _: Ending(plain("application/json", b'{"choices": []}'), "keep")),
    "a page": (1, lambda _: Ending(plain("text/html", b"<h1>Welcome to nginx!</h1>"), "keep")),
    "closed before headers": (2, lambda _: Ending(b"", "fin")),
    "reset before headers": (2, lambda _: Ending(b"", "reset")),
    "no HTTP": (0.5, lambda _: Ending(b"SSH-2.0-OpenSSH_9.2\r\n", "fin")),
    "302": (0.5, lambda _: Ending(short("302 Found", "location: /"), "keep")),
    "400": (0.5, lambda _: Ending(short("400 Bad Request"), "keep")),
    "500": (1, lambda _: Ending(short("500 Internal Server Error"), "keep")),
    "502": (1, lambda _: Ending(short("502 Bad Gateway"), "fin")),
    "503": (1, lambda _: Ending(short("503 Service Unavailable"), "keep")),
    "503 with Retry-After": (1, lambda _: Ending(short("503 Service Unavailable", "retry-after: 1"), "keep")),
    "429": (1, lambda _: Ending(short("429 Too Many Requests", "retry-after: 1"), "keep")),
}  # fmt: skip
"""The lots, with their weights."""


class Server:
    def __init__(self, seed: int, log: TextIO) -> None:
        self._draw = random.Random(seed)
        self._log = log
        self.open: set[asyncio.Task[None]] = set()
        """Connections."""
        self._names = list(ENDINGS)
        self._weights = [weight for weight, _ in ENDINGS.values()]
        self._each_once = self._draw.sample(self._names, len(self._names))
        """What is drawn first, so that no ending is missing from a short trial."""

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self.open.add(task)
        task.add_done_callback(self.open.discard)
        try:
            while (request := await _request(reader)) is not None:
                rare = self._each_once.pop() if self._each_once else None
                name = rare or self._draw.choices(self._names, self._weights)[0]
                ending = ENDINGS[name][1](Lot(self._draw))
                try:
                    took = await self._send(ending.wire, writer)
                    gone = await self._follow(ending, reader, writer)
                except ConnectionError:
                    took, gone = 0.0, True
                status = int(ending.wire.rpartition(b"HTTP/1.1 ")[2][:3]) if b"\r\n\r\n" in ending.wire else None
                row = {"request": request, "ending": name, "texts": ending.texts, "status": status, "gone": gone}
                row["took"] = took
                self._log.write(json.dumps(row) + "\n")
                if gone or ending.then != "keep":
                    return
        except ConnectionError:
            pass  # between two requests
        finally:
            writer.close()

    async def _send(self, wire: bytes, writer: asyncio.StreamWriter) -> float:
        """Sends the bytes, cut anywhere; how long that took."""
        begin = time.monotonic()
        for piece in self._pieces(wire):
            writer.write(piece)
            await writer.drain()
            if len(piece) < len(wire):
                await asyncio.sleep(self._draw.choice((0.0, 0.001)))
        return time.monotonic() - begin

    async def _follow(self, ending: Ending, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        """Does what follows the bytes; whether it was the client who ended it."""
        match ending.then:
            case "reset":
                linger = struct.pack("ii", 1, 0)
                writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
                writer.transport.abort()
            case "hold":
                await _left(reader)
                return True
            case "ping" | "trickle":
                sent = PING if ending.then == "ping" else frame(" more")
                left = asyncio.create_task(_left(reader))
                while not (await asyncio.wait({left}, timeout=TICK))[0]:
                    writer.write(b"%x\r\n%s\r\n" % (len(sent), sent))
                    ending.texts += ending.then == "trickle"
                return True
        return False

    def _pieces(self, wire: bytes) -> list[bytes]:
        if not wire or self._draw.random() < 0.5:
            return [wire] if wire else []
        cuts = sorted(self._draw.sample(range(1, len(wire)), min(len(wire) - 1, self._draw.randint(1, 5))))
        return [wire[begin:end] for begin, end in zip([0, *cuts], [*cuts, len(wire)], strict=True)]


async def _left(reader: asyncio.StreamReader) -> None:
    """Returns when the client has closed the connection, in order or not."""
    with contextlib.suppress(ConnectionError):
        await reader.read()


async def _request(reader: asyncio.StreamReader) -> str | None:
    """The id of the next request, which is its prompt's last word."""
    try:
        top = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").lower()
    except asyncio.IncompleteReadError:
        return None
    body: dict[str, Any] = json.loads(await reader.readexactly(int(top.split("content-length:")[1].split("\r\n")[0])))
    return str(body["prompt"].split()[-1])


async def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seed", type=int, required=True)
    parser.add_argument("--log", type=Path, required=True)
    options = parser.parse_args()
    stop = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stop.set)
    with options.log.open("w") as log:
        server = Server(options.seed, log)
        listener = await asyncio.start_server(server.serve, "127.0.0.1", 0, backlog=1024)
        print(listener.sockets[0].getsockname()[1], flush=True)
        await stop.wait()
        listener.close()
        if server.open:
            await asyncio.wait(server.open)


if __name__ == "__main__":
    asyncio.run(main())
