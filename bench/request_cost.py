"""What a request costs before an engine sees it: to render, tokenize, hash and place it.

    make bench-request

Chats of some 500 tokens, in one process and without a network; placed on 64 workers (bench/placement.py). CPU time of
the process with all its threads. The goal: 1 ms for all of it.
"""

import argparse
import asyncio
import gc
import os
import random
from collections.abc import Awaitable, Callable
from statistics import median
from time import process_time
from typing import Any, NoReturn

from cluster.messages.generation import GenerateRequest
from router.session.receipt import RequestObserver, Terms

os.environ.setdefault("VLLM_LOGGING_LEVEL", "ERROR")

from vllm.entrypoints.openai.chat_completion.protocol import ChatCompletionRequest

from api.frontend.frontend import vllm_state
from bench.goals.request_cost import missed
from bench.goals.verdict import conclude
from bench.placement import CASES, measure
from cluster.config.application import parse
from cluster.engine.block_hashes import BlockHasher

NUM_REQUESTS = 600
NUM_WARM = 100
NUM_WORDS = 300
WORDS = [
    "the",
    "code",
    "of",
    "Tosk",
    "is",
    "nine",
    "and",
    "that",
    "of",
    "Mela",
    "four",
    "while",
    "rain",
    "falls",
    "on",
    "Paris",
    "today",
]
CONFIG = {
    "model": "conf/models/baton-demo",
    "engine": {"max_model_len": 4096, "dtype": "bfloat16", "enforce_eager": True},
}


def chats() -> list[ChatCompletionRequest]:
    chance = random.Random(0)
    return [
        ChatCompletionRequest(
            model="baton-demo",
            messages=[{"role": "user", "content": f"{number} " + " ".join(chance.choices(WORDS, k=NUM_WORDS))}],
            max_tokens=1,
        )
        for number in range(NUM_REQUESTS)
    ]


async def cpu_s(do: Callable[[Any], Awaitable[Any]], arguments: list[Any]) -> tuple[float, list[Any]]:
    """The median of `do`, warm, and what it gave."""
    took, given = [], []
    for argument in arguments:
        began = process_time()
        given.append(await do(argument))
        took.append(process_time() - began)
    return median(took[NUM_WARM:]), given


def no_session(request: GenerateRequest, terms: Terms, observer: RequestObserver | None) -> NoReturn:
    raise NotImplementedError("nothing is generated here")


async def costs() -> tuple[dict[str, float], int]:
    """CPU seconds by part, and the tokens of a prompt."""
    config = parse(CONFIG)
    chat = (await vllm_state(config, no_session)).openai_serving_chat
    hasher = BlockHasher(config.block_size)
    requests = chats()
    gc.collect()
    gc.freeze()
    rendered_s, rendered = await cpu_s(chat.render_chat_request, requests)
    prompts = [prompt["prompt_token_ids"] for _, (prompt,) in rendered]
    hashed_s, _ = await cpu_s(lambda token_ids: hasher.of_prompt(token_ids, None), prompts)
    gc.unfreeze()
    parts = {"render and tokenize": rendered_s, "hash": hashed_s, "place": median(measure(CASES[0]).place_s)}
    return parts, round(median(map(len, prompts)))


def main() -> None:
    argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter).parse_args()
    parts, num_tokens = asyncio.run(costs())
    print(f"CPU of a chat of {num_tokens} tokens, the median of {NUM_REQUESTS - NUM_WARM}")
    for name, seconds in [*parts.items(), ("in sum", sum(parts.values()))]:
        print(f"{name:20} {seconds * 1e3:5.2f} ms")
    conclude(missed(parts))


if __name__ == "__main__":
    main()
