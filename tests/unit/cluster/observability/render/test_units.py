import pytest

from cluster.observability.panels.panel import Unit
from cluster.observability.render.units import shown


@pytest.mark.parametrize(
    ("unit", "value", "text"),
    [
        (Unit.SHARE, 0.857, "85.7 %"),
        (Unit.SHARE, 0.0, "0 %"),
        (Unit.SECONDS, 0.0, "0 s"),
        (Unit.SECONDS, 0.0421, "42.1 ms"),
        (Unit.SECONDS, 2e-7, "0.2 us"),
        (Unit.SECONDS, 5.2e6, "60.2 d"),
        (Unit.SECONDS, -3 * 86400.0, "-3 d"),
        (Unit.PER_SECOND, 0.25, "0.25/s"),
        (Unit.TOKENS_PER_SECOND, 12_345.0, "12.3 k/s"),
        (Unit.BYTES_PER_SECOND, 2.5e10, "25 GB/s"),
        (Unit.COUNT, 7.0, "7"),
        (Unit.COUNT, 999.7, "1,000"),
        (Unit.RATIO, 12_345.0, "12,345"),
    ],
)
def test_value_is_written_in_three_digits_of_the_unit_that_suits_it(unit: Unit, value: float, text: str) -> None:
    assert shown(unit, value) == text


@pytest.mark.parametrize("unit", Unit)
def test_each_unit_can_be_written(unit: Unit) -> None:
    assert shown(unit, 1.0)
