"""The simulator against real engines: the same requests on a running Baton and on a simulated one.

Engines keep a pace: a step lasts a fixed time and a time for each token that it computes, so the simulator can have the
same step times. Everything else is real on one side (HTTP, Ray, vLLM, NIXL) and simulated on the other. What a
request takes alone beyond its steps (the work of an engine between two steps, HTTP, the front half) is measured first,
and the simulator is told. The verdict is about goodput; TTFT and TPOT are shown.
"""

import argparse
import random
import sys
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from statistics import fmean
from typing import Any, NamedTuple

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
from cluster.messages.placement import Slo as RequestSlo
from cluster.messages.transport import LinkSpeed
from cluster.simulation.engine.engine_setting import EngineSetting
from cluster.simulation.pools.pool_setting import ClusterSetting, PoolSetting, Reporting
from cluster.simulation.results.summary import aligned
from cluster.simulation.run import simulate
from cluster.simulation.traffic.workload import RequestRecord, SimRequest
from router.pending_placements import PendingPlacements
from router.prediction.step_model import StepModel
from router.state import RouterState

KIND = "request"
STEP_S, TOKEN_S = 0.05, 0.4e-3
"""Time of a step, and of each token in it, in seconds. Shorter leaves the machine no time for the rest of the work."""
SLO = Slo(ttft_s=1.0, tpot_s=0.09)
"""Some requests miss it at the highest rate."""
PROMPT_TOKENS, ANSWER_TOKENS = (100, 900), (20, 100)
WARM_S, WARM_PER_S = 20.0, 1.5
"""Load before each round, from which the Scheduler learns the pace, here and there. Shorter measures what it does not
know yet.
"""
ALONE, ALONE_S = 6, 8.0
"""Requests that have the service to themselves, and the time that each has, in seconds. More take time; fewer make the
time beyond the steps follow chance.
"""
MOST_DIFFERENCE = 0.15
"""Largest difference of the goodputs, as a share of the real one."""
LINK = LinkSpeed(latency_s=5e-3, bytes_per_s=1e9)
"""Of the simulated handoffs: about what NIXL has between processes of one machine."""
KV_TOKENS = 40_000
"""KV tokens of an engine. The requests here take a tenth of them."""


ENGINE = EngineSetting(
    kv_capacity_tokens=KV_TOKENS,
    max_step_tokens=2048,
    has_short_steps=True,
    by_deadline=True,
    overtakes=True,
    max_decoding=64,
    block_size=32,
)


class Beyond(NamedTuple):
    """What requests take beyond the pace, in seconds."""

    step_s: float
    """For each step."""
    ttft_s: float
    """Until the first token, once."""


class Figures(NamedTuple):
    per_s: float
    goodput_per_s: float
    ttft_s: float
    tpot_s: float


def asks(per_s: float, duration_s: float, rng: random.Random, words: float) -> list[Ask]:
    """A Poisson process of prompts that no cache knows. `words`: of a token."""
    taken, at_s = [], rng.expovariate(per_s)
    while at_s < duration_s:
        prompt = text(rng, max(1, round(words * rng.randint(*PROMPT_TOKENS))))
        taken.append(Ask(at_s, KIND, (prompt,), rng.randint(*ANSWER_TOKENS)))
        at_s += rng.expovariate(per_s)
    return taken


def simulated(asked: Sequence[Ask], answers: Sequence[Answer], step_s: float = 0.0) -> list[RequestRecord]:
    """The same arrivals and lengths. A request that was not answered has the mean length of a prompt. `step_s`: time of
    each step beyond the pace.
    """
    usual = round(fmean([answer.prompt_tokens for answer in answers if answer.prompt_tokens] or [500.0]))
    workload = [
        SimRequest(
            arrival_s=ask.at_s,
            num_prompt=answer.prompt_tokens or usual,
            num_output=ask.max_tokens,
            slo=RequestSlo(SLO.ttft_s, SLO.tpot_s),
        )
        for ask, answer in zip(asked, answers, strict=True)
    ]
    pool = PoolSetting(number=1, engine=ENGINE, model=_step_times(STEP_S + step_s))
    setting = ClusterSetting(
        prefill=pool, decode=pool, kv_bytes_per_token=1000, link=LINK, reporting=Reporting(interval_s=0.25)
    )
    return simulate(workload, setting, lambda: PendingPlacements(RouterState()))


def _step_times(fixed_s: float) -> StepModel:
    return StepModel(
        fixed_s=fixed_s,
        token_s=TOKEN_S,
        knee_tokens=1,
        beyond_knee_s=0.0,
        attended_s=0.0,
        request_s=0.0,
        context_s=0.0,
    )


