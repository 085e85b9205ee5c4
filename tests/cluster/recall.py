"""In-context recall prompts from the demo model's own recipe: names and codes that the model never saw in training."""

import importlib
import sys
from collections.abc import Iterator

from cluster.config.repository import REPO_ROOT

NUM_RECALL_PROMPTS = 20


def recall_prompts(first_seed: int) -> Iterator[tuple[list[dict[str, str]], str]]:
    """NUM_RECALL_PROMPTS chats of some hundred tokens, each with the code that the answer must contain."""
    for seed in range(first_seed, first_seed + NUM_RECALL_PROMPTS):
        yield recall_prompt(seed)


def recall_prompt(seed: int) -> tuple[list[dict[str, str]], str]:
    sys.path.insert(0, str(REPO_ROOT / "conf/models/recipe"))
    try:
        recall = importlib.import_module("recall")
    finally:
        sys.path.pop(0)
    messages, code = recall.recall_prompt(seed, num_names=8)
    return messages, code
