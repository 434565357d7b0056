"""What an error of the system means for an exchange."""

from __future__ import annotations

import errno
import os
import ssl

from chaosrunner.http.errors import (
    ConnectRefused,
    ConnectReset,
    ConnectTimeout,
    LocalFault,
    NoResponse,
    StreamCut,
    TlsError,
    TransportError,
)

LOCAL_ERRNOS = frozenset(
    {
        errno.EMFILE,
        errno.ENFILE,
        errno.ENOBUFS,
        errno.ENOMEM,
        errno.EADDRNOTAVAIL,
        errno.ENETUNREACH,
        errno.ENETDOWN,
        errno.EACCES,
        errno.EPERM,
        errno.EAFNOSUPPORT,
        errno.EPROTONOSUPPORT,
    }
)
"""Errors of a socket call that are about this machine, not about the target: descriptors, memory, local ports, a local
firewall, no IPv6, no route. ENETUNREACH is nearly always the answer of our own routing table; a router that has lost
the route says it too (ICMP net unreachable). One that proves nothing of the service leaves a run inconclusive, not
passed."""

UNREACHABLE_ERRNOS = frozenset({errno.ETIMEDOUT, errno.EHOSTUNREACH, errno.EHOSTDOWN})
"""Of a connection attempt: nobody answers there. The system's own SYN retries ran out, the last hop finds no such host
(no answer to ARP, ICMP host unreachable), or a firewall on the way says no (ICMP administratively prohibited)."""
RESET_ERRNOS = frozenset({errno.ECONNRESET, errno.ECONNABORTED, errno.EPIPE})


def text_of(error: OSError) -> str:
    """The system's own words, without a path or an address."""
    if error.errno is None:
        return str(error) or type(error).__name__
    return f"{errno.errorcode.get(error.errno, error.errno)}: {os.strerror(error.errno)}"


def before_headers(error: OSError, *, connected: bool) -> TransportError:
    """The failure of a connection, or of the attempt to make one, before headers."""
    # OpenSSL's numbers are not those of errno.h.
    if isinstance(error, ssl.SSLError):
        failure: TransportError = TlsError(str(error))
    elif error.errno in LOCAL_ERRNOS:
        failure = LocalFault(text_of(error), errno=error.errno)
    elif error.errno == errno.ECONNREFUSED:
        failure = ConnectRefused(text_of(error), errno=error.errno)
    elif error.errno in RESET_ERRNOS:
        failure = ConnectReset(text_of(error), errno=error.errno)
    elif not connected and error.errno in UNREACHABLE_ERRNOS:
        failure = ConnectTimeout(text_of(error), errno=error.errno)
    else:
        failure = NoResponse(text_of(error), errno=error.errno)
    failure.__cause__ = error
    return failure


def after_headers(error: OSError) -> TransportError:
    """The failure of a connection amid a body."""
    if not isinstance(error, ssl.SSLError) and error.errno in LOCAL_ERRNOS:
        failure: TransportError = LocalFault(text_of(error), errno=error.errno, after_headers=True)
    elif isinstance(error, ssl.SSLError):
        failure = StreamCut("reset", str(error))
    else:
        failure = StreamCut("reset", text_of(error), errno=error.errno)
    failure.__cause__ = error
    return failure
