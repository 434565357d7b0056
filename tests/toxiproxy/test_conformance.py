"""The lab's gateway is held to what the real Toxiproxy does: one file of tests for both."""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import AsyncIterator
from typing import Any

import httpx
import pytest

from chaosrunner.http.toxiproxy import Refused, Toxic
from tests import toxiproxy
from tests.lab.workload.harness import Call, Client, answered, fetch, request
from tests.toxiproxy.links import KINDS, PROXY, Link, running

pytestmark = pytest.mark.anyio


@pytest.fixture(params=KINDS)
async def link(request: pytest.FixtureRequest) -> AsyncIterator[Link]:
    if request.param == "toxiproxy" and toxiproxy.program() is None:
        pytest.skip(toxiproxy.MISSING)
    async with running(request.param) as link:
        yield link


def toxic(kind: str, stream: str = "downstream", **attributes: int) -> Toxic:
    return Toxic(name=f"some-{kind}-{stream}", type=kind, stream=stream, attributes=attributes)


async def got(link: Link, path: str, timeout: float = 20.0) -> tuple[Call, float]:
    """The answer to a GET on a connection of its own, and how long it took."""
    began = time.monotonic()
    return await fetch(link.port, request("GET", path), timeout), time.monotonic() - began


async def streaming(link: Link) -> Client:
    """A stream that flows."""
    client = await Client.send(link.port, request("GET", "/stream"))
    await client.until(lambda call: len(call.chunks) >= 3)
    return client


def ticks(call: Call) -> int:
    return b"".join(call.chunks).count(b"tick\n")


async def silent(client: Client, seconds: float = 0.5) -> bool:
    """Whether nothing comes any more, though the connection stays. What was on its way may still come."""
    await asyncio.sleep(0.1)
    with pytest.raises(TimeoutError):
        await client.until(lambda call: False, 0.1)
    before = len(client.call.data)
    with pytest.raises(TimeoutError):
        await client.until(lambda call: len(call.data) > before, seconds)
    return len(client.call.data) == before


# The API


async def test_a_proxy_is_listed_with_its_toxics(link: Link) -> None:
    async with link.client() as client:
        (proxy,) = await client.proxies()
        assert (proxy.name, proxy.enabled, proxy.toxics) == (PROXY, True, ())
        assert proxy.upstream == f"127.0.0.1:{link.server}"
        made = await client.add(PROXY, toxic("latency", latency=300))
        assert made == toxic("latency", latency=300, jitter=0)
        await client.add(PROXY, toxic("bandwidth", "upstream", rate=100))
        found = await client.proxy(PROXY)
        assert found is not None
        # Upstream first, whatever the order in which they came.
        assert found.toxics == (toxic("bandwidth", "upstream", rate=100), toxic("latency", latency=300, jitter=0))
        assert await client.toxic(PROXY, made.name) == made


async def test_it_names_its_version(link: Link) -> None:
    """As JSON, or before 2.6 as plain text."""
    async with httpx.AsyncClient(trust_env=False) as client:
        answer = await client.get(f"{link.url}/version")
    assert re.search(r"\bv?2\.\d+\.\d+", answer.text)


async def test_what_is_not_there_is_none(link: Link) -> None:
    async with link.client() as client:
        assert await client.proxy("other") is None
        assert await client.toxic("other", "x") is None
        assert await client.toxic(PROXY, "x") is None
        assert await client.remove(PROXY, "x") is False
        await client.add(PROXY, toxic("timeout"))
        assert await client.remove(PROXY, "some-timeout-downstream") is True
        assert await client.remove(PROXY, "some-timeout-downstream") is False


