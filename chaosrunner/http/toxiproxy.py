"""A client of Toxiproxy's HTTP API (Toxiproxy 2; https://github.com/Shopify/toxiproxy, README, "HTTP API")."""

from __future__ import annotations

from types import TracebackType
from typing import Any, Self, TypeVar
from urllib.parse import quote

import msgspec

from chaosrunner.http.errors import NoResponse
from chaosrunner.http.fetch import JsonFetcher
from chaosrunner.timeline.clock import Clock

TIMEOUT = 5.0
"""Longest answer, seconds. An addition waits for every connection that it changes."""


class Toxic(msgspec.Struct, kw_only=True, frozen=True):
    """A fault on one direction of a proxy's connections, as the API has it."""

    name: str
    type: str
    """latency, bandwidth, timeout, reset_peer, slow_close, limit_data, ..."""
    stream: str
    """upstream: from the client to the server behind the proxy. downstream: back."""
    toxicity: float = 1.0
    """Share of the connections that it acts on."""
    attributes: dict[str, Any] = {}


class Proxy(msgspec.Struct, kw_only=True, frozen=True):
    """A listening address, and the server that its connections are passed on to."""

    name: str
    listen: str = ""
    upstream: str = ""
    enabled: bool = True
    toxics: tuple[Toxic, ...] = ()


Kind = TypeVar("Kind", Toxic, Proxy)


class Refused(Exception):
    """Toxiproxy answered with an error status."""

    def __init__(self, what: str, status: int, text: str) -> None:
        super().__init__(f"{what}: {status} {text}".strip())
        self.what = what
        self.status = status
        self.text = text


class Toxiproxy:
    """One Toxiproxy. Methods raise TransportError where no answer came, and Refused for another than the good one.

    Raises UserError for a bad URL when made.
    """

    def __init__(self, url: str, clock: Clock, *, timeout: float = TIMEOUT) -> None:
        self._fetcher = JsonFetcher(url, clock=clock, timeout=timeout)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._fetcher.__aexit__(kind, error, trace)

    async def proxies(self) -> list[Proxy]:
        """All proxies, by name."""
        found = await self._ask("GET", "/proxies")
        return sorted((_read(item, Proxy) for item in found.values()), key=lambda proxy: proxy.name)

    async def proxy(self, name: str) -> Proxy | None:
        """One proxy with its toxics; None where there is none of this name."""
        found = await self._ask("GET", f"/proxies/{quote(name, safe='')}", none=404)
        return None if found is None else _read(found, Proxy)

    async def toxic(self, proxy: str, name: str) -> Toxic | None:
        """One toxic; None where it, or the proxy, does not exist."""
        found = await self._ask("GET", _path(proxy, name), none=404)
        return None if found is None else _read(found, Toxic)

    async def add(self, proxy: str, toxic: Toxic) -> Toxic:
        """Adds a toxic, which acts at once, on open connections too; as it is then."""
        return _read(await self._ask("POST", _path(proxy), toxic), Toxic)

    async def remove(self, proxy: str, name: str) -> bool:
        """Removes a toxic; False where there was none."""
        return await self._ask("DELETE", _path(proxy, name), none=404) is not None

    async def _ask(self, method: str, path: str, body: Any = None, *, none: int | None = None) -> Any:
        status, answer = await self._fetcher.ask(method, path, body=body)
        if status == none:
            return None
        if not 200 <= status < 300:
            raise Refused(f"{method} {path}", status, str(answer.get("error") or ""))
        return answer


def _path(proxy: str, toxic: str | None = None) -> str:
    path = f"/proxies/{quote(proxy, safe='')}/toxics"
    return path if toxic is None else f"{path}/{quote(toxic, safe='')}"


def _read(found: Any, kind: type[Kind]) -> Kind:
    try:
        return msgspec.convert(found, kind)
    except msgspec.ValidationError as error:
        raise NoResponse(f"no answer of a Toxiproxy: {error}") from error
