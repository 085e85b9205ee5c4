"""A way to run a request: on which workers, what it takes, whom it harms, and what all that costs
(router/placement/cost.py).

Placement makes a dozen for every request, of which few are told to anybody: those become messages.
"""

from typing import final

from cluster.messages.ids import Path
from cluster.messages.placement import Prediction
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
    __slots__ = ("duty", "gap_s", "step_s", "ttft_s")

    def __init__(self, ttft_s: float, gap_s: float, step_s: float, duty: Shares) -> None:
        self.ttft_s = ttft_s
        self.gap_s = gap_s
        """Between the first token and the second, before what a step takes."""
        self.step_s = step_s
        self.duty = duty
        """Of the worker that decodes."""


@final
class Harm:
    """What the request does to others."""

    __slots__ = ("engine_s", "future_victims", "victims", "wanted_s")

    def __init__(self, victims: float, future_victims: float, engine_s: float, wanted_s: float) -> None:
        self.victims = victims
        self.future_victims = future_victims
        self.engine_s = engine_s
        self.wanted_s = wanted_s
        """Of that, what others would have had a use for."""


@final
class Option:
    """One that has been priced. The fields mean what they do in `Prediction` (cluster/messages/placement.py)."""

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
    )

    def __init__(self, workers: Workers, times: Times, harm: Harm, *, holds_first: bool) -> None:
        self.path = workers.path
        self.prefill = workers.prefill
        self.decode = workers.decode
        self.victims = harm.victims
        self.future_victims = harm.future_victims
        self.gpu_s = harm.engine_s
        self.engine_gap_s = times.gap_s
        self.holds_first = holds_first
        self.ttft_s = self.tpot_s = self.engine_ttft_s = self.engine_tpot_s = 0.0
        self.risk = self.cost = 0.0

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
        )
