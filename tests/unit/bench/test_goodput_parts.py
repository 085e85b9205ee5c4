"""What each part of Baton is worth: each row is without one part."""

from pathlib import Path as File

import pytest

from bench.goals.goodput_parts import MOST_LEFT
from bench.goodput_parts import PARTS, Part, changed, highest_rate
from bench.matrix.cells import cluster_of

EVERYTHING, *WITHOUT = PARTS


def test_first_row_has_everything() -> None:
    whole = cluster_of("documents/mid", 256)
    assert EVERYTHING.policy == "goodput"
    assert changed(whole, EVERYTHING) == whole
    assert whole.host_tokens and whole.reporting.kv_events_s is not None and whole.is_resumable


def test_each_claim_is_of_a_part() -> None:
    for begin in MOST_LEFT:
        assert any(part.name.startswith(begin) for part in WITHOUT)


@pytest.mark.parametrize("part", WITHOUT, ids=lambda part: part.name)
def test_each_other_row_is_another_setting(part: Part) -> None:
    whole = cluster_of("documents/mid", 256)
    is_other_policy = part.policy != EVERYTHING.policy
    is_other_split = part.num_prefill != EVERYTHING.num_prefill
    is_other_cluster = changed(whole, part) != whole
    assert is_other_policy or is_other_split or is_other_cluster
    assert not (is_other_policy and is_other_cluster)


def test_rate_without_a_part_is_found(tmp_path: File) -> None:
    part = Part(name="no tier", has_tier=False)
    assert 1.0 < highest_rate(part, "documents/loose", 0, 200, tmp_path / "trials.jsonl", "v1") < 1000.0
