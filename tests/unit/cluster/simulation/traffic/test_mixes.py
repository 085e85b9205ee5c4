"""Synthetic traffic looks like what it imitates, whatever the seed."""

from collections import Counter
from itertools import pairwise
from statistics import correlation, mean, pstdev

import pytest

from cluster.simulation.traffic.mixes import Mix, Renewal, Spread, Stream, generate, log_normal
from cluster.simulation.traffic.named_mixes import MIXES
from cluster.simulation.traffic.workload import Arrival, rate_per_s

SEEDS = (0, 1, 2)


def gap_cv(rows: list[Arrival]) -> float:
    gaps = [after.arrival_s - before.arrival_s for before, after in pairwise(rows)]
    return pstdev(gaps) / mean(gaps)


def peak_per_s(rows: list[Arrival], window_s: float) -> float:
    first, most = 0, 0
    for last, row in enumerate(rows):
        while row.arrival_s - rows[first].arrival_s > window_s:
            first += 1
        most = max(most, last - first + 1)
    return most / window_s


def dispersion(rows: list[Arrival], window_s: float) -> float:
    counts = Counter(int(row.arrival_s / window_s) for row in rows)
    per_window = [counts[window] for window in range(int(rows[-1].arrival_s / window_s) + 1)]
    return pstdev(per_window) ** 2 / mean(per_window)


def quantile(values: list[int], probability: float) -> int:
    return sorted(values)[min(len(values) - 1, int(probability * len(values)))]


def hit_tokens(rows: list[Arrival]) -> list[int]:
    """Of each prompt, in a cache without end."""
    seen: set[bytes] = set()
    hits = []
    for row in rows:
        known = next((i for i, block in enumerate(row.block_hashes) if block not in seen), len(row.block_hashes))
        hits.append(512 * known)
        seen.update(row.block_hashes)
    return hits


@pytest.mark.parametrize("name", MIXES)
def test_mix_gives_the_rate_that_it_says_in_order_and_again(name: str) -> None:
    rows = generate(MIXES[name], 2000, seed=3)
    assert len(rows) == 2000 and rows[0].arrival_s == 0
    assert rate_per_s(rows) == pytest.approx(MIXES[name].rate_per_s)
    assert all(before.arrival_s <= after.arrival_s for before, after in pairwise(rows))
    assert rows == generate(MIXES[name], 2000, seed=3) != generate(MIXES[name], 2000, seed=4)


@pytest.mark.parametrize("seed", SEEDS)
def test_code_bursts_come_like_azures_code_trace(seed: int) -> None:
    rows = generate(MIXES["code-bursts"], 8819, seed)
    assert 10 < gap_cv(rows) == pytest.approx(13.2, rel=0.15)
    for window_s, published in ((3, 61.7), (10, 32.7), (60, 10.5)):
        assert peak_per_s(rows, window_s) == pytest.approx(published, rel=0.3)
    assert dispersion(rows, 10) == pytest.approx(71, rel=0.3)
    assert dispersion(rows, 60) == pytest.approx(161, rel=0.3)


@pytest.mark.parametrize("seed", SEEDS)
def test_code_bursts_are_as_long_as_azures_code_trace(seed: int) -> None:
    rows = generate(MIXES["code-bursts"], 8819, seed)
    prompts, outputs = [row.num_prompt for row in rows], [row.num_output for row in rows]
    for probability, prompt in ((0.5, 1469), (0.9, 5188), (0.95, 7303), (0.99, 7436), (1, 7437)):
        assert quantile(prompts, probability) == pytest.approx(prompt, rel=0.15)
    for probability, output in ((0.05, 6), (0.5, 13), (0.9, 55), (0.95, 90), (0.99, 251)):
        assert quantile(outputs, probability) == pytest.approx(output, rel=0.15)
    assert mean(prompts) == pytest.approx(2048, rel=0.15)
    assert mean(outputs) == pytest.approx(27.9, rel=0.15)
    assert mean(prompt < 512 for prompt in prompts) == pytest.approx(0.23, rel=0.15)


@pytest.mark.parametrize("seed", SEEDS)
def test_documents_are_like_mooncakes_synthetic_trace(seed: int) -> None:
    rows = generate(MIXES["documents"], 3993, seed)
    prompts, outputs = [row.num_prompt for row in rows], [row.num_output for row in rows]
    hits = hit_tokens(rows)
    assert sum(hits) / sum(prompts) == pytest.approx(0.65, abs=0.08)
    assert mean(hit > 0.8 * prompt for hit, prompt in zip(hits, prompts, strict=True)) == pytest.approx(0.44, abs=0.08)
    assert mean(prompt < 512 for prompt in prompts) == pytest.approx(0.28, abs=0.04)
    assert mean(prompts) == pytest.approx(15_325, rel=0.15)
    assert mean(outputs) == pytest.approx(149, rel=0.15)
    assert correlation(prompts, outputs) == pytest.approx(-0.33, abs=0.1)
    assert gap_cv(rows) == pytest.approx(1.0, abs=0.1)


def test_renewal_gaps_have_the_coefficient_of_variation_asked_for() -> None:
    stream = Stream(prompts=log_normal(100, 200, 400), outputs=log_normal(100, 200, 400))
    mix = Mix(what="", rate_per_s=5, arrivals=Renewal(cv=3), streams=(stream,))
    assert gap_cv(generate(mix, 20_000)) == pytest.approx(3, rel=0.1)


def test_spread_goes_through_its_quantiles() -> None:
    spread = Spread(((0, 0), (0.5, 10), (1, 1000)))
    assert [round(spread.at(p)) for p in (0, 0.5, 1)] == [0, 10, 1000]
    assert spread.at(0.25) == pytest.approx(11**0.5 - 1)


def test_conversation_finds_all_full_blocks_of_its_last_prompt_again() -> None:
    stream = Stream(
        prompts=Spread(((0, 2000), (1, 2000))),
        outputs=Spread(((0, 100), (1, 100))),
        further_turns=Spread(((0, 2), (1, 2))),
        think_s=Spread(((0, 5), (1, 5))),
        new_tokens=Spread(((0, 50), (1, 50))),
    )
    rows = generate(Mix(what="", rate_per_s=0.05, streams=(stream,)), 30)
    by_session: dict[bytes, list[Arrival]] = {}
    for row in rows:
        by_session.setdefault(row.block_hashes[0], []).append(row)
    for turns in by_session.values():
        assert all(
            late.block_hashes[: len(early.block_hashes)] == early.block_hashes for early, late in pairwise(turns)
        )
        assert all(late.num_prompt == early.num_prompt + 150 for early, late in pairwise(turns))


def test_system_prompts_are_shared_within_their_tenant() -> None:
    stream = Stream(
        prompts=log_normal(100, 200, 400), outputs=log_normal(10, 20, 40), num_system_prompts=2, system_tokens=1100
    )
    rows = generate(Mix(what="", rate_per_s=1, streams=(stream,)), 200)
    assert len({tuple(row.block_hashes[:2]) for row in rows}) == 2


def test_lengths_of_a_trace_replace_the_mixs_own() -> None:
    rows = generate(MIXES["poisson"], 100, lengths=[(10, 1), (20, 2)])
    assert {(row.num_prompt, row.num_output) for row in rows} == {(10, 1), (20, 2)}
