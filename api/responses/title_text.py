"""The title of a conversation: the prompt that asks the model for it, and the title in the model's answer. Pure."""

import re
from collections.abc import Sequence
from typing import Any

MAX_TITLE = 80
"""Characters of a title. More is harder to show in a list; fewer cuts more titles."""
MAX_QUESTION, MAX_ANSWER = 600, 300
"""Characters of the first question and of the first answer that the model reads. More costs more prefill; fewer gives
worse titles.
"""
MAX_TITLE_TOKENS = 32
"""Tokens that the model may generate. More costs more decode; fewer cuts titles of languages with many tokens per
word.
"""

_ASK = (
    "Write a title for the conversation that begins below: at most six words, in its language. "
    "Answer with the title alone."
)
_THOUGHTS = re.compile(r"<think>.*?(</think>|\Z)", re.DOTALL)
_LABEL = re.compile(r"^title\s*:\s*", re.IGNORECASE)
_WRAPPING = " \t\"'`*_#“”„‘’«»「」『』"  # noqa: RUF001


def title_body(model: str, question: str, answer: str) -> dict[str, Any]:
    """The request of the chat completion that writes a title, in the SLO class that can wait longest."""
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
    """The first message of the user and of the assistant, by role: the id of the item, and its text."""
    said: dict[str, tuple[str, str]] = {}
    for item in items:
        if item["type"] == "message" and item["role"] in ("user", "assistant") and item["role"] not in said:
            text = " ".join(part["text"] for part in item["content"] if part.get("text"))
            if text:
                said[item["role"]] = item["id"], text
    return said


def title_of(answer: str, question: str) -> str:
    """The title in the model's answer, or else the first words of the question. Empty if neither has a letter or
    digit.
    """
    lines = _THOUGHTS.sub("", answer).splitlines()
    return next(filter(None, map(_cleaned, lines)), "") or _cleaned(question)


def _cleaned(line: str) -> str:
    """A line without the quotes and labels that models put around a title. Empty if it has no letter or digit."""
    shown = "".join(character if character.isprintable() else " " for character in line)
    title = _LABEL.sub("", " ".join(shown.split()).strip(_WRAPPING)).strip(_WRAPPING)
    title = title.removesuffix(".").rstrip() if not title.endswith("..") else title
    if len(title) > MAX_TITLE:
        title = (title[: MAX_TITLE - 1].rpartition(" ")[0] or title[: MAX_TITLE - 1]).rstrip(" ,;:-") + "…"
    return title if any(character.isalnum() for character in title) else ""
