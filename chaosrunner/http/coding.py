"""Content codings, for servers and proxies that compress although nobody asked them to."""

from __future__ import annotations

import zlib
from collections.abc import Callable

from chaosrunner.http.errors import StreamCut

_WINDOWS = {"gzip": zlib.MAX_WBITS | 16, "x-gzip": zlib.MAX_WBITS | 16, "deflate": zlib.MAX_WBITS}
"""Names of RFC 9110, section 8.4.1, and zlib's way to say what is around the data."""

OnData = Callable[[float, bytes, bool], bool]


def decoder(coding: str, on_data: OnData) -> OnData:
    """Takes coded bytes, and gives what they hold to `on_data`; bytes of a coding that we do not know, as they are.

    The result raises StreamCut for bytes that the coding cannot be.
    """
    window = _WINDOWS.get(coding.strip().lower())
    if window is None:
        return on_data
    decompress = zlib.decompressobj(window)

    def decode(at: float, data: bytes, exact: bool) -> bool:
        try:
            plain = decompress.decompress(data)
        except zlib.error as error:
            raise StreamCut("bad_chunk", f"content coding: {error}") from error
        return on_data(at, plain, exact) if plain else True

    return decode
