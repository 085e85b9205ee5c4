"""The title of a conversation: how the model is asked for it, and what becomes of its answer. Pure."""

import re
from collections.abc import Sequence
from typing import Any

MAX_TITLE = 80
MAX_QUESTION, MAX_ANSWER = 600, 300
"""Characters."""
MAX_TITLE_TOKENS = 32

_ASK = (
    "Write a title for the conversation that begins below: at most six words, in its language. "
    "Answer with the title alone."
)
_THOUGHTS = re.compile(r"<think>.*?(</think>|\Z)", re.DOTALL)
_LABEL = re.compile(r"^title\s*:\s*", re.IGNORECASE)
_WRAPPING = " \t\"'`*_#“”„‘’«»「」『』"  # noqa: RUF001


def title_body(model: str, question: str, answer: str) -> dict[str, Any]:
    """The chat completion that gives a title; one that can wait."""
    beginning = f"User: {question[:MAX_QUESTION]}\n\nAssistant: {answer[:MAX_ANSWER]}"
    return {
        "model": model,
        "messages": [{"role": "user", "content": f"{_ASK}\n\n{beginning}"}],
        "max_completion_tokens": MAX_TITLE_TOKENS,
        "temperature": 0.0,
        "service_tier": "flex",
        "chat_template_kwargs": {"enable_thinking": False},
    }


def first_messages(items: Sequence[dict[str, Any]]) -> dict[str, tuple[str, str]]:
    """By role, what the user said first, and what the assistant did: the item's id, and its text."""
    said: dict[str, tuple[str, str]] = {}
    for item in items:
        if item["type"] == "message" and item["role"] in ("user", "assistant") and item["role"] not in said:
            text = " ".join(part["text"] for part in item["content"] if part.get("text"))
            if text:
                said[item["role"]] = item["id"], text
    return said


def title_of(answer: str, question: str) -> str:
    """Of the model's answer; where that is of no use, the question's first words. Empty where there are none."""
    lines = _THOUGHTS.sub("", answer).splitlines()
    return next(filter(None, map(_cleaned, lines)), "") or _cleaned(question)


def _cleaned(line: str) -> str:
    """One line, without what models put around a title. Empty where it has no letter or digit."""
    shown = "".join(character if character.isprintable() else " " for character in line)
    title = _LABEL.sub("", " ".join(shown.split()).strip(_WRAPPING)).strip(_WRAPPING)
    title = title.removesuffix(".").rstrip() if not title.endswith("..") else title
    if len(title) > MAX_TITLE:
        title = (title[: MAX_TITLE - 1].rpartition(" ")[0] or title[: MAX_TITLE - 1]).rstrip(" ,;:-") + "…"
    return title if any(character.isalnum() for character in title) else ""
