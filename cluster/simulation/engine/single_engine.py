"""One engine and a list of arrivals, without a cluster, to check the step model with. Pure."""

from collections.abc import Sequence

import msgspec

from cluster.simulation.engine.engine_request import EngineOutput, EngineRequest, Moment
from cluster.simulation.engine.engine_setting import EngineSetting, StepTimes
from cluster.simulation.engine.simulated_engine import SimulatedEngine


class EngineArrival(msgspec.Struct, frozen=True, array_like=True):
    at_s: float
    num_prompt: int
    num_output: int


class Served(msgspec.Struct, kw_only=True):
    """What became of an arrival. Times are on the clock of the arrivals."""

    arrival: EngineArrival
    first_at: float
    last_at: float
    num_preemptions: int = 0

    @property
    def ttft_s(self) -> float:
        return self.first_at - self.arrival.at_s

    @property
    def tpot_s(self) -> float:
        """0 for a single token."""
        return (self.last_at - self.first_at) / max(self.arrival.num_output - 1, 1)


def serve(setting: EngineSetting, model: StepTimes, arrivals: Sequence[EngineArrival]) -> list[Served]:
    """Run all arrivals, which must be in order of time, and return their results in the same order."""
    engine = SimulatedEngine(setting, model)
    requests = [EngineRequest(str(i), arrival.num_prompt, arrival.num_output) for i, arrival in enumerate(arrivals)]
    served = [Served(arrival=arrival, first_at=0.0, last_at=0.0) for arrival in arrivals]

    def note(outputs: list[EngineOutput], now: float) -> None:
        for request, moment in outputs:
            record = served[int(request.request_id)]
            if moment is Moment.FIRST_TOKEN:
                record.first_at = now
            record.last_at = now
            record.num_preemptions = request.num_preemptions

    for arrival, request in zip(arrivals, requests, strict=True):
        if not setting.fits(arrival.num_prompt, arrival.num_output):
            raise ValueError(f"{arrival} does not fit into the engine's memory")
        while (now := engine.next_at) < arrival.at_s:
            note(engine.advance(), now)
        engine.submit(request, arrival.at_s)
    while not engine.is_empty:
        now = engine.next_at
        note(engine.advance(), now)
    return served
