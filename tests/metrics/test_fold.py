"""Live figures are those of the analysis of the same rows."""

from __future__ import annotations

from collections import Counter
from threading import Thread
from time import sleep

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from chaosrunner.analysis import AnalysisContext, Live
from chaosrunner.analysis.aggregate import latency
from chaosrunner.analysis.requests import OUTCOMES
from chaosrunner.metrics import Fold
from chaosrunner.metrics.fold import WAITING, Histogram
from chaosrunner.timeline import rows

SLO = {"ttft": 0.35, "tpot": 0.033, "e2e": 7.5, "chunk_gap": 0.2}

SECONDS = st.floats(0.0, 20.0, allow_nan=False).map(lambda value: round(value, 4))


@st.composite
def requests(draw: st.DrawFn) -> rows.Request:
    sent = draw(SECONDS)
    chunks = sorted(sent + value for value in draw(st.lists(SECONDS, max_size=6)))
    return rows.Request(
        at=max([sent, *chunks]) + draw(SECONDS),
        request="chat-1",
        probe=draw(st.sampled_from(["chat", "other"])),
        outcome=draw(st.sampled_from(["complete", "complete_missing_done", "aborted", "cut_stream", "not_sent"])),
        sent=sent,
        scheduled=draw(st.none() | st.just(max(0.0, sent - 0.1))),
        once=draw(st.booleans()),
        first_token=chunks[0] if chunks else None,
        last_token=chunks[-1] if chunks else None,
        chunks=draw(st.sampled_from([chunks, None])),
        tokens=draw(st.none() | st.integers(0, 9)),
    )


@given(st.lists(requests(), max_size=12))
def test_they_are_those_of_the_analysis(given_rows: list[rows.Request]) -> None:
    fold = Fold({"chat": SLO, "other": {}})
    live = Live(AnalysisContext(anchor=0.0))
    for number, row in enumerate(given_rows, start=1):
        row.id = number
        fold.feed(row)
        live.feed(row)
    analysed = live.observations.requests
    for name, figures in fold.probes.items():
        figures.count_gaps()
        mine = analysed.of_probe(name)
        counted = Counter(OUTCOMES[code] for code in analysed.outcome[mine & ~analysed.once])
        assert {outcome: count for outcome, count in figures.outcomes.items() if count} == counted
        for metric in ("ttft", "tpot", "e2e", "chunk_gap"):
            values = latency(analysed, metric, mine)
            histogram: Histogram = getattr(figures, metric)
            assert sum(histogram.counts) == len(values)
            assert histogram.total == pytest.approx(float(values.sum()))
            below = np.cumsum(histogram.counts)[:-1]
            assert [int(np.count_nonzero(values <= edge)) for edge in histogram.edges] == below.tolist()


def test_each_limit_of_an_slo_is_an_edge_in_all_probes() -> None:
    fold = Fold({"chat": SLO, "other": {"ttft": 0.44}})
    for figures in fold.probes.values():
        assert {0.35, 0.44} <= set(figures.ttft.edges)
        assert 0.033 in figures.tpot.edges
        assert 7.5 in figures.e2e.edges
        assert 0.2 in figures.chunk_gap.edges
        assert figures.ttft.edges == sorted(set(figures.ttft.edges))


def test_a_value_at_a_limit_is_inside_it() -> None:
    fold = Fold({"chat": {"ttft": 0.35}})
    fold.feed(rows.Request(at=1.0, request="chat-1", probe="chat", outcome="complete", sent=0.0, first_token=0.35))
    ttft = fold.probes["chat"].ttft
    assert ttft.counts[ttft.edges.index(0.35)] == 1


def test_in_flight_is_what_was_sent_and_has_not_ended() -> None:
    fold = Fold({"chat": {}})
    for number in range(3):
        fold.feed(rows.RequestSent(at=0.0, request=f"chat-{number}", probe="chat"))
    fold.feed(rows.RequestSent(at=0.0, request="chat-once-1", probe="chat", once=True))
    fold.feed(rows.Request(at=1.0, request="chat-1", probe="chat", outcome="complete", sent=0.0))
    # Dropped by the cap: it was never sent.
    fold.feed(rows.Request(at=1.0, request="chat-9", probe="chat", outcome="not_sent", sent=1.0, scheduled=1.0))
    assert len(fold.probes["chat"].in_flight) == 2


def test_gaps_are_counted_although_nobody_asks() -> None:
    fold = Fold({"chat": {}})
    for number in range(WAITING + 1):
        fold.feed(
            rows.Request(
                at=2.0, request=f"chat-{number}", probe="chat", outcome="complete", sent=0.0, chunks=[1.0, 1.5, 1.625]
            )
        )
    gaps = fold.probes["chat"].chunk_gap
    assert sum(gaps.counts) == 2 * (WAITING + 1)
    assert gaps.total == 0.625 * (WAITING + 1)


class Slow(Histogram):
    """Takes its time between looking at its counts and putting down new ones."""

    def __init__(self) -> None:
        self._now: list[int] = []
        super().__init__([1.0])

    @property
    def counts(self) -> list[int]:
        now = self._now
        sleep(0.002)
        return now

    @counts.setter
    def counts(self, value: list[int]) -> None:
        self._now = value


def test_gaps_are_counted_once_whoever_counts_at_the_same_time() -> None:
    probe = Fold({"chat": {}}).probes["chat"]
    probe.chunk_gap = Slow()
    ended = rows.Request(at=2.0, request="chat-1", probe="chat", outcome="complete", sent=0.0, chunks=[1.0, 1.5, 1.625])

    def scrape() -> None:
        for _ in range(10):
            probe.request(ended)
            probe.count_gaps()

    threads = [Thread(target=scrape) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sum(probe.chunk_gap.counts) == 4 * 10 * 2
