"""The simulator against real engines: the same requests on a running Baton and on a simulated one.

Engines keep a pace: a step lasts a fixed time and a time for each token that it computes, so the simulator can have the
same step times. Everything else is real on one side (HTTP, Ray, vLLM, NIXL) and simulated on the other (twin.py). What
requests take beyond that (the work of an engine between two steps, HTTP, the front half) is measured first, with one
request at a time and with several that decode together, and the simulator is told. The verdict is about goodput; the
other figures are shown.
"""

import argparse
import random
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import replace
from http import HTTPStatus
from pathlib import Path
from statistics import fmean, median
from typing import Any, NamedTuple

import msgspec
import yaml

from bench.fronts import census
from bench.fronts.child import FailedStart
from bench.fronts.pace import write_pace
from bench.fronts.prompts import text, words_per_token
from bench.fronts.setting import REPO_ROOT, Setting
from bench.fronts.systems import LOAD_GENERATOR
from bench.live.client import OpenLoad
from bench.live.contenders import Contender, EqualBaton, adapted, started_generator
from bench.live.goodput import Answer, Slo
from bench.live.mixes import Ask
from bench.live.receipts import fates
from bench.live.twin import Beyond, SentLoad, Twin
from cluster.messages.ids import Path as RequestPath
from cluster.simulation.results.summary import aligned
from cluster.simulation.traffic.workload import RequestRecord
from cluster.slo import SloConfig

KIND = "request"
"""Requests for which the Scheduler chooses the path. The kind of the others is their path."""
STEP_S, TOKEN_S = 0.05, 0.4e-3
"""Time of a step, and of each token in it, in seconds. Shorter leaves the machine no time for the rest of the work."""
SLO = Slo(ttft_s=1.0, tpot_s=0.09)
"""Some requests miss it at the highest rate."""
PROMPT_TOKENS, ANSWER_TOKENS = (100, 900), (20, 100)
WARM_S, WARM_PER_S = 10.0, 1.5
"""Load before each round, so that none begins with idle engines. Shorter has the first requests find them so."""
RUNS = 10
"""Runs of the simulator. Fewer leave its mean to chance; each takes two seconds."""
ALONE, ALONE_S = 6, 8.0
"""Requests that have the service to themselves, and the time that each has, in seconds. More take time; fewer make the
time beyond the steps follow chance.
"""
TOGETHER, TOGETHER_PROMPT_TOKENS = 8, 10
"""Requests that decode on each worker at the same time, and the length of their prompts. About as many decode in the
rounds; fewer or more make the line through one and so many lead elsewhere. Longer prompts make their answers begin one
after another.
"""
MOST_DIFFERENCE = 0.15
"""Largest difference of the goodputs, as a share of the real one."""

WHOLE = (RequestPath.DECODE, RequestPath.PREFILL)
HEADINGS = ("", "req/s", "good/s", "rounds", "TTFT ms", "TPOT ms", "refused", "P->D/D/P %")


class Fared(NamedTuple):
    """What became of one request."""

    ttft_s: float | None
    tpot_s: float | None
    path: str | None
    """None if it was refused."""


Requests = Sequence[Fared]
"""The requests of one round that count."""


class Figures(NamedTuple):
    per_s: float
    goodputs_per_s: list[float]
    """Of each round."""
    ttft_s: float
    tpot_s: float
    refused: float
    """Share of the requests."""
    paths: tuple[float, ...]
    """Shares of the requests on each path."""

    @property
    def goodput_per_s(self) -> float:
        return fmean(self.goodputs_per_s)


def asks(per_s: float, duration_s: float, rng: random.Random, words: float) -> list[Ask]:
    """A Poisson process of prompts that no cache knows. `words`: of a token."""
    taken, at_s = [], rng.expovariate(per_s)
    while at_s < duration_s:
        taken.append(_ask(at_s, KIND, rng.randint(*PROMPT_TOKENS), rng.randint(*ANSWER_TOKENS), rng, words))
        at_s += rng.expovariate(per_s)
    return taken


def _ask(at_s: float, kind: str, num_prompt: int, num_output: int, rng: random.Random, words: float) -> Ask:
    return Ask(at_s, kind, (text(rng, max(1, round(words * num_prompt))),), num_output)


def asks_alone(rng: random.Random, words: float) -> list[Ask]:
    """One request at a time, each whole on one worker, so that the time between its tokens is that of steps."""
    return [
        _ask(ALONE_S * number, WHOLE[number % 2], rng.randint(*PROMPT_TOKENS), ANSWER_TOKENS[1], rng, words)
        for number in range(ALONE)
    ]


def asks_together(rng: random.Random, words: float) -> list[Ask]:
    """Requests that decode together, on all workers at once."""
    return [
        _ask(0.0, path, TOGETHER_PROMPT_TOKENS, ANSWER_TOKENS[1], rng, words) for _ in range(TOGETHER) for path in WHOLE
    ]


