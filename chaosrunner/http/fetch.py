"""Small JSON answers, for observers that ask an HTTP API now and then."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Self
from urllib.parse import urlencode

import anyio
import msgspec

from chaosrunner.http.client import StreamClient
from chaosrunner.http.errors import FirstByteTimeout, NoResponse
from chaosrunner.http.exchange import Timeouts
from chaosrunner.timeline.clock import Clock

LARGEST = 16 << 20
"""Bytes of an answer that are read at most."""


class JsonFetcher:
    """GETs JSON objects below one base URL over a connection that it keeps.

    Raises UserError for a bad URL or CA file when made; one fetch at a time.
    """

    def __init__(
        self,
        base_url: str,
        *,
        clock: Clock,
        headers: Mapping[str, str] | None = None,
        ca: str | None = None,
        insecure: bool = False,
        timeout: float = 10.0,
    ) -> None:
        self._timeout = timeout
        self._client = StreamClient(
            base_url,
            clock=clock,
            headers={"accept": "application/json", **(headers or {})},
            ca=ca,
            insecure=insecure,
            connection="reused",
            timeouts=Timeouts(connect=timeout, first_byte=timeout),
        )

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._client.__aexit__()

    async def get(self, path: str, params: Mapping[str, str] | None = None) -> tuple[int, dict[str, Any]]:
        """Status and body of a GET; an empty dictionary where the body is no JSON object.

        Raises TransportError where there was no whole answer within the time limit.
        """
        target = f"{path}?{urlencode(params)}" if params else path
        body = bytearray()
        with anyio.move_on_after(self._timeout):
            async with self._client.stream("GET", target) as response:
                async for read in response:
                    body += read.data
                    if len(body) > LARGEST:
                        raise NoResponse(f"the answer is larger than {LARGEST >> 20} MiB")
                assert response.status is not None
                return response.status, _object(bytes(body))
        raise FirstByteTimeout(f"no whole answer within {self._timeout:g} s")


def _object(body: bytes) -> dict[str, Any]:
    try:
        decoded = msgspec.json.decode(body)
    except msgspec.DecodeError:
        return {}
    return decoded if isinstance(decoded, dict) else {}