@pytest.mark.parametrize(
    ("proxy", "body", "status"),
    [
        ("other", {"type": "latency"}, 404),
        (PROXY, {"type": "packet_loss"}, 400),
        (PROXY, {"type": "latency", "stream": "sideways"}, 400),
        (PROXY, {"type": "latency", "attributes": {"latency": "300ms"}}, 400),
        (PROXY, {"type": "latency", "attributes": {"latency": 0.5}}, 400),
        (PROXY, {"type": "latency", "toxicity": "all"}, 400),
        (PROXY, {"type": "slow_close", "name": "taken"}, 409),
    ],
)
async def test_what_cannot_be_is_refused(link: Link, proxy: str, body: dict[str, Any], status: int) -> None:
    async with link.client() as client:
        await client.add(PROXY, Toxic(name="taken", type="latency", stream="downstream"))
        given = {"name": "new", "stream": "downstream", "attributes": {}, "toxicity": 1.0} | body
        assert await link.post(f"/proxies/{proxy}/toxics", given) == status
        found = await client.proxy(PROXY)
        assert found is not None
        assert [each.name for each in found.toxics] == ["taken"]


async def test_a_client_learns_why(link: Link) -> None:
    async with link.client() as client:
        with pytest.raises(Refused, match="400 invalid toxic type") as caught:
            await client.add(PROXY, toxic("packet_loss"))
    assert caught.value.status == 400


async def test_without_a_name_it_is_called_after_what_it_is(link: Link) -> None:
    assert await link.post(f"/proxies/{PROXY}/toxics", {"type": "latency"}) == 200
    async with link.client() as client:
        assert await client.toxic(PROXY, "latency_downstream") is not None


async def test_a_toxic_is_changed(link: Link) -> None:
    async with link.client() as client:
        await client.add(PROXY, toxic("latency", latency=20, jitter=7))
        path = f"/proxies/{PROXY}/toxics/some-latency-downstream"
        assert await link.post(path, {"attributes": {"latency": 400}, "toxicity": 0.5}) == 200
        changed = await client.toxic(PROXY, "some-latency-downstream")
    assert changed is not None
    assert (changed.attributes, changed.toxicity) == ({"latency": 400, "jitter": 7}, 0.5)


async def test_reset_takes_all_away(link: Link) -> None:
    async with link.client() as client:
        await client.add(PROXY, toxic("timeout"))
        await client.add(PROXY, toxic("latency", "upstream", latency=10))
        assert await link.post("/reset") == 204
        found = await client.proxy(PROXY)
    assert found is not None
    assert found.toxics == ()


# What toxics do


@pytest.mark.parametrize("stream", ["upstream", "downstream"])
async def test_latency_delays_new_connections(link: Link, stream: str) -> None:
    async with link.client() as client:
        await client.add(PROXY, toxic("latency", stream, latency=300))
        call, took = await got(link, "/bytes/10")
        assert (call.status, call.body) == (200, b"x" * 10)
        assert 0.3 <= took < 0.9
        await client.remove(PROXY, f"some-latency-{stream}")
    call, took = await got(link, "/bytes/10")
    assert (call.status, took < 0.3) == (200, True)


async def test_latency_delays_a_stream_that_flows_and_loses_nothing(link: Link) -> None:
    flowing = await streaming(link)
    async with link.client() as client:
        await client.add(PROXY, toxic("latency", latency=400))
        added = time.monotonic()
        await asyncio.sleep(0.05)  # what was read before may still be on its way to us
        before = ticks(flowing.call)
        await flowing.until(lambda call: ticks(call) > before + 3)
        late = [at - added for at, _ in flowing.call.reads if at - added > 0.1]
        assert 0.35 <= late[0] < 0.9
        await client.remove(PROXY, "some-latency-downstream")
        await flowing.until(lambda call: ticks(call) > before + 40)
    assert b"".join(flowing.call.chunks) == b"tick\n" * ticks(flowing.call)
    flowing.close()


async def test_bandwidth_limits_what_goes_through(link: Link) -> None:
    async with link.client() as client:
        await client.add(PROXY, toxic("bandwidth", rate=100))
        call, took = await got(link, "/bytes/100000")
    assert (call.status, len(call.body)) == (200, 100_000)
    assert 0.8 <= took < 1.8