def usual_difference(real: Sequence[float | None], virtual: Sequence[float | None]) -> float:
    """By how much the real times are longer than the simulated ones of the same requests: the median, as other work on
    the machine makes single requests much longer.

    Raises:
        RuntimeError: no request has both.
    """
    pairs = [(one, other) for one, other in zip(real, virtual, strict=True) if one is not None and other is not None]
    if not pairs:
        raise RuntimeError("the service answers no request: see the logs in .baton/bench/logs")
    return median(one - other for one, other in pairs)


def is_good(one: Fared) -> bool:
    return one.ttft_s is not None and one.ttft_s <= SLO.ttft_s and (one.tpot_s is None or one.tpot_s <= SLO.tpot_s)


def figures(per_s: float, duration_s: float, rounds: Sequence[Requests]) -> Figures:
    """Of rounds with requests at the same rate. `duration_s`: of a round."""
    served = [one for requests in rounds for one in requests]
    return Figures(
        per_s,
        [sum(map(is_good, requests)) / duration_s for requests in rounds],
        fmean([one.ttft_s for one in served if one.ttft_s is not None] or [0.0]),
        fmean([one.tpot_s for one in served if one.tpot_s is not None] or [0.0]),
        fmean([one.path is None for one in served] or [0.0]),
        tuple(fmean([one.path == path for one in served] or [0.0]) for path in RequestPath),
    )


def difference(real: Figures, virtual: Figures) -> float:
    """Of the goodputs, as a share of the real one."""
    if not real.goodput_per_s:
        return 1.0 if virtual.goodput_per_s else 0.0
    return abs(virtual.goodput_per_s / real.goodput_per_s - 1)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rates", type=float, nargs="+", default=[1.0, 2.0, 3.0], help="requests/s (%(default)s)")
    parser.add_argument("--rounds", type=int, default=2, help="at each rate (%(default)s)")
    parser.add_argument("--seconds", type=float, default=60.0, help="of arrivals in each round (%(default)s)")
    parser.add_argument("--seed", type=int, default=0, help="(%(default)s)")
    parser.add_argument("--conf", type=Path, default=REPO_ROOT / "conf/local.yaml", help="(%(default)s)")
    arguments = parser.parse_args()
    if arguments.rounds < 1 or arguments.seconds <= 0 or min(arguments.rates) <= 0:
        parser.error("--rounds, --seconds and --rates must be above 0")
    try:
        pairs = measured(arguments)
    except (FailedStart, RuntimeError) as error:
        sys.exit(f"bench: {error}")
    print(
        aligned(
            [HEADINGS, *(row(*pair) for real, virtual in pairs for pair in (("real", real), ("simulated", virtual)))]
        )
    )
    worst = max(difference(*pair) for pair in pairs)
    print(f"largest difference of the goodputs: {worst:.1%}")
    if worst > MOST_DIFFERENCE:
        sys.exit(f"bench: more than {MOST_DIFFERENCE:.0%}")


def measured(arguments: argparse.Namespace) -> list[tuple[Figures, Figures]]:
    """The real and the simulated figures at each rate."""
    setting = Setting(
        REPO_ROOT / ".baton" / "bench", adapted(yaml.safe_load(arguments.conf.read_text()), 2), is_thin=True
    )
    (setting.folder / "logs").mkdir(parents=True, exist_ok=True)
    write_pace(setting.pace_file, STEP_S, TOKEN_S)
    rng = random.Random(arguments.seed)
    words = words_per_token(setting.model, rng)
    with ExitStack() as stack:
        stack.callback(census.kill, LOAD_GENERATOR)
        baton = EqualBaton(setting, started_generator(setting))
        stack.callback(baton.stop)
        stack.callback(baton.interrupt)
        baton.start()
        classes = msgspec.convert(setting.args["slo"], SloConfig)
        both = Both(Contender("baton", baton, is_told=True), Twin(classes, SLO, STEP_S, TOKEN_S))
        both.send(asks(WARM_PER_S, WARM_S, rng, words))
        both.measure_beyond(rng, words)
        for number in range(arguments.rounds):
            for per_s in arguments.rates:
                later = [replace(ask, at_s=ask.at_s + WARM_S) for ask in asks(per_s, arguments.seconds, rng, words)]
                found = both.round(per_s, [*asks(WARM_PER_S, WARM_S, rng, words), *later], len(later))
                good = sum(map(is_good, found))
                print(f"round {number + 1}, {per_s:g}/s: {good} of {len(found)} good", file=sys.stderr, flush=True)
    return [
        (figures(per_s, arguments.seconds, real), figures(per_s, arguments.seconds, virtual))
        for per_s, real, virtual in both.compared()
    ]


