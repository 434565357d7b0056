"""An event-stream server that knows to the microsecond when it sent what: the ruler that clients are held against.

    python -m benchmarks.probe.server --chunks 64 --first 0.02 --gap 0.02 --log FILE

One thread over epoll. Each chunk is one `send` of bytes made beforehand, and the time just before it (CLOCK_MONOTONIC)
goes to a list in memory; at SIGTERM the lists are written to FILE, one JSON line a request:

    {"request": "chat-7", "received": ns, "stamps": [ns, ...], "ended": ns}

`request` is the word after `bench` in the request's body, or empty. The answer to any POST is an OpenAI completions
stream (chat under a path with `chat`) of a fixed number of tokens, each with text, with usage and `[DONE]` at its end.
With no gap the streams take turns chunk by chunk, as fast as the core can. Prints {"port": N} once it listens.
"""

from __future__ import annotations

import argparse
import heapq
import json
import re
import select
import signal
import socket
import sys
import time
from collections import deque
from pathlib import Path

import msgspec

NAME = re.compile(rb"bench ([\w.:-]+)")
LENGTH = re.compile(rb"content-length: *(\d+)", re.IGNORECASE)
CLOSE = re.compile(rb"\r\nconnection: *close", re.IGNORECASE)
HEAD = (
    b"HTTP/1.1 200 OK\r\ndate: Sun, 29 Nov 2026 00:00:00 GMT\r\nserver: uvicorn\r\n"
    b"content-type: text/event-stream; charset=utf-8\r\ntransfer-encoding: chunked\r\n\r\n"
)
LAST_CHUNK = b"0\r\n\r\n"
MODELS = json.dumps({"object": "list", "data": [{"id": "m", "object": "model", "max_model_len": 32768}]}).encode()


class Record(msgspec.Struct):
    """One request as the server saw it; times in nanoseconds of CLOCK_MONOTONIC."""

    request: str
    received: int
    stamps: list[int] = []
    """Just before each chunk with text was sent."""
    ended: int = 0


class Face:
    """The bytes of one kind of answer."""

    def __init__(self, chat: bool, chunks: int) -> None:
        kind = "chat.completion.chunk" if chat else "text_completion"
        base = {"id": "cmpl-0123456789abcdef", "object": kind, "created": 1795910400, "model": "m"}
        word = {"delta": {"content": " tok"}} if chat else {"text": " tok"}

        def token(finish: str | None) -> bytes:
            choice = {"index": 0, **word, "logprobs": None, "finish_reason": finish, "stop_reason": None}
            return _chunk(_event({**base, "choices": [choice], "usage": None}))

        usage = {"prompt_tokens": 16, "total_tokens": chunks + 16, "completion_tokens": chunks}
        self.tokens = [token(None)] * (chunks - 1) + [token("length")]
        self.tail = _chunk(_event({**base, "choices": [], "usage": usage})) + _chunk(b"data: [DONE]\n\n") + LAST_CHUNK


def _event(payload: dict[str, object]) -> bytes:
    return b"data: " + json.dumps(payload, separators=(",", ":")).encode() + b"\n\n"


def _chunk(data: bytes) -> bytes:
    return b"%x\r\n%s\r\n" % (len(data), data)


class Stream:
    """A connection, and the answer on it."""

    __slots__ = ("close", "due", "face", "record", "rest", "socket")

    def __init__(self, connection: socket.socket) -> None:
        self.socket = connection
        self.rest = b""
        self.record: Record | None = None
        self.face: Face
        self.due = 0
        self.close = False


