"""What requests of a simulated workload have to meet. Pure.

A TTFT objective that is the same for all prompts would be one of length, not of service: here it grows with what the
prompt takes alone on an idle prefill worker, as in DistServe's and Mooncake's SLO scales.
"""

import re
from collections.abc import Callable, Mapping
from types import MappingProxyType

import msgspec

from cluster.simulate.workload import Arrival
from cluster.types import Slo, SloClass

_CUSTOM = re.compile(r"(?P<base>[\d.]+)(\+(?P<factor>[\d.]+)x)?/(?P<tpot>[\d.]+)")


class SloRule(msgspec.Struct, frozen=True):
    """TTFT within `ttft_s + prefill_factor` times the isolated prefill, TPOT within `tpot_s`."""

    ttft_s: float
    prefill_factor: float
    tpot_s: float

    def slo(self, isolated_prefill_s: float) -> Slo:
        return Slo(self.ttft_s + self.prefill_factor * isolated_prefill_s, self.tpot_s)


RULES: Mapping[str, SloRule] = MappingProxyType(
    {
        "tight": SloRule(1.0, 3.0, 0.030),
        "mid": SloRule(1.0, 3.0, 0.050),
        "loose": SloRule(1.0, 3.0, 0.100),
        "tTTFT": SloRule(0.3, 1.5, 0.100),
    }
)


def parse_rules(text: str) -> dict[SloClass, SloRule]:
    """Of `mid`, `0.5+2x/0.04`, or a list of them by class: `interactive=tight,standard=mid,batch=30/0.2`. A class that
    is not named has the rule of the first one.

    Raises:
        ValueError: it is none of these.
    """
    named = [part.strip().rpartition("=") for part in text.split(",")]
    if not all(name for name, _, _ in named) and len(named) > 1:
        raise ValueError(f"{text!r}: several rules need a class each, as in interactive=tight,batch=loose")
    first = parse_rule(named[0][2])
    given = {_slo_class(name): parse_rule(rule) for name, _, rule in named if name}
    return {slo_class: given.get(slo_class, first) for slo_class in SloClass}


def parse_rule(text: str) -> SloRule:
    """
    Raises:
        ValueError: neither a name of RULES nor TTFT/TPOT in seconds.
    """
    if rule := RULES.get(text):
        return rule
    match = _CUSTOM.fullmatch(text)
    if match is None:
        raise ValueError(f"{text!r} is no SLO: give {', '.join(RULES)} or TTFT+Nx/TPOT in seconds, as in 0.5+2x/0.04")
    return SloRule(float(match["base"]), float(match["factor"] or 0.0), float(match["tpot"]))


def slo_of(rules: Mapping[SloClass, SloRule], isolated_prefill_s: Callable[[int], float]) -> Callable[[Arrival], Slo]:
    return lambda row: rules[row.slo_class].slo(isolated_prefill_s(row.num_prompt))


def _slo_class(name: str) -> SloClass:
    try:
        return SloClass(name)
    except ValueError:
        raise ValueError(f"{name!r} is no SLO class: {', '.join(SloClass)}") from None
