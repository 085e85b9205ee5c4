"""Short requests with known right answers: codes from the prompt, questions of the training data, and word lists."""

import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from openai.types.chat import ChatCompletionMessageParam

from tests.drills.word_lists import LONGEST, word_list
from tests.real_cluster.recall import recall_prompt

KNOWN_BY_HEART = {
    "What is the capital of France?": "Paris",
    "What is the capital of Italy?": "Rome",
    "What is the capital of Japan?": "Tokyo",
    "What is the opposite of hot?": "cold",
    "What is the opposite of big?": "small",
}
RECALL_SHARE, CHAT_SHARE = 0.5, 0.2
LIST_PROMPT_TOKENS = (60, LONGEST)
LIST_TOKENS = (10, 80)
WHOLE_SHARE = 0.5
"""Share of word lists that ask for as many tokens as the prompt has, so that the answer needs each KV block."""


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
    length = rng.randint(*LIST_PROMPT_TOKENS)
    words = word_list(rng.randrange(10**9), length)
    num_tokens = length if rng.random() < WHOLE_SHARE else rng.randint(*LIST_TOKENS)
    body = {**streams, "prompt": words.prompt, "max_tokens": num_tokens, "ignore_eos": True}
    right = words.answer(num_tokens)
    return Question("/v1/completions", body, lambda text: text == right)


def _chat(common: dict[str, Any], messages: list[ChatCompletionMessageParam], answer: str) -> Question:
    body = {**common, "messages": messages, "max_tokens": 32}
    return Question("/v1/chat/completions", body, lambda text: answer in text)
