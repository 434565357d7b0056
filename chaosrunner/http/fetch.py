"""Small JSON answers, for those who ask an HTTP API now and then."""

from __future__ import annotations

import socket
from collections.abc import Mapping
from typing import Any, Self

import anyio
import httpx
import msgspec

from chaosrunner.http.errors import ConnectTimeout, FirstByteTimeout, LocalFault, NoResponse, TransportError
from chaosrunner.http.failures import before_headers
from chaosrunner.http.target import check_url, tls_context
from chaosrunner.http.transport import WireTransport
from chaosrunner.timeline.clock import Clock

LARGEST = 16 << 20
"""Bytes of an answer that are read at most."""


class JsonFetcher:
    """Asks for JSON objects below one base URL over a connection that it keeps.

    Raises UserError for a bad URL or CA file when made.
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
        self._base = check_url(base_url)
        tls = tls_context(ca, insecure) if self._base.startswith("https:") else None
        self._client = httpx.AsyncClient(
            headers={"accept": "application/json", "user-agent": "chaosrunner", **(headers or {})},
            transport=WireTransport(clock, tls=tls),
            timeout=timeout,
            trust_env=False,
        )

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._client.aclose()

    async def get(self, path: str, params: Mapping[str, str] | None = None) -> tuple[int, dict[str, Any]]:
        """Status and body of a GET, as `ask` has them."""
        return await self.ask("GET", path, params=params)

    async def ask(
        self, method: str, path: str, *, params: Mapping[str, str] | None = None, body: Any = None
    ) -> tuple[int, dict[str, Any]]:
        """Status and body of an answer; an empty dictionary where the body is no JSON object. `body` is sent as JSON.

        Raises TransportError where there was no whole answer within the time limit.
        """
        came = bytearray()
        content = None if body is None else msgspec.json.encode(body)
        headers = {} if body is None else {"content-type": "application/json"}
        try:
            with anyio.move_on_after(self._timeout):
                async with self._client.stream(
                    method, self._base + path, params=params, content=content, headers=headers
                ) as response:
                    async for part in response.aiter_bytes():
                        came += part
                        if len(came) > LARGEST:
                            raise NoResponse(f"the answer is larger than {LARGEST >> 20} MiB")
                    return response.status_code, _object(bytes(came))
        except httpx.HTTPError as error:
            raise _ours(error) from error
        raise FirstByteTimeout(f"no whole answer within {self._timeout:g} s")


def _ours(error: httpx.HTTPError) -> TransportError:
    match error:
        case httpx.ConnectTimeout():
            return ConnectTimeout(str(error))
        case httpx.ConnectError(__cause__=socket.gaierror()):
            return LocalFault(str(error))
        case httpx.ConnectError(__cause__=OSError() as cause):
            return before_headers(cause, connected=False)
        case _:
            return NoResponse(str(error))


def _object(body: bytes) -> dict[str, Any]:
    try:
        decoded = msgspec.json.decode(body)
    except msgspec.DecodeError:
        return {}
    return decoded if isinstance(decoded, dict) else {}
