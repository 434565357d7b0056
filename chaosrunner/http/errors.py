"""How an exchange can fail beneath HTTP: a small set of errors, whatever transport is in use.

The text of each is the operating system's where there is one, and `errno` its number; the system's own exception stays
reachable as `__cause__`.
"""

from __future__ import annotations

from typing import Literal

CutKind = Literal["reset", "missing_last_chunk", "short_body", "bad_chunk", "stream_reset"]


class TransportError(Exception):
    """The exchange broke. `after_headers` says whether status and headers had arrived."""

    after_headers = False
    stale = False
    """The connection had been kept from an earlier exchange and ended before any byte of an answer. The peer may have
    closed it before the request reached it (RFC 9112, section 9.5), so this is no proof that the request failed."""
    at: float | None = None
    """When it happened, seconds on the recording's clock, where that is known better than by when it was raised."""

    def __init__(self, text: str, *, errno: int | None = None) -> None:
        super().__init__(text)
        self.errno = errno


class ConnectRefused(TransportError):
    """ECONNREFUSED: nobody listens there."""


class ConnectTimeout(TransportError):
    """No connection within the limit, or the host is reported as unreachable (EHOSTUNREACH, EHOSTDOWN, ETIMEDOUT)."""


class ConnectReset(TransportError):
    """Reset by the peer before headers: in the TLS handshake, or once the request was sent.

    A reset that answers the SYN itself is ECONNREFUSED, so this one means that something did accept the connection.
    """


class TlsError(TransportError):
    """The TLS handshake failed: an untrusted certificate, no common version, closed by the peer."""


class NoResponse(TransportError):
    """Connected, but then closed in order before headers, no HTTP, or no more answer to TCP itself (ETIMEDOUT)."""


class FirstByteTimeout(TransportError):
    """Connected and sent, but no headers within the limit."""


class StreamCut(TransportError):
    """Headers arrived, and then the body did not end as HTTP says it must (RFC 9112, section 8).

    reset: RST, or the connection failed in another way. missing_last_chunk: closed in order before the zero chunk, or
    HTTP/2's END_STREAM. short_body: closed in order before Content-Length bytes. bad_chunk: framing broken.
    stream_reset: an HTTP/2 stream was reset.
    """

    after_headers = True

    def __init__(self, kind: CutKind, text: str, *, errno: int | None = None) -> None:
        super().__init__(text, errno=errno)
        self.kind = kind


class LocalFault(TransportError):
    """Our own side failed: name resolution, descriptors, local ports, memory, no route (ENETUNREACH), a local firewall.

    Says nothing of the target.
    """

    def __init__(self, text: str, *, errno: int | None = None, after_headers: bool = False) -> None:
        super().__init__(text, errno=errno)
        self.after_headers = after_headers
