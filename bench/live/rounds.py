"""The measurement: what requests take alone, how fast each mix can be, then round by round every system in turn."""

import random
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import fmean
from typing import Any

from bench.fronts import census
from bench.fronts.prompts import text, words_per_token
from bench.fronts.systems import LOAD_GENERATOR
from bench.live import mixes
from bench.live.client import OpenLoad
from bench.live.contenders import Colocated, Contender, Stage
from bench.live.goodput import Answer, Slo, slos
from bench.live.mixes import CHAT, LONG, Ask
from bench.live.receipts import Fate, fates

ALONE = 12
"""Requests of each kind that set the SLOs."""
WARM_S = 15.0
"""Load before the first round: paths, and for Baton the models of its engines."""


@dataclass(frozen=True)
class Plan:
    mixes: Sequence[str]
    loads: Mapping[str, float]
    """Share of the highest rate that is offered, by mix."""
    rounds: int
    round_s: float
    ttft_factor: float
    base_s: float
    tpot_factor: float
    streams: int
    """Requests open at a time where the highest rate of a mix is looked for."""
    seed: int


@dataclass(frozen=True)
class Run:
    """One round of one mix on one system."""

    answers: list[Answer]
    """Answers in the order of the requests, which is the same for all systems."""
    strangers_share: float
    """Cores that were taken by what is neither the system nor the load generator."""
    fates: list[Fate | None]
    """What became of Baton's requests, in the same order."""


@dataclass
class Results:
    slos: dict[str, Slo]
    per_s: dict[str, float]
    """The rate that was offered, by mix."""
    runs: dict[tuple[str, str], list[Run]] = field(default_factory=lambda: defaultdict(list))
    """Runs by mix and contender."""


