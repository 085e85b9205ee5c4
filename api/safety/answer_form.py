"""What a request says about the form of its answer. Pure."""

from collections.abc import Mapping
from typing import Any, NamedTuple


class AnswerForm(NamedTuple):
    """How an answer goes on from its prompt, and whether a sentence may be added to it."""

    is_prose: bool
    """Whether the answer is a text for people: it calls no tools, and has no form that a program reads."""
    continues_prompt: bool
    """Whether the answer goes on in the middle of the prompt's text."""


def answer_form(body: Mapping[str, Any]) -> AnswerForm:
    """The form of the answer to a validated body of a chat or a text completion."""
    response_format = body.get("response_format")
    is_text = not isinstance(response_format, dict) or response_format.get("type") == "text"
    continues = body.get("continue_final_message") not in (None, False)  # vLLM takes "true" and 1 for it as well
    is_constrained = any(body.get(field) for field in ("tools", "structured_outputs", "suffix"))
    return AnswerForm(is_text and not is_constrained, "prompt" in body or continues)
