"""How many KV blocks an engine of the drills has in use, from the share that its metrics tell."""

import json
import math
from functools import cache
from typing import Any

import yaml

from cluster.repository import REPO_ROOT

BYTES_PER_VALUE = 2
"""Bytes of a bfloat16 value."""


def blocks_of(num_tokens: int) -> int:
    """What so many tokens of one request fill."""
    return math.ceil(num_tokens / int(_engine()["block_size"]))


def blocks_used(usage: float) -> int:
    """`usage`: `vllm:kv_cache_usage_perc`, a share of all blocks but vLLM's empty one."""
    return round(usage * (_num_blocks() - 1))


@cache
def _num_blocks() -> int:
    model = json.loads((REPO_ROOT / _args()["model"] / "config.json").read_text())
    values_per_token = 2 * model["num_hidden_layers"] * model["num_key_value_heads"] * model["head_dim"]
    block_bytes = values_per_token * BYTES_PER_VALUE * int(_engine()["block_size"])
    return int(_engine()["kv_cache_memory_bytes"]) // block_bytes


def _engine() -> dict[str, Any]:
    return dict(_args()["engine"])


@cache
def _args() -> dict[str, Any]:
    """What the drills change nothing of (matrix.SERVICE)."""
    return dict(yaml.safe_load((REPO_ROOT / "conf/local.yaml").read_text())["applications"][0]["args"])