def beyond(contender: Contender, rng: random.Random, words: float) -> Beyond:
    """Measure it, with one request at a time."""
    asked = [replace(asks(1.0, 60.0, rng, words)[0], at_s=ALONE_S * number) for number in range(ALONE)]
    answers = served(contender, asked)
    step_s = fmean([answer.tpot_s - STEP_S - TOKEN_S for answer in answers if answer.tpot_s is not None])
    records = simulated(asked, answers, step_s)
    pairs = zip(answers, records, strict=True)
    return Beyond(
        step_s, fmean([real.ttft_s - virtual.ttft_s for real, virtual in pairs if real.ttft_s and virtual.ttft_s])
    )


def figures(per_s: float, duration_s: float, times: Sequence[tuple[float | None, float | None]]) -> Figures:
    """`times`: TTFT and TPOT of each request."""
    good = [
        ttft_s
        for ttft_s, tpot_s in times
        if ttft_s is not None and ttft_s <= SLO.ttft_s and (tpot_s is None or tpot_s <= SLO.tpot_s)
    ]
    return Figures(
        per_s,
        len(good) / duration_s,
        fmean([ttft_s for ttft_s, _ in times if ttft_s is not None] or [0.0]),
        fmean([tpot_s for _, tpot_s in times if tpot_s is not None] or [0.0]),
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rates", type=float, nargs="+", default=[1.0, 2.0, 3.0], help="requests/s (%(default)s)")
    parser.add_argument("--seconds", type=float, default=60.0, help="of arrivals at each rate (%(default)s)")
    parser.add_argument("--seed", type=int, default=0, help="(%(default)s)")
    parser.add_argument("--conf", type=Path, default=REPO_ROOT / "conf/local.yaml", help="(%(default)s)")
    arguments = parser.parse_args()
    try:
        rows, worst = measured(arguments)
    except FailedStart as error:
        sys.exit(f"bench: {error}")
    print(aligned([("", "req/s", "good/s", "TTFT ms", "TPOT ms"), *rows]))
    print(f"largest difference of the goodputs: {worst:.1%}")
    if worst > MOST_DIFFERENCE:
        sys.exit(f"bench: more than {MOST_DIFFERENCE:.0%}")


def measured(arguments: argparse.Namespace) -> tuple[list[tuple[str, ...]], float]:
    """Rows of figures, and the largest difference of the goodputs."""
    setting = Setting(
        REPO_ROOT / ".baton" / "bench", adapted(yaml.safe_load(arguments.conf.read_text()), 2), is_thin=True
    )
    (setting.folder / "logs").mkdir(parents=True, exist_ok=True)
    write_pace(setting.pace_file, STEP_S, TOKEN_S)
    rng = random.Random(arguments.seed)
    words, rows, worst = words_per_token(setting.model, rng), list[tuple[str, ...]](), 0.0
    with ExitStack() as stack:
        stack.callback(census.kill, LOAD_GENERATOR)
        baton = EqualBaton(setting, started_generator(setting))
        stack.callback(baton.stop)
        stack.callback(baton.interrupt)
        baton.start()
        contender = Contender("baton", baton, is_told=True)
        served(contender, asks(WARM_PER_S, WARM_S, rng, words))
        more = beyond(contender, rng, words)
        print(f"beyond the pace: {1e3 * more.step_s:.1f} ms a step, {1e3 * more.ttft_s:.0f} ms once", file=sys.stderr)
        for per_s in arguments.rates:
            later = [replace(ask, at_s=ask.at_s + WARM_S) for ask in asks(per_s, arguments.seconds, rng, words)]
            asked = [*asks(WARM_PER_S, WARM_S, rng, words), *later]
            answers = served(contender, asked)
            records = simulated(asked, answers, more.step_s)
            counted = slice(len(asked) - len(later), None)
            real = figures(per_s, arguments.seconds, [(one.ttft_s, one.tpot_s) for one in answers[counted]])
            virtual = figures(
                per_s,
                arguments.seconds,
                [(one.ttft_s + more.ttft_s if one.ttft_s else None, one.tpot_s) for one in records[counted]],
            )
            worst = max(worst, abs(virtual.goodput_per_s / real.goodput_per_s - 1) if real.goodput_per_s else 1.0)
            rows += [row("real", real), row("simulated", virtual)]
            print(aligned(rows[-2:]), file=sys.stderr, flush=True)
    return rows, worst


def served(contender: Contender, asked: Sequence[Ask]) -> list[Answer]:
    driver: Any = contender.system.driver
    load = OpenLoad(asked, contender.ports, contender.headers({KIND: SLO}))
    driver.prepare(load)
    driver.run()
    answers: list[Answer] = driver.collect()
    return answers


def row(name: str, found: Figures) -> tuple[str, ...]:
    ms = f"{1e3 * found.ttft_s:.0f}", f"{1e3 * found.tpot_s:.1f}"
    return name, f"{found.per_s:g}", f"{found.goodput_per_s:.2f}", *ms


if __name__ == "__main__":
    main()
