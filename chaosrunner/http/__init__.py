"""HTTP: the one room that knows the client library. Probes and the Prometheus observer see only what is here."""

from chaosrunner.http.client import Exchange, Read, StreamClient, Timeouts, Timings
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
from chaosrunner.http.fetch import JsonFetcher

__all__ = [
    "ConnectRefused",
    "ConnectReset",
    "ConnectTimeout",
    "CutKind",
    "Exchange",
    "FirstByteTimeout",
    "JsonFetcher",
    "LocalFault",
    "NoResponse",
    "Read",
    "StreamClient",
    "StreamCut",
    "Timeouts",
    "Timings",
    "TlsError",
    "TransportError",
]
