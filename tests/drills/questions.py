"""Short requests whose right answers are known: codes to recall, questions learnt by heart, litanies to go on with."""

import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from tests.cluster.recall import recall_prompt
from tests.drills.litany import litany

KNOWN_BY_HEART = {
    "What is the capital of France?": "Paris",
    "What is the capital of Italy?": "Rome",
    "What is the capital of Japan?": "Tokyo",
    "What is the opposite of hot?": "cold",
    "What is the opposite of big?": "small",
}
RECALL_SHARE, CHAT_SHARE = 0.5, 0.2
LITANY_PROMPT_TOKENS = (60, 900)
LITANY_TOKENS = (10, 80)


@dataclass(frozen=True)
class Question:
    path: str
    body: dict[str, Any]
    is_right: Callable[[str], bool]


def question(model: str, rng: random.Random) -> Question:
    kind = rng.random()
    streams = {"model": model, "temperature": 0, "stream": rng.random() < 0.5}
    if kind < RECALL_SHARE:
        messages, code = recall_prompt(rng.randrange(10**9))
        return _chat(streams, messages, code)
    if kind < RECALL_SHARE + CHAT_SHARE:
        asked, answer = rng.choice(list(KNOWN_BY_HEART.items()))
        return _chat(streams, [{"role": "user", "content": asked}], answer)
    names = litany(rng.randrange(10**9), rng.randint(*LITANY_PROMPT_TOKENS))
    body = {**streams, "prompt": names.prompt, "max_tokens": rng.randint(*LITANY_TOKENS), "ignore_eos": True}
    return Question("/v1/completions", body, lambda text: bool(text) and names.is_continued_by(text))


def _chat(common: dict[str, Any], messages: list[dict[str, str]], answer: str) -> Question:
    body = {**common, "messages": messages, "max_tokens": 32}
    return Question("/v1/chat/completions", body, lambda text: answer in text)
