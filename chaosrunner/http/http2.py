"""HTTP/2 over a connection of ours, so that it has the kernel's receive times too; frames and HPACK are `h2`'s.

httpx' own HTTP/2 fails all streams of a connection at a GOAWAY, although RFC 9113, section 6.8, has those up to the
last stream go on to their end: that is how a gateway drains.
"""

from __future__ import annotations

from contextlib import suppress
from typing import Protocol

import h2.config
import h2.connection
import h2.errors
import h2.events
import h2.exceptions
import h2.settings
import h2.stream

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
_GOAWAY = _FRAME_HEADER + 8
_DATA, _HEADERS, _CONTINUATION = 0, 1, 9
_PADDED = 0x8
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
        self.used = False
        """A stream has begun on it."""
        self._streams: dict[int, Stream] = {}
        self._last = 0
        """The number of the last stream that we began."""
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
        self._last = number
        self.used = True
        self._h2.send_headers(number, stream.fields, end_stream=not stream.unsent)
        if stream.unsent:
            self._send_body(number, stream)
        self._flush()
        return number

    def leave(self, number: int) -> None:
        """A stream's exchange is over; where its answer has not ended, the peer is told that nobody wants the rest."""
        self.resume(number)
        if self._streams.pop(number, None) is not None and not self.connection.closed:
            self._reset(number, h2.errors.ErrorCodes.CANCEL)
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
        violation: h2.exceptions.ProtocolError | None = None
        try:
            # Frame by frame, so that what came before a violation counts, however the bytes were cut into receives.
            while (frame := self._next_frame()) is not None:
                for event in self._events(at, frame, exact):
                    self._take(at, event, exact)
        except h2.exceptions.ProtocolError as error:
            violation = error
        for number in list(self._pieces):
            self._hand_on(number, at, exact)
        self._flush()
        if violation is not None:
            self.connection.close()
            self._end(at, _text(violation), "bad_chunk")

    def lost(self, at: float, error: OSError | None) -> None:
        if error is None:
            self._end(at, "peer closed the connection before the stream's end", "missing_last_chunk", stale=True)
            return
        for stream in self._take_all():
            failure = after_headers(error) if stream.has_headers else before_headers(error, connected=True)
            failure.stale = not stream.has_headers
            stream.fail(at, failure)

    # ---

    def _next_frame(self) -> bytes | None:
        """The next frame that has come whole."""
        if len(self._incoming) < _FRAME_HEADER or self.connection.closed:
            return None
        length = int.from_bytes(self._incoming[:3], "big")
        if length > _LARGEST_FRAME:
            raise h2.exceptions.FrameTooLargeError(f"a frame of {length} bytes")
        end = _FRAME_HEADER + length
        if len(self._incoming) < end:
            return None
        frame = bytes(self._incoming[:end])
        del self._incoming[:end]
        return frame

    def _events(self, at: float, frame: bytes, exact: bool) -> list[h2.events.Event]:
        try:
            events = self._h2.receive_data(frame)
        except h2.exceptions.ProtocolError as error:
            number = int.from_bytes(frame[5:_FRAME_HEADER], "big") & 0x7FFFFFFF
            if not self._is_of_one_stream(number, frame, error):
                raise
            self._break(number, at, frame, error, exact)
            return []
        if events and isinstance(events[-1], h2.events.ConnectionTerminated):
            # h2 takes a GOAWAY for the connection's end; it only ends the taking of new streams.
            self._h2.state_machine.state = h2.connection.ConnectionState.CLIENT_OPEN
        return events

    def _is_of_one_stream(self, number: int, frame: bytes, error: h2.exceptions.ProtocolError) -> bool:
        """Whether a violation makes an answer malformed and leaves the connection sound (RFC 9113, section 8.1.1).

        Also of a stream that nobody waits for any more, such as one that a GOAWAY took back without a reset.
        """
        if not (number % 2 and number <= self._last):  # the odd ones are ours (section 5.1.1)
            return False
        if isinstance(error, h2.exceptions.InvalidBodyLengthError):
            return True
        # h2 has no class of its own for malformed fields. Those of HPACK and of its state machines have a cause; what
        # stands amid a header block leaves that block unfinished.
        return (
            type(error) is h2.exceptions.ProtocolError
            and error.__cause__ is None
            and frame[3] in (_DATA, _HEADERS, _CONTINUATION)
            and not self._h2.incoming_buffer._headers_buffer
        )

    def _break(self, number: int, at: float, frame: bytes, error: h2.exceptions.ProtocolError, exact: bool) -> None:
        """Reset the one stream that a violation is about."""
        # h2 has closed the connection and written a GOAWAY last; neither is to be.
        self._h2.state_machine.state = h2.connection.ConnectionState.CLIENT_OPEN
        self.connection.write(self._h2.data_to_send()[:-_GOAWAY])
        kind: CutKind = "bad_chunk"
        if isinstance(error, h2.exceptions.InvalidBodyLengthError) and error.actual_length < error.expected_length:
            kind = "short_body"
            if data := _data_of(frame):
                self._pieces.setdefault(number, []).append(data)
        self._hand_on(number, at, exact)
        broken = self._h2.streams.get(number)
        if broken is not None and broken.closed and broken.closed_by is None:
            # h2 has closed the stream too, but without a reset, and would end the connection for what yet comes of it.
            broken.state_machine.state = h2.stream.StreamState.HALF_CLOSED_LOCAL
        self._reset(number, h2.errors.ErrorCodes.PROTOCOL_ERROR)
        if frame[3] == _DATA:
            self._acknowledge(number, len(frame) - _FRAME_HEADER)
        if (stream := self._streams.pop(number, None)) is not None:
            stream.fail(at, _failure(stream, _text(error), kind))

    def _reset(self, number: int, code: h2.errors.ErrorCodes) -> None:
        with suppress(h2.exceptions.ProtocolError):  # it has ended as far as h2 is concerned, or the connection has
            self._h2.reset_stream(number, code)

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


def _text(error: h2.exceptions.ProtocolError) -> str:
    return f"no HTTP/2: {error or type(error).__name__}"


def _data_of(frame: bytes) -> bytes:
    """A DATA frame's data; nothing of another frame."""
    if frame[3] != _DATA:
        return b""
    payload = frame[_FRAME_HEADER:]
    return payload[1 : len(payload) - payload[0]] if frame[4] & _PADDED else payload


def _name(code: object) -> str:
    return code.name if isinstance(code, h2.errors.ErrorCodes) else str(code)
