"""Compressed bodies: what was compressed comes out, in parts of bounded size, and anything else is refused."""

import gzip
import zlib

import pytest
import zstandard
from hypothesis import given
from hypothesis import strategies as st

from api.edge.inflating import (
    COMPRESSED_STEP_BYTES,
    MOST_WINDOW_BYTES,
    STEP_BYTES,
    ZSTD_STEP_BYTES,
    encoding_in,
    inflated,
)
from cluster.errors import InvalidRequest, UnsupportedMediaType

ENCODE = {"gzip": gzip.compress, "zstd": zstandard.ZstdCompressor().compress}
BLOCK_OF_ZSTD = 128 << 10
"""Most bytes that one block of zstd has, in 4 compressed bytes at least."""
HEADS = {"gzip": gzip.compress(b"")[:10], "zstd": b"\x28\xb5\x2f\xfd\x00\x50"}
EMPTY_BLOCKS = {"gzip": b"\0\0\0\xff\xff", "zstd": b"\0\0\0"}
"""Blocks without content, of which a stream may have any number before its last one."""
LAST_BLOCKS = {"gzip": gzip.compress(b"")[10:], "zstd": b"\1\0\0"}


@pytest.fixture(params=ENCODE)
def encoding(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@given(st.binary(max_size=2000), st.sampled_from(sorted(ENCODE)))
def test_what_was_compressed_comes_out(body: bytes, encoding: str) -> None:
    assert b"".join(inflated(ENCODE[encoding](body), encoding)) == body


@given(st.binary(max_size=200), st.sampled_from(sorted(ENCODE)))
def test_any_bytes_are_read_or_refused(body: bytes, encoding: str) -> None:
    try:
        b"".join(inflated(body, encoding))
    except InvalidRequest as error:
        assert error.code == "invalid_content_encoding"


@given(st.data(), st.sampled_from(sorted(ENCODE)))
def test_body_that_ends_too_early_is_refused(data: st.DataObject, encoding: str) -> None:
    whole = ENCODE[encoding](b"a body of some length, " * 20)
    with pytest.raises(InvalidRequest):
        b"".join(inflated(whole[: data.draw(st.integers(0, len(whole) - 1))], encoding))


def test_something_after_the_end_is_refused(encoding: str) -> None:
    one = ENCODE[encoding](b"{}")
    for more in (b"x", one, one * 100_000):
        with pytest.raises(InvalidRequest, match="follows its end"):
            b"".join(inflated(one + more, encoding))


def test_parts_of_a_body_that_decompresses_to_much_are_bounded(encoding: str) -> None:
    bomb = ENCODE[encoding](bytes(64 << 20))
    assert len(bomb) < 100_000
    most = STEP_BYTES if encoding == "gzip" else ZSTD_STEP_BYTES // 4 * BLOCK_OF_ZSTD
    assert all(len(part) <= most for part in inflated(bomb, encoding))


def test_steps_that_give_nothing_are_bounded_too(encoding: str) -> None:
    number = 8 * COMPRESSED_STEP_BYTES // len(EMPTY_BLOCKS[encoding])
    nothing = HEADS[encoding] + EMPTY_BLOCKS[encoding] * number + LAST_BLOCKS[encoding]
    parts = list(inflated(nothing, encoding))
    assert len(parts) >= 8 and b"".join(parts) == b""


def test_zstd_that_asks_for_much_memory_is_refused() -> None:
    far = zstandard.ZstdCompressionParameters(window_log=27)
    whole = zstandard.ZstdCompressor(compression_params=far).compressobj()
    compressed = whole.compress(zlib.compress(bytes(100))) + whole.flush()
    assert MOST_WINDOW_BYTES < 1 << 27
    with pytest.raises(InvalidRequest, match="too much memory"):
        b"".join(inflated(compressed, "zstd"))


@pytest.mark.parametrize(
    ("header", "encoding"), [(None, None), (b"", None), (b"identity", None), (b"GZIP", "gzip"), (b" zstd ", "zstd")]
)
def test_encoding_is_read(header: bytes | None, encoding: str | None) -> None:
    assert encoding_in(header) == encoding


@pytest.mark.parametrize("header", [b"br", b"gzip, gzip", b"deflate", b"\xff", b"x" * 10_000])
def test_other_encodings_are_refused(header: bytes) -> None:
    with pytest.raises(UnsupportedMediaType) as refused:
        encoding_in(header)
    assert refused.value.code == "unsupported_content_encoding" and len(str(refused.value)) < 200
