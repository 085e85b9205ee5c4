"""The rules of the colocated servers' engines. In a large step a long prompt holds up every stream of its server, and
in a small one each prompt takes longer: which is best depends on the machine and the model, so each is tried. The best
one is tried with vLLM's priorities, too.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from statistics import fmean

from bench.fronts.child import Driver
from bench.fronts.setting import Setting
from bench.fronts.systems import System
from bench.live.contenders import Colocated, Contender, EngineRules, Stage, colocated_name
from bench.live.rounds import Measurement, Plan, Results

STEP_TOKENS = (128, 256, 512, 2048)
"""The values that are tried. More find a better baseline and take longer."""


@dataclass(frozen=True)
class Tried:
    """One choice of the rules, on the same requests as the others."""

    rules: EngineRules
    attainment: dict[str, float]
    """By mix."""


def best(tried: Sequence[Tried]) -> Tried:
    """The highest attainment, as the mean over the mixes."""
    return max(tried, key=lambda one: fmean(one.attainment.values()))


def rows(tried: Sequence[Tried]) -> list[tuple[str, ...]]:
    """What each choice attains of each mix: the best of a single mix may be another than the best of all."""
    mixes = list(tried[0].attainment)
    table: list[tuple[str, ...]] = [("engines", *mixes, "mean")]
    for one in sorted(tried, key=lambda one: (one.rules.step_tokens, one.rules.by_priority)):
        shares = [*(one.attainment[mix] for mix in mixes), fmean(one.attainment.values())]
        table.append((str(one.rules), *(f"{100 * share:.1f} %" for share in shares)))
    return table


def in_order(step_tokens: Sequence[int], configured: int) -> list[int]:
    """Each value once, the configured one first: it sets the SLOs that all are tried with."""
    return sorted(dict.fromkeys(step_tokens), key=lambda tokens: tokens != configured)


def try_all(
    step_tokens: Sequence[int],
    num_servers: int,
    plan: Plan,
    setting: Setting,
    generator: Driver,
    say: Callable[[str], None],
) -> list[Tried]:
    """One after another, so that no more engines are up than in the comparison. All meet the SLOs and the rates that
    the first one sets; the comparison sets its own, with the best.
    """
    results: Results | None = None
    tried: list[Tried] = []

    def try_out(rules: EngineRules) -> None:
        nonlocal results
        system = Colocated(setting, generator, num_servers, rules)
        say(f"starting {colocated_name(num_servers)} with {rules}")
        with _up(system):
            contender = Contender(colocated_name(num_servers), system)
            measurement = Measurement(plan, [contender], Stage([system]), setting.model, say)
            results = results or measurement.calibrated()
            tried.append(Tried(rules, measurement.attained(contender, results)))
        shares = ", ".join(f"{mix} {100 * share:.1f} %" for mix, share in tried[-1].attainment.items())
        say(f"{rules}: {shares} attained")

    for tokens in in_order(step_tokens, setting.engine["max_num_batched_tokens"]):
        try_out(EngineRules(tokens))
    try_out(replace(best(tried).rules, by_priority=True))
    return tried


@contextmanager
def _up(system: System) -> Iterator[None]:
    try:
        system.start()
        yield
    finally:
        system.interrupt()
        system.stop()
