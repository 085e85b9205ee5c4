"""vLLM's metrics of what it sees, and of what took the pipe."""

import pytest
from vllm.config import ModelConfig, VllmConfig
from vllm.v1.metrics.stats import IterationStats

from cluster.engine.statistics.engine_metrics import PIPED_STEPS, EngineMetrics
from cluster.metrics.page import scrape
from cluster.repository import REPO_ROOT


@pytest.fixture(scope="module")
def metrics() -> EngineMetrics:
    model = ModelConfig(model=str(REPO_ROOT / "conf/models/baton-demo"), dtype="bfloat16", seed=0)
    return EngineMetrics(VllmConfig(model_config=model), [0])


NAMES = ("vllm:generation_tokens_total", "vllm:iteration_tokens_total_count", "vllm:iteration_tokens_total_sum")


def shown() -> list[float]:
    """Tokens that were generated; iterations in number, and their tokens."""
    one = scrape("decode", "d")
    return [value for name in NAMES for _, value in one.values(name)]


@pytest.mark.parametrize(
    ("in_pipe", "num_prompt", "num_beside", "number"),
    [([], 5, 1, 1), ([3, 3, 2], 0, 0, 3), ([4, 2], 7, 1, 2)],
    ids=["no pipe", "the pipe alone", "a prompt beside the last step in the pipe"],
)
def test_each_step_is_one_iteration(
    metrics: EngineMetrics, in_pipe: list[int], num_prompt: int, num_beside: int, number: int
) -> None:
    before = shown()
    stats = IterationStats()
    stats.num_generation_tokens = num_beside + sum(in_pipe)
    stats.prompt_token_stats.computed = num_prompt
    setattr(stats, PIPED_STEPS, in_pipe)
    metrics.record(None, stats)
    added = [now - then for now, then in zip(shown(), before, strict=True)]
    generated = num_beside + sum(in_pipe)
    assert added == [generated, number, generated + num_prompt]
    assert stats.num_generation_tokens == generated, "other loggers read it, too"
