"""The driver `toxiproxy`, on the real Toxiproxy and on the lab's gateway."""

from __future__ import annotations

import asyncio
import json
import sys
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import anyio
import msgspec
import pytest

from chaosrunner.cluster.session import Unreachable
from chaosrunner.errors import UserError
from chaosrunner.faults.base import Context, PlanContext
from chaosrunner.faults.network import Network, NetworkEffect, Peers
from chaosrunner.faults.toxiproxy import ToxiproxyDriver
from chaosrunner.http.toxiproxy import Proxy, Toxic
from chaosrunner.journal import toxic as toxics
from chaosrunner.journal.guardian import BY_HAND, Watch
from chaosrunner.journal.journal import NAME, Connection, Entry, Reopened
from chaosrunner.journal.undo import command, undo_all, undo_entry
from chaosrunner.timeline import rows
from tests import toxiproxy
from tests.faults.killed import begun, kill_after
from tests.faults.world import World
from tests.faults.world import running as world_running
from tests.lab.workload.harness import Client, answered, fetch, request
from tests.toxiproxy.links import KINDS, PROXY, Link
from tests.toxiproxy.links import running as link_running

pytestmark = pytest.mark.anyio
ITS_END = "toxics end with Toxiproxy's process"


@dataclass
class Place:
    """A cluster with one Pod, and a Toxiproxy on the way to it."""

    world: World
    link: Link
    driver: ToxiproxyDriver
    pod: dict[str, Any]
    context: Context

    async def apply(self, **effect: Any) -> Entry:
        result, entry = await self.driver.apply(self.context, self.pod, effect_of(**effect), "network")
        assert entry is not None
        assert result.expected, result
        return entry

    async def proxy(self) -> Proxy:
        async with self.link.client() as client:
            found = await client.proxy(PROXY)
        assert found is not None
        return found

    async def undo(self, entry: Entry) -> tuple[str, str | None]:
        result = await undo_entry(self.world.cluster, self.context.journal, entry, self.world.emitted.append)
        return result.state, result.detail


def effect_of(kind: str = "partition", **values: Any) -> NetworkEffect:
    given = {"peer": "gateway", "duration": 30.0} | values
    return NetworkEffect(kind=kind, **given)  # type: ignore[arg-type]


@asynccontextmanager
async def placed(kind: str, folder: Path) -> AsyncIterator[Place]:
    async with link_running(kind) as link, world_running(folder) as world:
        pod = world.pod(PROXY)
        pod["status"]["podIP"] = "127.0.0.1"
        yield Place(world, link, ToxiproxyDriver(link.url, "{{ pod }}"), pod, world.context())


@pytest.fixture(params=KINDS)
async def place(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Place]:
    if request.param == "toxiproxy" and toxiproxy.program() is None:
        pytest.skip(toxiproxy.MISSING)
    async with placed(request.param, tmp_path) as place:
        yield place


async def status(link: Link, timeout: float = 5.0) -> int | None:
    """Of a request on a connection of its own; None where nothing comes."""
    try:
        return (await fetch(link.port, request("GET", "/bytes/10"), timeout)).status
    except TimeoutError:
        return None


@pytest.mark.parametrize(
    ("effect", "expected"),
    [
        ({"kind": "partition"}, [("timeout", "upstream", {"timeout": 0}), ("timeout", "downstream", {"timeout": 0})]),
        ({"kind": "partition", "direction": "in"}, [("timeout", "upstream", {"timeout": 0})]),
        ({"kind": "reject", "direction": "out"}, [("reset_peer", "downstream", {"timeout": 0})]),
        (
            {"kind": "latency", "seconds": 0.2, "jitter": 0.05},
            [("latency", "downstream", {"latency": 200, "jitter": 50})],
        ),
        (
            {"kind": "latency", "seconds": 0.2, "direction": "in"},
            [("latency", "upstream", {"latency": 200, "jitter": 0})],
        ),
        (
            {"kind": "rate", "bits_per_second": 1e6},
            [("bandwidth", "upstream", {"rate": 125}), ("bandwidth", "downstream", {"rate": 125})],
        ),
    ],
)
async def test_an_effect_is_a_toxic_in_each_direction(
    place: Place, effect: dict[str, Any], expected: list[tuple[str, str, dict[str, int]]]
) -> None:
    entry = await place.apply(**effect)
    found = (await place.proxy()).toxics
    assert [(each.type, each.stream, each.attributes) for each in found] == expected
    assert [each.name for each in found] == [f"chaosrunner-{entry.entry}-{stream}" for _, stream, _ in expected]
    assert (await place.driver.verify(place.context, place.pod, effect_of(), entry)).there is True
    assert await place.undo(entry) == ("undone", None)
    assert (await place.proxy()).toxics == ()
    assert (await place.driver.verify_healed(place.context, place.pod, effect_of(), entry)).there is False
    assert await place.undo(entry) == ("already_undone", None)
    assert place.world.states() == ["intent", "applied", "undone", "already_undone"]
    calls = [(row.action, row.undo, row.ok) for row in place.world.actions("answered")]
    assert calls == [(f"add_toxic_{kind}", False, True) for kind, _, _ in expected] + [
        ("remove_toxic", True, True)
    ] * len(expected)


