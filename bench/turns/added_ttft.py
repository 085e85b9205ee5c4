"""What it adds to the TTFT of a turn that it is remembered."""

import asyncio
import math
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import median

import openai

from bench.fronts.cost import percentile
from bench.live.goodput import CONFIDENCE, RESAMPLES, Interval
from bench.turns.dialogs import Dialog, Spec, Stateless, Stored, Told
from bench.turns.questions import instructions, question

TURNS = 6
"""Of a dialog."""
MAX_OUTPUT_TOKENS = 8
PROGRESS_PAIRS = 30

Pair = tuple[Told, Told]
"""The same turn of two dialogs alike, stored and stateless."""


@dataclass(frozen=True)
class Added:
    streams: int
    stored_s: Sequence[float]
    stateless_s: Sequence[float]
    difference: Interval
    """Of the medians."""


async def added_ttft(
    client: openai.AsyncOpenAI, model: str, streams: int, num_pairs: int, say: Callable[[str], None]
) -> Added:
    """`streams` pairs of dialogs at a time; of each pair one turn at a time. At least so many pairs of turns."""
    chance = random.Random(streams)
    pairs: list[Pair] = []

    async def ask() -> None:
        for _ in range(math.ceil(num_pairs / streams / TURNS)):
            one, other = (Spec(model, instructions(chance), MAX_OUTPUT_TOKENS) for _ in range(2))
            dialogs = Stored(client, one), Stateless(client, other)
            pairs.extend(await side_by_side(dialogs, TURNS, chance))
            if len(pairs) % PROGRESS_PAIRS < TURNS:
                say(f"TTFT, {streams} at once: {len(pairs)} pairs")

    async with asyncio.TaskGroup() as group:
        for _ in range(streams):
            group.create_task(ask())
    stored_s, stateless_s = ([told.ttft_s for told in arm] for arm in zip(*pairs, strict=True))
    return Added(streams, stored_s, stateless_s, median_difference(stored_s, stateless_s, chance))


async def side_by_side(dialogs: tuple[Dialog, Dialog], turns: int, chance: random.Random) -> list[Pair]:
    """The same questions to both, in random order turn by turn."""
    for dialog in dialogs:
        await dialog.open()
    pairs = []
    for number in range(turns):
        asked = question(chance, number)
        told: dict[int, Told] = {}
        for which in chance.sample((0, 1), 2):
            told[which] = await dialogs[which].say(asked)
        pairs.append((told[0], told[1]))
    return pairs


def median_difference(ours: Sequence[float], theirs: Sequence[float], chance: random.Random) -> Interval:
    """Of the medians; the interval by bootstrap over pairs."""
    pairs = list(zip(ours, theirs, strict=True))
    differences = sorted(_difference(chance.choices(pairs, k=len(pairs))) for _ in range(RESAMPLES))
    tail = 100 * (1 - CONFIDENCE) / 2
    return Interval(_difference(pairs), percentile(differences, tail), percentile(differences, 100 - tail))


def _difference(pairs: Sequence[tuple[float, float]]) -> float:
    return median(ours for ours, _ in pairs) - median(theirs for _, theirs in pairs)
