"""A process that meters requests until it is killed: `python -m ... URL FOLDER INGRESS`. It prints what it opened, and
what it closed, as soon as the recorder has taken it.
"""

import asyncio
import random
import sys
from pathlib import Path

import msgspec

from api.metering.recorder import UsageRecorder
from api.state.postgres.database import Database
from api.state.postgres.ledger.ledger_store import LedgerStore
from tests.unit.usage_rows import a_row, an_opening


async def main(url: str, folder: Path, ingress: str) -> None:
    database = Database(url, 4)
    await database.open()
    store = LedgerStore(database)
    recorder = UsageRecorder(lambda: store, folder, ingress)
    recorder.start()
    await asyncio.gather(*(requests(recorder, ingress) for _ in range(20)))


async def requests(recorder: UsageRecorder, ingress: str) -> None:
    while True:
        opening = an_opening(int(1000 * asyncio.get_running_loop().time()) + 1_700_000_000_000, ingress=ingress)
        opening = msgspec.structs.replace(opening, id=opening.id[:24] + f"{random.getrandbits(48):012x}")
        recorder.opened(opening)
        say(f"opened {opening.id}")
        await asyncio.sleep(random.random() / 5)
        recorder.closed([a_row(id=opening.id)])
        say(f"closed {opening.id}")


def say(line: str) -> None:
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], Path(sys.argv[2]), sys.argv[3]))
