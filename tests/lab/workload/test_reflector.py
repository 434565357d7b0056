"""What a reflector tells of changes, and of the time when nobody watched."""

from __future__ import annotations

import asyncio
import time
from typing import Any

import pytest

from chaosrunner.lab.workload.credentials import ApiServer
from chaosrunner.lab.workload.reflector import Change, Reflector
from tests.lab.workload.harness import eventually
from tests.lab.workload.slices import TOKEN, Slices, endpoint

PATH = "/apis/discovery.k8s.io/v1/namespaces/demo/endpointslices"
SELECTOR = "kubernetes.io/service-name=chat"


class Told:
    def __init__(self, port: int) -> None:
        self.batches: list[tuple[list[tuple[str, str, bool]], float | None]] = []
        server = ApiServer("127.0.0.1", port, "", "demo", None, lambda: TOKEN)
        self.reflector = Reflector(server, PATH, self._changed, selector=SELECTOR)

    def _changed(self, changes: list[Change], since: float | None) -> None:
        self.batches.append(([(type_, obj["metadata"]["name"], old is not None) for type_, obj, old in changes], since))

    async def next(self) -> tuple[list[tuple[str, str, bool]], Any]:
        async def told() -> bool:
            return bool(self.batches)

        await eventually(told)
        return self.batches.pop(0)


@pytest.mark.anyio
async def test_changes_are_told_one_by_one_and_after_a_loss_all_at_once() -> None:
    slices = Slices()
    await slices.listen()
    slices.put(endpoint("0", 1), endpoint("1", 1))
    told = Told(slices.port)
    task = asyncio.create_task(told.reflector.run())
    try:
        assert await told.next() == ([("ADDED", "chat-0", False), ("ADDED", "chat-1", False)], None)
        slices.put(endpoint("1", 1, ready=False))
        assert await told.next() == ([("MODIFIED", "chat-1", True)], None)
        slices.remove("0")
        assert await told.next() == ([("DELETED", "chat-0", True)], None)
        slices.hang_up()  # a watch that ends properly goes on where it was
        slices.put(endpoint("2", 1))
        assert await told.next() == ([("ADDED", "chat-2", False)], None)

        alive = time.time()
        await slices.go_away()
        slices.put(endpoint("3", 1))
        slices.remove("1")
        slices.forget()
        await asyncio.sleep(0.5)
        assert told.batches == []
        await slices.listen(slices.port)
        changes, since = await told.next()
        assert changes == [("DELETED", "chat-1", True), ("MODIFIED", "chat-2", True), ("ADDED", "chat-3", False)]
        assert since == pytest.approx(alive, abs=0.3)
    finally:
        task.cancel()
        await slices.go_away()
