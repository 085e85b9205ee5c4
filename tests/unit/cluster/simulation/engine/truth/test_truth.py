import msgspec
import pytest

from cluster.simulation.engine.truth.tiled_steps import TiledSteps
from cluster.simulation.engine.truth.truth import Stragglers, Truth
from router.prediction.hardware import H100, QWEN3_32B
from router.prediction.roofline import step_model
from tests.unit.cluster.simulation.engine.truth.tables import TABLE

ROOFLINE = step_model(QWEN3_32B, H100, tensor_parallel=2)


def test_form_makes_the_step_times() -> None:
    assert Truth().step_times(ROOFLINE) is ROOFLINE
    assert isinstance(Truth(form="tiled").step_times(ROOFLINE), TiledSteps)
    assert Truth(form=TABLE).step_times(ROOFLINE) is TABLE


@pytest.mark.parametrize(
    ("number", "pools", "split"),
    [
        (0, (4, 4), (0, 0)),
        (1, (4, 4), (1, 0)),
        (3, (4, 4), (2, 1)),
        (3, (0, 8), (0, 3)),
        (5, (1, 7), (1, 4)),
        (5, (7, 1), (4, 1)),
        (8, (4, 4), (4, 4)),
    ],
)
def test_stragglers_are_in_both_pools(number: int, pools: tuple[int, int], split: tuple[int, int]) -> None:
    assert Stragglers(number=number, factor=2.0).split(*pools) == split


@pytest.mark.parametrize("truth", [Truth(form="tiled", seed=3), Truth(form=TABLE)])
def test_truth_is_written_and_read_as_json(truth: Truth) -> None:
    read = msgspec.json.decode(msgspec.json.encode(truth), type=Truth)
    assert read == truth and hash(read) == hash(truth)


@pytest.mark.parametrize(("number", "factor"), [(-1, 2.0), (1, 0.5), (1, float("inf")), (1, float("nan"))])
def test_stragglers_out_of_range_are_refused(number: int, factor: float) -> None:
    with pytest.raises(ValueError, match="a factor of at least 1"):
        Stragglers(number=number, factor=factor)


def test_unknown_form_is_refused() -> None:
    with pytest.raises(ValueError, match="'flat'; the known ones are roofline, tiled"):
        Truth(form="flat")  # type: ignore[arg-type]  # a name that is no form
