"""Each kind of model on a prefill and a decode engine: what is handed over is the same as what is computed
(docs/models.md).
"""

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest

from tests.engines.engine_program import run

pytestmark = pytest.mark.models

NGRAM = {"method": "ngram", "num_speculative_tokens": 3, "prompt_lookup_max": 4}
SEVERAL_RANKS = {"distributed_executor_backend": "mp"}
LENGTHS = [600, 601, 608]
"""Prompts that end within a KV block, and one that fills its last block."""
SHORT = [60, 100]
"""vLLM's CPU build computes Mamba layers of short prompts only."""
TIMEOUT_S = 900
ROUNDING = 0.3
"""Log-probabilities of the same prompt, computed in another batch or by another kernel, differ by less than this many
nats. Those of other prompts have no likely token in common.
"""


def handed_over(
    kind: str, changes: dict[str, Any], lengths: list[int], target: Path
) -> subprocess.CompletedProcess[str]:
    arguments = (kind, json.dumps(changes), json.dumps(lengths), str(target))
    return run("models.handed_over", *arguments, timeout_s=TIMEOUT_S, check=False)


@pytest.mark.timeout(TIMEOUT_S)
@pytest.mark.parametrize(
    ("kind", "changes"),
    [
        ("dense", {}),
        ("dense", {"decode": {"speculative_config": NGRAM}}),
        ("experts", {}),
        ("sliding_window", {}),
        ("some_sliding_windows", {}),
        ("latent_attention", {"engine": {"block_size": 16}}),
        ("dense", {"engine": SEVERAL_RANKS, "decode": {"tensor_parallel_size": 2}}),
        ("dense", {"engine": SEVERAL_RANKS, "prefill": {"tensor_parallel_size": 2}}),
    ],
    ids=[
        "dense",
        "ngram in the decode pool",
        "experts",
        "sliding window",
        "some sliding windows",
        "latent attention",
        "two ranks in the decode pool",
        "two ranks in the prefill pool",
    ],
)
def test_answer_is_the_same_with_kv_blocks_of_the_other_pool(
    kind: str, changes: dict[str, Any], tmp_path: Path
) -> None:
    target = tmp_path / "seen.json"
    done = handed_over(kind, changes, LENGTHS, target)
    assert done.returncode == 0, done.stderr[-2000:]
    seen = json.loads(target.read_text())
    assert (seen["mismatch"], seen["leaves_tokens"]) == (None, False)
    for handoff in seen["handoffs"]:
        assert (handoff["pulled"], handoff["follows"]) == (handoff["length"], True), handoff
        assert handoff["distance"] < ROUNDING < handoff["distance_of_control"], handoff


@pytest.mark.timeout(TIMEOUT_S)
def test_hybrid_model_is_refused_with_the_block_size_that_it_needs(tmp_path: Path) -> None:
    done = handed_over("hybrid", {}, SHORT, tmp_path / "seen.json")
    assert done.returncode != 0
    assert "ValueError: this engine cannot work in Baton: vLLM has chosen KV blocks of 160 tokens" in done.stderr
    assert "set engine.block_size to 160" in done.stderr


@pytest.mark.timeout(TIMEOUT_S)
def test_hybrid_model_leaves_its_last_prompt_token_to_the_decode_engine(tmp_path: Path) -> None:
    """What its prefill engine samples follows the token before, so it is no first token."""
    target = tmp_path / "seen.json"
    done = handed_over("hybrid", {"engine": {"block_size": 160}}, SHORT, target)
    assert done.returncode == 0, done.stderr[-2000:]
    seen = json.loads(target.read_text())
    assert seen["leaves_tokens"]
    for handoff in seen["handoffs"]:
        assert (handoff["pulled"], handoff["follows"]) == (handoff["length"] - 1, False), handoff
        assert handoff["distance"] < ROUNDING < handoff["distance_of_control"], handoff
