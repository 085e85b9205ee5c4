from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cluster.messages.ids import Outcome, SloClass
from cluster.messages.placement import Slo
from cluster.slo import Objective, Result, SloConfig, result

OBJECTIVE = Objective(ttft_s=1.0, ttft_per_prefill=3.0, tpot_s=0.05)
SLO = Slo(ttft_s=1.0, tpot_s=0.05)
seconds = st.floats(1e-6, 1e6)


def test_long_prompt_may_take_longer() -> None:
    assert OBJECTIVE.resolve(0.0) == Slo(1.0, 0.05)
    assert OBJECTIVE.resolve(2.0) == Slo(7.0, 0.05)


@given(seconds, seconds, seconds)
def test_wishes_only_tighten(isolated_prefill_s: float, ttft_s: float, tpot_s: float) -> None:
    slo, wished = OBJECTIVE.resolve(isolated_prefill_s), OBJECTIVE.resolve(isolated_prefill_s, ttft_s, tpot_s)
    assert wished == Slo(min(slo.ttft_s, ttft_s), min(slo.tpot_s, tpot_s))


def test_higher_class_has_the_tighter_objective() -> None:
    objectives = [SloConfig().of(slo_class) for slo_class in SloClass]
    for higher, lower in pairwise(objectives):
        assert higher.ttft_s < lower.ttft_s
        assert higher.tpot_s < lower.tpot_s


@pytest.mark.parametrize(
    ("ttft_s", "tpot_s", "expected"),
    [
        (1.0, 0.05, Result.GOOD),
        (1.0, None, Result.GOOD),
        (1.1, 0.05, Result.TTFT_MISSED),
        (1.0, 0.06, Result.TPOT_MISSED),
        (1.1, 0.06, Result.BOTH_MISSED),
        (1.1, None, Result.TTFT_MISSED),
    ],
)
def test_request_is_good_when_it_meets_both_objectives(ttft_s: float, tpot_s: float | None, expected: Result) -> None:
    assert result(SLO, Outcome.FINISHED, ttft_s, tpot_s, 9.0) is expected


@pytest.mark.parametrize(
    ("outcome", "expected"),
    [(Outcome.ABORTED, None), (Outcome.REJECTED, Result.REJECTED), (Outcome.FAILED, Result.FAILED)],
)
def test_request_that_did_not_finish_is_bad_unless_its_client_left(outcome: Outcome, expected: Result | None) -> None:
    assert result(SLO, outcome, 0.1, 0.01, 9.0) is expected
    assert result(None, outcome, None, None, 9.0) is expected


@pytest.mark.parametrize(
    ("ttft_s", "age_s", "expected"),
    [(None, 1.1, Result.TTFT_MISSED), (None, 1.0, None), (0.9, 1.1, None), (1.1, 9.0, None)],
)
def test_client_that_left_counts_if_its_first_token_was_late_and_had_not_come(
    ttft_s: float | None, age_s: float, expected: Result | None
) -> None:
    assert result(SLO, Outcome.ABORTED, ttft_s, None, age_s) is expected


def test_request_without_objectives_does_not_count() -> None:
    assert result(None, Outcome.FINISHED, 0.1, 0.01, 9.0) is None
