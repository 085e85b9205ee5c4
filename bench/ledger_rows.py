"""How many rows of usage per second the ledger takes, in the embedded PostgreSQL.

    make bench-ledger

Two figures: `LedgerStore.write` alone, in batches as the recorder makes them, and the recorder with its spool, from
requests that open and close to rows in the ledger. PostgreSQL waits for its disk at each commit, as in production. The
figures of the recorder have the CPU time of the ingress's half, too: this process without PostgreSQL.
"""

import argparse
import asyncio
import os
import tempfile
import time
from pathlib import Path
from statistics import median

from api.metering.recorder import MOST_AT_ONCE, UsageRecorder
from api.state.postgres.database import Database
from api.state.postgres.ledger.entries import Opening, UsageRow, entry_id
from api.state.postgres.ledger.ledger_store import LedgerStore
from cluster.services.postgres import LocalPostgres

NUM_ROWS = 20_000
"""Rows of one round. More takes longer; fewer measures the start of the round."""
ROUNDS = 5
OPEN_AT_ONCE = 1000
"""Requests that are open at a time. Fewer than a batch has would need no openings in PostgreSQL."""
PATIENCE_S = 120.0
"""Time in which the recorder must have written a round, in seconds."""


def entry() -> str:
    return entry_id(int(time.time() * 1000), os.urandom(10))


def row_of(entry: str) -> UsageRow:
    return UsageRow(
        id=entry,
        attempt=1,
        is_last=True,
        tenant_id=f"{hash(entry) % 50:016x}",
        project_id="proj_0123456789abcdef",
        key_id="key_0123456789abcdef",
        end_user="user-1234",
        model="baton-demo",
        request_id=f"chatcmpl-{entry}",
        http_request=f"req_{entry}",
        slo_class="standard",
        path="P->D",
        outcome="finished",
        ending="finished",
        prompt_tokens=1200,
        cached_tokens=800,
        generated_tokens=240,
        reasoning_tokens=0,
        worker="DecodeWorker#0a1b2c3d",
        worker_tokens=239,
        prefill_worker="PrefillWorker#0a1b2c3d",
        prefill_tokens=1,
        is_complete=True,
        began_s=0.01,
        ttft_s=0.2,
        duration_s=3.4,
        price_version="example-1",
        currency="usd",
        cost_micros=264,
    )


def opening_of(entry: str) -> Opening:
    return Opening(
        id=entry,
        tenant_id="0123456789abcdef",
        model="baton-demo",
        request_id=f"chatcmpl-{entry}",
        slo_class="standard",
        prompt_tokens=1200,
        ingress="bench",
    )


async def store_alone(store: LedgerStore) -> float:
    """Rows per second."""
    batches = [[row_of(entry()) for _ in range(MOST_AT_ONCE)] for _ in range(NUM_ROWS // MOST_AT_ONCE)]
    began = time.perf_counter()
    for batch in batches:
        await store.write([], [], batch)
    return NUM_ROWS / (time.perf_counter() - began)


async def whole_recorder(recorder: UsageRecorder) -> tuple[float, float, float]:
    """Requests per second; microseconds of this process for each request, and of the calls that a session makes."""
    entries = [entry() for _ in range(NUM_ROWS)]
    openings, rows = [opening_of(one) for one in entries], [[row_of(one)] for one in entries]
    began, cpu = time.perf_counter(), time.process_time()
    in_calls = 0.0
    for first in range(0, NUM_ROWS, 100):
        before = time.process_time()
        for opening in openings[first : first + 100]:
            recorder.opened(opening)
        for closed in rows[max(0, first - OPEN_AT_ONCE) : max(0, first + 100 - OPEN_AT_ONCE)]:
            recorder.closed(closed)
        in_calls += time.process_time() - before
        await asyncio.sleep(0)
    for closed in rows[NUM_ROWS - OPEN_AT_ONCE :]:
        recorder.closed(closed)
    if await recorder.drained(PATIENCE_S):
        raise TimeoutError(f"the recorder has not written {NUM_ROWS} rows in {PATIENCE_S:g} s")
    took = time.perf_counter() - began
    return NUM_ROWS / took, (time.process_time() - cpu) / NUM_ROWS * 1e6, in_calls / NUM_ROWS * 1e6


async def measured(url: str, folder: Path) -> None:
    database = Database(url, 2)
    await database.open()
    await database.migrate()
    store = LedgerStore(database)
    rates = [await store_alone(store) for _ in range(ROUNDS)]
    print(f"LedgerStore.write: {_of(rates)} rows/s, in batches of {MOST_AT_ONCE}")
    recorder = UsageRecorder(lambda: store, folder, "bench")
    recorder.start()
    rounds = [await whole_recorder(recorder) for _ in range(ROUNDS)]
    await recorder.close()
    await database.close()
    print(f"UsageRecorder: {_of([one[0] for one in rounds])} requests/s, from their opening to their row")
    print(f"CPU time of the ingress: {_of([one[1] for one in rounds])} us for a request")
    print(f"of it in the calls of a session: {_of([one[2] for one in rounds])} us")


def _of(values: list[float]) -> str:
    return f"{median(values):,.0f} ({min(values):,.0f} to {max(values):,.0f})"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="baton-ledger-") as folder:
        Path(folder).chmod(0o711)  # the server runs as another user
        server = LocalPostgres(Path(folder) / "postgres")
        try:
            asyncio.run(measured(server.start(), Path(folder) / "ledger"))
        finally:
            server.stop()


if __name__ == "__main__":
    main()
