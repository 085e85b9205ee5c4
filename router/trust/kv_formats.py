"""KvFormats: which formats the KV blocks of each pool have, and whether the pools can hand over to each other.

Engines of unequal formats start and serve, but hand nothing over. Nobody would notice but by the missing links.
"""

from collections import Counter
from typing import Final, final

from cluster.messages.ids import Pool, WorkerId
from cluster.messages.kv_format import KvFormat

MOST_NOTED: Final = 32
"""Pairs of formats that are kept as noted. More takes memory; with fewer, a pair is noted again after so many others.
"""


@final
class KvFormats:
    def __init__(self) -> None:
        self._workers: dict[WorkerId, tuple[Pool, KvFormat]] = {}
        self._formats: dict[Pool, Counter[KvFormat]] = {pool: Counter() for pool in Pool}
        """Workers of each format, by pool. A pool has one format, and two during an update."""
        self._noted: list[tuple[KvFormat, KvFormat]] = []
        self._new: list[str] = []

    def add(self, worker: WorkerId, pool: Pool, added: KvFormat) -> None:
        """A worker has started."""
        self._workers[worker] = (pool, added)
        self._formats[pool][added] += 1
        if self._formats[pool][added] > 1:
            return
        for pair in self._pairs():
            if (why := unequal(*pair)) is not None and pair not in self._noted:
                self._noted = [*self._noted[1 - MOST_NOTED :], pair]
                self._new.append(why)

    def remove(self, worker: WorkerId) -> None:
        """A worker is gone. No-op if it is not known."""
        if (known := self._workers.pop(worker, None)) is not None:
            pool, removed = known
            self._formats[pool][removed] -= 1
            if not self._formats[pool][removed]:
                del self._formats[pool][removed]

    def take_new(self) -> list[str]:
        """What has come to light since the last call: why workers of two formats cannot hand over."""
        new, self._new = self._new, []
        return new

    @property
    def mismatch(self) -> str | None:
        """Why no prefill worker can hand over to any decode worker. None if one can, or if a pool has no workers."""
        whys = [unequal(prefill, decode) for prefill, decode in self._pairs()]
        return whys[0] if whys and None not in whys else None

    def _pairs(self) -> list[tuple[KvFormat, KvFormat]]:
        return [(prefill, decode) for prefill in self._formats[Pool.PREFILL] for decode in self._formats[Pool.DECODE]]


def unequal(prefill: KvFormat, decode: KvFormat) -> str | None:
    """Why a decode engine cannot use the KV blocks of a prefill engine. None if it can, as far as the formats show."""
    if prefill.digest != decode.digest or prefill.settings != decode.settings:
        others = dict(decode.settings)
        differences = [
            f"{name} is {value} in the prefill pool and {others.get(name, 'unknown')} in the decode pool"
            for name, value in prefill.settings
            if others.get(name) != value
        ]
        return "; ".join(differences) or "the digests that vLLM compares differ between the pools"
    many, few = max(prefill.num_ranks, decode.num_ranks), min(prefill.num_ranks, decode.num_ranks)
    sizes = f"tensor_parallel_size is {prefill.num_ranks} in the prefill pool and {decode.num_ranks} in the decode pool"
    if many % few:
        return f"{sizes}, and the smaller must divide the larger"
    if prefill.num_ranks > decode.num_ranks and prefill.num_ranks > prefill.num_kv_heads and not prefill.is_replicated:
        return f"{sizes}, and the model has {prefill.num_kv_heads} key-value heads: the prefill pool may not have more"
    return None
