"""The Scheduler's service as a process of its own, without Ray: `python -m tests.hostile.core.scheduler_child FOLDER`.

The folder is the store of the registry. The process prints a line when it serves, and ends when it was replaced.
"""

import asyncio
import sys
from pathlib import Path

from cluster.rpc.listener import Listener
from cluster.scheduler_registry import SchedulerRegistry
from router.epoch_watch import EpochWatch
from router.scheduler_service import SchedulerService
from router.state import RouterState


class FolderStore:
    """A `KeyValueStore` of files."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def get(self, key: str) -> bytes | None:
        try:
            return (self._folder / key).read_bytes()
        except FileNotFoundError:
            return None

    def put(self, key: str, value: bytes) -> None:
        written = self._folder / f"{key}-of-{id(self)}"
        written.write_bytes(value)
        written.rename(self._folder / key)

    def put_new(self, key: str, value: bytes) -> bool:
        try:
            with (self._folder / key).open("xb") as file:
                file.write(value)
        except FileExistsError:
            return False
        return True

    def remove(self, key: str) -> None:
        (self._folder / key).unlink(missing_ok=True)

    def keys(self, prefix: str) -> list[str]:
        return [file.name for file in self._folder.glob(f"{prefix}*")]


async def serve(folder: Path) -> None:
    replaced = asyncio.Event()
    service = SchedulerService(RouterState(), lambda epoch: watch.heard_of(epoch)).service
    listener = await Listener.start("127.0.0.1", service)
    registry = SchedulerRegistry(FolderStore(folder))
    watch = EpochWatch(registry, registry.claim(listener.address, "n0"), replaced.set)
    sys.stdout.write("serving\n")
    sys.stdout.flush()
    await replaced.wait()
    await listener.close()


if __name__ == "__main__":
    asyncio.run(serve(Path(sys.argv[1])))
