"""HTTP/2 over a connection of ours, so that it has the kernel's receive times too; frames and HPACK are `h2`'s.

httpx' own HTTP/2 fails all streams of a connection at a GOAWAY, although RFC 9113, section 6.8, has those up to the
last stream go on to their end: that is how a gateway drains.
"""

from __future__ import annotations

from typing import Protocol

import h2.config
import h2.connection
import h2.errors
import h2.events
import h2.exceptions
import h2.settings

from chaosrunner.http.connection import Connection
from chaosrunner.http.errors import CutKind, NoResponse, StreamCut, TransportError
from chaosrunner.http.failures import after_headers, before_headers
from chaosrunner.http.http1 import LONGEST_HEAD

WINDOW = 1 << 24
"""Bytes that the peer may send ahead, on the connection and on each stream."""
_SETTINGS = {
    h2.settings.SettingCodes.ENABLE_PUSH: 0,
    h2.settings.SettingCodes.INITIAL_WINDOW_SIZE: WINDOW,
    h2.settings.SettingCodes.MAX_HEADER_LIST_SIZE: LONGEST_HEAD,
}
_FRAME_HEADER = 9
_LARGEST_FRAME = 16384
"""Bytes of a frame's payload that we take: the default of SETTINGS_MAX_FRAME_SIZE (RFC 9113, section 6.5.2)."""

Fields = list[tuple[bytes, bytes]]


class Stream(Protocol):
    """One exchange on a session."""

    fields: Fields
    """Of the request, pseudo-header fields first."""
    unsent: memoryview
    """What has yet to be sent of the request's body."""
    has_headers: bool
    """Whether an answer's headers have come."""

    def came(self, at: float, fields: Fields, exact: bool) -> None:
        """Status and header fields of the final answer."""

    def data(self, at: float, data: bytes, exact: bool) -> None:
        """What one receive brought of the body."""

    def complete(self, at: float) -> None:
        """The answer has ended as it must."""

    def fail(self, at: float, error: TransportError) -> None:
        """It has not. `error.stale`: the peer may not have looked at the request, if the connection is not new."""


