"""A conversation that outgrows the window: fitted by the service, or by a client that drops its oldest turns."""

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import fmean, median

import openai

from bench.fronts.cost import percentile
from bench.turns.dialogs import Dialog, DropOldest, Spec, Stored, Told
from bench.turns.questions import instructions, wish
from cluster.config.context import ContextConfig

MAX_OUTPUT_TOKENS = 40
FITTED, NAIVE = "truncation: auto", "drop the oldest"
PROGRESS_TURNS = 10


@dataclass(frozen=True)
class Summary:
    """Figures of all turns of one conversation."""

    prompt_tokens: float
    computed_tokens: float
    """Tokens of a prompt that were not in the cache."""
    cached_share: float
    moved: int
    """Turns with less than half of their prompt in the cache."""
    known: float
    ttft_p50_s: float
    ttft_p90_s: float


async def long_conversation(
    client: openai.AsyncOpenAI, model: str, window: int, turns: int, say: Callable[[str], None]
) -> dict[str, list[Told]]:
    """Both side by side, the same questions in random order turn by turn."""
    chance = random.Random(0)
    limit = int(window * (1 - ContextConfig().answer_share))  # both leave the same room for an answer
    specs = [Spec(model, instructions(chance), MAX_OUTPUT_TOKENS) for _ in range(2)]
    dialogs: dict[str, Dialog] = {
        NAIVE: DropOldest(client, specs[0], limit),
        FITTED: Stored(client, specs[1], truncation="auto"),
    }
    told: dict[str, list[Told]] = {name: [] for name in dialogs}
    for dialog in dialogs.values():
        await dialog.open()
    for number in range(turns):
        asked = wish(chance, number)
        for name in chance.sample(list(dialogs), len(dialogs)):
            told[name].append(await dialogs[name].say(asked))
        if (number + 1) % PROGRESS_TURNS == 0:
            prompts = ", ".join(f"{name} {told[name][-1].prompt_tokens}" for name in dialogs)
            say(f"long conversation, turn {number + 1} of {turns}; prompt tokens: {prompts}")
    return told


def summary(told: Sequence[Told]) -> Summary:
    ttfts = [turn.ttft_s for turn in told]
    tokens, cached = sum(turn.prompt_tokens for turn in told), sum(turn.cached_tokens for turn in told)
    return Summary(
        tokens / len(told),
        (tokens - cached) / len(told),
        cached / tokens,
        sum(turn.cached_tokens < turn.prompt_tokens / 2 for turn in told[1:]),
        fmean(turn.known for turn in told),
        median(ttfts),
        percentile(ttfts, 90),
    )
