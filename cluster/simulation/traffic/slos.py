"""The objectives of simulated requests: named objectives, and a syntax for further ones. Pure.

Each named objective allows a fixed TTFT, plus a multiple of the time that the prompt takes alone on an idle worker, as
the SLO scales of DistServe and Mooncake do.
"""

import re
from collections.abc import Callable, Mapping
from types import MappingProxyType

from cluster.messages.ids import SloClass
from cluster.messages.placement import Slo
from cluster.simulation.traffic.workload import Arrival
from cluster.slo import Objective, SloConfig

_SPELT = re.compile(r"(?P<ttft>[\d.]+)(\+(?P<factor>[\d.]+)x)?/(?P<tpot>[\d.]+)")

OBJECTIVES: Mapping[str, Objective] = MappingProxyType(
    {
        "tight": Objective(ttft_s=1.0, ttft_per_prefill=3.0, tpot_s=0.030),
        "mid": Objective(ttft_s=1.0, ttft_per_prefill=3.0, tpot_s=0.050),
        "loose": Objective(ttft_s=1.0, ttft_per_prefill=3.0, tpot_s=0.100),
        "chat": Objective(ttft_s=0.1, ttft_per_prefill=2.0, tpot_s=0.025),
        "tTTFT": Objective(ttft_s=0.3, ttft_per_prefill=1.5, tpot_s=0.100),
    }
)


def parse_slos(text: str) -> SloConfig:
    """Parse one objective for all classes, or a list by class, such as `interactive=tight,batch=30/0.2`.

    `parse_objective` has the syntax of an objective. A class without an objective gets the first objective of the list.

    Raises:
        ValueError: the text is neither an objective nor a list of objectives by class.
    """
    named = [part.strip().rpartition("=") for part in text.split(",")]
    if len(named) > 1 and not all(name for name, _, _ in named):
        raise ValueError(f"{text!r}: several objectives need a class each, as in interactive=tight,batch=loose")
    unknown = {name for name, _, _ in named} - {"", *SloClass}
    if unknown:
        raise ValueError(f"{min(unknown)!r} is not an SLO class: give one of {', '.join(SloClass)}")
    objectives = dict.fromkeys(map(str, SloClass), parse_objective(named[0][2]))
    objectives.update({name: parse_objective(objective) for name, _, objective in named if name})
    return SloConfig(**objectives)


def parse_objective(text: str) -> Objective:
    """Parse a name of OBJECTIVES, or `TTFT+Nx/TPOT` in seconds, such as `0.5+2x/0.04`. `+Nx` may be left out.

    Raises:
        ValueError: the text is neither of them.
    """
    if objective := OBJECTIVES.get(text):
        return objective
    match = _SPELT.fullmatch(text)
    if match is None:
        raise ValueError(
            f"{text!r} is not an SLO: give {', '.join(OBJECTIVES)}, or TTFT+Nx/TPOT in seconds, as in 0.5+2x/0.04"
        )
    return Objective(
        ttft_s=float(match["ttft"]), ttft_per_prefill=float(match["factor"] or 0.0), tpot_s=float(match["tpot"])
    )


def slo_of(slos: SloConfig, isolated_prefill_s: Callable[[int], float]) -> Callable[[Arrival], Slo]:
    """A function from a request to its SLO, from the objectives and the time of a prompt alone on an idle worker."""
    return lambda row: slos.of(row.slo_class).resolve(isolated_prefill_s(row.num_prompt))
