import re
from types import SimpleNamespace
from typing import Any

import pytest

from cluster.engine_checks.resolved import refusal


def a_config(
    *, block_size: int = 16, lora: Any = None, parallel: dict[str, int] | None = None, **model: Any
) -> SimpleNamespace:
    facts = {"model": "org/model", "runner_type": "generate", "is_encoder_decoder": False, "is_attention_free": False}
    sizes = {"data_parallel_size": 1, "pipeline_parallel_size": 1, "nnodes": 1}
    return SimpleNamespace(
        model_config=SimpleNamespace(**facts | model),
        parallel_config=SimpleNamespace(**sizes | (parallel or {})),
        cache_config=SimpleNamespace(block_size=block_size),
        lora_config=lora,
    )


def test_engine_that_baton_can_serve_is_not_refused() -> None:
    assert refusal(a_config(), 16) is None


@pytest.mark.parametrize(
    ("config", "why"),
    [
        (a_config(runner_type="pooling"), "org/model is a pooling model: Baton serves models that generate text"),
        (a_config(is_encoder_decoder=True), "org/model has an encoder for its prompts"),
        (a_config(is_attention_free=True), "org/model has no attention layers, so it has no KV blocks to hand over"),
        (a_config(lora=object()), "LoRA is on, and no request can name an adapter"),
        (a_config(parallel={"data_parallel_size": 2}), "data_parallel_size is 2"),
        (a_config(parallel={"pipeline_parallel_size": 4}), "pipeline_parallel_size is 4"),
        (a_config(parallel={"nnodes": 2}), "nnodes is 2"),
        (a_config(block_size=544), "vLLM has chosen KV blocks of 544 tokens .* set engine.block_size to 544"),
    ],
)
def test_engine_that_baton_cannot_serve_is_refused_with_the_way_out(config: SimpleNamespace, why: str) -> None:
    assert re.search(why, str(refusal(config, 16)))
