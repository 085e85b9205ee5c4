"""Sizing: what a cluster of given pools costs and gives, for the computed pools and for the simulated ones. Pure."""

import msgspec

from cluster.planning.cells import cells_of
from cluster.planning.costs import Costs, costs_of
from cluster.planning.demand import Demand
from cluster.planning.pools import Pools


class Sizing(msgspec.Struct, frozen=True, kw_only=True):
    pools: Pools
    num_devices: int
    decode_per_prefill: float
    """Decode workers for each prefill worker."""
    rate_per_device: float
    """Offered requests per second and device."""
    goodput_per_s: float
    """Requests per second within their objectives."""
    attainment: float
    """Share of the requests within their objectives. For computed pools it is the target."""
    token_attainment: float | None
    """Share of the tokens that belong to requests within their objectives. None for computed pools."""
    num_cells: int
    scheduler_cores: float
    """CPU seconds per second of the Schedulers of all cells together."""
    handoff_bytes_per_s: float
    """Bytes per second of all handoffs, if every request is handed over."""
    per_prefill_worker: float
    """Bytes per second that leave a prefill worker then."""
    per_decode_worker: float
    """Bytes per second that reach a decode worker then."""
    costs: Costs | None
    """None if the price of a device is not known."""


class Priced(msgspec.Struct, frozen=True, kw_only=True):
    """What the figures of a cluster depend on, apart from its pools."""

    demand: Demand
    rate_per_s: float
    kv_bytes_per_token: int
    price: float | None
    """US dollars per device and hour."""

    def sizing(self, pools: Pools, attainment: float, token_attainment: float | None = None) -> Sizing:
        rate, demand = self.rate_per_s, self.demand
        cells = cells_of(rate, demand, pools.num_workers)
        handoffs = rate * demand.kv_bytes(self.kv_bytes_per_token)
        return Sizing(
            pools=pools,
            num_devices=pools.num_devices,
            decode_per_prefill=pools.num_decode / pools.num_prefill,
            rate_per_device=rate / pools.num_devices,
            goodput_per_s=rate * attainment,
            attainment=attainment,
            token_attainment=token_attainment,
            num_cells=cells.number,
            scheduler_cores=cells.cores,
            handoff_bytes_per_s=handoffs,
            per_prefill_worker=handoffs / pools.num_prefill,
            per_decode_worker=handoffs / pools.num_decode,
            costs=None if self.price is None else costs_of(pools.num_devices, self.price, rate, demand),
        )
