"""An option: a path on given workers, with what it takes, whom it harms, and what all of that costs
(router/placement/cost.py).

Placement prices about a dozen options for each request. Only the few that a placement mentions become messages
(`Option.prediction`).
"""

from typing import final

from cluster.messages.ids import Path
from cluster.messages.placement import Prediction
from router.load.charge import Work
from router.load.prefill_share import Shares
from router.load.worker_state import WorkerState


@final
class Workers:
    __slots__ = ("decode", "path", "prefill")

    def __init__(self, path: Path, prefill: WorkerState | None, decode: WorkerState | None) -> None:
        self.path = path
        self.prefill = prefill
        self.decode = decode


@final
class Times:
    """When the tokens of the request come, in seconds, by the engine models alone."""

    __slots__ = (
        "gap_s",
        "longest_step_s",
        "memory_wait_s",
        "overtaking_s",
        "stall_share",
        "step_s",
        "step_softness",
        "ttft_s",
    )

    def __init__(
        self,
        ttft_s: float,
        overtaking_s: float,
        gap_s: float,
        step_s: float,
        stall_share: Shares,
        memory_wait_s: float,
        longest_step_s: float,
        step_softness: float,
    ) -> None:
        self.ttft_s = ttft_s
        self.overtaking_s = overtaking_s
        """Part of `ttft_s` that prompts which are yet to come are expected to take."""
        self.memory_wait_s = memory_wait_s
        """Part of `ttft_s` in which the request waits for KV memory."""
        self.gap_s = gap_s
        """Time between the first token and the second, less the length of a step."""
        self.step_s = step_s
        self.stall_share = stall_share
        """Stall share of the worker that decodes."""
        self.longest_step_s = longest_step_s
        """Longest step with prompts on the worker that decodes; inf where nothing bounds it."""
        self.step_softness = step_softness
        """How uncertain the mean length of steps with prompts is on that worker, as a share of it."""


@final
class Harm:
    """What an option does to other requests."""

    __slots__ = ("engine_s", "future_victims", "victims", "wanted_s")

    def __init__(self, victims: float, future_victims: float, engine_s: float, wanted_s: float) -> None:
        self.victims = victims
        self.future_victims = future_victims
        self.engine_s = engine_s
        """Time of the engines that the option takes."""
        self.wanted_s = wanted_s
        """Part of `engine_s` that other requests would have used."""


@final
class Option:
    """A path on given workers, with its price. Most fields mean the same as in `Prediction`
    (cluster/messages/placement.py).
    """

    __slots__ = (
        "cost",
        "decode",
        "engine_gap_s",
        "engine_tpot_s",
        "engine_ttft_s",
        "future_victims",
        "gpu_s",
        "holds_first",
        "path",
        "prefill",
        "risk",
        "tpot_s",
        "ttft_s",
        "victims",
        "waits_s",
        "work",
    )

    def __init__(self, workers: Workers, work: Work, times: Times, harm: Harm, *, holds_first: bool = False) -> None:
        self.path = workers.path
        self.prefill = workers.prefill
        self.decode = workers.decode
        self.work = work
        """What the workers are charged if the option is chosen."""
        self.victims = harm.victims
        self.future_victims = harm.future_victims
        self.gpu_s = harm.engine_s
        self.engine_gap_s = times.gap_s
        self.holds_first = holds_first
        self.ttft_s = self.tpot_s = self.engine_ttft_s = self.engine_tpot_s = 0.0
        self.risk = self.cost = self.waits_s = 0.0

    def prediction(self) -> Prediction:
        return Prediction(
            self.path,
            self.prefill.worker if self.prefill is not None else None,
            self.decode.worker if self.decode is not None else None,
            self.ttft_s,
            self.tpot_s,
            self.risk,
            self.victims,
            self.gpu_s,
            self.cost,
            self.engine_ttft_s,
            self.engine_tpot_s,
            self.engine_gap_s,
            self.future_victims,
            self.holds_first,
            self.waits_s,
        )
