"""The alert source: rules by themselves, and the process with Prometheus' pages."""

from __future__ import annotations

import json
import re
import time
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from chaosrunner.lab.workload.alert_rules import BadRule, Expression, Rule, Sample, exponent, number, stamp
from chaosrunner.lab.workload.alert_source import main
from tests.lab.workload.conftest import Start
from tests.lab.workload.harness import (
    DATA,
    Client,
    Program,
    eventually,
    fetch,
    get,
    get_json,
    request,
    stream,
)
from tests.lab.workload.slices import api, endpoint


def rule(hold: str = "5s", expression: str = "ready_endpoints < 1") -> Rule:
    annotations = {"description": "value {{ $value }}", "summary": "of {{ $labels.service }}"}
    values = {"alert": "NoReady", "expr": expression, "for": hold, "labels": {"severity": "page"}}
    return Rule.parse({**values, "annotations": annotations})


def known(value: float) -> Any:
    return lambda name, window: [({"__name__": name, "service": "chat"}, value)]


def unknown(name: str, window: float) -> list[Sample]:
    return []


def test_an_alert_is_pending_then_firing_then_gone() -> None:
    subject = rule()
    states = []
    for at, value in [(100, 2), (101, 0), (105, 0), (106, 0), (110, 0), (111, 1), (112, 0)]:
        subject.evaluate(known(value), at)
        states.append((subject.state, [alert.page()["activeAt"] for alert in subject.alerts.values()]))
    began, again = ["1970-01-01T00:01:41Z"], ["1970-01-01T00:01:52Z"]
    assert states == [
        ("inactive", []),
        ("pending", began),
        ("pending", began),
        ("firing", began),
        ("firing", began),
        ("inactive", []),
        ("pending", again),
    ]


def test_without_a_hold_an_alert_fires_at_once() -> None:
    subject = rule("0s")
    subject.evaluate(known(0), 100)
    assert subject.state == "firing"


def test_what_is_unknown_raises_no_alert_and_ends_one() -> None:
    # As in Prometheus, where a series that is gone compares with nothing.
    subject = rule("0s")
    subject.evaluate(known(0), 100)
    subject.evaluate(unknown, 101)
    assert subject.state == "inactive"


def test_an_alert_has_the_recorded_shape() -> None:
    subject = rule("5s")
    subject.evaluate(known(0), 100)
    (alert,) = [alert.page() for alert in subject.alerts.values()]
    recorded = json.loads((DATA / "prom" / "transition_2_pending.json").read_text())
    (want,) = recorded["alerts"]["data"]["alerts"]
    assert list(alert) == list(want)
    assert alert["state"] == want["state"]
    assert alert["labels"] == {"alertname": "NoReady", "service": "chat", "severity": "page"}
    assert list(alert["labels"]) == sorted(alert["labels"])
    assert alert["annotations"] == {"description": "value 0", "summary": "of chat"}


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("ready_endpoints < 1", ("ready_endpoints", 30.0, "<", 1.0)),
        ("gateway_failed_share[10s]>5%", ("gateway_failed_share", 10.0, ">", 0.05)),
        ('up{job="gateway"} == 0', ("up", 30.0, "==", 0.0)),
        ("up", ("up", 30.0, None, 0.0)),
    ],
)
def test_expressions_are_read(text: str, expected: tuple[str, float, str | None, float]) -> None:
    parsed = Expression.parse(text)
    assert (parsed.name, parsed.window, parsed.comparison, parsed.number) == expected


@pytest.mark.parametrize("text", ["", "1 < 2", "up =", "up == zero", "up{job} == 0", "x[soon] > 1", "a > 1 and b > 1"])
def test_expressions_that_cannot_be_read_are_told(text: str) -> None:
    with pytest.raises(BadRule):
        Expression.parse(text)


def test_matchers_choose_series() -> None:
    def read(name: str, window: float) -> list[Sample]:
        return [({"job": "gateway"}, 0.0), ({"job": "apiserver"}, 0.0)]

    assert Expression.parse('up{job="gateway"} == 0').evaluate(read) == [({"job": "gateway"}, 0.0)]
    assert Expression.parse('up{job!="gateway"} == 0').evaluate(read) == [({"job": "apiserver"}, 0.0)]
    assert Expression.parse("up == 1").evaluate(read) == []


