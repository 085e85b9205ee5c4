"""The same seed gives the same requests, at the rate and within the bounds that were asked for."""

import itertools
from pathlib import Path
from statistics import mean

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bench.data.shared_data import shared_file
from cluster.load.workload import LengthCut, MixSource, TraceSource, endless, fixed_mix, open_rows, sessions
from cluster.simulation.traffic.mixes import Mix, Spread, Stream
from cluster.simulation.traffic.named_mixes import MIXES
from cluster.simulation.traffic.workload import Arrival, PromptPiece, Speaker, rate_per_s

CHAT = MixSource("mix chat", MIXES["chat"], None)


def rows_at(rate: float, seed: int = 0, number: int | None = None, duration_s: float | None = None) -> list[Arrival]:
    return open_rows(CHAT, rate=rate, speed=1.0, number=number, duration_s=duration_s, seed=seed)


@pytest.mark.parametrize("name", MIXES)
def test_pieces_of_a_prompt_have_its_tokens(name: str) -> None:
    for row in MixSource(name, MIXES[name], None).rows(200, 0, None):
        assert sum(piece.num_tokens for piece in row.pieces) == row.num_prompt
        assert row.pieces[-1].speaker is Speaker.USER


def test_same_seed_gives_the_same_requests_and_another_one_does_not() -> None:
    assert rows_at(2.0, number=100) == rows_at(2.0, number=100) != rows_at(2.0, seed=1, number=100)


def think_s(rows: list[Arrival]) -> float:
    """Mean time between the arrivals of two turns."""
    gaps = [b.arrival_s - a.arrival_s for session in sessions(rows) for a, b in itertools.pairwise(session)]
    return mean(gaps)


def test_other_rate_begins_more_sessions_and_leaves_think_times_as_they_are() -> None:
    slow, fast = rows_at(1.0, number=400), rows_at(4.0, number=1600)
    assert rate_per_s(fast) == pytest.approx(4.0)
    assert think_s(fast) == pytest.approx(think_s(slow), rel=0.3)


def test_rate_is_the_same_from_the_begin_to_the_end() -> None:
    turns, think_s, tokens = (Spread(((0, low), (1, high))) for low, high in ((5, 15), (5, 15), (5, 10)))
    stream = Stream(prompts=tokens, outputs=tokens, further_turns=turns, think_s=think_s, new_tokens=tokens)
    source = MixSource("", Mix(what="", rate_per_s=1.0, streams=(stream,)), None)
    counts = [0] * 6
    for seed in range(20):
        for row in open_rows(source, rate=10.0, speed=1.0, number=None, duration_s=60.0, seed=seed):
            counts[min(5, int(row.arrival_s / 10))] += 1
    assert [count / 20 / 100 for count in counts] == pytest.approx([1.0] * 6, abs=0.06)


def test_rate_of_a_trace_moves_its_arrivals_alone() -> None:
    source = TraceSource(shared_file("traces/AzureLLMInferenceTrace_conv.csv.gz"), slice(None, 100))
    rows, moved = source.rows(None, 0, None), source.rows(None, 0, 2.5)
    assert rate_per_s(moved) == pytest.approx(2.5)
    assert [row.pieces for row in rows] == [row.pieces for row in moved]


def test_duration_ends_the_arrivals() -> None:
    rows = rows_at(10.0, duration_s=6.0)
    assert rows[-1].arrival_s <= 6.0 and len(rows) == pytest.approx(60, abs=1)


def test_constant_arrivals_have_equal_gaps() -> None:
    rows = MixSource("", fixed_mix(10, 5), 0.0).rows(50, 0, 5.0)
    gaps = [after.arrival_s - before.arrival_s for before, after in itertools.pairwise(rows)]
    assert max(gaps) - min(gaps) < 1e-9
    assert {(row.num_prompt, row.num_output) for row in rows} == {(10, 5)}


@pytest.mark.parametrize("name", ["mooncake_conversation_trace.jsonl.gz", "AzureLLMInferenceTrace_conv.csv.gz"])
def test_recorded_traffic_keeps_its_times_and_lengths(name: str) -> None:
    source = TraceSource(shared_file(f"traces/{name}"), slice(None, 300))
    rows = open_rows(source, rate=None, speed=2.0, number=None, duration_s=None, seed=0)
    slower = open_rows(source, rate=None, speed=1.0, number=None, duration_s=None, seed=0)
    assert slower[-1].arrival_s == pytest.approx(2 * rows[-1].arrival_s)
    assert all(sum(piece.num_tokens for piece in row.pieces) == row.num_prompt for row in rows)


def test_prompts_of_a_trace_share_what_their_hashes_share() -> None:
    source = TraceSource(shared_file("traces/mooncake_conversation_trace.jsonl.gz"), slice(None, 50))
    rows = source.rows(None, 0, None)
    assert len({row.pieces[0] for row in rows if row.num_prompt > 512}) == 1
    assert len({row.pieces[-1] for row in rows}) == len(rows)


def test_prompt_keeps_its_question_and_the_begin_that_it_shares() -> None:
    pieces = (
        PromptPiece(Speaker.USER, "a", 50),
        PromptPiece(Speaker.ASSISTANT, "b", 30),
        PromptPiece(Speaker.USER, "c", 20),
    )
    row = Arrival(arrival_s=0, num_prompt=100, num_output=40, pieces=pieces)
    cut = LengthCut(max_total=120).apply(row)
    assert (cut.num_prompt, cut.num_output) == (80, 40)
    assert cut.pieces == (pieces[0], PromptPiece(Speaker.ASSISTANT, "b", 10), pieces[2])
    cut = LengthCut(max_prompt=40, max_output=10).apply(row)
    assert (cut.num_prompt, cut.num_output) == (40, 10)
    assert cut.pieces == (PromptPiece(Speaker.USER, "a", 30), PromptPiece(Speaker.USER, "c", 10))
    assert LengthCut(max_total=140).apply(row) is row


@given(st.lists(st.integers(1, 500), min_size=1, max_size=6), st.integers(1, 400))
def test_cut_prompt_has_as_many_tokens_as_its_pieces(lengths: list[int], most: int) -> None:
    pieces = tuple(PromptPiece(Speaker.USER, f"{number}", length) for number, length in enumerate(lengths))
    row = Arrival(arrival_s=0, num_prompt=sum(lengths), num_output=1, pieces=pieces)
    cut = LengthCut(max_prompt=most).apply(row)
    assert cut.num_prompt == sum(piece.num_tokens for piece in cut.pieces) == min(most, sum(lengths))
    assert cut.pieces[-1].name == pieces[-1].name and all(piece.num_tokens > 0 for piece in cut.pieces)


def test_turns_of_a_session_stay_together_and_in_order() -> None:
    found = sessions(CHAT.rows(300, 0, 0.2))
    assert any(len(session) > 3 for session in found)
    for session in found:
        assert all(len(a.pieces) < len(b.pieces) for a, b in itertools.pairwise(session))


def test_endless_sessions_repeat_no_prompt() -> None:
    source = MixSource("", fixed_mix(10, 5), None)
    names = [session[0].pieces[0].name for session in itertools.islice(endless(source, 0, LengthCut()), 2500)]
    assert len(set(names)) == 2500


def test_trace_that_is_none_is_refused(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("hello\n1\n")
    with pytest.raises(ValueError, match="neither"):
        TraceSource(tmp_path / "a.csv", slice(None)).rows(None, 0, None)
