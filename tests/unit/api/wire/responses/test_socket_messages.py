"""Messages of a WebSocket, and the requests that they stand for."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from api.wire.responses.request import request_of
from api.wire.responses.socket_messages import (
    ResponseChain,
    create_message_of,
    error_message,
    following,
    marked,
    stream_id_of,
)
from cluster.errors import InvalidRequest, NotFound, TooManyRequests

ITEM: dict[str, Any] = {"type": "message", "role": "user", "content": "one", "id": "msg_1"}
BODY: dict[str, Any] = {"model": "m", "input": "two", "previous_response_id": "resp_1"}


@given(st.text(max_size=64), st.dictionaries(st.text(max_size=5), st.integers(), max_size=3))
def test_marked_event_is_the_event_with_its_stream(stream_id: str, fields: dict[str, int]) -> None:
    event = {"type": "x"} | fields
    assert json.loads(marked(json.dumps(event).encode(), stream_id)) == event | {"stream_id": stream_id}


def test_message_without_generation_is_not_stored() -> None:
    found = create_message_of({"type": "response.create", "stream_id": "s", "generate": False, **BODY})
    assert found == ({**BODY, "stream": True, "store": False}, False)


@pytest.mark.parametrize("wrong", [{"type": "x"}, {"background": True}, {"generate": 1.5}, {"stream_id": 5}])
def test_wrong_messages_are_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(InvalidRequest) as caught:
        create_message_of({"type": "response.create"} | wrong)
    assert caught.value.param in wrong


@pytest.mark.parametrize("message", [None, [], {}, {"stream_id": 5}, {"stream_id": "x" * 257}])
def test_what_names_no_stream_has_none(message: Any) -> None:
    assert stream_id_of(message) is None


def test_unstored_response_follows_what_the_connection_remembers() -> None:
    found = following(request_of(BODY | {"store": False}), ResponseChain("resp_1", "resp_0", [ITEM]))
    assert (found.previous, found.followed, len(found.items)) == ("resp_0", [ITEM], 1)
    assert found.body["previous_response_id"] == "resp_1"


@pytest.mark.parametrize("base", [None, "resp_0"])
def test_stored_response_has_the_whole_chain_as_its_input(base: str | None) -> None:
    found = following(request_of(BODY), ResponseChain("resp_1", base, [ITEM]))
    assert (found.previous, found.body.get("previous_response_id"), found.followed) == (base, base, ())
    assert found.items[0] == ITEM and len(found.items) == 2


def test_errors_have_a_status_and_the_headers_of_an_answer() -> None:
    told = json.loads(error_message(TooManyRequests("no room", 1.5), "s", 3, {"x-left": "0"}))
    assert (told["type"], told["status"], told["stream_id"], told["sequence_number"]) == ("error", 429, "s", 3)
    assert told["error"]["headers"] == {"x-left": "0", "retry-after": "2"}
    gone = json.loads(error_message(NotFound("no", "previous_response_id", "previous_response_not_found")))
    assert (gone["status"], gone["error"]["code"]) == (400, "previous_response_not_found")
