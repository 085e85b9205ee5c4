"""CPU time of a turn in the ingress and in PostgreSQL: remembered, told as a whole, and as a chat completion."""

import asyncio
import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import openai

from bench.turns.dialogs import Completions, Dialog, Spec, Stateless, Stored
from bench.turns.questions import instructions, question
from bench.turns.service import Service, Used

KINDS: dict[str, type[Dialog]] = {"stored": Stored, "stateless": Stateless, "chat completions": Completions}
MAX_OUTPUT_TOKENS = 4
SETTLE_S = 2.0
"""After the last turn: what is done late, such as indexing, counts as well."""


@dataclass(frozen=True)
class Run:
    """A closed loop of one kind."""

    turns: int
    loop_s: float
    used: Used
    """Until it had settled."""


@dataclass(frozen=True)
class Cost:
    """Of one kind. CPU milliseconds are per turn, net of what is used without load; None: not on this machine."""

    turns_per_s: float
    ingress_ms: float | None
    ingress_ms_by_run: list[float]
    postgres_ms: float | None


@dataclass(frozen=True)
class TurnCost:
    idle: Used
    runs: dict[str, list[Run]]

    def cost(self, kind: str) -> Cost:
        runs = self.runs[kind]
        turns = sum(run.turns for run in runs)
        ingress_s = [self._net_s(run.used, run.used.ingress_s, self.idle.ingress_s) for run in runs]
        postgres_s = [self._net_s(run.used, run.used.postgres_s, self.idle.postgres_s) for run in runs]
        return Cost(
            turns / sum(run.loop_s for run in runs),
            None if self.idle.ingress_s is None else 1e3 * sum(ingress_s) / turns,
            [1e3 * seconds / run.turns for seconds, run in zip(ingress_s, runs, strict=True)],
            None if self.idle.postgres_s is None else 1e3 * sum(postgres_s) / turns,
        )

    def _net_s(self, used: Used, seconds: float | None, idle_s: float | None) -> float:
        return (seconds or 0.0) - (idle_s or 0.0) * used.wall_s / self.idle.wall_s


class Plan(NamedTuple):
    rounds: int
    streams: int
    turns: int
    """Turns of the dialog of each stream."""
    idle_s: float


async def turn_cost(
    service: Service, client: openai.AsyncOpenAI, model: str, plan: Plan, say: Callable[[str], None]
) -> TurnCost:
    """Round by round each kind in turn, in random order."""
    chance = random.Random(0)
    await asyncio.sleep(SETTLE_S)
    with service.watched() as idle:
        await asyncio.sleep(plan.idle_s)
    runs: dict[str, list[Run]] = {kind: [] for kind in KINDS}
    for number in range(plan.rounds):
        for kind in chance.sample(list(KINDS), len(KINDS)):
            specs = [Spec(model, instructions(chance), MAX_OUTPUT_TOKENS) for _ in range(plan.streams)]
            dialogs = [KINDS[kind](client, spec) for spec in specs]
            runs[kind].append(run := await _run(service, dialogs, plan.turns, chance))
            say(f"cost, round {number + 1} of {plan.rounds}, {kind}: {run.turns / run.loop_s:.1f} turns/s")
    return TurnCost(idle, runs)


async def _run(service: Service, dialogs: list[Dialog], turns: int, chance: random.Random) -> Run:
    for dialog in dialogs:
        await dialog.open()
    asked = [[question(chance, number) for number in range(turns)] for _ in dialogs]
    loop = asyncio.get_running_loop()
    with service.watched() as used:
        began_at = loop.time()
        async with asyncio.TaskGroup() as group:
            for dialog, questions in zip(dialogs, asked, strict=True):
                group.create_task(_talk(dialog, questions))
        loop_s = loop.time() - began_at
        await asyncio.sleep(SETTLE_S)
    return Run(turns * len(dialogs), loop_s, used)


async def _talk(dialog: Dialog, questions: list[str]) -> None:
    for asked in questions:
        await dialog.say(asked)
