"""Blocks that leave the DRAM tier because they are wrong, in vLLM's own manager and without an engine."""

from typing import Any

import pytest
from vllm.v1.kv_offload.base import LookupResult, OffloadKey, ReqContext, make_offload_key
from vllm.v1.kv_offload.cpu.manager import CPUOffloadingManager

from kvtransfer.tiers.forgetting import Tiers

NUM_CHUNKS = 4


def keys(*numbers: int) -> list[OffloadKey]:
    return [make_offload_key(bytes([number]) * 32, 0) for number in numbers]


class Dram:
    def __init__(self) -> None:
        self.manager = CPUOffloadingManager(num_chunks=NUM_CHUNKS, enable_events=True)
        self.tiers = Tiers(self.manager)
        self.request = ReqContext("request")

    def begin(self, *numbers: int) -> Any:
        return self.manager.prepare_store(keys(*numbers), self.request)

    def store(self, *numbers: int) -> None:
        assert self.begin(*numbers) is not None
        self.manager.complete_store(keys(*numbers), self.request)

    def found(self) -> list[int]:
        hit = LookupResult.HIT
        return [n for n in range(10) if self.manager.lookup(keys(n)[0], self.request) is hit]

    def removed(self) -> list[OffloadKey]:
        return [key for event in self.manager.take_events() if event.removed for key in event.keys]


@pytest.fixture
def dram() -> Dram:
    return Dram()


def test_forgotten_blocks_are_gone_and_their_room_is_free(dram: Dram) -> None:
    dram.store(0, 1, 2, 3)
    dram.tiers.forget(keys(1, 2, 9))
    assert dram.found() == [0, 3]
    assert dram.removed() == keys(1, 2)
    dram.store(4, 5)
    assert dram.found() == [0, 3, 4, 5], "nothing else had to leave"
    assert [dram.tiers.has(keys(n)[0]) for n in (0, 1)] == [True, False]


def test_block_that_is_being_read_is_found_by_nobody_and_dropped_after_that(dram: Dram) -> None:
    dram.store(0, 1)
    dram.manager.prepare_load(keys(0), dram.request)
    dram.tiers.forget(keys(0))
    assert (dram.found(), dram.removed()) == ([1], [])
    dram.tiers.drop_later()
    assert dram.tiers.has(keys(0)[0])
    dram.manager.complete_load(keys(0), dram.request)
    dram.tiers.drop_later()
    assert (dram.found(), dram.removed()) == ([1], keys(0))
    dram.store(0)
    assert dram.found() == [0, 1], "the block that is computed anew is found"


def test_block_that_is_being_written_is_never_found(dram: Dram) -> None:
    dram.begin(0)
    dram.tiers.forget(keys(0))
    dram.manager.complete_store(keys(0), dram.request)
    assert dram.found() == []
    dram.tiers.drop_later()
    assert (dram.found(), dram.removed()) == ([], keys(0))


def test_everything_is_forgotten(dram: Dram) -> None:
    dram.store(0, 1, 2)
    dram.manager.prepare_load(keys(1), dram.request)
    dram.tiers.forget_all()
    assert dram.found() == []
    dram.manager.complete_load(keys(1), dram.request)
    dram.tiers.drop_later()
    dram.store(4, 5, 6, 7)
    assert dram.found() == [4, 5, 6, 7]
