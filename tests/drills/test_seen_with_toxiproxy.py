"""What a probe sees of latency is what was asked for: a whole drill, with the real Toxiproxy before the replica."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import anyio
import msgspec
import pytest

from chaosrunner.cli.lab_process import Ready, on_embedded_lab
from chaosrunner.cluster import ClusterConfig, connect
from chaosrunner.cluster.resources import PODS
from chaosrunner.http.fetch import JsonFetcher
from chaosrunner.timeline import rows
from chaosrunner.timeline.clock import Clock
from tests import toxiproxy
from tests.drills.rehearsal import Rehearsal, load, run_on
from tests.drills.seen import Asked, Seen, write

SPEC = {"nodes": 1, "replicas": 1, "startup": 0.2}


@asynccontextmanager
async def behind(ready: Ready, url: str) -> AsyncIterator[Ready]:
    """The lab as if Toxiproxy (API at `url`) were its gateway, with the one replica behind it."""
    config = ClusterConfig(kubeconfig=ready.kubeconfig, context=ready.context, namespace=ready.namespace)
    async with connect(config, Clock()) as cluster, JsonFetcher(url, clock=Clock()) as fetcher:
        (pod,) = (await cluster.list(PODS, ready.namespace, label_selector="app=model")).items
        port = pod["spec"]["containers"][0]["ports"][0]["containerPort"]
        upstream = f"{pod['status']['podIP']}:{port}"
        body = {"name": pod["metadata"]["name"], "listen": "127.0.0.1:0", "upstream": upstream}
        status, made = await fetcher.ask("POST", "/proxies", body=body)
        assert status == 201, made
        yield msgspec.structs.replace(ready, url=f"http://{made['listen']}", toxiproxy=url)


@pytest.mark.lab
@pytest.mark.slow
@pytest.mark.skipif(toxiproxy.program() is None, reason=toxiproxy.MISSING)
def test_latency_comes_on_top_of_the_time_to_first_token(tmp_path: Path) -> None:
    bound = load(str(write(tmp_path, Asked("latency: 300ms, direction: out", driver="toxiproxy"))))

    async def run(url: str) -> Rehearsal:
        async with on_embedded_lab(SPEC, lambda doing: None) as ready, behind(ready, url) as aimed:
            return await run_on(aimed, bound, tmp_path / "timelines")

    with toxiproxy.running(tmp_path) as url:
        found = anyio.run(run, url)
    assert found.facts.verdict == "passed", (found.facts.reason, found.facts.lost_requests)
    assert [row.event for row in found.of(rows.Effect)] == ["bitten", "healed"]
    Seen(found).check_added_latency(0.3)
