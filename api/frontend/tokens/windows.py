"""The longest prompt that is tokenized without being generated from: several times what the model can read."""

import dataclasses
from typing import Any

from cluster.errors import InvalidRequest, ServingError

COUNTED_WINDOWS = 8
"""Longest prompt whose tokens are counted or listed, in multiples of the model's context length. A higher value lets
one request keep a thread busy for longer. With a lower value, fewer clients learn by how much their prompt is too long.
"""


def most_counted(model_config: Any) -> int:
    """Tokens of the longest prompt that is counted. `model_config`: vLLM's."""
    return COUNTED_WINDOWS * int(model_config.max_model_len)


def counted_params(params: Any, model_config: Any) -> Any:
    """vLLM's TokenizeParams with the limit of counted prompts in place of the model's."""
    return dataclasses.replace(params, max_total_tokens=most_counted(model_config), max_output_tokens=0)


def uncounted(error: ServingError, param: str) -> ServingError:
    """The error to answer with if a prompt could not be tokenized. `param`: the field that has the prompt."""
    if error.code != "context_length_exceeded":
        return error
    return InvalidRequest(
        f"the prompt is longer than {COUNTED_WINDOWS} times the model's context length: its tokens are not counted",
        param,
        error.code,
    )
