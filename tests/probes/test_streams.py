"""Streams of every dialect, from bytes to row; and that cuts between reads, ends of lines and comments matter not."""

from __future__ import annotations

import asyncio
import itertools
from random import Random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from chaosrunner.http import Headers
from chaosrunner.probes.framing import LONGEST
from chaosrunner.probes.transcript import Transcript
from chaosrunner.timeline.outcomes import Outcome
from tests.http.scripted import LAST_CHUNK, OK_SSE, Conversation, chunk
from tests.probes.helpers import ask_script
from tests.probes.streams import CHAT, ROLE, STREAMS, WORDS, Stream, chat, chat_usage, data, dialect_of

NAMES = [stream.name for stream in STREAMS]


def served(stream: Stream) -> Any:
    async def script(conversation: Conversation) -> None:
        await conversation.write(
            f"HTTP/1.1 200 OK\r\ncontent-type: {stream.content_type}\r\ntransfer-encoding: chunked\r\n\r\n".encode()
        )
        if stream.body:
            await conversation.write(chunk(stream.body))
        await conversation.write(LAST_CHUNK)

    return script


@pytest.mark.anyio
@pytest.mark.parametrize("stream", STREAMS, ids=NAMES)
async def test_outcomes(stream: Stream) -> None:
    rule: dict[str, Any] = {"sse": {"terminal_event": "end"}, "json_lines": {"terminal_fields": {"done": True}}}
    request = await ask_script(served(stream), dialect=stream.dialect, **rule.get(stream.dialect, {}))
    assert (request.outcome, request.finish_reason) == (stream.outcome, stream.finish)
    assert (request.content_chunks, request.tokens) == (stream.chunks, stream.tokens)
    assert (request.error or "").startswith(stream.error or "")
    assert (request.error is None) == (stream.error is None)
    if request.usage is not None:
        assert request.usage.prompt_tokens == 7
    assert (request.content_reads > 0) == (stream.chunks > 0)


GOOD = [stream for stream in STREAMS if stream.outcome == Outcome.COMPLETE]


@pytest.mark.parametrize("stream", GOOD, ids=lambda stream: stream.name)
def test_a_part_of_a_good_stream_is_none(stream: Stream) -> None:
    """Cut before any of its last events, nothing in it says that all was said."""
    states = []
    for end in [index for index, byte in enumerate(stream.body) if byte == 0x0A] + [len(stream.body)]:
        transcript = read(stream, [stream.body[:end]])
        states.append(transcript.finish_reason is not None or transcript.terminal)
        if not states[-1]:
            assert not transcript.done
    assert states == sorted(states)
    assert not states[0]
    assert states[-1]


@pytest.mark.anyio
async def test_a_path_that_holds_everything_back_shows_in_the_row() -> None:
    # dstackai/dstack#4269: the answer is whole, but it came all at once
    async def script(conversation: Conversation) -> None:
        await conversation.write(OK_SSE)
        await asyncio.sleep(0.3)
        await conversation.write(chunk(data(ROLE, *WORDS * 5, chat({}, "stop"), chat_usage(15), "[DONE]").encode()))
        await conversation.write(LAST_CHUNK)

    request = await ask_script(script, dialect="chat")
    assert request.outcome == Outcome.COMPLETE
    assert (request.content_chunks, request.at_once) == (15, 14)
    assert request.content_reads <= 2
    assert not request.first_token_exact or request.content_reads == 2
    assert request.first_token is not None
    assert request.first_token - request.sent >= 0.3


@pytest.mark.anyio
@pytest.mark.parametrize("end", [Conversation.reset, Conversation.fin])
async def test_a_silence_before_a_cut_shows_in_the_row(end: Any) -> None:
    """What an idle timeout on the way leaves: comments count as signs of life, tokens or not."""

    async def script(conversation: Conversation) -> None:
        await conversation.write(OK_SSE + chunk(data(*WORDS).encode()))
        await asyncio.sleep(0.1)
        await conversation.write(chunk(b": ping\n\n"))
        await asyncio.sleep(0.25)
        await end(conversation)

    request = await ask_script(script, dialect="chat")
    assert (request.outcome, request.limit) == (Outcome.CUT_STREAM, None)
    assert request.last_byte is not None
    assert request.last_token is not None
    assert 0.24 < request.at - request.last_byte < 2
    assert request.last_byte - request.last_token > 0.05


@pytest.mark.anyio
async def test_our_own_limit_is_told_from_one_of_the_way() -> None:
    async def script(conversation: Conversation) -> None:
        await conversation.write(OK_SSE + chunk(data(*WORDS).encode()))
        await asyncio.sleep(10)

    request = await ask_script(script, dialect="chat")
    assert (request.outcome, request.limit) == (Outcome.STALLED_STREAM, "byte_idle")


