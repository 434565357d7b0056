from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from dataclasses import dataclass
from typing import Any, Protocol

import aiohttp
import pytest

from chaosrunner.lab.embedded.api import ApiServer, serve
from chaosrunner.lab.embedded.store import Store
from tests.lab.api.recorded import ACCESS


@dataclass
class Answer:
    status: int
    headers: Any
    body: Any


class Client:
    """A bare HTTP client of one server, as the admin unless told otherwise."""

    def __init__(self, server: ApiServer, session: aiohttp.ClientSession) -> None:
        self.server = server
        self.store = server.store
        self.session = session

    async def call(
        self,
        method: str,
        path: str,
        body: Any = None,
        *,
        content_type: str | None = None,
        accept: str = "application/json",
        token: str | None = "admin",
    ) -> Answer:
        headers = {"Accept": accept}
        if token:
            headers["Authorization"] = f"Bearer {token}"
        kwargs: dict[str, Any] = {"headers": headers}
        if isinstance(body, str | bytes):
            kwargs["data"] = body
        elif body is not None:
            kwargs["json"] = body
        if content_type:
            headers["Content-Type"] = content_type
        async with self.session.request(method, f"{self.server.url}{path}", **kwargs) as response:
            text = await response.text()
            is_one = response.content_type == "application/json" and "watch=true" not in path
            whole = is_one or response.status != 200
            try:
                return Answer(response.status, response.headers, json.loads(text) if whole else text)
            except ValueError:
                return Answer(response.status, response.headers, text)


class Serve(Protocol):
    async def __call__(self, store: Store, **options: Any) -> Client: ...


@pytest.fixture
async def connect() -> AsyncIterator[Serve]:
    """Serve a store on loopback and return a client of it."""
    async with AsyncExitStack() as stack:
        session = await stack.enter_async_context(aiohttp.ClientSession())

        async def start(store: Store, **options: Any) -> Client:
            server = await stack.enter_async_context(serve(store, "127.0.0.1", 0, access=ACCESS, **options))
            return Client(server, session)

        yield start
