import asyncio
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cluster.errors import ClientTooSlow, WorkerUnreachable
from cluster.messages.generation import FinishReason, PromptTokenSources, TokenDelta
from cluster.step_stream.buffer import DeltaBuffer, TokenBuffer, merge
from tests.unit.factories import a_delta

SOURCES = PromptTokenSources(computed=3, local=1, pulled=0)


def tokens_by_sequence(deltas: list[TokenDelta]) -> dict[int, list[int]]:
    by_sequence: dict[int, list[int]] = {}
    for delta in deltas:
        by_sequence.setdefault(delta.sequence, []).extend(delta.token_ids)
    return by_sequence


async def read(buffer: TokenBuffer) -> list[TokenDelta]:
    deltas = []
    while batch := await buffer.next():
        deltas += batch
    return deltas


def test_merged_deltas_say_what_both_said() -> None:
    first = TokenDelta(2, [1, 2], prompt_sources=SOURCES)
    second = TokenDelta(2, [3], finish_reason=FinishReason.STOP, stop_reason=3)
    assert merge(first, second) == TokenDelta(2, [1, 2, 3], FinishReason.STOP, 3, SOURCES)


@pytest.mark.parametrize("order", [(0, 1), (1, 0)])
def test_deltas_with_logprobs_are_not_merged(order: tuple[int, int]) -> None:
    deltas = [TokenDelta(0, [1]), TokenDelta(0, [2], logprobs=(b"x",))]
    assert merge(deltas[order[0]], deltas[order[1]]) is None


@given(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 2), st.lists(st.integers(0, 99)), st.booleans())))
def test_buffer_keeps_the_order_of_every_sequence(puts: list[tuple[int, int, Any, bool]]) -> None:
    buffer = DeltaBuffer()
    expected: dict[tuple[int, int], list[int]] = {}
    for stream, sequence, token_ids, has_logprobs in puts:
        buffer.put(stream, TokenDelta(sequence, token_ids, logprobs=(b"x",) if has_logprobs else None))
        expected.setdefault((stream, sequence), []).extend(token_ids)
    assert buffer.num_tokens == sum(map(len, expected.values()))
    taken: dict[tuple[int, int], list[int]] = {}
    for stream, delta in buffer.take():
        taken.setdefault((stream, delta.sequence), []).extend(delta.token_ids)
    assert taken == expected
    assert (len(buffer), buffer.num_tokens, buffer.take()) == (0, 0, [])


@given(st.lists(st.integers(0, 99), max_size=200))
def test_buffer_of_one_sequence_holds_one_delta_however_long_it_waits(token_ids: list[int]) -> None:
    buffer = DeltaBuffer()
    for token in token_ids:
        buffer.put(7, a_delta(token))
    assert len(buffer) == min(1, len(token_ids))


PUT, READ = "put", "read"


@given(st.lists(st.sampled_from([PUT, READ]), max_size=60), st.integers(1, 3))
async def test_reader_gets_everything_in_order_however_it_keeps_up(steps: list[str], num_sequences: int) -> None:
    buffer = TokenBuffer(num_sequences)
    got: list[TokenDelta] = []
    expected: dict[int, list[int]] = {}

    async def reader() -> None:
        while batch := await buffer.next():
            got.extend(batch)

    task = asyncio.create_task(reader())
    for number, step in enumerate(steps):
        if step == READ:
            await asyncio.sleep(0)
        else:
            sequence = number % num_sequences
            buffer.put(TokenDelta(sequence, [number]))
            expected.setdefault(sequence, []).append(number)
    for sequence in range(num_sequences):
        buffer.put(TokenDelta(sequence, [], FinishReason.LENGTH))
    await task
    assert {s: ids for s, ids in tokens_by_sequence(got).items() if ids} == expected
    assert sum(delta.finish_reason is not None for delta in got) == num_sequences


async def test_failed_buffer_gives_what_had_come_and_then_the_error() -> None:
    buffer = TokenBuffer(1)
    buffer.put(a_delta(1))
    buffer.fail(WorkerUnreachable("gone", "d0"))
    got = []
    with pytest.raises(WorkerUnreachable):
        while batch := await buffer.next():
            got += batch
    assert tokens_by_sequence(got) == {0: [1]}


async def test_failure_wakes_a_waiting_reader() -> None:
    buffer = TokenBuffer(1)
    reading = asyncio.create_task(read(buffer))
    await asyncio.sleep(0)
    buffer.fail(WorkerUnreachable("gone", "d0"))
    with pytest.raises(WorkerUnreachable):
        await reading


async def test_finished_buffer_takes_no_more_and_does_not_fail() -> None:
    buffer = TokenBuffer(1)
    buffer.put(TokenDelta(0, [1], FinishReason.STOP))
    buffer.put(a_delta(2))
    buffer.fail(WorkerUnreachable("gone", "d0"))
    assert tokens_by_sequence(await read(buffer)) == {0: [1]}


async def test_reader_that_lags_too_far_loses_its_request_once_and_keeps_what_it_had() -> None:
    overflows = []
    buffer = TokenBuffer(1, max_unread_tokens=3)
    buffer.on_overflow = lambda: overflows.append(1)
    for token in range(10):
        buffer.put(a_delta(token))
    got = []
    with pytest.raises(ClientTooSlow):
        while batch := await buffer.next():
            got += batch
    assert (tokens_by_sequence(got), overflows) == ({0: [0, 1, 2, 3]}, [1])


async def test_reader_that_keeps_up_never_overflows() -> None:
    buffer = TokenBuffer(1, max_unread_tokens=1)
    reading = asyncio.create_task(read(buffer))
    for token in range(50):
        buffer.put(a_delta(token))
        await asyncio.sleep(0)
    buffer.put(TokenDelta(0, [], FinishReason.STOP))
    assert len(tokens_by_sequence(await reading)[0]) == 50
