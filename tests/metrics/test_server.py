"""What is served is what Prometheus reads, from wherever it was asked to be served and nowhere else."""

from __future__ import annotations

import json
import shutil
import socket
import subprocess
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest
from prometheus_client.openmetrics.parser import text_string_to_metric_families as read_openmetrics
from prometheus_client.parser import text_string_to_metric_families

from chaosrunner.errors import UserError
from chaosrunner.metrics import Metrics
from chaosrunner.timeline import rows

SLO = {"chat": {"ttft": 0.35, "tpot": 0.033}}

Samples = dict[tuple[str, frozenset[tuple[str, str]]], float]


@pytest.fixture
def metrics() -> Iterator[Metrics]:
    with Metrics.at("127.0.0.1:0") as served:
        yield served


def fill(metrics: Metrics) -> None:
    emit = metrics.begin({"drill": "chat", "run": "r1"}, SLO)
    for number, ttft in enumerate((0.1, 0.35, 0.36), start=1):
        emit(rows.RequestSent(at=0.0, request=f"chat-{number}", probe="chat"))
        emit(
            rows.Request(
                at=2.0, request=f"chat-{number}", probe="chat", outcome="complete", sent=0.0, tokens=11,
                first_token=ttft, last_token=ttft + 0.2, chunks=[ttft, ttft + 0.1, ttft + 0.2],
            )
        )  # fmt: skip
    emit(rows.RequestSent(at=3.0, request="chat-4", probe="chat"))
    emit(rows.Request(at=3.5, request="chat-5", probe="chat", outcome="cut_stream", sent=3.0))
    emit(rows.Prober(at=4.0, loop_lag=0.004, send_lag=0.0002, open_files=12, cpu=1.5))
    emit(rows.Prober(at=4.0, probe="chat", worker=2, loop_lag=0.001))
    target = rows.Target(kind="Pod", name="a")
    emit(rows.Action(at=4.0, event="sent", call=1, action="evict", target=target))
    emit(rows.Action(at=4.1, event="answered", call=1, action="evict", target=target, answer="accepted"))
    emit(rows.Action(at=4.2, event="answered", call=2, action="evict", target=target, answer="accepted", dry_run=True))


def read(url: str, accept: str = "text/plain") -> str:
    with urllib.request.urlopen(urllib.request.Request(url, headers={"accept": accept}), timeout=5) as answer:
        return str(answer.read().decode())


def samples(url: str) -> Samples:
    return {
        (sample.name, frozenset(sample.labels.items())): sample.value
        for family in text_string_to_metric_families(read(url))
        for sample in family.samples
    }


def value(found: Samples, name: str, **labels: str) -> float:
    return found[name, frozenset(labels.items())]


def test_it_tells_what_the_rows_say(metrics: Metrics) -> None:
    fill(metrics)
    found = samples(metrics.url)
    assert value(found, "chaosrunner_requests_total", probe="chat", outcome="complete") == 3
    assert value(found, "chaosrunner_requests_total", probe="chat", outcome="cut_stream") == 1
    assert value(found, "chaosrunner_requests_total", probe="chat", outcome="aborted") == 0  # a series from the start
    assert value(found, "chaosrunner_completion_tokens_total", probe="chat") == 33
    assert value(found, "chaosrunner_in_flight", probe="chat") == 1
    assert value(found, "chaosrunner_ttft_seconds_bucket", probe="chat", le="0.35") == 2
    assert value(found, "chaosrunner_ttft_seconds_bucket", probe="chat", le="+Inf") == 3
    assert value(found, "chaosrunner_ttft_seconds_count", probe="chat") == 3
    assert value(found, "chaosrunner_ttft_seconds_sum", probe="chat") == pytest.approx(0.81)
    assert value(found, "chaosrunner_tpot_seconds_bucket", probe="chat", le="0.033") == 3
    assert value(found, "chaosrunner_e2e_seconds_bucket", probe="chat", le="2.5") == 3
    assert value(found, "chaosrunner_chunk_gap_seconds_count", probe="chat") == 6
    assert value(found, "chaosrunner_loop_lag_seconds", probe="", worker="") == 0.004
    assert value(found, "chaosrunner_loop_lag_seconds", probe="chat", worker="2") == 0.001
    assert value(found, "chaosrunner_send_lateness_seconds", probe="", worker="") == 0.0002
    assert value(found, "chaosrunner_actions_total", action="evict", answer="accepted") == 1
    assert value(found, "chaosrunner_run_info", drill="chat", run="r1") == 1
    assert {name for name, _ in found if not name.startswith("chaosrunner_")} == set()  # a registry of its own