class CountedRound(NamedTuple):
    """A round, and what became of its requests on the service."""

    per_s: float
    load: int
    """Its place among all loads."""
    real: Requests


class Both:
    """The service and its twin, which get the same requests."""

    def __init__(self, contender: Contender, twin: Twin) -> None:
        self.twin = twin
        self._contender = contender
        self._num_loads = 0
        self._counted: list[CountedRound] = []

    def send(self, asked: Sequence[Ask]) -> list[Answer]:
        driver: Any = self._contender.system.driver
        driver.prepare(OpenLoad(asked, self._contender.ports, self._headers()))
        began_at = time.monotonic()
        driver.run()
        answers: list[Answer] = driver.collect()
        self.twin.add(SentLoad(began_at, asked, answers))
        self._num_loads += 1
        return answers

    def measure_beyond(self, rng: random.Random, words: float) -> None:
        """Measure what requests take beyond the pace, and tell the twin."""
        alone = self.send(asks_alone(rng, words))
        step_s = usual_difference(_tpots(alone), _tpots(self.twin.last()))
        self.twin.beyond = Beyond(step_s)
        ttft_s = usual_difference(_ttfts(alone), _ttfts(self.twin.last()))
        decoding_s = self._further_s(self.send(asks_together(rng, words)), Beyond(step_s))
        sigma = median(answer.spread for answer in alone if answer.status == HTTPStatus.OK)
        self.twin.beyond = Beyond(step_s, decoding_s, ttft_s, sigma)
        print(
            f"beyond the pace: {1e3 * step_s:.1f} ms a step, {1e3 * decoding_s:.2f} ms for each further request in it,"
            f" {1e3 * ttft_s:.0f} ms once; steps vary by {sigma:.1%}",
            file=sys.stderr,
        )

    def _further_s(self, together: Sequence[Answer], beyond: Beyond) -> float:
        """Time of each further request in a step. Not all of them are in all steps. So the twin tells what a guess
        would add, and the guess is corrected in proportion.
        """
        missing_s = usual_difference(_tpots(together), _tpots(self.twin.last()))
        guess_s = missing_s / (TOGETHER - 1)
        if guess_s <= 0.0:
            return 0.0
        self.twin.beyond = beyond._replace(decoding_s=guess_s)
        added_s = missing_s - usual_difference(_tpots(together), _tpots(self.twin.last()))
        return guess_s * missing_s / added_s if added_s > 0.0 else guess_s

    def round(self, per_s: float, asked: Sequence[Ask], counted: int) -> Requests:
        """What became of the last `counted` requests on the service."""
        answers = self.send(asked)
        served = [
            Fared(answer.ttft_s, answer.tpot_s, fate.path if fate else None)
            for answer, fate in zip(answers, fates(self._contender.system, answers), strict=True)
        ]
        self._counted.append(CountedRound(per_s, self._num_loads - 1, served[-counted:]))
        return served[-counted:]

    def compared(self) -> Iterator[tuple[float, list[Requests], list[Requests]]]:
        """Each rate, with the rounds at it on the service, and with as many on the twin in each of its runs."""
        runs, more_s = self.twin.runs(RUNS), self.twin.beyond.ttft_s
        for per_s in dict.fromkeys(one.per_s for one in self._counted):
            here = [one for one in self._counted if one.per_s == per_s]
            virtual: list[Requests] = [
                [_seen(record, more_s) for record in records[one.load][-len(one.real) :]]
                for records in runs
                for one in here
            ]
            yield per_s, [one.real for one in here], virtual

    def _headers(self) -> dict[str, dict[str, str]]:
        forced = {path: replace(self._contender, path=path).headers({path: SLO})[path] for path in WHOLE}
        return self._contender.headers({KIND: SLO}) | forced


def _seen(record: RequestRecord, more_s: float) -> Fared:
    """As a client sees it, whose first token takes more than in the simulator."""
    return Fared(None if record.ttft_s is None else record.ttft_s + more_s, record.tpot_s, record.path)


def _ttfts(served: Sequence[Answer | RequestRecord]) -> list[float | None]:
    return [one.ttft_s for one in served]


def _tpots(served: Sequence[Answer | RequestRecord]) -> list[float | None]:
    return [one.tpot_s for one in served]


def row(name: str, found: Figures) -> tuple[str, ...]:
    extent = f"{min(found.goodputs_per_s):.2f}-{max(found.goodputs_per_s):.2f}"
    ms = f"{1e3 * found.ttft_s:.0f}", f"{1e3 * found.tpot_s:.1f}"
    paths = "/".join(f"{100 * share:.0f}" for share in found.paths)
    return name, f"{found.per_s:g}", f"{found.goodput_per_s:.2f}", extent, *ms, f"{found.refused:.1%}", paths


if __name__ == "__main__":
    main()
