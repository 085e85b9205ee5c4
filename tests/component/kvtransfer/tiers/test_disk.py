"""The disk tier as vLLM's offloading drives it, without an engine."""

import hashlib
import mmap
import os
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from vllm.v1.kv_offload.base import LookupResult, ReqContext, make_offload_key
from vllm.v1.kv_offload.tiering.base import ScheduleEndContext, TransferJob
from vllm.v1.metrics.cache_hit_source import CacheHitSource

from kvtransfer.tiers.disk import DiskTier, weights_identity

BLOCK_BYTES, NUM_BLOCKS = 4096, 40
CAPACITY_BYTES = 20 * BLOCK_BYTES


@pytest.fixture
def model(tmp_path: Path) -> Path:
    folder = tmp_path / "model"
    folder.mkdir()
    (folder / "config.json").write_text("{}")
    (folder / "model.safetensors").write_bytes(b"weights")
    return folder


def an_offloading_spec(model: Path) -> Any:
    parallel = SimpleNamespace(tp_size=1, pp_size=1, pcp_size=1, dcp_size=1, rank=0, is_parallelism_agnostic=True)
    config = SimpleNamespace(
        groups=[SimpleNamespace(tokens_per_block=32, layer_names=["layer"])],
        model=SimpleNamespace(name=str(model), dtype="bfloat16"),
        cache=SimpleNamespace(tokens_per_hash=32),
        parallel=parallel,
        canonical_layout=False,
        replicated_layout=False,
    )
    events = SimpleNamespace(enable_kv_cache_events=True)
    return SimpleNamespace(config=config, blocks_per_chunk=1, kv_events_config=events)


class Tier:
    """A disk tier over `memory`, whose block n holds the byte n."""

    def __init__(self, model: Path, disk: Path, engine_digest: str = "engine") -> None:
        pages = mmap.mmap(-1, NUM_BLOCKS * BLOCK_BYTES)  # whole pages: O_DIRECT takes nothing else
        self.memory = np.frombuffer(pages, np.int8).reshape(NUM_BLOCKS, BLOCK_BYTES)
        self.memory[:] = np.arange(NUM_BLOCKS, dtype=np.int8)[:, None]
        self.tier = DiskTier(
            offloading_spec=an_offloading_spec(model),
            primary_kv_view=self.memory.data,
            tier_type="DiskTier",
            backpressure_detector=None,
            root_dir=str(disk),
            capacity_bytes=CAPACITY_BYTES,
            engine_digest=engine_digest,
            revision=None,
        )
        self.num_jobs = 0

    def job(self, blocks: range, *, is_promotion: bool) -> TransferJob:
        self.num_jobs += 1
        keys = [key_of(block) for block in blocks]
        return TransferJob(self.num_jobs, keys, np.array(blocks), is_promotion, ReqContext("request"))

    def finish(self) -> bool:
        self.tier._pool.wait_idle()
        (result,) = self.tier.get_finished_jobs()
        return bool(result.success)

    def store(self, blocks: range) -> bool:
        self.tier.submit_store(self.job(blocks, is_promotion=False))
        return self.finish()

    def load(self, blocks: range) -> bool:
        self.tier.submit_load(self.job(blocks, is_promotion=True))
        return self.finish()

    def has(self, block: int) -> bool:
        request = ReqContext(f"lookup-{block}-{self.num_jobs}")
        self.num_jobs += 1
        result = eventually(lambda: self._looked_up(block, request))
        self.tier.on_request_finished(request)
        return result is LookupResult.HIT

    def _looked_up(self, block: int, request: ReqContext) -> LookupResult | None:
        result = self.tier.lookup(key_of(block), request)
        self.tier.on_schedule_end(ScheduleEndContext(new_req_ids=(), preempted_req_ids=()))
        return None if result is LookupResult.RETRY else result


def key_of(block: int) -> bytes:
    return make_offload_key(hashlib.sha256(bytes([block])).digest(), 0)


def eventually(get: Any, timeout_s: float = 20.0) -> Any:
    deadline = time.monotonic() + timeout_s
    while time.monotonic() < deadline:
        if found := get():
            return found
        os.sched_yield()
    raise TimeoutError


@pytest.fixture
def tiers(model: Path, tmp_path: Path) -> Iterator[Any]:
    started: list[Tier] = []

    def start(**others: Any) -> Tier:
        started.append(Tier(model, tmp_path / "disk", **others))
        return started[-1]

    yield start
    for one in started:
        one.tier.shutdown()


def num_files(disk: Path) -> int:
    return sum(1 for _ in disk.rglob("*.bin"))


def test_blocks_come_back_in_another_process_of_the_same_engine(tiers: Any) -> None:
    assert tiers().store(range(4))
    other = tiers()
    other.memory[:] = -1
    assert other.has(2) and not other.has(5)
    assert other.load(range(4))
    assert [set(row) for row in other.memory[:4]] == [{0}, {1}, {2}, {3}]


