import re
from types import SimpleNamespace
from typing import Any

import pytest

from cluster.engine.start_checks import kv_format_of, refusal


def a_config(
    *, block_size: int = 16, draft: Any = None, lora: Any = None, parallel: dict[str, int] | None = None, **model: Any
) -> SimpleNamespace:
    """Llama-3.1-8B."""
    one = {"data_parallel_size": 1, "pipeline_parallel_size": 1, "nnodes": 1, "tensor_parallel_size": 1}
    facts = {"runner_type": "generate", "is_encoder_decoder": False, "is_attention_free": False, "use_mla": False}
    return SimpleNamespace(
        model_config=SimpleNamespace(
            **{"model": "org/model", "dtype": "torch.bfloat16", "get_total_num_kv_heads": lambda: 8, **facts, **model}
        ),
        parallel_config=SimpleNamespace(**one | (parallel or {})),
        cache_config=SimpleNamespace(block_size=block_size, cache_dtype="auto"),
        lora_config=lora,
        speculative_config=draft,
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


def test_format_names_what_an_operator_can_set() -> None:
    settings = dict(kv_format_of(a_config(), "a digest", "LBHNC", "FLASH_ATTN").settings)
    assert (settings["dtype"], settings["kv_cache_dtype"], settings["block_size"]) == ("bfloat16", "auto", "16")
    assert (settings["the attention backend"], settings["the draft model"]) == ("FLASH_ATTN", "none")


@pytest.mark.parametrize(("has_state", "shown"), [(True, "org/draft"), (False, "none")])
def test_draft_model_is_of_the_format_if_it_has_kv_blocks(has_state: bool, shown: str) -> None:
    draft = SimpleNamespace(model="org/draft", use_eagle=lambda: has_state)
    assert dict(kv_format_of(a_config(draft=draft), "", "", "").settings)["the draft model"] == shown


def test_format_tells_how_ranks_share_the_heads() -> None:
    of = kv_format_of(a_config(use_mla=True, parallel={"tensor_parallel_size": 4}), "", "", "")
    assert (of.num_ranks, of.num_kv_heads, of.is_replicated) == (4, 8, True)
