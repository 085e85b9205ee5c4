"""Request bodies that a client has compressed with gzip or zstd: decompressed in small steps, to a bounded size.

A few kilobytes can decompress to gigabytes, and megabytes to nothing: compressed streams may have empty blocks. So
every step takes a bounded number of bytes, and has a bounded result, which is counted before the next step. A body is
one compressed stream: thousands of empty ones in a row would take time and have no size.
"""

import zlib
from collections.abc import Iterator

import zstandard

from cluster.errors import InvalidRequest, UnsupportedMediaType

ENCODINGS = ("gzip", "zstd")
"""The values of Content-Encoding that are accepted, beside `identity`."""
STEP_BYTES = 1 << 20
"""Most bytes that a step of gzip gives. More keeps the event loop from other requests for longer, by some 3 ms for a
megabyte; fewer takes more steps.
"""
COMPRESSED_STEP_BYTES = 64 << 10
"""Compressed bytes that a step takes at most. More keeps the event loop from other requests for longer: as empty blocks
of zstd, this many take 1 ms. Fewer takes more steps.
"""
ZSTD_STEP_BYTES = 256
"""Compressed bytes of a step of zstd, whose result cannot be bounded otherwise: 4 bytes can stand for 128 KiB. More
takes more memory at once, up to 8 MiB for 256 bytes; fewer takes more time for each body.
"""
MOST_WINDOW_BYTES = 8 << 20
"""Memory that a zstd stream may ask for, in bytes, as RFC 9659 wants of servers. More takes memory for each body; less
refuses bodies that clients compress with the highest levels.
"""
_GZIP = zlib.MAX_WBITS | 16


def encoding_in(header: bytes | None) -> str | None:
    """The encoding that a Content-Encoding names; None if the body is not compressed. Raises UnsupportedMediaType."""
    name = (header or b"").strip().lower().decode("latin-1")
    if name in ("", "identity"):
        return None
    if name not in ENCODINGS:
        raise UnsupportedMediaType(
            f"the Content-Encoding {name[:40]!r} is not supported: use {', '.join(ENCODINGS)} or none",
            None,
            "unsupported_content_encoding",
        )
    return name


def inflated(compressed: bytes, encoding: str) -> Iterator[bytes]:
    """The parts of the decompressed body, one for each step, some of them empty. Raises InvalidRequest."""
    try:
        yield from (_from_gzip if encoding == "gzip" else _from_zstd)(compressed)
    except (zlib.error, zstandard.ZstdError) as error:
        raise _invalid(encoding, "it is damaged, or asks for too much memory") from error


def _from_gzip(compressed: bytes) -> Iterator[bytes]:
    stream = zlib.decompressobj(_GZIP)
    for first in range(0, len(compressed), COMPRESSED_STEP_BYTES):
        _check_goes_on("gzip", has_ended=stream.eof)
        rest = compressed[first : first + COMPRESSED_STEP_BYTES]
        while not stream.eof:
            part = stream.decompress(rest, STEP_BYTES)
            rest = stream.unconsumed_tail
            yield part
            if len(part) < STEP_BYTES and not rest:
                break
    _check_is_whole("gzip", has_ended=stream.eof, unused=stream.unused_data)


def _from_zstd(compressed: bytes) -> Iterator[bytes]:
    stream = zstandard.ZstdDecompressor(max_window_size=MOST_WINDOW_BYTES).decompressobj()
    for first in range(0, len(compressed), ZSTD_STEP_BYTES):
        _check_goes_on("zstd", has_ended=stream.eof)
        part = stream.decompress(compressed[first : first + ZSTD_STEP_BYTES])
        if part or first % COMPRESSED_STEP_BYTES == 0:
            yield part
    _check_is_whole("zstd", has_ended=stream.eof, unused=stream.unused_data)


def _check_goes_on(encoding: str, *, has_ended: bool) -> None:
    """Before a step. Raises InvalidRequest."""
    if has_ended:
        raise _invalid(encoding, "something follows its end")


def _check_is_whole(encoding: str, *, has_ended: bool, unused: bytes) -> None:
    """After the last step. Raises InvalidRequest."""
    if not has_ended:
        raise _invalid(encoding, "it ends too early")
    _check_goes_on(encoding, has_ended=bool(unused))


def _invalid(encoding: str, why: str) -> InvalidRequest:
    return InvalidRequest(f"the body cannot be read as {encoding}: {why}", None, "invalid_content_encoding")
