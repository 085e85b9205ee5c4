"""Holder: a worker in the table of KV blocks, and the layout of a table entry.

An entry is an int. Its lowest GENERATION_BITS are the generation in which the block was last used. Above them are the
places of the block: for each holder with blocks a slot with one bit for each tier.
"""

from typing import Final, final

GPU: Final = 1
HOST: Final = 2
DISK: Final = 4
ALL: Final = 7

GENERATION_BITS: Final = 30
"""Bits for the generation of an entry. One digit of a Python int: fewer save nothing, more cost time in each step."""
GENERATION: Final = (1 << GENERATION_BITS) - 1
"""The bits of an entry that are its generation."""
SLOT_BITS: Final = 3


NO_SLOT: Final = -1
"""The slot of a worker of which the table knows no block."""


@final
class Holder:
    """A worker in the table."""

    __slots__ = ("_entries", "_generation", "bits", "is_cut", "num_closed", "slot", "unit", "worker_bit")

    def __init__(self, worker_bit: int) -> None:
        """`worker_bit`: the worker's bit in WorkerBits."""
        self.worker_bit = worker_bit
        self.slot = NO_SLOT
        """The bits of the worker in entries. NO_SLOT while the table knows no block of the worker."""
        self.unit = 0
        """The GPU bit of the slot. 0 without a slot."""
        self.bits: dict[int, int] = {}
        """The bits of the slot by place."""
        self.is_cut = False
        """The table has dropped blocks of the worker."""
        self.num_closed = 0
        """Slots that the worker had before, and that entries may still have."""
        self._generation = -1
        self._entries: dict[int, int] = {}
        """Entries of one generation by place, so that equal ones are one object."""

    def take_slot(self, slot: int) -> None:
        self.slot = slot
        self.unit = unit_of(slot)
        self.bits = {place: place * self.unit for place in (GPU, HOST, DISK)}
        self._generation = -1

    def leave_slot(self) -> None:
        self.slot, self.unit, self.bits = NO_SLOT, 0, {}

    def entry(self, place: int, generation: int) -> int:
        """The entry of a block that only this worker has, in the tier `place`."""
        if generation != self._generation:
            self._generation = generation
            self._entries = {tier: bits | generation for tier, bits in self.bits.items()}
        return self._entries[place]


def unit_of(slot: int) -> int:
    """The GPU bit of a slot, which is its lowest one."""
    return 1 << (GENERATION_BITS + slot * SLOT_BITS)


def slot_of(unit: int) -> int:
    """The slot of a bit. Where several bits are given, of the highest."""
    return (unit.bit_length() - 1 - GENERATION_BITS) // SLOT_BITS


def single_bits(mask: int) -> list[int]:
    """Each bit of the mask alone, the lowest one first."""
    bits: list[int] = []
    while mask:
        lowest = mask & -mask
        bits.append(lowest)
        mask ^= lowest
    return bits
