from __future__ import annotations

from chaosrunner.analysis.facts import Milestone, Span
from chaosrunner.reports.format import fine, instant, milestone, offset, one_line, plural, row_ids, seconds, share, span


def test_seconds() -> None:
    assert [seconds(value) for value in (None, 0.0, 0.0004, 0.25, 0.9994, 1.0, 17.544, 99.994, 541.2)] == [
        "–", "0 s", "0 ms", "250 ms", "999 ms", "1.00 s", "17.54 s", "99.99 s", "541 s",
    ]  # fmt: skip


def test_a_fine_span_has_three_digits_that_count() -> None:
    spans = (None, 0.0, 2e-6, 0.000187, 0.0009999, 0.001, 0.02034, 0.9996, 1.2355, 99.96, 541.2)
    assert [fine(value) for value in spans] == [
        "–", "0 s", "2.00 µs", "187 µs", "1.00 ms", "1.00 ms", "20.3 ms", "1.00 s", "1.24 s", "100 s", "541 s",
    ]  # fmt: skip


def test_a_share_below_one_never_reads_as_all_nor_one_above_zero_as_none() -> None:
    assert [share(value) for value in (None, 0.0, 0.00001, 0.875, 0.9978, 0.99999, 1.0)] == [
        "–", "0 %", "<0.01 %", "87.5 %", "99.78 %", ">99.99 %", "100 %",
    ]  # fmt: skip


def test_instants() -> None:
    assert [instant(None), instant(9.012)] == ["–", "9.01 s"]
    assert [offset(None), offset(-8.274), offset(0.02), offset(-0.001)] == ["–", "-8.27 s", "+0.02 s", "0.00 s"]
    unknown = Milestone(at=None, low=None, high=None, sent=None, why="no row", evidence=[])
    within = Milestone(at=None, low=10.0, high=12.0, sent=None, why="watch gap", evidence=[])
    seen = Milestone(at=12.0, low=10.0, high=12.0, sent=None, why=None, evidence=[7])
    assert [milestone(unknown), milestone(within, 9.0), milestone(seen, 9.0), milestone(seen)] == [
        "–", "+1.00 s to +3.00 s", "+3.00 s", "12.00 s",
    ]  # fmt: skip


def test_spans() -> None:
    assert span(Span(value=None, low=None, high=None)) == "–"
    assert span(Span(value=None, low=1.0, high=2.5)) == "1.00 s to 2.50 s"


def test_texts() -> None:
    assert one_line(None) == ""
    assert one_line("a\n  b\tc") == "a b c"
    assert one_line("\x1b]0;owned\x07 \x1b[2J") == "·]0;owned· ·[2J"
    assert one_line("x" * 300, 10) == "x" * 9 + "…"
    assert [plural(1, "stream"), plural(0, "stream")] == ["1 stream", "0 streams"]
    assert row_ids([1, 2, 3], 2) == "#1 #2 …"