async def test_a_partition_silences_callers_until_it_is_undone(place: Place) -> None:
    flowing = await Client.send(place.link.port, request("GET", "/stream"))
    await flowing.until(lambda call: len(call.chunks) >= 3)
    entry = await place.apply(kind="partition")
    await asyncio.sleep(0.1)
    with pytest.raises(TimeoutError):
        await flowing.until(lambda call: False, 0.1)
    before = len(flowing.call.data)
    assert await status(place.link, 0.5) is None
    assert len(flowing.call.data) == before
    assert await place.undo(entry) == ("undone", None)
    assert await status(place.link) == 200
    flowing.close()


async def test_reject_breaks_connections_at_once(place: Place) -> None:
    flowing = await Client.send(place.link.port, request("GET", "/stream"))
    await flowing.until(lambda call: len(call.chunks) >= 3)
    entry = await place.apply(kind="reject")
    assert not (await flowing.end(3)).whole
    assert await status(place.link, 2) in (0, 503)
    await place.undo(entry)
    assert await status(place.link) == 200
    flowing.close()


async def test_latency_is_what_was_asked_for(place: Place) -> None:
    """On a connection that stays, a round trip takes as much longer as the effect says; here within 60 ms."""
    client = await Client.send(place.link.port, request("GET", "/bytes/10"))
    await client.until(answered)

    async def round_trip() -> float:
        began = time.monotonic()
        client.next(request("GET", "/bytes/10"))
        await client.until(answered)
        return time.monotonic() - began

    before = sorted([await round_trip() for _ in range(9)])[4]
    entry = await place.apply(kind="latency", seconds=0.15)
    during = sorted([await round_trip() for _ in range(9)])[4]
    await place.undo(entry)
    after = sorted([await round_trip() for _ in range(9)])[4]
    assert 0.14 <= during - before <= 0.21
    assert abs(after - before) < 0.05
    client.close()


@pytest.mark.parametrize(
    ("kind", "answered", "there", "by"),
    [
        ("partition", (0, 5), True, "toxiproxy and requests"),
        ("partition", (0, 0), True, "toxiproxy and requests"),
        ("reject", (1, 5), False, "requests"),
        ("latency", (1, 5), True, "toxiproxy"),
    ],
)
async def test_callers_that_take_another_way_are_seen(
    tmp_path: Path, kind: str, answered: tuple[int, int], there: bool, by: str
) -> None:
    async with placed("gateway", tmp_path) as place:
        place.context.answered = lambda uid, since: answered
        effect = effect_of(kind=kind, seconds=0.1, duration=0.8)
        _, entry = await place.driver.apply(place.context, place.pod, effect, "network")
        assert entry is not None
        seen = await place.driver.verify(place.context, place.pod, effect, entry)
        assert (seen.there, seen.by) == (there, by), seen
        assert "the proxy has chaosrunner-" in seen.detail


async def test_a_toxic_that_somebody_changed_is_left_to_them(place: Place) -> None:
    entry = await place.apply(kind="partition")
    name = toxics.name(entry.entry, "downstream")
    assert await place.link.post(f"/proxies/{PROXY}/toxics/{name}", {"attributes": {"timeout": 7000}}) == 200
    state, detail = await place.undo(entry)
    assert state == "changed_by_others"
    assert detail is not None
    assert name in detail
    assert "7000" in detail
    # The one that nobody changed is gone; one of somebody else's was never touched.
    assert [each.name for each in (await place.proxy()).toxics] == [name]


