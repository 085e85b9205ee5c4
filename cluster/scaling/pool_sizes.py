"""PoolSizes: a number of workers for each pool. Pure."""

from collections.abc import Callable
from typing import NamedTuple

from cluster.messages.ids import Pool


class PoolSizes(NamedTuple):
    prefill: int
    decode: int

    @classmethod
    def by_pool(cls, number: Callable[[Pool], int]) -> "PoolSizes":
        return cls(number(Pool.PREFILL), number(Pool.DECODE))

    @property
    def total(self) -> int:
        return self.prefill + self.decode

    def of(self, pool: Pool) -> int:
        return self.prefill if pool is Pool.PREFILL else self.decode

    def changed(self, pool: Pool, by: int) -> "PoolSizes":
        if pool is Pool.PREFILL:
            return PoolSizes(self.prefill + by, self.decode)
        return PoolSizes(self.prefill, self.decode + by)
