"""Pools: how many workers a cluster has, and how many devices they take. Pure."""

import msgspec


class Pools(msgspec.Struct, frozen=True):
    """Numbers of workers, and of the devices of each."""

    num_prefill: int
    num_decode: int
    tensor_parallel: int

    @property
    def num_workers(self) -> int:
        return self.num_prefill + self.num_decode

    @property
    def num_devices(self) -> int:
        return self.num_workers * self.tensor_parallel
