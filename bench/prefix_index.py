"""The prefix index: what a look-up, a prediction, an event, a snapshot and a departure cost, and the memory per block.

Single-threaded, in CPU time of this process, with the worst and the usual case of each: prompts that every worker
holds, and prompts of which each worker holds another length. The memory is the growth of the process, over ten million
blocks of a thousand workers: when they are stored, after as many changes as a quarter of them, and with a full index.
"""

import argparse
import gc
import random
import resource
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

from cluster.messages.ids import WorkerId
from cluster.messages.kv_events import KvChange, KvEvents, KvTier
from router.prefixes.index import PrefixIndex

SIZES = ((64, 32), (100, 2048), (1000, 128))
"""Workers, and blocks of a prompt: 512, 32k and 2k tokens."""
MESSAGE_BLOCKS = 1024
"""Blocks of the largest message of a worker, which is the largest part of a snapshot."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--blocks", type=int, default=1 << 20, help="indexed beside the prompts (%(default)s)")
    parser.add_argument("--memory", type=int, default=0, help="blocks whose memory is measured, e.g. 10000000")
    arguments = parser.parse_args()
    rng = random.Random(0)
    for num_workers, num_blocks in SIZES:
        print(f"{num_workers} workers, prompts of {num_blocks} blocks, {arguments.blocks} other blocks")
        look_ups(rng, num_workers, num_blocks, arguments.blocks)
    events(rng, arguments.blocks)
    if arguments.memory:
        memory(rng, arguments.memory)


def look_ups(rng: random.Random, num_workers: int, num_blocks: int, num_others: int) -> None:
    index, sender = PrefixIndex(), Sender()
    workers = [WorkerId(f"replica-{number}") for number in range(num_workers)]
    for worker in workers:
        sender.snapshot(index, worker, hashes(rng, num_others // num_workers))
    shared, ragged, scattered = (hashes(rng, num_blocks) for _ in range(3))
    for number, worker in enumerate(workers):
        sender.stored(index, worker, shared)
        sender.stored(index, worker, ragged[: (number + 1) * num_blocks // num_workers])
    for block in scattered:  # no two neighbours have the same holders
        for worker in [workers[0], *rng.sample(workers, num_workers // 4)]:
            sender.stored(index, worker, [block])
    missing = hashes(rng, num_blocks)
    show("held by all", lambda: index.longest(shared, 0.0))
    show("each another length", lambda: index.longest(ragged, 0.0))
    show("holders change at each block", lambda: index.longest(scattered, 0.0))
    show("held by none", lambda: index.longest(missing, 0.0))
    fresh = iter([hashes(rng, num_blocks) for _ in range(200)])
    show("a prediction, new prompt", lambda: index.predict(workers[0], next(fresh), 0.0), 200)
    show("a prediction, known prompt", lambda: index.predict(workers[0], shared, 0.0))


def events(rng: random.Random, num_blocks: int) -> None:
    index, sender = PrefixIndex(), Sender()
    worker, other = WorkerId("one"), WorkerId("other")
    parts = [hashes(rng, 32) for _ in range(num_blocks // 32)]
    took = [timed(partial(sender.stored, index, worker, part)) for part in parts]
    print(f"events of 32 stored blocks: mean {1e6 * sum(took) / len(took):.1f} us, longest {1e3 * max(took):.1f} ms")
    held = hashes(rng, 100_000)
    took = [timed(partial(sender.snapshot, index, other, held[:MESSAGE_BLOCKS]))]
    for at in range(MESSAGE_BLOCKS, len(held), MESSAGE_BLOCKS):
        took.append(timed(partial(sender.stored, index, other, held[at : at + MESSAGE_BLOCKS])))
    print(f"a snapshot of 100,000 blocks: {1e3 * sum(took):.1f} ms, its longest part {1e3 * max(took):.1f} ms")
    print(
        f"that worker forgotten: {1e6 * timed(lambda: index.forget(other)):.1f} us, and then per message of the sweep:"
    )
    took = [timed(lambda: sender.stored(index, worker, [])) for _ in range(len(parts) // 8)]
    print(f"  mean {1e6 * sum(took) / len(took):.1f} us, longest {1e3 * max(took):.1f} ms")


def memory(rng: random.Random, num_blocks: int, num_workers: int = 1000) -> None:
    """Blocks of snapshots, of which the first 16 of 512 belong to a prompt that 16 workers hold."""
    index, sender = PrefixIndex(), Sender()
    workers = [WorkerId(f"replica-{number}") for number in range(num_workers)]
    shared = [hashes(rng, 16) for _ in range(num_workers)]
    gc.collect()
    before, took, began = resident_bytes(), list[float](), time.process_time()
    while index.num_blocks < num_blocks:
        for number, worker in enumerate(workers):
            held = list[bytes]()
            for turn in range(MESSAGE_BLOCKS // 512):
                held += shared[(number + turn) % num_workers] + hashes(rng, 496)
            took.append(timed(partial(sender.stored, index, worker, held)))
            if index.num_blocks >= num_blocks:
                break
    report("stored", index, before, took)
    took = []
    for _ in range(num_blocks // 4 // MESSAGE_BLOCKS):
        worker, fresh = rng.choice(workers), hashes(rng, MESSAGE_BLOCKS)
        took.append(timed(partial(sender.stored, index, worker, fresh)))
        took.append(timed(partial(sender.removed, index, worker, fresh)))
    report("after changes", index, before, took)
    took = []
    for _ in range(num_blocks // MESSAGE_BLOCKS):
        took.append(timed(partial(sender.stored, index, rng.choice(workers), hashes(rng, MESSAGE_BLOCKS))))
    report("after as many new ones", index, before, took)
    print(f"  in all {time.process_time() - began:.0f} s, those of this bench included")


def report(what: str, index: PrefixIndex, before: int, took: list[float]) -> None:
    grown = resident_bytes() - before
    mean, worst = 1e3 * sum(took) / len(took), 1e3 * max(took)
    print(
        f"{what}: {index.num_blocks} blocks, {grown / 1e6:.0f} MB, {grown / index.num_blocks:.0f} bytes per block; ",
        end="",
    )
    print(f"messages of {MESSAGE_BLOCKS} blocks: mean {mean:.2f} ms, longest {worst:.1f} ms")


def resident_bytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()


class Sender:
    """Numbers the messages of workers."""

    def __init__(self) -> None:
        self._numbers: dict[WorkerId, int] = {}

    def snapshot(self, index: PrefixIndex, worker: WorkerId, block_hashes: list[bytes]) -> None:
        self._send(index, worker, block_hashes, True)

    def stored(self, index: PrefixIndex, worker: WorkerId, block_hashes: list[bytes]) -> None:
        self._send(index, worker, block_hashes, worker not in self._numbers)

    def removed(self, index: PrefixIndex, worker: WorkerId, block_hashes: list[bytes]) -> None:
        self._send(index, worker, block_hashes, False, is_stored=False)

    def _send(
        self,
        index: PrefixIndex,
        worker: WorkerId,
        block_hashes: list[bytes],
        is_snapshot: bool,
        is_stored: bool = True,
    ) -> None:
        number = self._numbers[worker] = self._numbers.get(worker, 0) + 1
        index.handle(KvEvents(worker, number, is_snapshot, True, [KvChange(KvTier.GPU, is_stored, block_hashes)]), 0.0)


def hashes(rng: random.Random, num_blocks: int) -> list[bytes]:
    return [rng.randbytes(8) for _ in range(num_blocks)]


def show(what: str, call: Callable[[], object], rounds: int = 500) -> None:
    took = sorted(timed(call) for _ in range(rounds))
    print(f"  {what:30} median {1e6 * took[len(took) // 2]:8.1f} us   p99 {1e6 * took[len(took) * 99 // 100]:8.1f} us")


def timed(call: Callable[[], object]) -> float:
    began = time.process_time()
    call()
    return time.process_time() - began


if __name__ == "__main__":
    main()
