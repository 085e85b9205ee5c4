"""In-context recall prompts from the demo model's own recipe: names and codes that the model never saw in training."""

from collections.abc import Iterator
from functools import cache
from importlib.util import module_from_spec, spec_from_file_location
from typing import Any

from openai.types.chat import ChatCompletionMessageParam

from cluster.repository import REPO_ROOT

NUM_RECALL_PROMPTS = 20


def recall_prompts(first_seed: int) -> Iterator[tuple[list[ChatCompletionMessageParam], str]]:
    """NUM_RECALL_PROMPTS chats of some hundred tokens, each with the code that the answer must contain."""
    for seed in range(first_seed, first_seed + NUM_RECALL_PROMPTS):
        yield recall_prompt(seed)


def recall_prompt(seed: int) -> tuple[list[ChatCompletionMessageParam], str]:
    messages, code = recipe().recall_prompt(seed, num_names=8)
    return messages, code


@cache
def recipe() -> Any:
    """The module that made the training texts. It lies in no package."""
    spec = spec_from_file_location("recall", REPO_ROOT / "conf/models/recipe/recall.py")
    assert spec and spec.loader
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
