"""Toxiproxy's HTTP API for the links of a gateway: one proxy for each Pod behind it, named like the Pod.

The API is that of Toxiproxy 2 (https://github.com/Shopify/toxiproxy, README, "HTTP API"), but that proxies cannot be
made, changed or deleted: they come and go with the endpoints.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from typing import Any
from urllib.parse import unquote

from chaosrunner.lab.workload.endpoints import Endpoint
from chaosrunner.lab.workload.toxics import STREAMS, TYPES, Link, Toxic, attributes_of

PATH = "/gateway/toxiproxy"
"""Where it is on a gateway: what goes behind a gateway's URL."""

VERSION = "2.9.0"
"""Of the API that is spoken here; until 2.5 `/version` was plain text, and nothing took PATCH."""

Page = tuple[int, Any]
"""A status and what is said as JSON; None says nothing."""


class _Error(Exception):
    def __init__(self, status: int, text: str) -> None:
        super().__init__(text)
        self.page: Page = (status, {"error": text, "status": status})


@dataclass
class _Proxy:
    name: str
    upstream: str
    known: bool = True
    """Still among the endpoints; connections to others go on all the same."""
    toxics: dict[str, Toxic] = field(default_factory=dict)
    links: set[Link] = field(default_factory=set)


class Proxies:
    """The links of a gateway, by Pod, and what is in the way on each."""

    def __init__(self, listen: str, noted: Callable[..., None]) -> None:
        self._listen = listen
        self._noted = noted
        self._proxies: dict[str, _Proxy] = {}

    def update(self, endpoints: list[Endpoint]) -> None:
        """Take the endpoints as they are now."""
        told = {endpoint.pod: f"{endpoint.address}:{endpoint.port}" for endpoint in reversed(endpoints)}
        for name, upstream in told.items():
            proxy = self._proxies.setdefault(name, _Proxy(name, upstream))
            proxy.upstream, proxy.known = upstream, True
        for proxy in list(self._proxies.values()):
            proxy.known = proxy.name in told
            self._forget(proxy)

    def link(self, pod: str) -> Link:
        """A connection to a Pod of the endpoints that is about to be made."""
        proxy = self._proxies[pod]
        return Link(lambda link: self._opened(proxy, link), lambda link: self._gone(proxy, link))

    def _opened(self, proxy: _Proxy, link: Link) -> None:
        self._proxies.setdefault(proxy.name, proxy)
        proxy.links.add(link)
        for toxic in proxy.toxics.values():
            link.add(toxic)

    def _gone(self, proxy: _Proxy, link: Link) -> None:
        proxy.links.discard(link)
        self._forget(proxy)

    def _forget(self, proxy: _Proxy) -> None:
        if not proxy.known and not proxy.links and self._proxies.get(proxy.name) is proxy:
            del self._proxies[proxy.name]

    # The API

    def answer(self, method: str, path: str, body: bytes) -> Page:
        """The answer to a request for a path below the API's base URL."""
        try:
            return self._answer(method, [unquote(part) for part in path.strip("/").split("/")], body)
        except _Error as error:
            return error.page

    def _answer(self, method: str, path: list[str], body: bytes) -> Page:
        match method, path:
            case "GET", ["version"]:
                return 200, {"version": VERSION}
            case "POST", ["reset"]:
                for proxy in self._proxies.values():
                    for name in list(proxy.toxics):
                        self._remove(proxy, name)
                return 204, None
            case "GET", ["proxies"]:
                return 200, {name: self._shown(proxy) for name, proxy in self._proxies.items()}
            case "GET", ["proxies", name]:
                return 200, self._shown(self._proxy(name))
            case "GET", ["proxies", name, "toxics"]:
                return 200, self._shown(self._proxy(name))["toxics"]
            case "POST", ["proxies", name, "toxics"]:
                return 200, asdict(self._add(self._proxy(name), body))
            case "GET", ["proxies", name, "toxics", toxic]:
                return 200, asdict(_toxic(self._proxy(name), toxic))
            case (("POST" | "PATCH"), ["proxies", name, "toxics", toxic]):
                return 200, asdict(self._change(self._proxy(name), toxic, body))
            case "DELETE", ["proxies", name, "toxics", toxic]:
                self._remove(self._proxy(name), toxic)
                return 204, None
            case _, ["version" | "reset" | "populate"] | ["proxies", *_]:
                raise _Error(405, f"{method} of {'/'.join(path)} is not for the links of a gateway")
            case _:
                raise _Error(404, "404 page not found")

    def _proxy(self, name: str) -> _Proxy:
        if name not in self._proxies:
            raise _Error(404, "proxy not found")
        return self._proxies[name]

    def _shown(self, proxy: _Proxy) -> dict[str, Any]:
        toxics = [asdict(toxic) for stream in STREAMS for toxic in proxy.toxics.values() if toxic.stream == stream]
        return {
            "name": proxy.name,
            "listen": self._listen,
            "upstream": proxy.upstream,
            "enabled": True,
            "toxics": toxics,
        }

    def _add(self, proxy: _Proxy, body: bytes) -> Toxic:
        given = _object(body)
        kind, stream = given.get("type", ""), given.get("stream", "downstream")
        if stream not in STREAMS:
            raise _Error(400, "stream was invalid, can be either upstream or downstream")
        if kind not in TYPES:
            raise _Error(400, "invalid toxic type")
        name = given.get("name") or f"{kind}_{stream}"
        if not isinstance(name, str):
            raise _Error(400, f"bad request body: name is no text: {name!r}")
        if name in proxy.toxics:
            raise _Error(409, "toxic already exists")
        toxic = Toxic(name, kind, stream, _toxicity(given, 1.0), _attributes(kind, given))
        proxy.toxics[name] = toxic
        for link in proxy.links:
            link.add(toxic)
        self._noted("toxic", action="added", proxy=proxy.name, toxic=asdict(toxic), connections=len(proxy.links))
        return toxic

    def _change(self, proxy: _Proxy, name: str, body: bytes) -> Toxic:
        """What is on its way meanwhile goes on at once."""
        toxic, given = _toxic(proxy, name), _object(body)
        attributes = _attributes(toxic.type, {"attributes": toxic.attributes | (given.get("attributes") or {})})
        toxicity = _toxicity(given, toxic.toxicity)
        for link in proxy.links:
            link.remove(toxic)
        toxic.attributes, toxic.toxicity = attributes, toxicity
        for link in proxy.links:
            link.add(toxic)
        self._noted("toxic", action="changed", proxy=proxy.name, toxic=asdict(toxic), connections=len(proxy.links))
        return toxic

    def _remove(self, proxy: _Proxy, name: str) -> None:
        toxic = _toxic(proxy, name)
        del proxy.toxics[name]
        for link in list(proxy.links):
            link.remove(toxic)
        self._noted("toxic", action="removed", proxy=proxy.name, toxic=asdict(toxic), connections=len(proxy.links))


def _toxic(proxy: _Proxy, name: str) -> Toxic:
    if name not in proxy.toxics:
        raise _Error(404, "toxic not found")
    return proxy.toxics[name]


def _object(body: bytes) -> dict[str, Any]:
    try:
        found = json.loads(body)
    except ValueError as error:
        raise _Error(400, f"bad request body: {error}") from None
    if not isinstance(found, dict):
        raise _Error(400, "bad request body: no object")
    return found


def _toxicity(given: dict[str, Any], default: float) -> float:
    value = given.get("toxicity", default)
    if not isinstance(value, int | float) or isinstance(value, bool):
        raise _Error(400, f"bad request body: toxicity is no number: {value!r}")
    return value


def _attributes(kind: str, given: dict[str, Any]) -> dict[str, int]:
    try:
        return attributes_of(kind, given.get("attributes"))
    except ValueError as error:
        raise _Error(400, f"bad request body: {error}") from None
