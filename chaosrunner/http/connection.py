"""A connection: a socket that is read when the loop says so, with the kernel's receive times, plain or under TLS."""

from __future__ import annotations

import asyncio
import select
import socket
import ssl
from typing import Protocol

from chaosrunner.http.stamps import ANCILLARY, Stamps

READ = 65536
"""Bytes of one receive at most."""


class Owner(Protocol):
    """Whom a connection serves just now. Called by the event loop, which only logs what is raised: a failure that
    somebody waits to hear of has to be handed to them."""

    def received(self, at: float, data: bytes, exact: bool) -> None:
        """Bytes came at `at` (seconds on the recording's clock; `exact`: by the kernel)."""

    def lost(self, at: float, error: OSError | None) -> None:
        """The peer has closed in order (None), or the connection broke. It is closed."""


class Connection:
    """Open from its making until `close`. At most one owner at a time; bytes that come without one close it."""

    __slots__ = (
        "_fd",
        "_floor",
        "_loop",
        "_poll",
        "_raw",
        "_reading",
        "_recvmsg",
        "_stamps",
        "_tls",
        "_unsent",
        "_write_error",
        "closed",
        "local",
        "opened",
        "owner",
        "protocol",
        "remote",
    )

    def __init__(self, raw: socket.socket, remote: str | None, stamps: Stamps, loop: asyncio.AbstractEventLoop) -> None:
        """`raw` is connected to `remote` (`address:port`) and does not block; it is closed with the connection."""
        self._raw = raw
        self._fd = raw.fileno()
        self._recvmsg = raw.recvmsg
        self._stamps = stamps
        self._loop = loop
        self._floor = -float("inf")
        self._tls: Tls | None = None
        self._unsent = bytearray()
        self._write_error: OSError | None = None
        self.owner: Owner | None = None
        self.closed = False
        self.local = address_text(raw.getsockname())
        """Our end, `address:port`."""
        self.remote = remote  # a peer that has hung up already has no name any more
        """The other end, `address:port`."""
        self.protocol: str | None = None
        """What TLS agreed on by ALPN, where it did."""
        self.opened = 0.0
        """When it was ready for a request, seconds on the recording's clock."""
        self._poll: select.poll | None = None
        self._reading = True
        loop.add_reader(self._fd, self._readable)

    @property
    def has_unsent(self) -> bool:
        """Whether something written still waits to be sent."""
        return bool(self._unsent)

    def is_alive(self) -> bool:
        """Look at the socket of an idle connection: whatever can be read there, an end or bytes, makes it of no use."""
        if self.closed:
            return False
        if self._poll is None:
            self._poll = select.poll()
            self._poll.register(self._fd, select.POLLIN)
        if self._poll.poll(0):
            self._readable()
        return not self.closed

    def start_tls(self, tls: Tls) -> None:
        """Everything from here on goes through `tls`, whose handshake `step_handshake` carries on."""
        self._tls = tls

    def step_handshake(self) -> bool:
        """Send what the handshake has to say; True once it is done. Raises ssl.SSLError where it fails."""
        assert self._tls is not None
        try:
            done = self._tls.step()
        finally:
            self._send(self._tls.outgoing.read())
        if done:
            self.protocol = self._tls.protocol
        return done

    def write(self, data: bytes) -> None:
        """Send, at once as far as the socket takes it. A failure shows as the loss of the connection, in its time."""
        if self._tls is not None:
            try:
                data = self._tls.encrypt(data)
            except ssl.SSLError as error:
                self._write_error = error
                return
        self._send(data)

    def take_what_is_there(self) -> None:
        """Give the owner what came together with the end of the TLS handshake."""
        if self._tls is not None:
            self._decrypt(self._floor, b"", exact=False)

    def pause(self) -> None:
        """Read no more until `resume`: the peer is to slow down."""
        if self._reading and not self.closed:
            self._loop.remove_reader(self._fd)
            self._reading = False

    def resume(self) -> None:
        if not self._reading and not self.closed:
            self._loop.add_reader(self._fd, self._readable)
            self._reading = True

    def close(self) -> None:
        """Close at once; what has not been sent is dropped. The owner is not told."""
        if self.closed:
            return
        self.owner = None
        self.pause()
        if self._unsent:
            self._loop.remove_writer(self._fd)
            self._unsent.clear()
        elif self._tls is not None and self._tls.ready and self._write_error is None:
            self._try_to_send(self._tls.goodbye())
        self.closed = True
        self._raw.close()

    # --- sending ---

    def _send(self, data: bytes) -> None:
        if not data or self._write_error is not None or self.closed:
            return
        sent = 0
        if not self._unsent:
            sent = self._try_to_send(data)
            if sent == len(data) or self._write_error is not None:
                return
            self._loop.add_writer(self._fd, self._writable)
        self._unsent += memoryview(data)[sent:]

    def _writable(self) -> None:
        del self._unsent[: self._try_to_send(self._unsent)]
        if self._write_error is not None:
            self._unsent.clear()
        if not self._unsent:
            self._loop.remove_writer(self._fd)

    def _try_to_send(self, data: bytes | bytearray) -> int:
        try:
            return self._raw.send(data)
        except (BlockingIOError, InterruptedError):
            return 0
        except OSError as error:
            # An answer may have come all the same: reading goes on, and ends with this error where it would end well.
            self._write_error = error
            return 0

    # --- receiving ---

    def _readable(self) -> None:
        try:
            data, ancillary, _, _ = self._recvmsg(READ, ANCILLARY)
        except (BlockingIOError, InterruptedError):
            return
        except OSError as error:
            self._lose(error)
            return
        at, exact = self._stamps.of(ancillary, self._floor)
        if not data:
            self._lose(self._write_error, at)
            return
        self._floor = at
        if self._tls is not None:
            self._decrypt(at, data, exact)
        elif self.owner is not None:
            self.owner.received(at, data, exact)
        else:
            self.close()

    def _decrypt(self, at: float, data: bytes, exact: bool) -> None:
        assert self._tls is not None
        if not self._tls.ready:
            self._tls.incoming.write(data)
            if self.owner is not None:
                self.owner.received(at, b"", exact)
            return
        plain, ended, error = self._tls.decrypt(data)
        self._send(self._tls.outgoing.read())
        if plain:
            if self.owner is None:
                self.close()
            else:
                self.owner.received(at, plain, exact)
        if ended and not self.closed:
            self._lose(error, at)

    def _lose(self, error: OSError | None, at: float | None = None) -> None:
        owner = self.owner
        self.close()
        if owner is not None:
            owner.lost(self._stamps.now() if at is None else at, error)


