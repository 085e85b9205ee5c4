"""What a failure tells about other requests."""

from typing import Any

import pytest

from cluster.messages.ids import Path, SloClass, WorkerId
from cluster.messages.placement import Slo
from router.admission.recent_failures import FRESH_S, MOST_KINDS, Failure, Need, RecentFailures
from router.placement.candidates import Candidates, Choice
from router.placement.placement_input import Others, PlacementInput
from router.prediction.output_lengths import LengthHistogram
from router.prefixes.narrowing import Hit
from tests.unit.clusters import ask


def a_need(
    num_prompt: int = 1000,
    usual_output: float = 100.0,
    age_s: float = 0.0,
    is_late: bool = False,
    standing: int = 0,
    cached: dict[str, int] | None = None,
    **fields: Any,
) -> Need:
    """`cached`: sixteenths of the prompt that workers cache."""
    hits = {WorkerId(worker): Hit(part, part) for worker, part in (cached or {}).items()}
    blocks = [number.to_bytes(8, "big") for number in range(16)]
    return Need(
        ask("r", num_prompt, block_hashes=blocks, **fields), hits, usual_output, age_s, standing, is_late=is_late
    )


def a_failure(need: Need, at: float = 0.0) -> Failure:
    others = Others([], 1, 1.0, 1.0, [], 0.0, 0.0, 0.0)
    placement_input = PlacementInput(ask("r", 1000), Slo(1.0, 0.05), {}, LengthHistogram(), 0.0, others, at)
    candidates = Candidates(None, [], [], 0.0, frozenset(), False)
    return Failure(need, placement_input, candidates, Choice(Path.DECODE, None, None, ""), 1.0)


@pytest.mark.parametrize(
    ("other", "is_told"),
    [
        (a_need(), True),
        (a_need(1010), True),
        (a_need(990), False),
        (a_need(2000), False),
        (a_need(age_s=1.0), True),
        (a_need(slo_class=SloClass.INTERACTIVE), False),
        (a_need(usual_output=10.0), False),
        (a_need(ttft_s=9.0), False),
        (a_need(num_sequences=2), False),
        (a_need(standing=1), False),
        (a_need(can_hand_over=False), False),
        (a_need(tpot_s=0.5), False),
        (a_need(num_prompt=1_100_000), False),
        (a_need(1020, cached={"d0": 1}), False),
    ],
)
def test_failure_tells_of_requests_that_need_no_less(other: Need, is_told: bool) -> None:
    failures = RecentFailures()
    failures.note(a_failure(a_need()))
    assert (failures.like(other, 0.0) is not None) == is_told


@pytest.mark.parametrize(
    ("failed", "other", "is_told"),
    [
        ({"d0": 8}, {"d0": 8}, True),
        ({"d0": 8}, {"d0": 7}, True),
        ({"d0": 8, "d1": 7}, {"d1": 7}, True),
        ({"d0": 7}, {"d0": 8}, False),
        ({"d0": 8}, {"d1": 8}, False),
        ({"d0": 8}, {"d0": 8, "d1": 1}, False),
    ],
    ids=str,
)
def test_what_each_worker_caches_counts(failed: dict[str, int], other: dict[str, int], is_told: bool) -> None:
    """The worker that caches most of the one prompt may be full, and that of the other one may have room."""
    failures = RecentFailures()
    failures.note(a_failure(a_need(900, cached=failed)))
    assert (failures.like(a_need(900, cached=other), 0.0) is not None) == is_told


def test_request_with_less_to_compute_needs_less_memory_if_its_prompt_is_shorter() -> None:
    failures = RecentFailures()
    failures.note(a_failure(a_need(1000, cached={"d0": 8})))
    assert failures.like(a_need(600, cached={"d0": 1}), 0.0) is None


def test_request_that_had_waited_for_long_tells_nothing_of_a_new_one() -> None:
    failures = RecentFailures()
    failures.note(a_failure(a_need(age_s=1.0)))
    assert failures.like(a_need(), 0.0) is None
    assert failures.like(a_need(age_s=0.5, is_late=True), 0.0) is not None
    failures.note(a_failure(a_need()))
    assert failures.like(a_need(), 0.0) is not None
    failures.note(a_failure(a_need(age_s=1.0)))
    assert failures.like(a_need(), 0.0) is not None, "the failure that tells more is kept"


def test_failure_is_soon_forgotten() -> None:
    failures = RecentFailures()
    failures.note(a_failure(a_need(990)))
    assert failures.like(a_need(), FRESH_S) is not None
    assert failures.like(a_need(), FRESH_S + 0.01) is None
    failures.note(a_failure(a_need(1000), at=1.0))
    assert failures.like(a_need(), 1.0) is not None


def test_clients_that_ask_for_ever_different_things_fill_no_memory() -> None:
    failures = RecentFailures()
    for number in range(3 * MOST_KINDS):
        failures.note(a_failure(a_need(ttft_s=1.0 + number)))
    assert len(failures) <= MOST_KINDS


def test_failures_that_are_all_too_old_are_dropped() -> None:
    failures = RecentFailures()
    assert not failures.has_fresh(0.0)
    failures.note(a_failure(a_need(1000)))
    failures.note(a_failure(a_need(9000), at=FRESH_S))
    assert failures.has_fresh(2 * FRESH_S)
    assert len(failures) == 2
    assert not failures.has_fresh(2 * FRESH_S + 0.001)
    assert len(failures) == 0
