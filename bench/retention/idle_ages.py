"""For how long blocks had been idle when simulated engines evicted them."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from unittest import mock

from cluster.simulation.engine.kv_cache import KvCache


@contextmanager
def idle_ages(clock: Callable[[], float]) -> Iterator[list[float]]:
    """Collect the idle seconds of all blocks that are evicted from now on, in all engines."""
    ages: list[float] = []
    idle_since: dict[tuple[int, bytes], float] = {}
    release, evict = KvCache.release, KvCache._evict

    def note_release(cache: KvCache, blocks: Sequence[bytes]) -> None:
        release(cache, blocks)
        idle_since.update(dict.fromkeys(((id(cache), block) for block in blocks), clock()))

    def note_evicted(cache: KvCache, num_blocks: int) -> None:
        evict(cache, num_blocks)
        now = clock()
        for block in cache._changes[-1].block_hashes or ():
            if (since := idle_since.pop((id(cache), block), None)) is not None:
                ages.append(now - since)

    with mock.patch.object(KvCache, "release", note_release), mock.patch.object(KvCache, "_evict", note_evicted):
        yield ages
