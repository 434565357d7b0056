"""What a probe sees of each network fault is what was asked for: whole drills against a workload on a real Kubernetes.

Its gateway takes turns between two replicas, makes a connection for each request, and names the replica in every
answer, its own refusals among them: so each request sent while the fault stands is known to be aimed at the victim, or
at the other one, which is the control.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import Path

import pytest

from chaosrunner.cluster.resources import PODS
from chaosrunner.journal import injected
from chaosrunner.timeline import rows
from chaosrunner.timeline.outcomes import SUCCESSES
from tests.drills.rehearsal import load, run_on
from tests.drills.seen import Asked, Seen, write
from tests.labs import RealLab
from tests.real.serving import Serving, serving

pytestmark = [pytest.mark.real, pytest.mark.slow, pytest.mark.timeout(300)]

CONNECT = 0.8
"""How long the gateway tries to connect, seconds: less than the second after which a SYN is sent again (RFC 6298, 2.1;
TCP_TIMEOUT_INIT of Linux)."""

SPEC = {
    "nodes": 3,
    "replicas": 2,
    "startup": 1,
    "model": {"tokens_per_second": 40, "max_sequences": 16, "merge": 0},
    "gateway": {
        "policy": "round_robin",
        "new_connections": True,
        "connect_timeout": f"{CONNECT:g}s",
        "pod_header": "x-served-by",
    },
}

SIGMAS = 4
"""How many standard deviations a count may be off: once in 15,000 runs it is."""


@pytest.fixture(scope="module")
def workload(real_lab: RealLab) -> Iterator[Serving]:
    with serving(real_lab.state, SPEC) as made:
        yield made


def drill(workload: Serving, folder: Path, asked: Asked) -> Seen:
    bound = load(str(write(folder, asked)))
    found = workload.portal.call(run_on, workload.ready, bound, folder / "timelines")
    seen = Seen(found)
    assert found.facts.verdict == "passed", (found.facts.reason, found.facts.lost_requests)
    assert [row.event for row in found.of(rows.Effect)] == ["bitten", "healed"]
    control = [row.outcome for row in seen.during(victim=False)]
    assert control
    assert set(control) <= SUCCESSES, "who is not hit loses nothing"
    healed = [row.outcome for row in seen.after(victim=True)]
    assert healed, "nothing came to the victim after its fault"
    assert set(healed) <= SUCCESSES
    return seen


def counted(workload: Serving, seen: Seen) -> tuple[int, int]:
    """Packets that the victim's rules were about, and those they hit, as the agent told at its end."""
    (container,) = {f"chaosrunner-{row.entry}" for row in seen.found.of(rows.Effect)}
    answer = workload.portal.call(workload.admin.get, PODS, seen.victim, workload.namespace)
    told = injected.status(answer.body, container).said
    return int(told["seen"]), int(told["hit"])


def test_a_partition_loses_all_that_is_aimed_at_the_victim(workload: Serving, tmp_path: Path) -> None:
    seen = drill(workload, tmp_path, Asked("partition: true"))
    hit = seen.during(victim=True)
    assert len(hit) >= 10
    assert {row.outcome for row in hit} == {"http_error"}
    # Nobody answers the gateway: it gives up at its own limit, and not before.
    assert all("connection timeout" in str(row.error) for row in hit)
    assert all(row.at - row.sent >= CONNECT for row in hit)


def test_reject_refuses_all_that_is_aimed_at_the_victim_at_once(workload: Serving, tmp_path: Path) -> None:
    seen = drill(workload, tmp_path, Asked("reject: true"))
    hit = seen.during(victim=True)
    assert len(hit) >= 10
    assert {row.outcome for row in hit} == {"http_error"}
    assert all("remote connection failure" in str(row.error) for row in hit)
    # Had packets been dropped, or the reset been lost, it would have taken the gateway's limit.
    assert all(row.at - row.sent < CONNECT for row in hit)


def test_loss_loses_as_many_requests_as_packets(workload: Serving, tmp_path: Path) -> None:
    """The first packet of a connection is not sent again in the time that the gateway grants it; what is lost later is,
    by TCP, and costs no request."""
    share = 0.2
    asked = Asked(f"loss: {share:.0%}, direction: in", stand="12s", concurrency=24, max_tokens=4, silence="20s")
    seen = drill(workload, tmp_path, asked)

    def check(hit: int, of: int) -> None:
        """A binomial distribution's."""
        assert abs(hit - of * share) <= SIGMAS * math.sqrt(of * share * (1 - share))

    aimed = seen.during(victim=True)
    assert len(aimed) >= 150
    lost = [row for row in aimed if row.outcome not in SUCCESSES]
    assert all("connection timeout" in str(row.error) for row in lost)
    check(len(lost), len(aimed))
    packets, hit = counted(workload, seen)
    check(hit, packets)


def test_no_more_comes_through_than_the_rate_and_not_much_less(workload: Serving, tmp_path: Path) -> None:
    """Bodies are less than what is counted on the wire: the frame of each chunk, and 66 bytes of headers for 1,448
    where the sender has to wait. Upwards, a burst of 4 kB comes on top; downwards, what TCP leaves unused where it
    loses packets because a queue of 0.4 s is full."""
    rate = 200_000
    effect = f"rate: {rate // 1000}kbit, direction: out"
    asked = Asked(effect, stand="8s", concurrency=16, max_tokens=128, silence="30s")
    seen = drill(workload, tmp_path, asked)
    began, ended = seen.span("stand")
    began += 1  # what stood in queues before
    before = seen.span("fault")[0]

    def throughput(since: float, until: float) -> float:
        """Bytes of the victim's bodies a second: those of a stream in equal parts to its chunks."""
        return sum(
            row.size * sum(since <= at < until for at in row.chunks) / len(row.chunks) / (until - since)
            for row in seen.found.of(rows.Request)
            if row.pod == seen.victim and row.chunks
        )

    assert throughput(before - 1, before) > 1.5 * rate / 8, "the streams are too slow to be slowed down"
    assert 0.7 * rate / 8 <= throughput(began, ended) <= 1.1 * rate / 8


def test_latency_comes_on_top_of_the_time_to_first_token(workload: Serving, tmp_path: Path) -> None:
    """By the gateway's own links, which speak Toxiproxy's API: a kernel may have no netem."""
    drill(workload, tmp_path, Asked("latency: 300ms, direction: out", driver="toxiproxy")).check_added_latency(0.3)
