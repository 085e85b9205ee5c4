"""What moderation says of texts, as clients see it: in the answer of POST /v1/moderations, in a chat completion, in the
stream of one, and in a response.
"""

from collections.abc import Collection, Mapping, Sequence
from typing import Any, NamedTuple

Body = dict[str, Any]

CATEGORIES = (
    "harassment",
    "harassment/threatening",
    "hate",
    "hate/threatening",
    "illicit",
    "illicit/violent",
    "self-harm",
    "self-harm/instructions",
    "self-harm/intent",
    "sexual",
    "sexual/minors",
    "violence",
    "violence/graphic",
)
"""OpenAI's categories. A result has all of them, because clients read each one."""
FURTHER = ("prompt-injection", "personal-data")
"""Baton's own categories. A result has those that the client has asked for."""

MAX_MODEL = 512
"""Characters of the name of a model that a client asks to moderate. Lower refuses longer names; higher stores and sends
back more of the client's own text.
"""

_OF_CHUNK = ("id", "object", "created", "model")
"""Fields that all chunks of a stream have in common."""


class NotModerated(NamedTuple):
    """Why there is no result."""

    code: str
    message: str


def result_of(scores: Mapping[str, float], flagged: Collection[str], further: Collection[str] = ()) -> Body:
    """The result of one text. `scores`: from 0 to 1, by category. A category that is missing was not looked for: it is
    shown with the score 0 and applies to no input. `further`: which of FURTHER are shown.
    """
    shown = [*CATEGORIES, *(category for category in FURTHER if category in further)]
    return {
        "flagged": any(category in flagged for category in shown),
        "categories": {category: category in flagged for category in shown},
        "category_scores": {category: scores.get(category, 0.0) for category in shown},
        "category_applied_input_types": {category: ["text"] if category in scores else [] for category in shown},
    }


def completion_moderation(
    model: str, of_input: Sequence[Body] | NotModerated, of_output: Sequence[Body] | NotModerated
) -> Body:
    """The field `moderation` of a chat completion. The results are those of `result_of`: one for the input, and one for
    each choice of the output in their order. `model`: what has moderated.
    """
    return {"input": _results(model, of_input), "output": _results(model, of_output)}


def response_moderation(moderation: Body) -> Body:
    """The field `moderation` of a response, whose answer is a chat completion with one choice that has this one."""
    return {
        side: found
        if found["type"] == "error"
        else {"type": "moderation_result", **found["results"][0], "model": found["model"]}
        for side, found in moderation.items()
    }


def moderation_chunk(chunk: Body, moderation: Body) -> Body:
    """The chunk of a stream that has the moderation of its chat completion. `chunk`: any other chunk of the stream.

    It follows the last finish reason and precedes the usage. OpenAI's client keeps the usage of the last chunk alone,
    but the moderation of any chunk.
    """
    return {**{name: chunk[name] for name in _OF_CHUNK}, "choices": [], "moderation": moderation}


def _results(model: str, found: Sequence[Body] | NotModerated) -> Body:
    if isinstance(found, NotModerated):
        return _error(found)
    return {"type": "moderation_results", "model": model, "results": [_result(model, result) for result in found]}


def _result(model: str, result: Body) -> Body:
    return {"type": "moderation_result", "model": model, **result}


def _error(reason: NotModerated) -> Body:
    return {"type": "error", "code": reason.code, "message": reason.message}