async def test_toxics_of_others_stay(place: Place) -> None:
    theirs = Toxic(name="theirs", type="latency", stream="downstream", attributes={"latency": 5, "jitter": 0})
    async with place.link.client() as client:
        await client.add(PROXY, theirs)
        problems = await place.driver.check(place.world.cluster, place.pod, effect_of())
        assert [(problem.severity, problem.code) for problem in problems] == [("warn", "other_toxics")]
        entry = await place.apply()
        await place.undo(entry)
    assert (await place.proxy()).toxics == (theirs,)


async def test_what_was_announced_and_never_sent_is_not_applied(place: Place) -> None:
    made = toxics.Toxic(
        url=place.link.url, proxy=PROXY, toxics=({"name": "x", "type": "timeout", "stream": "upstream"},)
    )
    entry = await place.context.journal.intend(fault="network", target=rows.Target(kind="Pod", name=PROXY), made=made)
    assert await place.undo(entry) == ("not_applied", None)


async def test_a_call_that_comes_late_is_undone_all_the_same(place: Place) -> None:
    """The runner was killed with its call on the way: who undoes gives it the time to arrive."""
    name = toxics.name("abc", "upstream")
    toxic = {"name": name, "type": "timeout", "stream": "upstream", "toxicity": 1.0, "attributes": {"timeout": 0}}
    made = toxics.Toxic(url=place.link.url, proxy=PROXY, toxics=(toxic,))
    target = rows.Target(kind="Pod", name=PROXY)
    entry = await place.context.journal.intend(fault="network", target=target, made=made, name="abc")

    async def arrive() -> None:
        await anyio.sleep(0.3)
        assert await place.link.post(f"/proxies/{PROXY}/toxics", toxic) == 200

    async with anyio.create_task_group() as group:
        group.start_soon(arrive)
        assert await place.undo(entry) == ("undone", None)
    assert (await place.proxy()).toxics == ()


async def test_leftovers_are_found_by_name(place: Place) -> None:
    async with place.link.client() as client:
        await client.add(PROXY, Toxic(name="theirs", type="timeout", stream="downstream"))
    entry = await place.apply(kind="rate", bits_per_second=80_000)
    problems = await place.driver.check(place.world.cluster, place.pod, effect_of())
    assert [(problem.severity, problem.code) for problem in problems] == [("refuse", "undo_pending")]
    # The journal is lost: names tell.
    (found,) = await toxics.left(place.link.url, place.world.cluster.clock, place.world.connection)
    assert (found.entry, found.made) == (entry.entry, entry.made)
    decision = await toxics.undo(place.world.cluster, found, "applied", place.world.emitted.append)
    assert decision.state == "undone"
    assert [each.name for each in (await place.proxy()).toxics] == ["theirs"]


async def problems_of(place: Place, kind: str, *before: NetworkEffect, **effect: Any) -> list[tuple[str, str]]:
    """What a plan says of an effect after others, and what a run does that has made those that stand."""
    fault = Network([place.pod], effect_of(kind, **effect), Peers("gateway", ("127.0.0.1/32",)), [place.driver])
    fault.before = {place.pod["metadata"]["uid"]: before}
    planned = await fault.plan(PlanContext(cluster=place.world.cluster, pdbs=[]))
    return [(problem.code, problem.text) for problem in planned.problems if problem.severity == "refuse"]


async def test_effects_of_one_run_stand_beside_each_other_and_end_one_by_one(place: Place) -> None:
    peers = Peers("gateway", ("127.0.0.1/32",))
    made = []
    for effect in (effect_of("latency", seconds=0.2), effect_of("rate", bits_per_second=4e5), effect_of("partition")):
        fault = Network([place.pod], effect, peers, [place.driver])
        assert (await fault.apply(place.context)).result == "ok"
        assert (await fault.verify(place.context)).result == "ok"
        made.append(fault)
    delay, rate, cut = made

    async def types() -> set[str]:
        return {toxic.type for toxic in (await place.proxy()).toxics}

    assert await types() == {"latency", "bandwidth", "timeout"}
    await cut.undo(place.context)
    assert await types() == {"latency", "bandwidth"}
    # 15 kB at 50 kB/s take 0.3 s, and come 0.2 s later.
    began = time.monotonic()
    assert (await fetch(place.link.port, request("GET", "/bytes/15000"), 10)).status == 200
    assert time.monotonic() - began >= 0.45
    assert await delay.verify_undone(place.context) is False
    await delay.undo(place.context)
    assert await types() == {"bandwidth"}
    assert await delay.verify_undone(place.context) is True
    assert (await rate.verify(place.context)).result == "ok"
    await rate.undo(place.context)
    assert await types() == set()