@given(st.floats(min_value=-1e12, max_value=1e12, allow_subnormal=False))
def test_values_are_written_so_that_they_read_back(value: float) -> None:
    assert float(exponent(value)) == value
    assert float(number(value)) == value


def test_values_and_times_are_written_as_recorded() -> None:
    assert (exponent(1.0), exponent(0.25), number(1.0), number(0.5)) == ("1e+00", "2.5e-01", "1", "0.5")
    assert stamp(1795959986.75188) == "2026-11-29T13:46:26.75188Z"
    assert stamp(1795959986.0) == "2026-11-29T13:46:26Z"


RULES = [
    {"alert": "FewReady", "expr": "ready_endpoints < 2", "for": "300ms", "labels": {"severity": "page"}},
    {"alert": "Failing", "expr": "gateway_failed_share[30s] > 10%", "for": "0s"},
    {"alert": "GatewayDown", "expr": 'up{job="gateway"} == 0'},
]


def shape(value: Any) -> Any:
    """Keys in order and kinds of values."""
    if isinstance(value, dict):
        return [(key, shape(part)) for key, part in value.items()]
    if isinstance(value, list):
        return [shape(part) for part in value]
    if isinstance(value, str):
        return re.sub(r"^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d+)?Z$", "TIME", value) == "TIME" or "text"
    return "number"


async def state(port: int, name: str) -> str:
    groups = (await get_json(port, "/api/v1/rules"))["data"]["groups"]
    return next(str(rule["state"]) for rule in groups[0]["rules"] if rule["name"] == name)


@pytest.mark.anyio
async def test_alerts_of_a_drill(start: Start, serve: Start, tmp_path: Path) -> None:
    rules = tmp_path / "rules.json"
    rules.write_text(json.dumps(RULES[:2]))
    servers = [serve(), serve()]
    ports = [await server.listening() for server in servers]
    async with api() as slices:
        slices.put(*(endpoint(f"chat-{number}", port) for number, port in enumerate(ports)))
        config = ["--kubeconfig", slices.kubeconfig(tmp_path), "--service", "chat"]
        gateway = start("gateway", *config, "--policy", "round_robin")
        gateway_port = await gateway.listening()
        await gateway.logged("endpoints_applied")
        program = start(
            *("alert_source", *config, "--gateway", f"http://127.0.0.1:{gateway_port}", "--interval", "100ms"),
            *("--rules", str(rules), "--rule", json.dumps(RULES[2])),
        )
        port = await program.listening()

        async def ready() -> bool:
            return (await get(port, "/-/ready")).status == 200

        async def in_state(name: str, wanted: str) -> None:
            async def holds() -> bool:
                return await state(port, name) == wanted

            await eventually(holds)

        await eventually(ready)
        assert (await get(port, "/-/healthy")).status == 200
        assert (await get_json(port, "/api/v1/alerts")) == {"status": "success", "data": {"alerts": []}}
        # The shape of a quiet rule, as recorded.
        recorded = json.loads((DATA / "prom" / "transition_1_inactive.json").read_text())["rules"]
        page = await get_json(port, "/api/v1/rules")
        for groups in (recorded["data"]["groups"], page["data"]["groups"]):
            groups[0]["rules"] = groups[0]["rules"][:1]
            groups[0]["rules"][0]["labels"] = groups[0]["rules"][0]["annotations"] = {}
        assert shape(page) == shape(recorded)

        # One of two endpoints leaves.
        left = time.time()
        slices.put(endpoint("chat-0", ports[0], ready=False, serving=True, terminating=True))
        await in_state("FewReady", "pending")
        await in_state("FewReady", "firing")
        fired = time.time()
        (alert,) = (await get_json(port, "/api/v1/alerts"))["data"]["alerts"]
        recorded = json.loads((DATA / "prom" / "transition_3_firing.json").read_text())
        assert list(alert) == list(recorded["alerts"]["data"]["alerts"][0])
        assert (alert["state"], alert["value"]) == ("firing", "1e+00")
        assert alert["labels"] == {"alertname": "FewReady", "service": "chat", "severity": "page"}
        # activeAt is when pending began, not when firing did.
        assert stamp(left) < alert["activeAt"] < stamp(fired - 0.25)
        slices.put(endpoint("chat-0", ports[0]))
        await in_state("FewReady", "inactive")
        assert (await get_json(port, "/api/v1/alerts"))["data"]["alerts"] == []
        changes = [(row["before"], row["state"]) for row in program.rows("alert") if row["name"] == "FewReady"]
        assert changes == [("inactive", "pending"), ("pending", "firing"), ("firing", "inactive")]

        # Streams are cut.
        clients = [await Client.send(gateway_port, stream(2000)) for _ in range(2)]
        for client in clients:
            await client.until(lambda call: len(call.chunks) > 2)
        servers[0].kill()
        await in_state("Failing", "firing")
        for client in clients:
            client.close()

        # The gateway goes.
        (up,) = await vector(port, 'up{job="gateway"}')
        assert up["value"][1] == "1"
        gateway.kill()
        await in_state("GatewayDown", "firing")
        await in_state("Failing", "inactive")
        assert [series["metric"]["job"] for series in await vector(port, "up == 0")] == ["gateway"]
        (alerts,) = await vector(port, "ALERTS")
        assert alerts["metric"]["alertstate"] == "firing"
    program.process.terminate()
    assert await program.ended() == 0


