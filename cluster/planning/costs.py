"""What the devices of a plan cost per hour and per million tokens. Pure.

Only devices count: no CPUs, network, storage or people. The tokens are those of all requests at the planned rate. A
cluster that is used half of the time costs twice as much per token.
"""

from collections.abc import Mapping
from types import MappingProxyType

import msgspec

from cluster.planning.demand import Demand

ASSUMED_PRICES: Mapping[str, float] = MappingProxyType(
    {"a100": 1.60, "h100": 3.20, "h200": 3.99, "b200": 6.00, "rtx pro 6000": 1.85}
)
"""US dollars per device and hour: the on-demand list prices of one provider (hyperstack.cloud/gpu-pricing) on 26 August
2026, read from a copy by a third party. They are an assumption, not an offer: list prices of one device differ between
providers by a factor of four. Higher prices raise all costs alike.
"""


class Costs(msgspec.Struct, frozen=True, kw_only=True):
    """US dollars."""

    per_hour: float
    per_million_tokens: float
    """Prompt tokens and answer tokens count alike."""
    per_million_answer_tokens: float
    """The answer tokens bear the cost of the prompts, too."""


def costs_of(num_devices: int, price: float, rate_per_s: float, demand: Demand) -> Costs:
    per_hour = num_devices * price
    per_request = per_hour / 3600 / rate_per_s
    return Costs(
        per_hour=per_hour,
        per_million_tokens=1e6 * per_request / (demand.prompt + demand.output),
        per_million_answer_tokens=1e6 * per_request / demand.output,
    )
