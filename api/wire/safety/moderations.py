"""The body of POST /v1/moderations, and its answer. moderation_results.py has the result of each input."""

from collections.abc import Sequence
from typing import Any, NamedTuple

from api.wire.safety.moderation_results import FURTHER, MAX_MODEL
from cluster.errors import InvalidRequest

Body = dict[str, Any]

KNOWN = frozenset({"include", "input", "model"})
"""Fields of the body. `include` is not OpenAI's: it names categories of Baton's own."""

MAX_INPUTS = 128
"""Entries of the list `input`. Lower refuses more batches; higher makes larger answers, of 1 kB for each input."""
MAX_CHARACTERS = 1 << 18
"""Characters of all inputs together, as many as a prompt of about 64 thousand tokens has. The time to scan them is
proportional: higher lets one request take longer; lower refuses long texts.
"""

_PART = frozenset({"text", "type"})
"""Fields of an input part."""


class ModerationRequest(NamedTuple):
    texts: list[str]
    """The inputs, of which each gets one result."""
    model: str | None
    further: frozenset[str]
    """Categories of Baton's own that the results show."""


def moderation_request_of(body: Body) -> ModerationRequest:
    """The request in a body whose fields are all in KNOWN. Raises InvalidRequest for a missing or wrong field."""
    model = body.get("model")
    if model is not None and not isinstance(model, str):
        raise InvalidRequest("model must be a string", "model", "invalid_type")
    if model is not None and len(model) > MAX_MODEL:
        raise InvalidRequest(f"model may have at most {MAX_MODEL} characters", "model", "string_above_max_length")
    return ModerationRequest(_texts(body.get("input")), model, _further(body.get("include")))


def moderations(unique: str, model: str, results: Sequence[Body]) -> Body:
    """The answer. `unique`: makes the id of the answer unique. `results`: those of `result_of`, one for each input."""
    return {"id": f"modr-{unique}", "model": model, "results": list(results)}


def _texts(value: Any) -> list[str]:
    """The inputs: a text alone, the texts of a list, or the parts of a list as one input, as OpenAI has it. Parts are
    joined by line breaks, as chat templates do.
    """
    if value is None:
        raise InvalidRequest("input is missing", "input", "missing_required_parameter")
    entries = [value] if isinstance(value, str) else value
    if not isinstance(entries, list):
        raise InvalidRequest("input must be a string, a list of strings or a list of parts", "input", "invalid_type")
    if not entries:
        raise InvalidRequest("input is empty", "input", "empty_array")
    if len(entries) > MAX_INPUTS:
        raise InvalidRequest(
            f"input has {len(entries)} entries, and may have {MAX_INPUTS}", "input", "array_above_max_length"
        )
    are_parts = isinstance(entries[0], dict)
    read = _text_of_part if are_parts else _text
    texts = [read(entry, f"input[{number}]") for number, entry in enumerate(entries)]
    num_characters = sum(map(len, texts))
    if num_characters > MAX_CHARACTERS:
        raise InvalidRequest(
            f"input has {num_characters:,} characters, and may have {MAX_CHARACTERS:,}",
            "input",
            "string_above_max_length",
        )
    return ["\n".join(texts)] if are_parts else texts


def _text(value: Any, param: str) -> str:
    if not isinstance(value, str):
        raise InvalidRequest(f"{param} must be a string, as the first entry of the list is", param, "invalid_type")
    return value


def _text_of_part(part: Any, param: str) -> str:
    if not isinstance(part, dict):
        raise InvalidRequest(f"{param} must be a part, as the first entry of the list is", param, "invalid_type")
    kind = part.get("type")
    if kind == "image_url":
        raise InvalidRequest("images cannot be moderated here: send text", f"{param}.type", "unsupported_value")
    if kind != "text":
        raise InvalidRequest(f"{param}.type must be 'text'", f"{param}.type", "invalid_value")
    if unknown := sorted(part.keys() - _PART):
        raise InvalidRequest(f"unknown parameter: {unknown[0]}", f"{param}.{unknown[0]}", "unknown_parameter")
    text = part.get("text")
    if not isinstance(text, str):
        code = "missing_required_parameter" if text is None else "invalid_type"
        raise InvalidRequest(f"{param}.text must be a string", f"{param}.text", code)
    return text


def _further(value: Any) -> frozenset[str]:
    names = [] if value is None else value
    if not isinstance(names, list):
        raise InvalidRequest("include must be a list of categories", "include", "invalid_type")
    for number, name in enumerate(names):
        if name not in FURTHER:
            raise InvalidRequest(f"include may have {', '.join(FURTHER)}", f"include[{number}]", "invalid_value")
    return frozenset(names)
