"""HTTP: the one room that knows the client library. Probes and the Prometheus observer see only what is here."""

from chaosrunner.http.client import StreamClient
from chaosrunner.http.errors import (
    ConnectRefused,
    ConnectReset,
    ConnectTimeout,
    CutKind,
    FirstByteTimeout,
    LocalFault,
    NoResponse,
    StreamCut,
    TlsError,
    TransportError,
)
from chaosrunner.http.exchange import Exchange, Read, Receiver, Timeouts, Timings
from chaosrunner.http.fetch import JsonFetcher
from chaosrunner.http.headers import Headers
from chaosrunner.http.transport import WireTransport

__all__ = [
    "ConnectRefused",
    "ConnectReset",
    "ConnectTimeout",
    "CutKind",
    "Exchange",
    "FirstByteTimeout",
    "Headers",
    "JsonFetcher",
    "LocalFault",
    "NoResponse",
    "Read",
    "Receiver",
    "StreamClient",
    "StreamCut",
    "Timeouts",
    "Timings",
    "TlsError",
    "TransportError",
    "WireTransport",
]