class Server:
    """Serves until SIGTERM."""

    def __init__(self, chunks: int, first: float, gap: float) -> None:
        self._faces = {chat: Face(chat, chunks) for chat in (False, True)}
        self._first, self._gap = int(first * 1e9), int(gap * 1e9)
        self._records: list[Record] = []
        self._streams: dict[int, Stream] = {}
        self._later: list[tuple[int, int, Stream]] = []
        """A heap by the time when each stream sends next."""
        self._now: deque[Stream] = deque()
        """Streams without a gap, in turn."""
        self._epoll = select.epoll()
        self._listener = socket.create_server(("127.0.0.1", 0), backlog=4096)
        self._listener.setblocking(False)
        self._epoll.register(self._listener, select.EPOLLIN)
        self.port: int = self._listener.getsockname()[1]
        self._running = True
        signal.signal(signal.SIGTERM, self._stop)

    def _stop(self, *_: object) -> None:
        self._running = False

    def run(self) -> list[Record]:
        """Serves; returns what was served, in the order of arrival."""
        clock = time.monotonic_ns
        listener = self._listener.fileno()
        later, queue = self._later, self._now
        while self._running:
            wait = 0.1
            if queue:
                wait = 0.0
            elif later:
                wait = min(wait, max(0.0, (later[0][0] - clock()) / 1e9))
            # epoll's own time limit has whole milliseconds; select has microseconds, and an epoll can be selected.
            if wait:
                select.select([self._epoll], [], [], wait)
            for number, _ in self._epoll.poll(0):
                if number == listener:
                    self._accept()
                else:
                    self._read(self._streams[number])
            now = clock()
            while later and later[0][0] <= now:
                stream = heapq.heappop(later)[2]
                if stream.record is not None and self._send(stream):
                    stream.due += self._gap
                    heapq.heappush(later, (stream.due, id(stream), stream))
            for _ in range(min(len(queue), 64)):
                stream = queue.popleft()
                if stream.record is not None and self._send(stream):
                    queue.append(stream)
        return self._records

    def _accept(self) -> None:
        while True:
            try:
                connection, _ = self._listener.accept()
            except BlockingIOError:
                return
            connection.setblocking(False)
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            self._streams[connection.fileno()] = Stream(connection)
            self._epoll.register(connection, select.EPOLLIN)

    def _read(self, stream: Stream) -> None:
        try:
            data = stream.socket.recv(65536)
        except BlockingIOError:
            return
        except ConnectionError:
            data = b""
        if not data:
            self._drop(stream)
            return
        stream.rest += data
        if stream.record is None:
            self._begin(stream)

    def _begin(self, stream: Stream) -> None:
        """Starts the answer, if the request is whole."""
        head, end, body = stream.rest.partition(b"\r\n\r\n")
        found = LENGTH.search(head)
        size = int(found[1]) if found else 0
        if not end or len(body) < size:
            return
        stream.rest = body[size:]
        stream.close = CLOSE.search(head) is not None
        if head.startswith(b"GET"):
            kind = b"content-type: application/json\r\ncontent-length: %d\r\n\r\n" % len(MODELS)
            stream.socket.send(b"HTTP/1.1 200 OK\r\n" + kind + MODELS)
            return
        name = NAME.search(body)
        now = time.monotonic_ns()
        stream.record = Record(name[1].decode() if name else "", now)
        stream.face = self._faces[b"chat" in head.partition(b"\r\n")[0]]
        self._records.append(stream.record)
        stream.socket.send(HEAD)
        if self._gap or self._first:
            stream.due = now + self._first
            heapq.heappush(self._later, (stream.due, id(stream), stream))
        else:
            self._now.append(stream)

    def _send(self, stream: Stream) -> bool:
        """Sends the next chunk; whether more are to follow.

        An answer as a whole is smaller than a socket's buffer and a connection has one at a time: a send never blocks.
        """
        record = stream.record
        assert record is not None
        stamps = record.stamps
        tokens = stream.face.tokens
        chunk = tokens[len(stamps)]
        try:
            stamps.append(time.monotonic_ns())
            if stream.socket.send(chunk) != len(chunk):
                sys.exit("a chunk was sent in part: the answers are too long for this server")
            if len(stamps) < len(tokens):
                return True
            stream.socket.send(stream.face.tail)
        except ConnectionError:
            self._drop(stream)
            return False
        record.ended = time.monotonic_ns()
        stream.record = None
        if stream.close:
            self._drop(stream)
        elif stream.rest:
            self._begin(stream)
        return False

    def _drop(self, stream: Stream) -> None:
        stream.record = None
        self._streams.pop(stream.socket.fileno(), None)
        stream.socket.close()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--chunks", type=int, default=64, help="tokens of an answer")
    parser.add_argument("--first", type=float, default=0.02, help="seconds to the first token")
    parser.add_argument("--gap", type=float, default=0.02, help="seconds between two tokens")
    parser.add_argument("--log", type=Path, required=True)
    options = parser.parse_args()
    server = Server(options.chunks, options.first, options.gap)
    print(json.dumps({"port": server.port}), flush=True)
    records = server.run()
    encode = msgspec.json.Encoder().encode
    with options.log.open("wb") as file:
        for record in records:
            file.write(encode(record) + b"\n")


if __name__ == "__main__":
    main()