async def test_effects_that_cannot_be_told_apart_are_refused(place: Place) -> None:
    delay, cut = effect_of("latency", seconds=0.1), effect_of("partition")
    assert await problems_of(place, "rate", delay, cut, bits_per_second=1e6) == []
    assert await problems_of(place, "latency", delay, seconds=0.2, direction="in") == []
    why = f"on proxy {PROXY} stands an effect of this run: "
    (twice,) = await problems_of(place, "latency", delay, seconds=0.2)
    (both,) = await problems_of(place, "reject", cut)
    assert twice == ("effects_clash", f"{why}two toxics latency downstream cannot be told apart, whichever bites")
    ways = "a connection falls silent or breaks"
    assert both == ("effects_clash", f"{why}reset_peer and timeout upstream exclude each other: {ways}")
    # And where they stand already: a run that finds its own refuses, one that finds another's says whose to undo.
    entry = await place.apply(kind="partition")
    fault = Network([place.pod], effect_of("reject"), Peers("gateway", ("127.0.0.1/32",)), [place.driver])
    with pytest.raises(UserError, match="exclude each other"):
        await fault.apply(place.context)
    assert [code for code, _ in await problems_of(place, "rate", bits_per_second=1e6)] == ["undo_pending"]
    assert await place.undo(entry) == ("undone", None)


async def test_a_plan_says_why_it_cannot_work_here(place: Place) -> None:
    cluster, link = place.world.cluster, place.link

    async def refused(driver: ToxiproxyDriver, pod: dict[str, Any] = place.pod, **effect: Any) -> list[str]:
        found = await driver.check(cluster, pod, effect_of(**effect))
        return [problem.code for problem in found if problem.severity == "refuse"]

    assert await refused(place.driver) == []
    assert await refused(ToxiproxyDriver(None, "{{ pod }}")) == ["no_toxiproxy"]
    assert await refused(ToxiproxyDriver("http://127.0.0.1:1", "{{ pod }}")) == ["no_toxiproxy"]
    assert await refused(ToxiproxyDriver(f"http://127.0.0.1:{link.server}", "{{ pod }}")) == ["no_toxiproxy"]
    assert await refused(ToxiproxyDriver(link.url, "{{ pod }}-x")) == ["no_such_proxy"]
    assert await refused(place.driver, peer="everywhere") == ["peer_not_reached"]
    assert await refused(place.driver, kind="rate", bits_per_second=100.0) == ["too_slow"]
    assert await refused(place.driver, ports=(link.server,)) == []
    assert await refused(place.driver, ports=(1,)) == ["other_port"]
    elsewhere = {**place.pod, "status": {"podIP": "10.9.9.9"}}
    assert await refused(place.driver, elsewhere) == ["other_upstream"]


async def test_the_command_for_a_person_works(place: Place) -> None:
    entry = await place.apply(kind="partition")
    done = await anyio.run_process(["sh", "-c", command(entry)], check=False)
    assert done.returncode == 0, done.stderr
    assert (await place.proxy()).toxics == ()


