"""The DRAM tier of an engine that runs on the CPU, with the disk tier behind it.

vLLM's offloading moves blocks between an accelerator and host memory only. Here both ends are host memory, so a
transfer is a copy, which is done when it is submitted. vLLM decides which blocks go where and when: this is its tiering
spec with another worker.
"""

import time
from typing import cast

import torch
from vllm.v1.kv_offload.base import (
    BlockIDsLoadStoreSpec,
    CanonicalKVCaches,
    GPULoadStoreSpec,
    LoadStoreSpec,
    OffloadingWorker,
    TransferResult,
)
from vllm.v1.kv_offload.cpu.shared_offload_region import SharedOffloadRegion
from vllm.v1.kv_offload.tiering.spec import TieringOffloadingSpec


class HostTieringSpec(TieringOffloadingSpec):
    """Loaded by name from the engine's configuration (kvtransfer/tiers/connector_arguments.py)."""

    _worker: OffloadingWorker | None

    def get_worker(self, kv_caches: CanonicalKVCaches) -> OffloadingWorker:
        if self._worker is None:
            region = SharedOffloadRegion(
                engine_id=self.config.engine_id,
                num_chunks=self.num_chunks,
                rank=self.config.parallel.rank,
                kv_bytes_per_chunk=self.kv_bytes_per_chunk,
                cpu_page_size=self.cpu_page_size_per_worker,
            )
            self._worker = HostWorker(kv_caches, region)
        return self._worker


class HostWorker(OffloadingWorker):
    """Copies blocks between the engine's KV tensors and the tier's region, which the scheduler's process shares."""

    def __init__(self, kv_caches: CanonicalKVCaches, region: SharedOffloadRegion) -> None:
        self._region = region
        self._engine_pages = [
            tensor.tensor.view(torch.int8).view(-1, tensor.page_size_bytes) for tensor in kv_caches.tensors
        ]
        self._tier_pages = [region.create_next_worker_view(tensor.page_size_bytes) for tensor in kv_caches.tensors]
        self._finished: list[TransferResult] = []

    def submit_store(self, job_id: int, src_spec: GPULoadStoreSpec, dst_spec: LoadStoreSpec) -> bool:
        self._copy(job_id, self._engine_pages, src_spec, self._tier_pages, dst_spec)
        return True

    def submit_load(self, job_id: int, src_spec: LoadStoreSpec, dst_spec: GPULoadStoreSpec) -> bool:
        self._copy(job_id, self._tier_pages, src_spec, self._engine_pages, dst_spec)
        return True

    def get_finished(self) -> list[TransferResult]:
        finished, self._finished = self._finished, []
        return finished

    def wait(self, job_ids: set[int]) -> None:
        """Return at once: every job is finished when it has been submitted."""

    def shutdown(self) -> None:
        self._tier_pages.clear()  # the region cannot be unmapped while it is viewed
        self._region._creator = (
            False  # cleanup() would remove the file's name, which is already gone (kvtransfer/tiers/shared_memory.py)
        )
        self._region.cleanup()

    def _copy(
        self,
        job_id: int,
        sources: list[torch.Tensor],
        source: LoadStoreSpec,
        targets: list[torch.Tensor],
        target: LoadStoreSpec,
    ) -> None:
        start_s = time.monotonic()
        source_rows, target_rows = _rows(source), _rows(target)
        for source_pages, target_pages in zip(sources, targets, strict=True):
            target_pages[target_rows] = source_pages[source_rows]
        num_bytes = len(source_rows) * sum(pages.shape[1] for pages in sources)
        self._finished.append(TransferResult(job_id, True, num_bytes, time.monotonic() - start_s))


def _rows(spec: LoadStoreSpec) -> torch.Tensor:
    return torch.from_numpy(cast(BlockIDsLoadStoreSpec, spec).block_ids).long()
