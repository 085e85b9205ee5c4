"""Reading recorded traffic: formats, what is shared, rounded arrival times, errors that say where."""

import gzip
import json
from collections import Counter
from itertools import pairwise
from pathlib import Path
from statistics import mean, pstdev

import pytest

from bench.data.shared_data import shared_file
from cluster.simulation.traffic.traces import BadTrace, read_lengths, read_trace, repeated
from cluster.simulation.traffic.workload import rate_per_s

CONVERSATION = "traces/mooncake_conversation_trace.jsonl.gz"
AZURE = "traces/AzureLLMInferenceTrace_conv.csv.gz"
ARXIV = "traces/vidur_arxiv_summarization_stats_llama2_tokenizer_filtered_v2.csv.gz"


def a_row(**fields: object) -> str:
    return json.dumps({"timestamp": 0, "input_length": 1200, "output_length": 9, "hash_ids": [0, 7, 8]} | fields)


def a_file(folder: Path, *lines: str) -> Path:
    file = folder / "trace"
    file.write_text("\n".join(lines))
    return file


def test_mooncake_blocks_that_are_not_full_are_nobody_elses(tmp_path: Path) -> None:
    (row,) = read_trace(a_file(tmp_path, a_row()))
    assert (row.num_prompt, row.num_output) == (1200, 9)
    assert row.block_hashes == [bytes(8), (7).to_bytes(8, "big")]


def test_rounded_arrivals_are_spread_and_the_same_for_the_same_seed() -> None:
    rows = read_trace(shared_file(CONVERSATION), last=4000, seed=1)
    gaps = [after.arrival_s - before.arrival_s for before, after in pairwise(rows)]
    assert pstdev(gaps) / mean(gaps) < 1.2
    assert max(Counter(row.arrival_s for row in rows).values()) == 1
    assert (
        rows
        == read_trace(shared_file(CONVERSATION), last=4000, seed=1)
        != read_trace(shared_file(CONVERSATION), last=4000, seed=2)
    )


def test_slice_of_a_trace_is_the_same_requests_from_zero_on() -> None:
    rows, late = (
        read_trace(shared_file(CONVERSATION), last=3000),
        read_trace(shared_file(CONVERSATION), first=2000, last=3000),
    )
    assert (len(late), late[0].arrival_s) == (1000, 0)
    assert {(row.num_prompt, *row.block_hashes) for row in late} <= {
        (row.num_prompt, *row.block_hashes) for row in rows
    }


def test_azure_prompts_are_all_new_and_keep_their_times() -> None:
    rows = read_trace(shared_file(AZURE))
    assert len(rows) == 19_366
    assert rate_per_s(rows) == pytest.approx(5.53, abs=0.01)
    assert not any(row.block_hashes for row in rows)
    assert rows[1].arrival_s == pytest.approx(50.995169 - 46.680590, abs=1e-5)


@pytest.mark.parametrize(
    "time", ["2024-05-10 00:00:00.009930+00:00", "2024-05-10 00:00:00+00:00", "2024-05-10T00:00:00Z"]
)
def test_azure_times_may_carry_a_zone(tmp_path: Path, time: str) -> None:
    later = "2024-05-10 00:00:10.1"
    first, second = read_trace(
        a_file(tmp_path, "TIMESTAMP,ContextTokens,GeneratedTokens", f"{time},5,6", f"{later},7,0")
    )
    assert second.arrival_s == pytest.approx(10.1, abs=0.01)
    assert (first.num_prompt, second.num_output) == (5, 1)


def test_lengths_are_read_from_any_format() -> None:
    assert read_lengths(shared_file(ARXIV), 0, 2) == [(3772, 54), (2015, 156)]
    assert read_lengths(shared_file(AZURE), 0, 2) == [(374, 44), (396, 109)]


def test_gzip_is_known_by_its_content(tmp_path: Path) -> None:
    (tmp_path / "trace").write_bytes(gzip.compress(a_row().encode()))
    assert len(read_trace(tmp_path / "trace")) == 1


def test_too_short_trace_is_repeated_with_other_prompts_at_its_own_rate() -> None:
    rows = read_trace(shared_file(CONVERSATION), last=500)
    twice = repeated(rows, 1000)
    assert rate_per_s(twice) == pytest.approx(rate_per_s(rows), rel=0.01)
    assert all(before.arrival_s <= after.arrival_s for before, after in pairwise(twice))
    first, second = ({block for row in half for block in row.block_hashes} for half in (twice[:500], twice[500:]))
    assert len(first) == len(second) and not first & second
    assert repeated(rows, 3) == rows[:3]


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        ([""], "is empty"),
        (["a,b", "1,2"], "line 1 is neither"),
        ([a_row(), "{"], "line 2: Expecting"),
        ([a_row(), "", a_row(input_length=None)], "line 3: "),
        ([a_row(), '{"timestamp": 0}'], "line 2: input_length is missing"),
        ([a_row(hash_ids=[1] * 9)], "line 1: 9 hash_ids are too many for 1200 tokens in blocks of 512"),
        ([a_row(output_length=-1)], "line 1: -1 is a negative number of tokens"),
        (["TIMESTAMP,ContextTokens,GeneratedTokens", "noon,1,2"], "line 2: Invalid isoformat"),
        (["TIMESTAMP,ContextTokens,GeneratedTokens"], "has 0 rows"),
        (["num_prefill_tokens,num_decode_tokens", "1,2"], "lengths without arrivals"),
    ],
)
def test_what_is_not_a_trace_is_refused_with_its_line(tmp_path: Path, lines: list[str], message: str) -> None:
    with pytest.raises(BadTrace, match=message):
        read_trace(a_file(tmp_path, *lines))
