"""Streams of the three APIs, read from parts of any size, and what is no stream at all."""

import itertools
import json
import time
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cluster.load.client.answer import MAX_LINE_BYTES, BrokenAnswer, StreamedAnswer, TooLargeAnswer

USAGE = {"prompt_tokens": 7, "completion_tokens": 5, "prompt_tokens_details": {"cached_tokens": 4}}
ROLE = {"id": "c-1", "choices": [{"delta": {"role": "assistant", "content": ""}}]}
WORD = {"id": "c-1", "choices": [{"delta": {"content": "word"}}]}
END = {"id": "c-1", "choices": [{"delta": {}, "finish_reason": "length"}]}


def stream(*events: dict[str, Any], done: bool = True) -> bytes:
    frames = [b"data: " + json.dumps(event).encode() + b"\n\n" for event in events]
    return b"".join([*frames, b"data: [DONE]\n\n" if done else b""])


CHAT = stream(ROLE, WORD, WORD, END, {"id": "c-1", "choices": [], "usage": USAGE})


def read(*parts: bytes) -> StreamedAnswer:
    """Each part comes one second after the one before."""
    answer = StreamedAnswer()
    for now, part in enumerate(parts):
        answer.feed(part, float(now))
    return answer


def test_tokens_are_those_that_usage_counts_and_not_the_number_of_events() -> None:
    answer = read(CHAT)
    assert (answer.num_output, answer.num_prompt, answer.num_cached) == (5, 7, 4)
    assert answer.is_complete and answer.error is None and answer.answer_id == "c-1"


def test_first_token_is_the_first_text_and_not_the_role() -> None:
    answer = read(stream(ROLE, done=False), stream(WORD, done=False), stream(WORD, END))
    assert (answer.first_at, answer.last_at) == (1.0, 2.0)
    assert list(answer.gaps_s) == [1.0]


def test_tokens_that_come_together_are_one_arrival() -> None:
    answer = read(stream(WORD, WORD, done=False), stream(WORD, WORD, WORD, END))
    assert list(answer.gaps_s) == [1.0]


@pytest.mark.parametrize("name", ["reasoning_content", "reasoning", "refusal"])
def test_reasoning_and_refusals_are_tokens(name: str) -> None:
    assert read(stream({"choices": [{"delta": {name: "hm"}}]})).first_at == 0.0


@pytest.mark.parametrize("choice", [{"delta": {"content": ""}}, {"text": ""}])
def test_token_may_have_no_text(choice: dict[str, Any]) -> None:
    assert read(stream({"choices": [choice]})).first_at == 0.0


def test_tool_calls_are_tokens() -> None:
    event = {"choices": [{"delta": {"tool_calls": [{"index": 0, "function": {"arguments": "{"}}]}}]}
    assert read(stream(event)).first_at == 0.0


def test_answer_without_a_text_has_its_last_token() -> None:
    answer = read(stream(ROLE, done=False), stream(END))
    assert (answer.first_at, answer.last_at) == (1.0, 1.0)


def test_completions_have_text() -> None:
    answer = read(stream({"choices": [{"text": "a"}]}, {"choices": [{"text": "", "finish_reason": "stop"}]}))
    assert answer.first_at == 0.0 and answer.is_complete


def test_responses_have_typed_events() -> None:
    usage = {"input_tokens": 9, "output_tokens": 2, "input_tokens_details": {"cached_tokens": 1}}
    answer = read(
        stream({"type": "response.created", "response": {"id": "r"}}, done=False),
        stream({"type": "response.output_text.delta", "delta": "a"}, done=False),
        b"event: response.completed\n"
        + stream({"type": "response.completed", "response": {"usage": usage}}, done=False),
    )
    assert (answer.first_at, answer.num_prompt, answer.num_output, answer.num_cached) == (1.0, 9, 2, 1)
    assert answer.is_complete


@pytest.mark.parametrize(
    "event",
    [
        {"error": {"message": "out of memory"}},
        {"type": "error", "message": "out of memory"},
        {"type": "response.failed", "response": {"error": {"message": "out of memory"}}},
    ],
)
def test_errors_in_a_stream_are_told(event: dict[str, Any]) -> None:
    error = read(stream(event)).error
    assert error is not None and "out of memory" in error


def test_null_is_no_error() -> None:
    assert read(stream({**WORD, "error": None})).error is None


@given(st.lists(st.integers(0, len(CHAT)), max_size=12))
def test_parts_of_any_size_give_the_same_answer(cuts: list[int]) -> None:
    places = [0, *sorted(cuts), len(CHAT)]
    answer = StreamedAnswer()
    for start, end in itertools.pairwise(places):
        answer.feed(CHAT[start:end], 1.0)
    assert (answer.num_output, answer.is_complete, answer.first_at) == (5, True, 1.0)


@given(st.lists(st.binary(max_size=60) | st.just(b"\ndata:") | st.just(b'{"choices":['), max_size=8))
def test_any_bytes_are_read_or_refused(parts: list[bytes]) -> None:
    answer = StreamedAnswer()
    try:
        for part in parts:
            answer.feed(part, 0.0)
    except BrokenAnswer:
        pass


@pytest.mark.parametrize(
    "data",
    [
        b"{",
        b"[]",
        b'"text"',
        b'{"choices": 7}',
        b'{"choices": [{"delta": {"content": ["a"]}}]}',
        b'{"usage": {"completion_tokens": -1}}',
        b'{"usage": {"completion_tokens": 1e300}}',
        b'{"usage": {"completion_tokens": 99999999999999999999}}',
        b'{"x":' * 5000,
        b"\xff\xfe",
        b'{"id": "\xff"}',
        b'{"choices": [{"delta": {"content": "\xc3"}}]}',
    ],
)
def test_what_is_no_event_of_the_api_is_broken(data: bytes) -> None:
    with pytest.raises(BrokenAnswer):
        read(b"data: " + data + b"\n")


def test_comments_and_other_fields_are_no_events() -> None:
    answer = read(b": keep-alive\n\nid: 7\nretry: 5\nnonsense\n\ndata:\n\n" + CHAT)
    assert answer.num_output == 5


def test_carriage_returns_end_lines_too() -> None:
    assert read(CHAT.replace(b"\n", b"\r\n")).num_output == 5


def test_line_without_an_end_is_too_large() -> None:
    answer = StreamedAnswer()
    with pytest.raises(TooLargeAnswer):
        for _ in range(MAX_LINE_BYTES // 65_536 + 2):
            answer.feed(b"a" * 65_536, 0.0)


def test_line_that_is_too_long_is_too_large_even_if_it_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("cluster.load.client.answer.MAX_LINE_BYTES", 100)
    answer = StreamedAnswer()
    answer.feed(b"a" * 90, 0.0)
    with pytest.raises(TooLargeAnswer):
        answer.feed(b"a" * 90 + b"\n", 0.0)


def test_single_bytes_at_the_end_of_a_long_line_are_read_at_once() -> None:
    answer = StreamedAnswer()
    answer.feed(b"x" * (MAX_LINE_BYTES - 10_000), 0.0)
    began = time.process_time()
    for _ in range(5_000):
        answer.feed(b"x", 0.0)
    # Each part copied the line before: 4 MiB for each byte, or 20 GB
    assert time.process_time() - began < 0.5


def test_gaps_of_an_endless_stream_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("cluster.load.client.answer.MAX_GAPS", 50)
    answer = StreamedAnswer()
    frame = stream(WORD, done=False)
    for number in range(60):
        answer.feed(frame, float(number))
    assert len(answer.gaps_s) == 50
