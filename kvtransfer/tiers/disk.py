"""The disk tier behind the DRAM tier: vLLM's file system tier, with a capacity and with separate files for other
weights.

vLLM's tier only adds files. This tier also removes the files that were not used for longest
(kvtransfer/tiers/disk_prune.py). It does so in a process of its own, because a walk over a full disk would block the
engine's interpreter for seconds. A file that is removed while a request asks for it is a miss.
"""

import hashlib
import logging
import subprocess
import sys
import threading
from collections.abc import Iterable
from itertools import islice
from pathlib import Path
from typing import Any

import vllm
from huggingface_hub import try_to_load_from_cache
from vllm.v1.kv_offload.base import LookupResult, OffloadingEvent, OffloadingSpec, OffloadKey, ReqContext
from vllm.v1.kv_offload.tiering.base import TransferJob
from vllm.v1.kv_offload.tiering.fs.manager import FileSystemTierManager

from kvtransfer.tiers import disk_prune

logger = logging.getLogger("baton.tiers")

SHARE_BETWEEN_PRUNES = 0.05
"""Share of the capacity that a worker writes between two prunes, and by which it may exceed the capacity. More fills
the disk further; less walks over the disk more often.
"""


class DiskTier(FileSystemTierManager):
    """Loaded by name from the engine's configuration (kvtransfer/tiers/connector_arguments.py), in the process of the
    engine's scheduler.
    """

    def __init__(
        self,
        offloading_spec: OffloadingSpec,
        root_dir: str,
        capacity_bytes: int,
        engine_digest: str,
        revision: str | None,
        **by_vllm: Any,
    ) -> None:
        """All workers that see the files of one `engine_digest` and the same weights share them."""
        weights = weights_identity(offloading_spec.config.model.name, revision)
        identity = f"{vllm.__version__} {engine_digest} {weights}"
        self._folder = Path(root_dir)
        self._capacity_bytes = capacity_bytes
        self._unpruned_bytes = 0
        self._pruning: subprocess.Popen[bytes] | None = None
        self._namespace = self._folder / hashlib.sha256(identity.encode()).hexdigest()[:16]
        self._kept: dict[OffloadKey, None] = {}
        """Blocks that this worker has written, oldest first, and no more than the capacity."""
        self._removed: list[OffloadKey] = []
        """Blocks that were forgotten since the last events."""
        self._forgotten: set[OffloadKey] = set()
        """Blocks that were forgotten, and whose files are not removed yet."""
        super().__init__(offloading_spec, root_dir=str(self._namespace), enable_kv_events=True, **by_vllm)
        self._prune()

    def submit_store(self, job_metadata: TransferJob) -> None:
        self._unpruned_bytes += len(job_metadata.keys) * self.block_size_bytes
        if self._unpruned_bytes > self._capacity_bytes * SHARE_BETWEEN_PRUNES:
            self._prune()
        super().submit_store(job_metadata)

    def take_events(self) -> Iterable[OffloadingEvent]:
        """vLLM's tier reports what it writes, but not what pruning removes. This method reports the oldest blocks as
        removed. Blocks that other workers wrote to the same disk are not reported.
        """
        for event in super().take_events():
            for key in event.keys:
                self._kept.pop(key, None)
                self._kept[key] = None
            yield event
        if self._removed:
            removed, self._removed = self._removed, []
            for key in removed:
                self._kept.pop(key, None)
            yield OffloadingEvent(keys=removed, medium=self.medium, removed=True)
        num_gone = len(self._kept) - self._capacity_bytes // self.block_size_bytes
        if num_gone > 0:
            gone = list(islice(self._kept, num_gone))
            for key in gone:
                del self._kept[key]
            yield OffloadingEvent(keys=gone, medium=self.medium, removed=True)

    def lookup(self, key: OffloadKey, req_context: ReqContext) -> LookupResult:
        return LookupResult.MISS if key in self._forgotten else super().lookup(key, req_context)

    def has_written(self, key: OffloadKey) -> bool:
        """Whether this worker has written the block and not removed it."""
        return key in self._kept

    def forget(self, keys: Iterable[OffloadKey]) -> None:
        """Remove those of the blocks that this worker has written. What other workers have written to the same disk
        stays. This worker does not find the blocks from now on; the files are removed beside the engine's steps.
        """
        unnoted = self._unnoted()
        written = [key for key in keys if key in self._kept or key in unnoted]
        if not written:
            return
        for key in written:
            self._kept.pop(key, None)
        self._removed += written
        self._forgotten.update(written)
        self._lookup_manager.mark_miss(written)
        threading.Thread(target=self._remove, args=(written,), name="baton-disk-forget", daemon=True).start()

    def forget_all(self) -> None:
        """Remove all blocks that this worker has written."""
        self.forget([*self._kept, *self._unnoted()])

    def _unnoted(self) -> set[OffloadKey]:
        """Blocks that are written or being written, and that `take_events` has not given yet."""
        stored = {key for event in self.events or () for key in event.keys}
        return stored.union(*self._store_job_keys.values())

    def _remove(self, keys: list[OffloadKey]) -> None:
        for key in keys:
            try:
                Path(self.file_mapper.get_file_name(key)).unlink(missing_ok=True)
            except OSError as error:  # the block stays forgotten
                logger.error("a wrong block cannot be removed from the disk: %s", error)
            else:
                self._forgotten.discard(key)

    def shutdown(self) -> None:
        super().shutdown()
        if self._pruning is not None:
            self._pruning.wait()

    def _prune(self) -> None:
        if self._pruning is None or self._pruning.poll() is not None:
            self._unpruned_bytes = 0
            command = [sys.executable, disk_prune.__file__, str(self._folder), str(self._capacity_bytes)]
            self._pruning = subprocess.Popen(command)


def weights_identity(model: str, revision: str | None) -> str:
    """Identifies the weights of a model, among others under the same name, by its files with their sizes and times.

    Raises:
        ValueError: the model's files cannot be found, so that blocks of other weights could be taken for its own.
    """
    folder = Path(model)
    if not folder.is_dir():
        cached = try_to_load_from_cache(model, "config.json", revision=revision)
        if not isinstance(cached, str):
            raise ValueError(
                f"a disk tier needs the model as a folder or in the Hugging Face cache, {model} is neither"
            )
        folder = Path(cached).parent
    stats = {file.name: file.stat() for file in sorted(folder.iterdir()) if file.is_file()}
    return " ".join(f"{name}:{stat.st_size}:{stat.st_mtime_ns}" for name, stat in stats.items())
