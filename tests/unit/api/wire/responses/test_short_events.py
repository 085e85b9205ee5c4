"""Events come back from their short forms byte by byte."""

from copy import deepcopy
from itertools import count
from typing import Any

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from api.wire.responses.events import Event, ResponseWriter
from api.wire.responses.short_events import EventRestorer, is_last, shortened, whole
from api.wire.safety.moderation_results import NotModerated, completion_moderation, response_moderation, result_of
from tests.unit.api.wire.responses.test_events import RESPONSE
from tests.unit.chat_chunks import Chunk, call, chunk, usage

INSTRUCTIONS = "Be kind. " * 200
IN_A_NAMESPACE = {"type": "namespace", "name": "n", "tools": [{"type": "function", "name": "f"}]}


def created() -> dict[str, Any]:
    return deepcopy(RESPONSE) | {"instructions": INSTRUCTIONS, "tools": [IN_A_NAMESPACE]}


def logprobs_of(text: str) -> dict[str, Any]:
    one = {"token": text, "logprob": -0.5, "bytes": list(text.encode())}
    return {"content": [one | {"top_logprobs": [one, one]}]}


texts = st.text(min_size=1, max_size=6)
chunks = st.lists(
    st.one_of(
        st.builds(lambda text: chunk(content=text), texts),
        st.builds(lambda text: chunk(content=text, logprobs=logprobs_of(text)), texts),
        st.builds(lambda text: chunk(reasoning=text), texts),
        st.builds(lambda number, text: call(number, text), st.integers(0, 2), st.text(max_size=3)),
        st.builds(
            lambda number, name: call(number, id=f"call_{number}", name=name),
            st.integers(0, 2),
            st.sampled_from(["f", "n.f"]),
        ),
    ),
    max_size=12,
)
ends = st.sampled_from(["stop", "length", "content_filter", "fail", "cancel"])


def told(chunks: list[Chunk], end: str, is_background: bool, has_more: bool) -> list[Event]:
    """`has_more`: the response gets fields that it was not created with."""
    numbers = count(1)
    response = created()
    writer = ResponseWriter(response, lambda prefix: f"{prefix}_{next(numbers)}")
    events = writer.queue() if is_background else []
    if has_more:
        response["context"] = {"window": 7}
    events += writer.begin()
    for one in chunks:
        events += writer.take(one)
    if has_more:
        response["moderation"] = response_moderation(
            completion_moderation("m", [result_of({"hate": 0.5}, ())], NotModerated("timeout", "slow"))
        )
    match end:
        case "fail":
            events += writer.fail("lost")
        case "cancel":
            events += writer.cancel()
        case _:
            writer.take(chunk(end))
            writer.take(usage())
            events += writer.end(2)
    return events


@given(chunks, ends, st.booleans(), st.booleans())
def test_events_come_back_to_the_byte(
    chunks: list[dict[str, Any]], end: str, is_background: bool, has_more: bool
) -> None:
    events = told(chunks, end, is_background, has_more)
    lines = [shortened(event, created()) for event in events]
    assert whole(lines, msgspec.json.decode(msgspec.json.encode(created()))) == [
        msgspec.json.encode(event) for event in events
    ]
    assert [is_last(line) for line in lines] == [False] * (len(events) - 1) + [True]
    assert not any(b"\n" in line for line in lines)


@given(chunks, ends)
def test_whole_events_of_an_older_version_are_passed_on(chunks: list[dict[str, Any]], end: str) -> None:
    events = [msgspec.json.encode(event) for event in told(chunks, end, False, False)]
    assert whole(events, created()) == events


@given(chunks, st.integers(0, 30))
def test_response_that_an_older_version_began_can_be_ended(chunks: list[dict[str, Any]], at: int) -> None:
    events = told(chunks, "fail", False, False)
    old, new = events[:at], events[at:]
    if any(event["type"].endswith(".done") for event in new[:1]):
        return  # the end of an item comes at once
    lines = [msgspec.json.encode(event) for event in old] + [shortened(event, created()) for event in new]
    assert whole(lines, created()) == [msgspec.json.encode(event) for event in events]


def test_no_text_is_kept_twice() -> None:
    said = [f"unlikely{number:05}" for number in range(100)]
    lines = [shortened(event, created()) for event in told([chunk(content=text) for text in said], "stop", True, True)]
    kept = b"".join(lines)
    assert all(kept.count(text.encode()) == 1 for text in said) and INSTRUCTIONS.encode() not in kept
    assert len(kept) < 100 * 20 + 2000


def test_place_of_a_delta_is_that_of_its_item() -> None:
    events = told([chunk(content="a"), chunk(content="b"), chunk(reasoning="c")], "stop", False, False)
    restorer = EventRestorer(created())
    shown = [msgspec.json.decode(restorer.in_full(shortened(event, created()))) for event in events]
    deltas = [event for event in shown if event["type"].endswith(".delta")]
    assert [(event["output_index"], event["item_id"], event["delta"]) for event in deltas] == [
        (0, "msg_1", "a"),
        (0, "msg_1", "b"),
        (1, "rs_2", "c"),
    ]
