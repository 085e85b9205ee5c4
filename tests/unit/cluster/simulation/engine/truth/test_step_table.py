import pytest

from cluster.simulation.engine.truth.step_table import StepTable, interpolated
from tests.unit.cluster.simulation.engine.truth.tables import TABLE


@pytest.mark.parametrize(("work", "seconds"), [(1, 0.01), (8, 0.01), (20, 0.015), (32, 0.02), (56, 0.03)])
def test_times_are_interpolated_and_go_on_as_between_the_last_points(work: int, seconds: float) -> None:
    assert interpolated(TABLE.decode_s, work) == pytest.approx(seconds)


def test_requests_that_decode_beside_a_prompt_add_what_they_add_to_a_decode_batch() -> None:
    alone_s, beside_s = TABLE.step_s(500, 1e6, 0, 0), TABLE.step_s(468, 1e6, 32, 10_000)
    assert beside_s - alone_s == pytest.approx(0.020 - 0.010 + 0.001)


def test_scaled_table_takes_the_factor_of_the_time() -> None:
    work = 700, 1e6, 12, 9000
    assert TABLE.scaled(3.0).step_s(*work) == pytest.approx(3 * TABLE.step_s(*work))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"prompt_s": ((100, 0.02),)}, "prompt_s must be two or more"),
        ({"prompt_s": ((100, 0.02), (50, 0.03))}, "prompt_s must be two or more"),
        ({"decode_s": ((1, 0.02), (2, 0.01))}, "decode_s must be two or more"),
        ({"context_s": -1e-9}, "must not be negative"),
        ({"prompt_s": ((100, 0.001), (200, 0.03))}, "must not be shorter"),
    ],
)
def test_table_whose_times_fall_is_refused(change: dict[str, object], message: str) -> None:
    given = {name: getattr(TABLE, name) for name in ("prompt_s", "decode_s", "attended_s", "context_s")}
    with pytest.raises(ValueError, match=message):
        StepTable(**{**given, **change})
