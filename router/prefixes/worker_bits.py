"""WorkerBits: a bit for each worker, so that a set of workers is an int."""

from typing import Final, final

from cluster.messages.ids import WorkerId

MAX_GROUPS: Final = 4096
"""Sets of workers whose members are cached. More cost memory; fewer cost CPU for each look-up."""


@final
class WorkerBits:
    __slots__ = ("_bits", "_free", "_groups", "_num_bits", "_workers")

    def __init__(self) -> None:
        self._bits: dict[WorkerId, int] = {}
        self._workers: dict[int, WorkerId] = {}
        self._num_bits = 0
        self._free: list[int] = []
        self._groups: dict[int, tuple[WorkerId, ...]] = {}
        """Members by mask: a cache for `workers_of`."""

    def of(self, worker: WorkerId) -> int:
        return self._bits.get(worker) or self._add(worker)

    def workers_of(self, mask: int) -> tuple[WorkerId, ...]:
        """The workers with these bits. Retired workers are left out."""
        group = self._groups.get(mask)
        if group is None:
            if len(self._groups) >= MAX_GROUPS:
                self._groups.clear()
            group = self._groups[mask] = tuple([worker for bit, worker in self._workers.items() if mask & bit])
        return group

    def retire(self, worker: WorkerId) -> int | None:
        """The worker is gone. Its bit stays in use until `release`. Returns None if the worker has no bit."""
        bit = self._bits.pop(worker, None)
        if bit is not None:
            del self._workers[bit]
            self._groups.clear()
        return bit

    def release(self, bit: int) -> None:
        """Another worker may have the bit."""
        self._free.append(bit)

    def validate(self, retired: list[int]) -> None:
        """Assert every invariant. `retired`: bits of retired workers that are not released."""
        assert self._bits == {worker: bit for bit, worker in self._workers.items()}
        bits = [*self._workers, *self._free, *retired]
        assert sorted(bits) == [1 << number for number in range(self._num_bits)]

    def _add(self, worker: WorkerId) -> int:
        if not self._free:
            self._free.append(1 << self._num_bits)
            self._num_bits += 1
        bit = self._free.pop()
        self._bits[worker], self._workers[bit] = bit, worker
        self._groups.clear()
        return bit
