from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvtransfer.notifications import MAX_MESSAGE_BYTES, is_understood


@pytest.mark.parametrize("message", [b"cmpl-1:1", b"a:b:12", b"HB:", b"HB:cmpl-1,cmpl-2"])
def test_what_engines_send_is_understood(message: bytes) -> None:
    assert is_understood(message)


@pytest.mark.parametrize(
    "message", [b"", b":", b"cmpl-1", b"cmpl-1:", b"cmpl-1:x", b"cmpl-1:-1", b"cmpl-1:0", b"\xff:1", b":1", b"HB"]
)
def test_what_no_engine_sends_is_not(message: bytes) -> None:
    assert not is_understood(message)


def test_endless_message_is_not() -> None:
    assert not is_understood(b"HB:" + b"a" * MAX_MESSAGE_BYTES)


@given(st.binary() | st.text().map(str.encode))
def test_whatever_is_understood_can_be_parsed(message: Any) -> None:
    """As vLLM's connector parses it."""
    if is_understood(message):
        text = message.decode()
        if not text.startswith("HB:"):
            request_id, readers = text.rsplit(":", 1)
            assert request_id
            assert int(readers) > 0
