"""What counts as good, what counts at all, and over which time."""

import pytest

from cluster.load.record import LoadEnding
from cluster.load.report.figures import MOST_ERRORS
from cluster.messages.ids import SloClass
from tests.unit.cluster.load.report.records import record, refused, summed, without_tokens


def test_refused_and_failed_requests_have_missed_their_objectives_and_are_counted_apart() -> None:
    run = summed(
        [record(0), record(1), refused(2), without_tokens(3, LoadEnding.TIMED_OUT), without_tokens(4, LoadEnding.CUT)]
    )
    assert run.attainment.value == pytest.approx(0.4)
    assert run.endings == {LoadEnding.FINISHED: 2, LoadEnding.REFUSED: 1, LoadEnding.TIMED_OUT: 1, LoadEnding.CUT: 1}
    assert run.retry_after_p50_s == 4.0


def test_late_answers_are_not_good() -> None:
    run = summed([record(0), record(1, ttft_s=1.1), record(2, tpot_s=0.11), record(3, tpot_s=None, num_output=1)])
    assert run.attainment.value == 0.5


def test_answer_whose_tokens_nobody_counted_is_not_good() -> None:
    run = summed([record(0, num_output=None, tpot_s=None), record(1)])
    assert run.attainment.value == 0.5 and run.num_uncounted == 1


def test_goodput_is_good_requests_per_second_of_the_time_in_which_they_were_served() -> None:
    run = summed([record(number, ttft_s=0.5 if number % 2 else 2.0) for number in range(10)])
    assert run.offered_per_s == pytest.approx(1.0)
    assert run.goodput_per_s.value == pytest.approx(0.5)


def test_endpoint_that_keeps_up_finishes_as_much_as_was_offered() -> None:
    run = summed([record(number, ended_s=number + 0.1) for number in range(10)])
    assert run.goodput_per_s.value == run.finished_per_s == run.offered_per_s == pytest.approx(1.0)


def test_goodput_of_an_endpoint_that_falls_behind_is_not_above_what_it_finishes() -> None:
    run = summed([record(number, due_s=number / 4, ended_s=number / 2 + 1) for number in range(240)], rate=4.0)
    assert run.attainment.value == 1.0 and run.offered_per_s == pytest.approx(4.0)
    assert run.goodput_per_s.value == pytest.approx(run.finished_per_s) == pytest.approx(2.0, rel=0.02)
    assert run.drain_s == pytest.approx(239 / 4 + 1)


def test_shares_of_the_endings_have_intervals() -> None:
    run = summed([*(record(number) for number in range(90)), *(refused(90 + number) for number in range(10))])
    assert (run.finished_share.value, run.refused_share.value, run.failed_share.value) == (0.9, 0.1, 0.0)
    assert run.failed_share.low == 0.0 and 0.03 < run.failed_share.upper < 0.04


def test_closed_loop_counts_over_the_time_in_which_it_served() -> None:
    records = [record(number, due_s=0.0, ended_s=5.0) for number in range(10)]
    run = summed(records, rate=None)
    assert run.window_s == 5.0 and run.goodput_per_s.value == pytest.approx(2.0)


def test_warm_up_is_in_no_figure() -> None:
    records = [record(number, ttft_s=9.0 if number < 2 else 0.5) for number in range(20)]
    run = summed(records, warm_up=0.1)
    assert (run.num_warm_up, run.num_requests, run.attainment.value) == (2, 18, 1.0)
    assert run.ttft_s is not None and run.ttft_s.max == 0.5


def test_stopped_requests_do_not_count() -> None:
    run = summed([record(0), record(1), without_tokens(2, LoadEnding.STOPPED)])
    assert (run.num_requests, run.num_stopped, run.attainment.value) == (2, 1, 1.0)


def test_load_without_any_answer_has_figures() -> None:
    run = summed([without_tokens(number, LoadEnding.UNREACHABLE, status=0) for number in range(3)])
    assert [run.ttft_s, run.tpot_s, run.e2e_s, run.itl_s] == [None] * 4
    assert run.attainment.value == 0.0 and run.finished_per_s == 0.0
    assert summed([]).num_requests == 0


def test_errors_are_grouped_and_bounded() -> None:
    records = [
        without_tokens(number, LoadEnding.HTTP_ERROR, status=500 + number % 40, error=f"{number}")
        for number in range(400)
    ]
    run = summed(records)
    assert len(run.errors) == MOST_ERRORS
    assert {error.number for error in run.errors} == {10}


def test_cached_tokens_and_lengths_are_those_that_usage_counts() -> None:
    run = summed([record(0, num_cached=50), record(1, num_cached=0, num_prompt=110, num_output=5)])
    assert run.cached_share == pytest.approx(50 / 210)
    assert run.mean_prompt == 105 and run.num_short == 1
    assert run.prompt_error == pytest.approx(0.05)
    assert summed([record(0)]).cached_share is None


def test_attainment_by_class() -> None:
    run = summed([record(0), record(1, slo_class=SloClass.BATCH, ttft_s=5.0)])
    assert run.attainment_by_class == {SloClass.STANDARD: 1.0, SloClass.BATCH: 0.0}


def test_itl_is_over_all_gaps() -> None:
    run = summed([record(0)])
    assert run.itl_s is not None and run.itl_s.p50 == pytest.approx(0.05)