@pytest.mark.parametrize("stream", ["upstream", "downstream"])
async def test_timeout_swallows_and_keeps_connections(link: Link, stream: str) -> None:
    async with link.client() as client:
        await client.add(PROXY, toxic("timeout", stream, timeout=0))
        asking = await Client.send(link.port, request("GET", "/bytes/10"))
        assert await silent(asking)
        assert asking.call.data == b""
        # It ends with the toxic, and so does each connection that it held.
        await client.remove(PROXY, f"some-timeout-{stream}")
        ended = await asking.until(answered, 5)
        assert ended.status in (0, 503)  # a gateway answers for the server
    call, _ = await got(link, "/bytes/10")
    assert call.status == 200
    asking.close()


async def test_timeout_stops_a_stream_that_flows(link: Link) -> None:
    flowing = await streaming(link)
    async with link.client() as client:
        await client.add(PROXY, toxic("timeout", timeout=0))
        assert await silent(flowing)
        await client.remove(PROXY, "some-timeout-downstream")
        call = await flowing.end(5)
    assert (call.status, call.whole) == (200, False)
    flowing.close()


async def test_timeout_ends_a_connection_in_time(link: Link) -> None:
    async with link.client() as client:
        await client.add(PROXY, toxic("timeout", timeout=300))
        call, took = await got(link, "/bytes/10", 5)
    assert call.status in (0, 503)
    assert 0.3 <= took < 1.5


@pytest.mark.parametrize("stream", ["upstream", "downstream"])
async def test_reset_peer_ends_new_connections(link: Link, stream: str) -> None:
    async with link.client() as client:
        await client.add(PROXY, toxic("reset_peer", stream, timeout=0))
        call, took = await got(link, "/bytes/10", 5)
        assert call.status in (0, 503)
        assert took < 1.5
        await client.remove(PROXY, f"some-reset_peer-{stream}")
    call, _ = await got(link, "/bytes/10")
    assert call.status == 200


async def test_reset_peer_ends_a_stream_that_flows(link: Link) -> None:
    flowing = await streaming(link)
    async with link.client() as client:
        await client.add(PROXY, toxic("reset_peer", timeout=0))
        call = await flowing.end(5)
    assert (call.status, call.whole) == (200, False)
    flowing.close()


async def test_slow_close_delays_the_end_only(link: Link) -> None:
    async with link.client() as client:
        await client.add(PROXY, toxic("slow_close", delay=400))
        began = time.monotonic()
        asking = await Client.send(link.port, request("GET", "/close"))
        call = await asking.until(lambda call: b"all of it" in call.data)
        assert time.monotonic() - began < 0.4
        call = await asking.until(lambda call: call.whole)
    assert b"all of it" in call.data
    assert 0.4 <= time.monotonic() - began < 1.5
    asking.close()


async def test_limit_data_ends_after_so_many_bytes(link: Link) -> None:
    async with link.client() as client:
        await client.add(PROXY, toxic("limit_data", bytes=1000))
        call, _ = await got(link, "/bytes/5000", 5)
    assert call.status == 200
    assert 0 < len(call.body) < 1000  # the head counts as well


async def test_toxics_act_one_after_the_other(link: Link) -> None:
    async with link.client() as client:
        await client.add(PROXY, Toxic(name="a", type="latency", stream="downstream", attributes={"latency": 200}))
        await client.add(PROXY, Toxic(name="b", type="latency", stream="downstream", attributes={"latency": 200}))
        assert 0.4 <= (await got(link, "/bytes/10"))[1] < 1.2
        await client.remove(PROXY, "a")
        assert 0.2 <= (await got(link, "/bytes/10"))[1] < 0.4


async def test_toxicity_of_nothing_harms_nobody(link: Link) -> None:
    async with link.client() as client:
        await client.add(PROXY, Toxic(name="a", type="timeout", stream="downstream", toxicity=0.0))
        assert [(await got(link, "/bytes/10"))[0].status for _ in range(5)] == [200] * 5