class Measurement:
    def __init__(
        self, plan: Plan, contenders: list[Contender], stage: Stage, model: str, say: Callable[[str], None]
    ) -> None:
        """`model`: its folder. `say` takes lines about the progress."""
        self._plan, self._contenders, self._stage, self._say = plan, contenders, stage, say
        self._words_per_token = words_per_token(model, random.Random(plan.seed))

    def rounds(self, results: Results) -> Iterator[Results]:
        """The same results after each round, which the next one adds to."""
        self._warm_up(results)
        places = [
            (number, mix, contender)
            for number in range(self._plan.rounds)
            for mix in self._plan.mixes
            for contender in _turned(self._contenders, number)
        ]
        began_at = time.monotonic()
        for done, (number, mix, contender) in enumerate(places, 1):
            asked = self._asks(mix, results.per_s[mix], self._plan.round_s, f"{number}")
            run = self._run(contender, asked, results.slos)
            results.runs[mix, contender.name].append(run)
            left_s = (time.monotonic() - began_at) / done * (len(places) - done)
            good = sum(answer.is_good(results.slos) for answer in run.answers)
            self._say(
                f"round {number + 1}/{self._plan.rounds}, {mix}, {contender.name}: {good} of {len(asked)} good;"
                f" {left_s / 60:.0f} min left"
            )
            if done * self._plan.rounds % len(places) == 0:
                yield results

    def attained(self, contender: Contender, results: Results) -> dict[str, float]:
        """By mix: the share of good answers of one round, whose requests are in no other round."""
        self._warm_up(results)
        shares = {}
        for mix in self._plan.mixes:
            asked = self._asks(mix, results.per_s[mix], self._plan.round_s, "tuning")
            run = self._run(contender, asked, results.slos)
            shares[mix] = fmean(answer.is_good(results.slos) for answer in run.answers) if run.answers else 0.0
        return shares

    def calibrated(self) -> Results:
        """On the colocated servers: what Baton and its predictions have no part in."""
        contender = next(contender for contender in self._contenders if isinstance(contender.system, Colocated))
        self._load(contender, mixes.at_once(self._asks("mixed", 5.0, 5.0, "first")), self._plan.streams)
        alone = self._alone(contender)
        plan = self._plan
        promised = slos(alone, plan.ttft_factor, plan.base_s, plan.tpot_factor)
        for kind, slo in promised.items():
            self._say(f"{kind}: TTFT {1e3 * slo.ttft_s:.0f} ms, TPOT {1e3 * slo.tpot_s:.1f} ms are to be met")
        per_s = {}
        for mix in plan.mixes:
            asked = mixes.at_once(self._asks(mix, plan.streams / 2, 10.0, "calibration"))
            wall_s, _ = self._load(contender, asked, plan.streams)
            most_per_s = len(asked) / wall_s
            per_s[mix] = plan.loads[mix] * most_per_s
            self._say(f"{mix}: {most_per_s:.2f} requests/s with {plan.streams} streams on {contender.name}")
        return Results(promised, per_s)

    def _alone(self, contender: Contender) -> list[Answer]:
        answers = []
        for mix in ("chats", "long prompts"):
            asked = mixes.at_once(self._asks(mix, 10.0, 10.0, "alone")[:ALONE])
            answers += self._load(contender, asked, 1)[1]
        if any(answer.status != 200 for answer in answers) or {a.kind for a in answers} != {CHAT, LONG}:
            raise RuntimeError(f"{contender.name} does not answer every request")
        return answers

    def _warm_up(self, results: Results) -> None:
        per_s = min(results.per_s.values())
        for contender in self._contenders:
            self._stage.enter(contender.system)
            run = self._run(contender, self._asks("mixed", per_s, WARM_S, "warm-up"), results.slos)
            if not any(answer.status == 200 for answer in run.answers):
                raise RuntimeError(f"{contender.name} answers no request")
            if contender.system.pulled_tokens() == 0:
                raise RuntimeError(f"{contender.name}: the decode engine takes no KV blocks from the prefill engine")
            self._say(f"{contender.name} is warm")

    def _run(self, contender: Contender, asked: list[Ask], promised: dict[str, Slo]) -> Run:
        self._stage.enter(contender.system)
        before, busy_s, started_at = census.read(), census.machine_busy_s() - time.process_time(), time.monotonic()
        _, answers = self._load(contender, asked, None, promised)
        used_s = census.used_s(before, census.read())
        busy_s = census.machine_busy_s() - time.process_time() - busy_s
        ours_s = sum(sum(used_s.get(name, {}).values()) for name in (contender.system.name, LOAD_GENERATOR))
        share = (busy_s - ours_s) / (time.monotonic() - started_at)
        return Run(answers, max(0.0, share), fates(contender.system, answers))

    def _load(
        self, contender: Contender, asked: list[Ask], most_open: int | None, promised: dict[str, Slo] | None = None
    ) -> tuple[float, list[Answer]]:
        """Seconds that it took, and what came. `promised`: what requests say of their SLOs, if there are any yet."""
        self._stage.enter(contender.system)
        mark = str(1000 + self._contenders.index(contender))
        load = OpenLoad(
            [mixes.marked(ask, mark) for ask in asked],
            contender.ports,
            contender.headers(promised) if promised else {},
            contender.ttft_s(promised) if promised else None,
            most_open,
        )
        driver: Any = contender.system.driver
        driver.prepare(load)
        return driver.run(), driver.collect()

    def _asks(self, mix: str, per_s: float, duration_s: float, name: str) -> list[Ask]:
        """Requests of a round: the same for every system, and different for another `name`."""
        rng = random.Random(f"{self._plan.seed} {mix} {name}")
        return mixes.asks(mix, per_s, duration_s, rng, self._text)

    def _text(self, rng: random.Random, tokens: int) -> str:
        return text(rng, max(1, round(tokens * self._words_per_token)))


def _turned(contenders: list[Contender], number: int) -> list[Contender]:
    """Each round in the opposite order: who is first meets the machine after another mix."""
    return contenders[::-1] if number % 2 else contenders