def test_the_other_format_is_right_too(metrics: Metrics) -> None:
    fill(metrics)
    text = read(metrics.url, "application/openmetrics-text; version=1.0.0")
    names = {family.name for family in read_openmetrics(text)}
    assert {"chaosrunner_requests", "chaosrunner_ttft_seconds", "chaosrunner_build_info"} <= names


def test_before_a_run_it_says_what_it_is(metrics: Metrics) -> None:
    assert [name for name, _ in samples(metrics.url)] == ["chaosrunner_build_info"]


def test_a_run_begins_at_zero(metrics: Metrics) -> None:
    fill(metrics)
    metrics.begin({"drill": "chat", "run": "r2"}, SLO)
    found = samples(metrics.url)
    assert value(found, "chaosrunner_requests_total", probe="chat", outcome="complete") == 0
    assert value(found, "chaosrunner_run_info", drill="chat", run="r2") == 1


def test_it_is_on_loopback_where_nothing_else_is_said() -> None:
    with Metrics.at("0") as served:
        assert served.url.startswith("http://127.0.0.1:")


def test_it_ends_with_its_block() -> None:
    with Metrics.at("127.0.0.1:0") as served:
        read(served.url)
    with pytest.raises(urllib.error.URLError):
        read(served.url)


def test_a_port_that_is_taken_is_one_clear_error() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(
            UserError, match=rf"^--metrics: cannot listen on 127\.0\.0\.1:{port}: Address already in use"
        ):
            Metrics.at(str(port))


@pytest.mark.parametrize("address", ["", "x", "localhost", "127.0.0.1:", "127.0.0.1:x", "70000"])
def test_what_is_no_address_is_refused(address: str) -> None:
    with pytest.raises(UserError, match="write PORT or HOST:PORT"):
        Metrics.at(address)


@pytest.mark.skipif(shutil.which("prometheus") is None, reason="no prometheus on this machine")
def test_prometheus_takes_it(metrics: Metrics, tmp_path: Path) -> None:
    fill(metrics)
    target = metrics.url.removeprefix("http://").removesuffix("/metrics")
    job = {"job_name": "chaosrunner", "scrape_interval": "1s", "static_configs": [{"targets": [target]}]}
    (tmp_path / "prometheus.yml").write_text(json.dumps({"scrape_configs": [job]}))
    with socket.create_server(("127.0.0.1", 0)) as free:
        address = f"127.0.0.1:{free.getsockname()[1]}"
    process = subprocess.Popen(
        [
            "prometheus", f"--config.file={tmp_path / 'prometheus.yml'}", f"--storage.tsdb.path={tmp_path / 'data'}",
            f"--web.listen-address={address}",
        ],
        stderr=(tmp_path / "log").open("wb"),
    )  # fmt: skip
    try:
        # The 0.66-quantile of three TTFTs lies in the bucket that ends at the SLO's limit.
        query = "histogram_quantile(0.66, chaosrunner_ttft_seconds_bucket) < 0.3501"
        deadline = time.monotonic() + 60
        while not (result := ask(address, query)):
            assert time.monotonic() < deadline, (tmp_path / "log").read_text()
            time.sleep(0.3)
        assert 0.25 < float(result[0]["value"][1]) <= 0.35
        assert ask(address, "up == 1")
        assert not ask(address, "scrape_samples_scraped == 0")
    finally:
        process.terminate()
        process.wait(20)


def ask(address: str, query: str) -> list[dict[str, list[str]]]:
    url = f"http://{address}/api/v1/query?" + urllib.parse.urlencode({"query": query})
    try:
        found: list[dict[str, list[str]]] = json.loads(read(url))["data"]["result"]
    except (urllib.error.URLError, ConnectionError):
        return []
    return found