class Session:
    """One connection, and the streams on it. Owner of the connection until that is closed."""

    def __init__(self, connection: Connection) -> None:
        self.connection = connection
        self.draining = False
        """The peer takes no more streams."""
        self._streams: dict[int, Stream] = {}
        self._held: dict[int, int] = {}
        """Bytes not acknowledged to the peer, by streams that are to be slow."""
        self._pieces: dict[int, list[bytes]] = {}
        """What the current receive has brought of bodies."""
        self._incoming = bytearray()
        self._h2 = h2.connection.H2Connection(h2.config.H2Configuration(client_side=True, header_encoding=None))
        self._h2.local_settings = h2.settings.Settings(client=True, initial_values=_SETTINGS)
        self._h2.initiate_connection()
        self._h2.increment_flow_control_window(WINDOW)
        connection.owner = self
        self._flush()
        connection.take_what_is_there()

    @property
    def idle(self) -> bool:
        return not self._streams

    @property
    def has_room(self) -> bool:
        """Whether the peer takes one more stream."""
        if self.draining or self.connection.closed:
            return False
        return self._h2.open_outbound_streams < self._h2.remote_settings.max_concurrent_streams

    def begin(self, stream: Stream) -> int:
        """Send a stream's request; returns the stream's number."""
        number = self._h2.get_next_available_stream_id()
        self._streams[number] = stream
        self.connection.uses += 1
        self._h2.send_headers(number, stream.fields, end_stream=not stream.unsent)
        if stream.unsent:
            self._send_body(number, stream)
        self._flush()
        return number

    def leave(self, number: int) -> None:
        """A stream's exchange is over; where its answer has not ended, the peer is told that nobody wants the rest."""
        self.resume(number)
        if self._streams.pop(number, None) is not None and not self.connection.closed:
            self._h2.reset_stream(number, h2.errors.ErrorCodes.CANCEL)
            self._flush()

    def hold(self, number: int) -> None:
        """Have the peer send no more of a stream than its window still allows."""
        self._held.setdefault(number, 0)

    def resume(self, number: int) -> None:
        size = self._held.pop(number, 0)
        if size and not self.connection.closed:
            self._h2.acknowledge_received_data(size, number)
            self._flush()

    # --- called by the connection ---

    def received(self, at: float, data: bytes, exact: bool) -> None:
        self._incoming += data
        try:
            for event in self._events():
                self._take(at, event, exact)
        except h2.exceptions.ProtocolError as error:
            self._flush()
            self.connection.close()
            self._end(at, f"no HTTP/2: {error or type(error).__name__}", "bad_chunk")
            return
        for number in list(self._pieces):
            self._hand_on(number, at, exact)
        self._flush()

    def lost(self, at: float, error: OSError | None) -> None:
        if error is None:
            self._end(at, "peer closed the connection before the stream's end", "missing_last_chunk", stale=True)
            return
        for stream in self._take_all():
            failure = after_headers(error) if stream.has_headers else before_headers(error, connected=True)
            failure.stale = not stream.has_headers
            stream.fail(at, failure)

    # ---

    def _events(self) -> list[h2.events.Event]:
        """Events of the whole frames that have come."""
        events: list[h2.events.Event] = []
        while len(self._incoming) >= _FRAME_HEADER:
            length = int.from_bytes(self._incoming[:3], "big")
            if length > _LARGEST_FRAME:
                raise h2.exceptions.FrameTooLargeError(f"a frame of {length} bytes")
            end = _FRAME_HEADER + length
            if len(self._incoming) < end:
                break
            events += self._h2.receive_data(bytes(self._incoming[:end]))
            del self._incoming[:end]
            if events and isinstance(events[-1], h2.events.ConnectionTerminated):
                # h2 takes a GOAWAY for the connection's end; it only ends the taking of new streams.
                self._h2.state_machine.state = h2.connection.ConnectionState.CLIENT_OPEN
        return events

    def _take(self, at: float, event: h2.events.Event, exact: bool) -> None:
        match event:
            case h2.events.DataReceived(stream_id=int(number), data=bytes(data)):
                self._acknowledge(number, event.flow_controlled_length or 0)
                if data and number in self._streams:
                    self._pieces.setdefault(number, []).append(data)
            case h2.events.ResponseReceived(stream_id=int(number)) if number in self._streams:
                self._streams[number].came(at, event.headers or [], exact)
            case h2.events.StreamEnded(stream_id=int(number)) if number in self._streams:
                self._hand_on(number, at, exact)
                if (stream := self._streams.pop(number, None)) is not None:
                    stream.complete(at)
            case h2.events.StreamReset(stream_id=int(number)) if number in self._streams:
                self._hand_on(number, at, exact)
                if (stream := self._streams.pop(number, None)) is not None:
                    text = f"RST_STREAM {_name(event.error_code)}"
                    stale = event.error_code == h2.errors.ErrorCodes.REFUSED_STREAM
                    stream.fail(at, _failure(stream, text, "stream_reset", stale=stale))
            case h2.events.ConnectionTerminated():
                self._drain(at, event)
            case h2.events.WindowUpdated() | h2.events.RemoteSettingsChanged():
                for number, stream in list(self._streams.items()):
                    if stream.unsent:
                        self._send_body(number, stream)

    def _drain(self, at: float, event: h2.events.ConnectionTerminated) -> None:
        self.draining = True
        for number in [number for number in self._streams if number > (event.last_stream_id or 0)]:
            stream = self._streams.pop(number)
            text = f"GOAWAY {_name(event.error_code)}: the peer has not looked at the request"
            stream.fail(at, _failure(stream, text, "stream_reset", stale=True))

    def _hand_on(self, number: int, at: float, exact: bool) -> None:
        pieces = self._pieces.pop(number, None)
        if pieces and (stream := self._streams.get(number)) is not None:
            stream.data(at, b"".join(pieces), exact)

    def _acknowledge(self, number: int, size: int) -> None:
        if number in self._held:
            self._held[number] += size
        elif size:
            self._h2.acknowledge_received_data(size, number)

    def _send_body(self, number: int, stream: Stream) -> None:
        while stream.unsent:
            room = min(self._h2.local_flow_control_window(number), self._h2.max_outbound_frame_size)
            if room <= 0:
                return
            part, stream.unsent = stream.unsent[:room], stream.unsent[room:]
            self._h2.send_data(number, bytes(part), end_stream=not stream.unsent)

    def _flush(self) -> None:
        self.connection.write(self._h2.data_to_send())

    def _end(self, at: float, text: str, kind: CutKind, *, stale: bool = False) -> None:
        for stream in self._take_all():
            stream.fail(at, _failure(stream, text, kind, stale=stale))

    def _take_all(self) -> list[Stream]:
        streams = list(self._streams.values())
        self._streams.clear()
        return streams


def _failure(stream: Stream, text: str, kind: CutKind, *, stale: bool = False) -> TransportError:
    if stream.has_headers:
        return StreamCut(kind, text)
    failure = NoResponse(text)
    failure.stale = stale
    return failure


def _name(code: object) -> str:
    return code.name if isinstance(code, h2.errors.ErrorCodes) else str(code)
