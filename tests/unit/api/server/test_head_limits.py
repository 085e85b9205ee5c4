"""The limits on the head of a request."""

import pytest

from api.server.head_limits import MAX_HEADERS, MAX_PIPELINED, MAX_URL_BYTES, HeadLimits
from cluster.errors import HeadersTooLarge, InvalidRequest, UrlTooLong


@pytest.fixture
def head() -> HeadLimits:
    limits = HeadLimits(1000)
    limits.begin()
    return limits


def test_head_within_its_limits_is_accepted(head: HeadLimits) -> None:
    head.check_url(b"/" * MAX_URL_BYTES)
    for _ in range(MAX_HEADERS):
        head.check_header(b"12345", b"12345")
    head.check_pipelined(MAX_PIPELINED - 1)
    assert head.refusal is None


def test_url_that_is_too_long_is_refused(head: HeadLimits) -> None:
    with pytest.raises(UrlTooLong):
        head.check_url(b"/" * (MAX_URL_BYTES + 1))
    assert isinstance(head.refusal, UrlTooLong)


def test_one_header_too_many_is_refused(head: HeadLimits) -> None:
    for _ in range(MAX_HEADERS):
        head.check_header(b"a", b"b")
    with pytest.raises(HeadersTooLarge, match=str(MAX_HEADERS)):
        head.check_header(b"a", b"b")


def test_headers_with_too_many_bytes_are_refused(head: HeadLimits) -> None:
    head.check_header(b"a", b"b" * 999)
    with pytest.raises(HeadersTooLarge, match="1000 bytes"):
        head.check_header(b"", b"b")


def test_each_request_of_a_connection_has_the_limits_for_itself(head: HeadLimits) -> None:
    for _ in range(3):
        head.check_header(b"a", b"b" * 900)
        head.complete()
        head.end_of_message()
        head.begin()
    assert head.refusal is None


def test_one_pipelined_request_too_many_is_refused(head: HeadLimits) -> None:
    with pytest.raises(InvalidRequest, match="pipelined"):
        head.check_pipelined(MAX_PIPELINED)


def test_headers_behind_a_body_are_trailers(head: HeadLimits) -> None:
    assert head.is_open and head.has_begun
    head.complete()
    assert not head.is_open and not head.has_begun
    head.end_of_message()
    assert head.is_open and not head.has_begun


def test_bytes_from_which_the_parser_learns_nothing_are_counted(head: HeadLimits) -> None:
    assert not head.count_unparsed(600)  # begin() was progress
    assert not head.count_unparsed(600)
    assert head.count_unparsed(600)
    head.complete()
    assert not head.count_unparsed(600)