async def vector(port: int, query: str) -> list[Any]:
    form = f"query={query}".replace('"', "%22").replace("=", "%3D").replace("query%3D", "query=", 1).encode()
    body = json.loads((await fetch(port, request("POST", "/api/v1/query", form))).body)
    assert body["status"] == "success"
    assert body["data"]["resultType"] == "vector"
    return list(body["data"]["result"])


@pytest.fixture
async def quiet(start: Start, anyio_backend: str) -> tuple[Program, int]:
    program = start("alert_source", "--gateway", "http://127.0.0.1:9", "--interval", "100ms")
    return program, await program.listening()


@pytest.mark.anyio
async def test_queries_have_the_recorded_shape(quiet: tuple[Program, int]) -> None:
    _, port = quiet

    async def known_to_be_down() -> bool:
        return bool(await vector(port, "up == 0"))

    await eventually(known_to_be_down)
    page = await get_json(port, "/api/v1/query?query=up")
    (series,) = page["data"]["result"]
    recorded = json.loads((DATA / "prom" / "query_range_up.json").read_text())["data"]["result"][0]
    assert list(series["metric"]) == list(recorded["metric"])
    assert series["metric"] == {"__name__": "up", "instance": "127.0.0.1:9", "job": "gateway"}
    assert series["value"][1] == "0"
    assert series["value"][0] == pytest.approx(time.time(), abs=1)
    assert (await get_json(port, "/api/v1/query?query=unheard_of"))["data"]["result"] == []
    bad = await get(port, "/api/v1/query?query=up%20and")
    assert (bad.status, json.loads(bad.body)["errorType"]) == (400, "bad_data")
    assert (await get(port, "/api/v1/nothing")).status == 404


@pytest.mark.parametrize(
    "arguments",
    [
        ["--rule", "{"],
        ["--rule", '{"alert": "A"}'],
        ["--rule", '{"alert": "A", "expr": "unheard_of > 1"}'],
        ["--rule", '{"alert": "A", "expr": "up"}'],
        ["--rule", '{"alert": "A", "expr": "ready_endpoints < 1"}'],
        ["--rules", "/nowhere/rules.json"],
        ["--service", "chat"],
    ],
)
def test_bad_rules_are_one_clear_error(capsys: pytest.CaptureFixture[str], arguments: list[str]) -> None:
    assert main(arguments) == 2
    assert len(capsys.readouterr().err.splitlines()) == 1