def read(stream: Stream, reads: list[bytes]) -> Transcript:
    transcript = Transcript(dialect_of(stream.dialect), "events")
    for part in filter(None, reads):
        assert transcript.feed(1.0, part)
    transcript.end()
    return transcript


def facts(transcript: Transcript) -> dict[str, object]:
    """All that is told of a transcript, apart from how many reads it took."""
    hidden = ("_framing", "_dialect", "_read", "content_reads")
    told = {name: value for name, value in vars(transcript).items() if name not in hidden}
    return told | {"comments": transcript.comments, "unfinished": transcript.unfinished}


@given(st.sampled_from(STREAMS), st.data())
def test_reads_cut_anywhere_give_the_same(stream: Stream, data: st.DataObject) -> None:
    cuts = data.draw(st.lists(st.integers(0, len(stream.body)), max_size=20))
    parts = [stream.body[a:b] for a, b in itertools.pairwise([0, *sorted(cuts), len(stream.body)])]
    assert facts(read(stream, parts)) == facts(read(stream, [stream.body]))


@pytest.mark.parametrize("stream", STREAMS, ids=NAMES)
def test_byte_by_byte_gives_the_same(stream: Stream) -> None:
    single = [stream.body[i : i + 1] for i in range(len(stream.body))]
    assert facts(read(stream, single)) == facts(read(stream, [stream.body]))


SSE = [stream for stream in STREAMS if stream.dialect != "json_lines"]


@given(st.sampled_from(SSE), st.booleans(), st.randoms(use_true_random=False))
def test_the_ends_of_lines_and_comments_matter_not(stream: Stream, bom: bool, random: Random) -> None:
    """The lines of each event end as it likes; comments stand between them, and a byte order mark in front."""
    *events, rest = stream.body.split(b"\n\n")
    changed = b"\xef\xbb\xbf" if bom else b""
    comments = 0
    for event in events:
        newline = random.choice([b"\n", b"\r", b"\r\n"])
        for line in [*event.split(b"\n"), b""]:
            if random.random() < 0.2:
                comments += 1
                changed += b": still here" + newline
            changed += line + newline
    changed += rest
    cut = random.randrange(len(changed) + 1)
    told, plain = facts(read(stream, [changed[:cut], changed[cut:]])), facts(read(stream, [stream.body]))
    assert told.pop("comments") == comments + stream.body.count(b"\n: ") + stream.body.startswith(b":")
    for name in ("comments", "size", "_body"):
        told.pop(name, None), plain.pop(name)
    assert told == plain


@pytest.mark.parametrize("dialect", ["chat", "responses", "messages", "sse", "json_lines"])
def test_an_endless_line_is_refused(dialect: Any) -> None:
    transcript = Transcript(dialect_of(dialect), "events")
    piece = b"data: " + b"x" * (1 << 20)
    reads = 0
    while transcript.feed(0.0, piece):
        reads += 1
        assert reads < 10
    assert (LONGEST >> 20) - 1 <= reads <= LONGEST >> 20
    assert transcript.too_long == f"a line of the stream is longer than {LONGEST} bytes"
    assert transcript.unreadable(Headers([(b"content-type", b"text/event-stream")])) == transcript.too_long


def test_what_a_read_held_is_told() -> None:
    """Where a read held several chunks only the last one's time is exact; the first token's is, where it came alone."""
    good = CHAT[0].body.split(b"\n\n")  # role, three words, finish, usage, [DONE]
    events = [event + b"\n\n" for event in good if event]

    def timed(*reads: tuple[float, bytes, bool]) -> Transcript:
        transcript = Transcript(dialect_of("chat"), "events")
        for at, part, exact in reads:
            transcript.feed(at, part, exact)
        transcript.end()
        return transcript

    alone = timed(
        (1.0, events[0] + events[1], True), (1.5, events[2] + events[3], True), (2.0, b"".join(events[4:]), True)
    )
    assert (alone.first_token, alone.first_token_exact) == (1.0, True)
    assert (alone.content_chunks, alone.content_reads, alone.at_once) == (3, 2, 1)
    assert alone.chunks == [1.0, 1.5, 1.5]
    assert (alone.last_token, alone.last_byte, alone.settled) == (1.5, 2.0, 2.0)
    together = timed((1.0, b"".join(events[:3]), True), (1.0005, events[3], False))
    assert (together.first_token_exact, together.at_once) == (False, 2)
    assert together.largest_gap == pytest.approx(0.0005)
    assert timed((1.0, events[1], False)).first_token_exact is False
    # The last of JSON lines may lack its LF: the end of the body completes it, its time is that of its last byte.
    lines = Transcript(dialect_of("json_lines"), "events")
    lines.feed(1.0, b'{"response":"a"}', True)
    assert lines.first_token is None
    lines.end()
    assert (lines.first_token, lines.first_token_exact) == (1.0, True)
