"""Truth: what the steps of the simulated engines really take. The Scheduler's predictions start from the roofline."""

from typing import Final, Literal, get_args

import msgspec

from cluster.simulation.engine.engine_setting import StepTimes
from cluster.simulation.engine.truth.step_table import StepTable
from cluster.simulation.engine.truth.tiled_steps import TiledSteps
from cluster.simulation.engine.truth.uneven_steps import Noise
from router.prediction.step_model import StepModel

Form = Literal["roofline", "tiled"]
FORMS: Final[tuple[Form, ...]] = get_args(Form)


class Stragglers(msgspec.Struct, frozen=True, kw_only=True):
    """Workers that are slower than the others. The constructor checks the ranges."""

    number: int = 0
    factor: float = 1.0
    """Factor on the time of each of their steps."""

    def __post_init__(self) -> None:
        if self.number < 0 or not 1 <= self.factor < float("inf"):
            raise ValueError(
                f"stragglers {self.number}x{self.factor:g} are not a number from 0 and a factor of at least 1"
            )

    def split(self, num_prefill: int, num_decode: int) -> tuple[int, int]:
        """How many of them are prefill and decode workers. They are spread over both pools, which differ by one at
        most unless a pool is too small.
        """
        prefill = max(min(num_prefill, (self.number + 1) // 2), self.number - num_decode)
        return prefill, self.number - prefill


class Truth(msgspec.Struct, frozen=True, kw_only=True):
    form: Form | StepTable = "roofline"
    """The step times of a worker without noise. The roofline is that from which the Scheduler predicts."""
    noise: Noise = Noise()
    stragglers: Stragglers = Stragglers()
    seed: int = 0
    """Seed of the noise. Each worker has its own noise."""

    def __post_init__(self) -> None:
        if not isinstance(self.form, StepTable) and self.form not in FORMS:
            raise ValueError(f"unknown truth {self.form!r}; the known ones are {', '.join(FORMS)} and a StepTable")

    def step_times(self, roofline: StepModel) -> StepTimes:
        """The step times of a worker without noise that is no straggler."""
        match self.form:
            case "roofline":
                return roofline
            case "tiled":
                return TiledSteps(roofline)
            case table:
                return table