def test_blocks_of_other_engine_arguments_are_not_seen(tiers: Any) -> None:
    assert tiers(engine_digest="one").store(range(4))
    assert not tiers(engine_digest="other").has(2)


def test_blocks_of_earlier_weights_under_the_same_name_are_not_seen(tiers: Any, model: Path) -> None:
    assert tiers().store(range(4))
    (model / "model.safetensors").write_bytes(b"other weights")
    assert not tiers().has(2)


def test_disk_does_not_grow_beyond_its_capacity_while_the_engine_runs(tiers: Any, tmp_path: Path) -> None:
    tier = tiers()
    for first in range(0, NUM_BLOCKS, 4):
        assert tier.store(range(first, first + 4))
    assert eventually(lambda: writes_again(tier) and num_files(tmp_path / "disk") * BLOCK_BYTES <= CAPACITY_BYTES)


def writes_again(tier: Tier) -> bool:
    """What is over is removed by the next write at the latest, once the last walk has ended."""
    tier.tier.submit_store(tier.job(range(NUM_BLOCKS - 2, NUM_BLOCKS), is_promotion=False))
    tier.tier._pool.wait_idle()
    return bool(list(tier.tier.get_finished_jobs()))


def test_block_that_goes_while_it_is_asked_for_is_a_miss(tiers: Any, tmp_path: Path) -> None:
    tier = tiers()
    assert tier.store(range(1)) and tier.has(0)
    for file in (tmp_path / "disk").rglob("*.bin"):
        file.unlink()
    assert not tier.load(range(1))
    assert not tier.has(0)


def removed(tier: Tier) -> set[bytes]:
    """What the tier has said to be removed since the last call."""
    return {key for event in list(tier.tier.take_events()) if event.removed for key in event.keys}


def test_forgotten_blocks_are_found_by_nobody_and_all_others_stay(tiers: Any, tmp_path: Path) -> None:
    """Other workers share the disk: a suspicion against one must not empty it for all."""
    one, other = tiers(), tiers()
    assert one.store(range(4)) and other.store(range(10, 14))
    one.tier.forget([key_of(block) for block in (1, 2)])
    assert [one.has(block) for block in range(4)] == [True, False, False, True]
    assert eventually(lambda: num_files(tmp_path / "disk") == 6)
    assert [other.has(block) for block in (0, 1, 2, 3, 10)] == [True, False, False, True, True]
    assert removed(one) == {key_of(1), key_of(2)}
    assert [one.tier.has_written(key_of(block)) for block in range(4)] == [True, False, False, True]


def test_worker_that_forgets_everything_removes_what_it_has_written_alone(tiers: Any, tmp_path: Path) -> None:
    one, other = tiers(), tiers()
    assert one.store(range(4)) and other.store(range(10, 14))
    list(one.tier.take_events())
    assert one.store(range(4, 6))
    one.tier.forget_all()
    assert not any(one.has(block) for block in range(6))
    assert eventually(lambda: num_files(tmp_path / "disk") == 4)
    assert all(one.has(block) and other.has(block) for block in range(10, 14))
    assert removed(one) == {key_of(block) for block in range(6)}


def test_forgotten_block_that_is_written_again_is_found_again(tiers: Any, tmp_path: Path) -> None:
    one = tiers()
    assert one.store(range(4))
    one.tier.forget_all()
    assert eventually(lambda: num_files(tmp_path / "disk") == 0 and not one.tier._forgotten)
    list(one.tier.take_events())
    assert one.store(range(2, 3)) and one.has(2) and not one.has(1)
    list(one.tier.take_events())
    assert one.tier.has_written(key_of(2))


def test_block_whose_file_cannot_be_removed_stays_forgotten(
    tiers: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(self: Path, missing_ok: bool = False) -> None:
        raise OSError("read-only")

    one = tiers()
    assert one.store(range(1))
    monkeypatch.setattr(Path, "unlink", fail)
    one.tier.forget([key_of(0)])
    assert eventually(lambda: "cannot be removed from the disk: read-only" in caplog.text)
    assert num_files(tmp_path / "disk") == 1 and not one.has(0)


def test_hits_are_told_from_those_of_other_tiers(tiers: Any) -> None:
    assert tiers().tier.cache_hit_source is CacheHitSource.DISK


def test_weights_that_cannot_be_identified_are_refused() -> None:
    with pytest.raises(ValueError, match="no/such-model is neither"):
        weights_identity("no/such-model", None)


def test_what_is_written_is_said_and_what_no_longer_fits_is_taken_to_be_removed(tiers: Any) -> None:
    tier = tiers()
    assert tier.store(range(15)) and tier.store(range(3))
    assert [(event.removed, len(event.keys)) for event in tier.tier.take_events()] == [(False, 15), (False, 3)]
    assert tier.store(range(15, 25))
    stored, removed = tier.tier.take_events()
    assert (stored.removed, removed.removed, removed.medium) == (False, True, stored.medium)
    assert removed.keys == [key_of(block) for block in range(3, 8)]
    assert list(tier.tier.take_events()) == []
