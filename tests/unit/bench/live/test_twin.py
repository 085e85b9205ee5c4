"""The twin of a running Baton. The service here is simulated, too, with times that the twin is not told."""

import random
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, cast

import pytest

from bench.live import simulated
from bench.live.client import OpenLoad
from bench.live.contenders import Contender
from bench.live.goodput import Answer, Slo
from bench.live.mixes import Ask
from bench.live.simulated import Both, Fared, difference, figures, usual_difference
from bench.live.twin import USUAL_PROMPT_TOKENS, Beyond, SentLoad, Twin, prompt_lengths
from cluster.messages.ids import Path
from cluster.slo import Objective, SloConfig

LOOSE = Objective(ttft_s=3600.0, ttft_per_prefill=0.0, tpot_s=3600.0)
WORDS = 0.25


def a_twin(classes: SloConfig | None = None, slo: Slo = simulated.SLO) -> Twin:
    return Twin(classes or SloConfig(standard=LOOSE), slo, simulated.STEP_S, simulated.TOKEN_S)


def an_ask(at_s: float = 0.0, kind: str = simulated.KIND, words: int = 100, max_tokens: int = 50) -> Ask:
    return Ask(at_s, kind, ("1234 " * words,), max_tokens)


def an_answer(prompt_tokens: int = 400) -> Answer:
    return Answer(simulated.KIND, 200, 0.3, 0.055, prompt_tokens, 50, late_s=0.0)


def refused() -> Answer:
    return Answer(simulated.KIND, 429, None, None, 0, 0, late_s=0.0)


def a_load(asked: Sequence[Ask], at_s: float = 0.0) -> SentLoad:
    return SentLoad(at_s, asked, [an_answer() for _ in asked])


def busy(per_s: float = 2.0, seconds: float = 30.0) -> list[Ask]:
    return simulated.asks(per_s, seconds, random.Random(1), WORDS)


class SimulatedDriver:
    """In place of the load generator and the service."""

    def __init__(self, beyond: Beyond) -> None:
        self.service = a_twin()
        self.service.beyond = beyond
        self._ttft_s = beyond.ttft_s
        self._load: OpenLoad | None = None
        self._at_s = 0.0

    def prepare(self, load: OpenLoad) -> None:
        self._load = load

    def run(self) -> None:
        assert self._load
        answers = [an_answer(round(len(ask.messages[0].split()) / WORDS)) for ask in self._load.asks]
        self.service.add(SentLoad(self._at_s, self._load.asks, answers))
        self._at_s += max(ask.at_s for ask in self._load.asks) + 20.0

    def collect(self) -> list[Answer]:
        return [
            replace(
                an_answer(record.num_prompt),
                ttft_s=(record.ttft_s or 0.0) + self._ttft_s,
                tpot_s=record.tpot_s,
                spread=0.02,
            )
            for record in self.service.last()
        ]


class SimulatedSystem:
    port = 1

    def __init__(self, driver: SimulatedDriver) -> None:
        self.driver = driver


def test_objectives_of_requests_count_where_the_classes_of_the_service_are_looser() -> None:
    """The classes of the service are in its config. Those by default bound a TPOT to what no paced step keeps."""
    twin, strict = a_twin(), a_twin(SloConfig())
    for one in (twin, strict):
        one.add(a_load(busy()))
    refusals = [sum(record.path is None for record in one.last()) for one in (twin, strict)]
    assert refusals[0] < refusals[1]


def test_twin_has_all_loads_before_the_last_one() -> None:
    twin = a_twin()
    twin.add(a_load(busy(), at_s=100.0))
    twin.add(a_load([an_ask()], at_s=130.5))
    (record,) = twin.last()
    assert record.arrival_s == pytest.approx(30.5)
    assert [[len(records) for records in run] for run in twin.runs(2)] == [[len(busy()), 1]] * 2


def test_requests_that_must_take_a_path_take_it() -> None:
    twin = a_twin()
    twin.add(a_load([an_ask(kind=path) for path in Path]))
    assert [record.path for record in twin.last()] == list(Path)


def test_runs_differ_where_steps_vary_and_only_there() -> None:
    twin = a_twin()
    twin.add(a_load(busy()))
    one, other = twin.runs(2)
    assert one == other
    twin.beyond = Beyond(sigma=0.05)
    one, other = twin.runs(2)
    assert one != other


def test_further_requests_in_a_step_take_the_time_that_was_measured() -> None:
    twin, slow = a_twin(), a_twin()
    slow.beyond = Beyond(step_s=5e-3, decoding_s=2e-3)
    for one in (twin, slow):
        one.add(a_load([an_ask(kind=Path.DECODE, max_tokens=100) for _ in range(4)]))
    differences = [a.tpot_s - b.tpot_s for a, b in zip(slow.last(), twin.last(), strict=True) if a.tpot_s and b.tpot_s]
    assert max(differences) == pytest.approx(5e-3 + 3 * 2e-3, rel=0.15)


def test_prompt_that_was_not_answered_is_as_long_for_its_text_as_others() -> None:
    load = SentLoad(0.0, [an_ask(words=100), an_ask(words=200), an_ask(words=50)], [an_answer(), refused(), refused()])
    assert prompt_lengths(load) == [400, 800, 200]


def test_prompts_have_a_usual_length_if_none_was_answered() -> None:
    assert prompt_lengths(SentLoad(0.0, [an_ask()], [refused()])) == [USUAL_PROMPT_TOKENS]


def test_what_the_service_takes_beyond_the_pace_is_measured_before_the_rounds() -> None:
    driver = SimulatedDriver(Beyond(step_s=6e-3, decoding_s=1e-3, ttft_s=0.04))
    both = Both(Contender("baton", cast(Any, SimulatedSystem(driver)), is_told=True), a_twin())
    both.measure_beyond(random.Random(0), WORDS)
    step_s, decoding_s, ttft_s, sigma = both.twin.beyond
    assert step_s == pytest.approx(6e-3, abs=0.5e-3)
    assert decoding_s == pytest.approx(1e-3, rel=0.1)
    assert ttft_s == pytest.approx(0.04, abs=2e-3)
    assert sigma == 0.02


def test_nothing_is_measured_of_a_service_that_refuses_all() -> None:
    with pytest.raises(RuntimeError, match="answers no request"):
        usual_difference([None, None], [0.1, 0.2])


def test_goodput_is_the_mean_of_the_rounds() -> None:
    good, late, slow = Fared(0.5, 0.06, "D"), Fared(1.5, 0.06, "D"), Fared(0.5, 0.1, "P")
    turned_away, single = Fared(None, None, None), Fared(0.5, None, "P->D")
    found = figures(3.0, 2.0, [[good, single, slow, late], [good, turned_away, turned_away, turned_away]])
    assert found.goodputs_per_s == [1.0, 0.5]
    assert (found.goodput_per_s, found.refused) == (0.75, 0.375)
    assert found.paths == (0.125, 0.375, 0.125)


def test_difference_is_a_share_of_the_real_goodput() -> None:
    real, virtual, none = (figures(1.0, 1.0, [[Fared(0.5, 0.06, "D")] * number]) for number in (4, 3, 0))
    assert difference(real, virtual) == 0.25
    assert (difference(none, virtual), difference(none, none)) == (1.0, 0.0)
