"""Compressed bodies, cut anywhere."""

from __future__ import annotations

import gzip
import zlib

import pytest

from chaosrunner.http.coding import PIECE, decoder
from chaosrunner.http.errors import StreamCut

TEXT = b"".join(b"data: %d\n\n" % number for number in range(500))


def bare(data: bytes) -> bytes:
    packer = zlib.compressobj(wbits=-15)
    return packer.compress(data) + packer.flush()


def plain(coding: str, data: bytes, step: int) -> bytes:
    pieces: list[bytes] = []

    def keep(at: float, data: bytes, exact: bool) -> bool:
        pieces.append(data)
        return True

    take = decoder(coding, keep)
    assert all(take(0.0, data[start : start + step], True) for start in range(0, len(data), step))
    assert max(map(len, pieces)) <= PIECE
    return b"".join(pieces)


@pytest.mark.parametrize("step", [1, 7, 1 << 20])
@pytest.mark.parametrize(
    ("coding", "data"),
    [
        ("gzip", gzip.compress(TEXT)),
        (" X-GZIP ", gzip.compress(TEXT)),
        ("gzip", gzip.compress(TEXT[:700]) + gzip.compress(TEXT[700:])),  # RFC 1952, section 2.2: members
        ("deflate", zlib.compress(TEXT)),
        ("deflate", bare(TEXT)),  # what some servers mean by it
        ("br", TEXT),
    ],
    ids=["gzip", "x-gzip", "two members", "deflate", "bare deflate", "unknown"],
)
def test_what_is_in_it_comes_out(coding: str, data: bytes, step: int) -> None:
    assert plain(coding, data, step) == TEXT


def test_a_small_read_that_holds_very_much_is_handed_on_in_pieces() -> None:
    much = bytes(5 * PIECE + 3)
    assert plain("gzip", gzip.compress(much), 1 << 20) == much


def test_a_receiver_that_wants_no_more_gets_no_more() -> None:
    calls: list[int] = []

    def enough(at: float, data: bytes, exact: bool) -> bool:
        calls.append(len(data))
        return False

    assert not decoder("gzip", enough)(0.0, gzip.compress(bytes(5 * PIECE)), True)
    assert calls == [PIECE]


@pytest.mark.parametrize(("coding", "data"), [("gzip", b"no gzip at all"), ("deflate", b"\xff" * 9)])
def test_what_cannot_be_of_the_coding_breaks_the_body(coding: str, data: bytes) -> None:
    with pytest.raises(StreamCut, match="content coding"):
        plain(coding, data, 3)
