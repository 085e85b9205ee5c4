"""The table of the bench of cells, and what it refuses to run."""

import sys

import pytest

from bench.cells.compare import CellsTrial, main, run, table


def a_trial(num_cells: int, num_fronts: int = 1) -> CellsTrial:
    return CellsTrial(
        traffic="agents", num_cells=num_cells, num_fronts=num_fronts, num_workers=4, num_requests=80, rate=0.1
    )


def test_goodput_is_compared_with_that_of_one_cell() -> None:
    one, two = run(a_trial(1)), run(a_trial(2, 2))
    lines = table([one, two]).splitlines()
    assert lines[1].split()[5] == "1.000"
    assert lines[2].split()[5] == f"{two.goodput_per_s / one.goodput_per_s:.3f}"
    assert (one.busiest, one.moved) == (1.0, 0.0)
    assert two.busiest > 1.0
    assert table([two]).splitlines()[1].split()[5] == "-"


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--cells", "3"], "32 workers cannot be divided into 3 cells"),
        (["--cells", "32"], "with two workers or more"),
        (["--cells", "0"], "cannot be divided"),
        (["--rate", "nan"], "give a positive factor"),
        (["--rate", "0"], "give a positive factor"),
        (["--ingresses", "0"], "give 1 or more"),
        (["--requests", "-5"], "--requests is -5: give 1 or more"),
        (["--jobs", "0"], "--jobs is 0"),
    ],
)
def test_arguments_that_cannot_be_run_are_refused(
    arguments: list[str], said: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["compare", *arguments])
    with pytest.raises(SystemExit) as ended:
        main()
    assert ended.value.code == 2
    assert said in capsys.readouterr().err
