"""Content codings, for servers and proxies that compress although nobody asked them to."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterator

from chaosrunner.http.errors import StreamCut

_GZIP = zlib.MAX_WBITS | 16
_WINDOWS = {"gzip": (_GZIP,), "x-gzip": (_GZIP,), "deflate": (zlib.MAX_WBITS, -zlib.MAX_WBITS)}
"""Names of RFC 9110, section 8.4.1, and zlib's ways to say what is around the data: some servers send deflate bare."""
PIECE = 1 << 20
"""Bytes that are handed on at once at most: a small read can hold very much."""

OnData = Callable[[float, bytes, bool], bool]


def decoder(coding: str, on_data: OnData) -> OnData:
    """Takes coded bytes, and gives what they hold to `on_data`; bytes of a coding that we do not know, as they are.

    The result raises StreamCut for bytes that the coding cannot be.
    """
    windows = _WINDOWS.get(coding.strip().lower())
    if windows is None:
        return on_data
    plain_of = _Decoder(windows)

    def decode(at: float, data: bytes, exact: bool) -> bool:
        try:
            return all(on_data(at, plain, exact) for plain in plain_of(data))
        except zlib.error as error:
            raise StreamCut("bad_chunk", f"content coding: {error}") from error

    return decode


class _Decoder:
    def __init__(self, windows: tuple[int, ...]) -> None:
        self._window, *self._others = windows
        self._object = zlib.decompressobj(self._window)
        self._begun = b""
        """All bytes so far, while it is open what is around them."""

    def __call__(self, data: bytes) -> Iterator[bytes]:
        plain = b""
        while data or len(plain) == PIECE:  # where a piece was full, more may be held back
            if self._object.eof and data:  # a further member (RFC 1952, section 2.2)
                self._object = zlib.decompressobj(self._window)
            try:
                plain = self._object.decompress(data, PIECE)
            except zlib.error:
                if not self._others:
                    raise
                self._object = zlib.decompressobj(self._others.pop())
                data, self._begun = self._begun + data, b""
                continue
            if plain:
                self._others.clear()
                yield plain
            elif self._others:
                self._begun += data
            data = self._object.unconsumed_tail or self._object.unused_data
