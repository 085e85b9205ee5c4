"""Pools: how many workers a cluster has, and how many devices they take. Pure."""

from math import ceil

import msgspec


class Pools(msgspec.Struct, frozen=True):
    """Numbers of workers, and of the devices of each."""

    num_prefill: int
    num_decode: int
    tensor_parallel: int

    @property
    def num_workers(self) -> int:
        return self.num_prefill + self.num_decode

    def at_least(self, num_workers: int) -> "Pools":
        """These pools, or larger ones in their proportion that have so many workers."""
        if self.num_workers >= num_workers:
            return self
        scale = num_workers / self.num_workers
        return Pools(ceil(self.num_prefill * scale), ceil(self.num_decode * scale), self.tensor_parallel)

    @property
    def num_devices(self) -> int:
        return self.num_workers * self.tensor_parallel
