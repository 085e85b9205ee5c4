"""How much TTFT the storing of a turn adds."""

import asyncio
import math
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import openai

from bench.live.goodput import Interval, median_difference
from bench.turns.dialogs import Dialog, Spec, Stateless, Stored, Told
from bench.turns.questions import instructions, question

TURNS = 6
"""Turns of a dialog."""
MAX_OUTPUT_TOKENS = 8
PROGRESS_PAIRS = 30

Pair = tuple[Told, Told]
"""The same turn of two equal dialogs: stored, and stateless."""


@dataclass(frozen=True)
class Added:
    streams: int
    stored_s: Sequence[float]
    stateless_s: Sequence[float]
    difference: Interval
    """The difference of the medians."""


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
    """Ask both dialogs the same questions, turn by turn and in random order."""
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
