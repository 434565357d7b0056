"""The event stream parser against the standard and against what servers and proxies make of it."""

from __future__ import annotations

import itertools
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from chaosrunner.probes.framing import Event, TooLong
from chaosrunner.probes.sse import SseParser


def parse(*reads: bytes) -> list[Event]:
    parser = SseParser()
    return [event for read in reads for event in parser.feed(read)]


def data(*reads: bytes) -> list[bytes]:
    return [event.data for event in parse(*reads)]


def test_framing_zoo() -> None:
    # openai/openai-python#2722, #3833; theopenco/llmgateway#2334; ai-dynamo/aiperf#368; vllm-project/aibrix#2638;
    # NousResearch/hermes-agent#112456; wrzonance/WrzDJ#354: comments, blank data, several events in one read, an event
    # over several reads, CR, CRLF and terminators split over reads, multi-line data.
    a, b = b'{"choices":[{"delta":{"content":"A"}}]}', b'{"choices":[{"delta":{"content":"B"}}]}'
    finish = b'{"choices":[{"delta":{},"finish_reason":"stop"}]}'
    parser = SseParser()
    per_read = [
        [event.data for event in parser.feed(read)]
        for read in (
            b": ping\r\n\r\nretry: 3000\n\nid: 7\n\n",
            b"data: " + a + b"\n\ndata: " + b + b"\r",
            b"\n\r",
            b'\ndata: {"choices":[{"index":0,\n',
            b'data: "delta":{"content":"C"},"finish_reason":null}]}\n\ndata:\n\n',
            b"data:" + finish + b"\n\ndata: [DONE]\n\n",
        )
    ]
    c = b'{"choices":[{"index":0,\n"delta":{"content":"C"},"finish_reason":null}]}'
    assert per_read == [[], [a], [b], [], [c, b""], [finish, b"[DONE]"]]
    assert parser.comments == 1


def test_examples_of_the_standard() -> None:
    assert data(b"data: YHOO\ndata: +2\ndata: 10\n\n") == [b"YHOO\n+2\n10"]
    assert parse(b": test stream\n\ndata: first event\nid: 1\n\ndata:second event\nid\n\ndata:  third event\n\n") == [
        Event(b"first event"),
        Event(b"second event"),
        Event(b" third event"),
    ]
    # The last block is dropped: no blank line follows it.
    assert data(b"data\n\ndata\ndata\n\ndata:") == [b"", b"\n"]
    assert data(b"data:test\n\ndata: test\n\n") == [b"test", b"test"]
    assert data(b"test: stream\n\n") == []


def test_names_and_fields_that_are_passed_over() -> None:
    assert parse(b"event: error\ndata: x\n\ndata: y\n\n") == [Event(b"x", "error"), Event(b"y", "message")]
    assert parse(b"event: lost\n\ndata: y\n\n") == [Event(b"y", "message")], (
        "an event without data takes its name along"
    )
    assert parse(b"id: 1\ndata: x\n\nid: a\0b\n\nretry: 12x\nretry: " + b"1" * 5000 + b"\n\n") == [Event(b"x")]


@pytest.mark.parametrize("cut", range(4))
def test_byte_order_mark(cut: int) -> None:
    stream = b"\xef\xbb\xbfdata: x\n\n"
    assert data(stream[:cut], stream[cut:]) == [b"x"]
    assert data(b"\xef\xbb", b"\xefdata: x\n\n") == [], "what is no BOM is a field name nobody knows"


def test_bounded() -> None:
    with pytest.raises(TooLong):
        SseParser(longest=100).feed(b"data: " + b"x" * 100)
    parser = SseParser(longest=100)
    with pytest.raises(TooLong):
        parser.feed(b"data: 12345678\n" * 20)


@pytest.mark.parametrize("line", [b"data:12345678", b"data: 1234567", b"data:1234\ndata:5678", b"event: a\ndata:1"])
def test_the_bound_is_that_of_one_event(line: bytes) -> None:
    parser = SseParser(longest=100)
    assert sum(len(parser.feed(line + b"\n\n")) for _ in range(200)) == 200


def test_a_long_stream_without_the_space_is_read_whole() -> None:
    parser, event = SseParser(), b"data:" + b"x" * 1000 + b"\n\n"
    assert sum(len(parser.feed(event * 100)) for _ in range(50)) == 5000, "more than 4 MiB"


piece = st.sampled_from(
    [
        b"data",
        b"event",
        b"id",
        b"retry",
        b":",
        b" ",
        b"\n",
        b"\r",
        b"\r\n",
        b"\n\n",
        b"\xef\xbb\xbf",
        "ü€😀".encode(),
        b"{}",
    ]
)


def by_the_standard(stream: bytes) -> tuple[list[Event], int]:
    """Events and comments of a whole stream, read as the standard words it."""
    events: list[Event] = []
    data, name, comments = b"", b"", 0
    for line in re.split(rb"\r\n|\r|\n", stream.removeprefix(b"\xef\xbb\xbf"))[:-1]:
        field, colon, value = line.partition(b":")
        value = value[1:] if value.startswith(b" ") else value
        if not line:
            if data:
                events.append(Event(data[:-1], name.decode() or "message"))
            data, name = b"", b""
        elif not field and colon:
            comments += 1
        elif field == b"event":
            name = value
        elif field == b"data":
            data += value + b"\n"
    return events, comments


fields = st.lists(
    piece | st.sampled_from([b"data: {}\n\n", b"event: a\ndata: b\n\n", b"id: 7\n", b"retry: 3\n"]), max_size=40
)


@given(fields.map(b"".join))
def test_streams_are_read_as_the_standard_says(stream: bytes) -> None:
    parser = SseParser()
    assert (parser.feed(stream), parser.comments) == by_the_standard(stream)


@given(st.lists(piece, max_size=40).map(b"".join), st.lists(st.integers(0, 200), max_size=12))
def test_any_cut_gives_the_same_events(stream: bytes, cuts: list[int]) -> None:
    whole, parts = SseParser(), SseParser()
    expected = whole.feed(stream)
    edges = [0, *sorted(min(cut, len(stream)) for cut in cuts), len(stream)]
    got = [event for start, end in itertools.pairwise(edges) for event in parts.feed(stream[start:end])]
    assert got == expected
    assert parts.comments == whole.comments


line = st.text(st.characters(exclude_characters="\r\n\0", exclude_categories=["Cs"]), max_size=8)


@given(
    st.lists(st.lists(line, min_size=1, max_size=3), max_size=5), st.sampled_from(["\n", "\r", "\r\n"]), st.booleans()
)
def test_what_is_written_is_read(events: list[list[str]], newline: str, bom: bool) -> None:
    written = "".join("".join(f"data: {part}{newline}" for part in lines) + newline for lines in events)
    stream = (b"\xef\xbb\xbf" if bom else b"") + written.encode()
    parser = SseParser()
    got = [event for index in range(len(stream)) for event in parser.feed(stream[index : index + 1])]
    assert [event.data.decode() for event in got] == ["\n".join(lines) for lines in events]
