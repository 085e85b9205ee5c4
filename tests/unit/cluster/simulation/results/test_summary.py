"""What a simulated run comes to, from its records."""

from typing import Any

import msgspec
import pytest

from cluster.messages.ids import Outcome, Path, SloClass
from cluster.messages.placement import Slo
from cluster.simulation.results.summary import Quantiles, aligned, measured, summary, table, who_attained
from cluster.simulation.traffic.workload import RequestRecord


def a_record(arrival_s: float = 0.0, **fields: Any) -> RequestRecord:
    defaults: dict[str, Any] = {
        "num_prompt": 100,
        "num_output": 10,
        "slo": Slo(1.0, 0.05),
        "path": Path.DECODE,
        "ttft_s": 0.5,
        "tpot_s": 0.02,
        "outcome": Outcome.FINISHED,
    }
    return RequestRecord(arrival_s=arrival_s, **(defaults | fields))


def a_rejected(arrival_s: float = 0.0, **fields: Any) -> RequestRecord:
    return a_record(arrival_s, path=None, ttft_s=None, tpot_s=None, outcome=Outcome.REJECTED, **fields)


@pytest.mark.parametrize(
    ("record", "is_good"),
    [
        (a_record(), True),
        (a_record(ttft_s=1.0, tpot_s=0.05), True),
        (a_record(ttft_s=1.01), False),
        (a_record(tpot_s=0.051), False),
        (a_record(tpot_s=None, num_output=1), True),
        (a_record(outcome=Outcome.FAILED), False),
        (a_record(outcome=Outcome.ABORTED), False),
        (a_rejected(), False),
    ],
)
def test_request_is_good_when_it_finished_within_both_objectives(record: RequestRecord, is_good: bool) -> None:
    assert record.is_good is is_good


def test_first_tenth_by_arrival_is_left_out() -> None:
    late_first = [a_record(float(t)) for t in reversed(range(20))]
    assert [record.arrival_s for record in measured(late_first)] == [float(t) for t in range(2, 20)]


def test_attainment_counts_all_that_was_offered() -> None:
    records = [a_record(float(t)) for t in range(10)] + [a_record(float(t), tpot_s=1.0) for t in range(10, 15)]
    records += [a_rejected(float(t)) for t in range(15, 20)]
    run = summary(records)
    assert run.num_requests == 18
    assert run.attainment == pytest.approx(8 / 18)
    assert run.accepted == pytest.approx(13 / 18)
    assert run.accepted_attainment == pytest.approx(8 / 13)
    assert run.goodput_per_s == pytest.approx(8 / 17)
    assert run.good_tokens_per_s == pytest.approx(80 / 17)
    assert run.by_path == {"-": pytest.approx(5 / 18), "D": pytest.approx(13 / 18)}


def test_latencies_are_those_of_requests_that_had_any() -> None:
    run = summary([a_record(t / 10, ttft_s=t / 100) for t in range(100)] + [a_rejected(11.0)])
    assert run.ttft_s == Quantiles(0.55, 0.91, 0.99)


def test_prediction_error_is_relative_to_what_came() -> None:
    records = [a_record(t, predicted_ttft_s=p) for t, p in enumerate([0.0, 0.25, 0.5, 0.5, 1.0])] + [a_rejected(9)]
    error = summary(records[1:]).ttft_error
    assert error is not None
    assert (error.mean, error.p50, error.p90, error.bias) == (0.375, 0.5, 1.0, 1.0)
    assert summary(records[1:]).tpot_error is None


def test_fairness_is_one_for_equals_and_a_share_for_one_favourite() -> None:
    equals = [a_record(t, tenant=f"t{t % 4}") for t in range(40)]
    assert summary(equals).fairness == pytest.approx(1.0)
    favourite = [a_record(t, tenant=f"t{t % 4}", ttft_s=0.1 if t % 4 == 0 else 9.0) for t in range(40)]
    assert summary(favourite).fairness == pytest.approx(0.25)
    assert summary(favourite).by_tenant == {"t0": 1.0, "t1": 0.0, "t2": 0.0, "t3": 0.0}


def test_quarters_go_from_short_to_long_prompts() -> None:
    records = [a_record(t, num_prompt=t, ttft_s=9.0 if t >= 30 else 0.1) for t in range(40)]
    assert summary(records).by_prompt_length == pytest.approx((1.0, 1.0, 8 / 9, 0.0))


def test_tokens_count_where_long_prompts_are_refused() -> None:
    records = [a_record(t, num_prompt=90, num_output=10) for t in range(10)]
    records += [a_record(10.0 + t, num_prompt=890, num_output=10, ttft_s=9.0) for t in range(10)]
    run = summary(records)
    assert run.attainment == pytest.approx(8 / 18)
    assert run.token_attainment == pytest.approx(800 / 9800)
    assert run.longest_tenth == 0.0


def test_classes_are_told_apart() -> None:
    run = summary([a_record(t, slo_class=SloClass.BATCH if t % 2 else SloClass.STANDARD) for t in range(20)])
    assert run.by_class == {"batch": 1.0, "standard": 1.0}


def test_retry_after_is_judged_by_the_first_retry() -> None:
    records = [a_rejected(t, retry_after_s=4.0) for t in range(5)]
    records += [a_record(5.0 + t, num_tries=2) for t in range(3)] + [a_record(9, num_tries=4)]
    retries = summary(records).retries
    assert (retries.num_told, retries.told_p50_s, retries.num_retried) == (4, 4.0, 4)
    assert retries.first_retry_share == 0.75


def test_run_without_requests_has_no_figures() -> None:
    with pytest.raises(ValueError, match="without requests"):
        summary([])


def test_table_is_aligned_and_says_dash_for_what_there_is_not() -> None:
    text = table([("goodput", summary([a_record(t) for t in range(20)])), ("none", summary([a_rejected()]))])
    heading, goodput, none = text.splitlines()
    assert len(heading) == len(goodput) == len(none)
    assert "0/100/0" in goodput and " - " in none
    assert aligned([["a", "b"], ["long", "1000"]]) == "a        b\nlong  1000"


def test_who_attained_names_classes_and_tenants_only_where_there_are_several() -> None:
    alone = summary([a_record(t) for t in range(20)])
    assert who_attained([("goodput", alone)]).splitlines()[0].split()[2:] == [
        "shortest",
        "2nd",
        "3rd",
        "longest",
        "longest",
        "10%",
    ]
    several = [a_record(t, tenant=f"t{t % 2}", ttft_s=9.0 if t % 2 else 0.1) for t in range(20)]
    several += [a_rejected(t, tenant="t0", retry_after_s=7.0) for t in range(20, 24)]
    heading, line = who_attained([("goodput", summary(several))]).splitlines()
    assert heading.split()[-6:] == ["t1:", "fairness", "Retry-After", "right", "at", "once"]
    assert "7 s" in line and line.endswith("-")


def test_figures_survive_json() -> None:
    run = summary([a_record(t) for t in range(20)])
    assert msgspec.json.decode(msgspec.json.encode(run), type=type(run)) == run