async def test_a_toxiproxy_that_is_away_is_asked_again(tmp_path: Path) -> None:
    if toxiproxy.program() is None:
        pytest.skip(toxiproxy.MISSING)
    async with placed("toxiproxy", tmp_path) as place:
        entry = await place.apply()
        context, away = place.context, f"Toxiproxy at {place.link.url}: connection refused"
    async with world_running(tmp_path) as world:
        # It has ended, and with it what was set there; nobody can know that.
        result = await undo_entry(world.cluster, Reopened(context.journal.path), entry, world.emitted.append)
        assert result.state == "undo_failed"
        assert result.command == f"curl -X DELETE {place.link.url}/proxies/{PROXY}/toxics/" + "; ".join(
            [
                f"chaosrunner-{entry.entry}-upstream",
                f"curl -X DELETE {place.link.url}/proxies/{PROXY}/toxics/chaosrunner-{entry.entry}-downstream",
            ]
        )
        assert result.detail == f"cannot reach {away}; see that its API answers there ({ITS_END})"
        driver, context = place.driver, world.context("run-2")
        (problem,) = await driver.check(world.cluster, place.pod, effect_of())
        assert (problem.code, problem.text) == ("no_toxiproxy", result.detail)
        context.patience = 0.3
        with pytest.raises(Unreachable, match=away) as raised:
            await driver.apply(context, place.pod, effect_of(), "network")
        assert raised.value.told == result.detail
        assert [context.journal.state(entry) for entry in context.journal.open()] == ["intent"]


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
async def test_recover_and_the_guardian_name_a_toxiproxy_that_ended(tmp_path: Path, kind: str) -> None:
    if kind == "toxiproxy" and toxiproxy.program() is None:
        pytest.skip(toxiproxy.MISSING)
    folder = tmp_path / "t" / "d" / "r"
    folder.mkdir(parents=True)
    async with world_running(tmp_path) as world:
        kubeconfig = str(world.connection.kubeconfig)
        async with link_running(kind) as link:
            await kill_after(0.2, "test_toxiproxy", link.url, kubeconfig, str(folder))
        # It ended in mid-run. The cluster is still there, and is not what is told to be away.
        arguments = ["recover", "--yes", "--timelines", str(tmp_path / "t")]
        done = await anyio.run_process([sys.executable, "-m", "chaosrunner", *arguments], check=False)
        shown = " ".join(done.stdout.decode().split())
        assert done.returncode == 5, done
        assert f"cannot reach Toxiproxy at {link.url}" in shown
        assert f"by hand: curl -X DELETE {link.url}/proxies/{PROXY}/toxics/chaosrunner-" in shown
        assert "the cluster cannot be reached" not in shown
        watch = Watch(
            pid=2**22 + 1,
            journal=str(folder / NAME),
            run="r",
            deadline=0.0,
            undo=True,
            stays=True,
            connection=msgspec.to_builtins(Connection(kubeconfig=kubeconfig, context="lab", namespace="demo")),
            request_timeout=5.0,
            lease="none",
            least=0.5,
        )
        guardian = [sys.executable, "-m", "chaosrunner.journal.guardian"]
        await anyio.run_process(guardian, input=json.dumps(asdict(watch)).encode() + b"\n", stderr=None)
        by_hand = (folder / BY_HAND).read_text()
        assert f"cannot reach Toxiproxy at {link.url}" in by_hand
        assert f"\ncurl -X DELETE {link.url}/proxies/{PROXY}/toxics/chaosrunner-" in by_hand
        assert f"cannot reach Toxiproxy at {link.url}" in (folder / "guardian.jsonl").read_text()


async def victim(url: str, kubeconfig: str, folder: str) -> None:
    """Sets a toxic again and again until it is killed."""
    from chaosrunner.cluster import ClusterConfig, connect
    from chaosrunner.journal.journal import Journal
    from chaosrunner.timeline.clock import Clock

    pod = {"metadata": {"name": PROXY, "namespace": "demo", "uid": "u"}, "status": {"podIP": "127.0.0.1"}}
    async with connect(ClusterConfig(kubeconfig=kubeconfig, context="lab"), Clock()) as cluster:
        connection = Connection(kubeconfig=kubeconfig, context="lab")
        journal = Journal(Path(folder) / NAME, run="r", drill="d", connection=connection)
        context = Context(cluster=cluster, journal=journal, emit=lambda _: None, run="r", drill="d")
        driver = ToxiproxyDriver(url, "{{ pod }}")
        begun()
        while True:
            await driver.apply(context, pod, effect_of(), "network")


@pytest.mark.parametrize(
    "after", [pytest.param(0.0, marks=pytest.mark.slow), 0.02, pytest.param(0.1, marks=pytest.mark.slow)]
)
async def test_a_killed_run_leaves_nothing_that_recovery_does_not_find(
    place: Place, tmp_path: Path, after: float
) -> None:
    folder = tmp_path / "killed"
    folder.mkdir()
    await kill_after(after, "test_toxiproxy", place.link.url, str(place.world.connection.kubeconfig), str(folder))
    ledger = Reopened(folder / NAME)
    results = await undo_all(place.world.cluster, ledger, place.world.emitted.append)
    assert {result.state for result in results} <= {"undone", "not_applied", "already_undone"}
    assert (await place.proxy()).toxics == ()
    lines = [json.loads(line) for line in (folder / NAME).read_text().splitlines()]
    assert sum(line["line"] == "intent" for line in lines) >= len(results)