class Tls:
    """The client's side of TLS in memory, so that the bytes beneath it keep the kernel's receive times."""

    __slots__ = ("_object", "incoming", "outgoing", "ready")

    def __init__(self, context: ssl.SSLContext, host: str) -> None:
        self.incoming = ssl.MemoryBIO()
        self.outgoing = ssl.MemoryBIO()
        self._object = context.wrap_bio(self.incoming, self.outgoing, server_hostname=host)
        self.ready = False
        """The handshake is done."""

    @property
    def protocol(self) -> str | None:
        return self._object.selected_alpn_protocol()

    def step(self) -> bool:
        try:
            self._object.do_handshake()
        except ssl.SSLWantReadError:
            return False
        self.ready = True
        return True

    def goodbye(self) -> bytes:
        """The alert that says that nothing more follows (close_notify)."""
        try:
            self._object.unwrap()
        except ssl.SSLError:
            pass  # it waits for the peer's, or the peer has broken off
        return self.outgoing.read()

    def encrypt(self, data: bytes) -> bytes:
        self._object.write(data)
        return self.outgoing.read()

    def decrypt(self, data: bytes) -> tuple[bytes, bool, ssl.SSLError | None]:
        """What the bytes hold, whether that was all, and why where the peer does not say so (close_notify)."""
        self.incoming.write(data)
        pieces: list[bytes] = []
        ended, error = True, None
        try:
            while piece := self._object.read(READ):
                pieces.append(piece)
        except ssl.SSLWantReadError:
            ended = False
        except ssl.SSLZeroReturnError:
            pass
        except ssl.SSLError as failure:
            error = failure
        return b"".join(pieces), ended, error


def address_text(address: object) -> str | None:
    """`address:port` of a socket address; None where it is none of the Internet's."""
    if not isinstance(address, tuple):
        return None
    host, port = address[0], address[1]
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
