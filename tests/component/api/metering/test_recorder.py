"""Every record that the recorder has taken is in the ledger once, whatever dies."""

import asyncio
import os
import signal
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Callable, Sequence
from pathlib import Path
from typing import Any

import msgspec
import psutil
import psycopg
import pytest
from prometheus_client import REGISTRY

from api.identity.caller import NO_KEY, Caller
from api.metering import record_queue, recorder
from api.metering.meter import Meter
from api.metering.prices import price_list
from api.metering.recorder import UsageRecorder
from api.metering.spool import MAX_UNSYNCED, Spool, encoded
from api.metering.upkeep import LedgerUpkeep
from api.state.postgres.database import Database
from api.state.postgres.ledger.entries import Opening, UsageRow
from api.state.postgres.ledger.ledger_jobs import LedgerJobs
from api.state.postgres.ledger.ledger_store import LedgerStore
from cluster import ending
from cluster.errors import StateUnavailable
from cluster.services.postgres import LocalPostgres
from router.session.receipt import Terms
from tests.architecture.sources import ROOT
from tests.component.api.metering.ledger_rows import Ask
from tests.component.app_with_postgres import without_syncs
from tests.expected import present
from tests.unit.factories import a_receipt, a_request
from tests.unit.fake_ports import FakeObserver
from tests.unit.usage_rows import TENANT, a_row, an_attempt, an_opening

SOON_S = 20.0
IDS = "SELECT id::text, attempt FROM usage_ledger ORDER BY id, attempt"


class AwayStore:
    """PostgreSQL is away until a test says that it is back."""

    def __init__(self) -> None:
        self.store: LedgerStore | None = None
        self.num_tries = 0

    def reached(self) -> LedgerStore:
        self.num_tries += 1
        if self.store is None:
            raise StateUnavailable("away", 1.0)
        return self.store


@pytest.fixture(autouse=True)
def retries_soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recorder, "RETRY_S", 0.02)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "ledger"


@pytest.fixture
async def writing(store: LedgerStore, folder: Path) -> AsyncIterator[UsageRecorder]:
    made = UsageRecorder(lambda: store, folder, "i0")
    made.start()
    yield made
    await made.close()


def files(folder: Path) -> list[str]:
    return sorted(path.suffix for path in folder.iterdir())


def lag_s() -> float:
    """By how much the ledger is behind, as the metrics of this process say."""
    return present(REGISTRY.get_sample_value("baton_ledger_lag_seconds"))


def modes(folder: Path) -> set[int]:
    return {path.stat().st_mode & 0o777 for path in folder.iterdir()}


def said_until_killed(url: str, folder: Path, num_lines: int) -> list[list[str]]:
    """The lines of a process that was killed after so many of them, in words."""
    module = "tests.component.api.metering.killed_writer"
    command = [sys.executable, "-m", module, url, str(folder), "killed"]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as process:
        assert process.stdout is not None
        lines = [process.stdout.readline() for _ in range(num_lines)]
        process.send_signal(signal.SIGKILL)
        lines += process.stdout.readlines()
    return [line.split() for line in lines if line.endswith("\n")]


def kill_server(folder: Path) -> None:
    postmaster = psutil.Process(int((folder / "postmaster.pid").read_text().splitlines()[0]))
    processes = [postmaster, *postmaster.children()]
    for process in processes:
        process.kill()
    psutil.wait_procs(processes, 10.0)


async def until(is_so: Callable[[], bool]) -> None:
    for _ in range(1000):
        if is_so():
            return
        await asyncio.sleep(0.01)
    raise TimeoutError


def rows_in_ledger(ask: Ask) -> list[str]:
    return [entry for entry, _ in ask(IDS)]


async def test_records_are_written_and_leave_no_file(store: LedgerStore, folder: Path, ask: Ask) -> None:
    made = UsageRecorder(lambda: store, folder, "i0")
    made.start()
    openings = [an_opening() for _ in range(300)]
    for opening in openings:
        made.opened(opening)
    assert await made.drained(SOON_S) == 0
    for opening in openings[:250]:
        made.closed([a_row(id=opening.id), a_row(id=opening.id, attempt=2)])
    for opening in openings[250:299]:
        made.withdrawn(opening.id)
    assert await made.drained(SOON_S) == 0
    assert ask(IDS) == [(opening.id, attempt) for opening in openings[:250] for attempt in (1, 2)]
    assert [str(entry) for (entry,) in ask("SELECT id FROM usage_openings")] == [openings[299].id]
    assert ask("SELECT ingress FROM usage_writers") == [("i0",)]
    await made.close()
    assert files(folder) == []
    assert ask("SELECT ingress FROM usage_writers") == []


async def test_nothing_is_lost_while_postgres_is_away(store: LedgerStore, folder: Path, ask: Ask) -> None:
    away = AwayStore()
    made = UsageRecorder(away.reached, folder, "i0")
    made.start()
    rows = [a_row() for _ in range(2500)]
    for row in rows:
        made.closed([row])
    await until(lambda: away.num_tries > 2)
    assert made.num_waiting == 2500 and not made.is_full
    assert 0.0 < lag_s() < SOON_S
    away.store = store
    assert await made.drained(SOON_S) == 0
    assert lag_s() == 0.0
    assert rows_in_ledger(ask) == [row.id for row in rows]
    await made.close()


async def test_server_that_is_killed_and_comes_back_has_every_row_once(tmp_path: Path) -> None:
    server = LocalPostgres(tmp_path / "postgres")
    url = server.start()
    without_syncs(url)
    database = Database(url, 4)
    await database.open()
    await database.migrate()
    store = LedgerStore(database)
    made = UsageRecorder(lambda: store, tmp_path / "ledger", "i0")
    made.start()
    rows: list[UsageRow] = []
    for _ in range(3):
        await asyncio.to_thread(kill_server, tmp_path / "postgres")
        for _ in range(100):
            rows.append(a_row())
            made.closed([rows[-1]])
            await asyncio.sleep(0.001)
        await asyncio.to_thread(server.start)
        await database.drop_broken()
        assert await made.drained(SOON_S) == 0
    with psycopg.connect(url) as connection:
        connection.execute("SELECT set_config('app.tenant_id', '*', true)")
        found = connection.execute("SELECT id::text FROM usage_ledger ORDER BY id").fetchall()
    assert [entry for (entry,) in found] == [row.id for row in rows]
    await made.close()
    await database.close()
    await asyncio.to_thread(server.stop)


async def test_batch_whose_acknowledgement_was_lost_is_written_once(
    store: LedgerStore, folder: Path, ask: Ask, monkeypatch: pytest.MonkeyPatch
) -> None:
    write, failures = LedgerStore.write, iter(["the connection was lost after the commit"])

    async def lossy(self: LedgerStore, *batch: Sequence[UsageRow]) -> int:
        added = await write(self, *batch)  # type: ignore[arg-type]  # the three lists of a batch
        for failure in failures:
            raise OSError(failure)
        return added

    monkeypatch.setattr(LedgerStore, "write", lossy)
    made = UsageRecorder(lambda: store, folder, "i0")
    made.start()
    made.closed([a_row()])
    assert await made.drained(SOON_S) == 0
    assert ask("SELECT count(*) FROM usage_ledger") == [(1,)]
    await made.close()


@pytest.mark.parametrize("is_reached", [True, False])
async def test_process_that_is_killed_loses_no_record_that_it_took(
    postgres: str, database: Database, store: LedgerStore, jobs: LedgerJobs, folder: Path, ask: Ask, is_reached: bool
) -> None:
    url = postgres if is_reached else "postgresql://baton@127.0.0.1:1/baton"
    said = await asyncio.to_thread(said_until_killed, url, folder, 600)
    opened, closed = ({entry for verb, entry in said if verb == what} for what in ("opened", "closed"))
    assert len(closed) > 100 and len(opened - closed) > 5

    successor = UsageRecorder(lambda: store, folder, "i1")
    assert await successor.adopt() > 0
    assert await successor.adopt() == 0
    found = set(rows_in_ledger(ask))
    assert closed <= found  # those of which the line was not read may be there, too
    assert len(found) == len(rows_in_ledger(ask))
    ask("UPDATE usage_openings SET opened_at = now() - interval '1 h'")
    ask("UPDATE usage_writers SET seen_at = now() - interval '1 h'")
    reaped = await jobs.reap(90.0)
    assert reaped.lost == reaped.ended >= len(opened - found)
    ended = dict(ask("SELECT id::text, outcome FROM usage_ledger"))
    assert all(ended[entry] == "finished" for entry in closed)
    assert all(ended[entry] == "lost" for entry in opened - found)
    await successor.close()
    assert files(folder) == []


async def test_torn_and_damaged_lines_are_skipped_and_all_others_are_replayed(
    store: LedgerStore, folder: Path, ask: Ask, caplog: pytest.LogCaptureFixture
) -> None:
    left = Spool(folder)
    rows = [a_row() for _ in range(4)]
    lines = [encoded(msgspec.json.encode(record_queue.Closed([row]))) for row in rows]
    lines[1] = lines[1].replace(b"baton-demo", b"baton-d\xffmo")
    bad = encoded(msgspec.json.encode(record_queue.Closed([a_row()])).replace(b"baton-demo", b"baton-d\xffmo"))
    left.segment.write_bytes(b"".join(lines[:3]) + b"\0\0\0\n" + encoded(b"{}") + bad + lines[3][:-9])
    left.close(is_written=False)
    made = UsageRecorder(lambda: store, folder, "i0")
    assert await made.adopt() == 2
    assert rows_in_ledger(ask) == [rows[0].id, rows[2].id]
    assert "3 incomplete or damaged lines" in caplog.text and "another version" in caplog.text
    assert (folder / "refused").read_bytes() == encoded(b"{}") + bad  # kept for whoever can read it
    await made.close()


async def test_record_that_was_refused_is_written_when_an_operator_gives_it_back(
    store: LedgerStore, folder: Path, ask: Ask
) -> None:
    """As docs/tenants-metering.md says."""
    row = a_row()
    made = UsageRecorder(lambda: store, folder, "i0")
    (folder / "refused").write_bytes(encoded(msgspec.json.encode(record_queue.Closed([row]))) + encoded(b"{}"))
    (folder / "refused").rename(folder / "again.00000000.spool")
    (folder / "again.lock").touch()
    assert await made.adopt() == 1
    assert rows_in_ledger(ask) == [row.id]
    assert (folder / "refused").read_bytes() == encoded(b"{}")
    await made.close()
    assert files(folder) == [""]  # `refused` alone


STORED = {path.stem: path.read_bytes() for path in (Path(__file__).parent / "spools").glob("*.spool")}
"""Spools that older versions have left, each with the number of the last migration that its version knew."""


@pytest.mark.parametrize("version", sorted(STORED))
async def test_records_of_each_older_version_are_written(
    store: LedgerStore, folder: Path, ask: Ask, version: str
) -> None:
    """What an ingress has left is written by its successor, of another version."""
    made = UsageRecorder(lambda: store, folder, "i0")
    (folder / "left.00000000.spool").write_bytes(STORED[version])
    (folder / "left.lock").touch()
    number = len(STORED[version].splitlines())
    assert await made.adopt() == number > 0
    assert not (folder / "refused").exists()
    assert len(ask("SELECT id FROM usage_openings")) + len(rows_in_ledger(ask)) == number
    await made.close()


async def test_complete_segments_are_synced_in_an_outage(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    synced: list[str] = []
    monkeypatch.setattr(os, "fsync", lambda file: synced.append(Path(f"/proc/self/fd/{file}").readlink().name))
    spool = Spool(folder)
    names = []
    for _ in range(3):
        spool.append(b"{}")
        names.append(spool.segment.name)
        spool.rotate()
    spool.sync()
    assert synced == [*names, spool.segment.name]
    for _ in range(10):
        spool.rotate()
    spool.sync()
    assert len(synced) == 4 + MAX_UNSYNCED + 1
    spool.close(is_written=True)
    assert files(folder) == []


async def test_two_processes_that_find_a_spool_write_it_once(store: LedgerStore, folder: Path, ask: Ask) -> None:
    left = Spool(folder)
    for _ in range(50):
        left.append(msgspec.json.encode(record_queue.Closed([a_row()])))
    left.close(is_written=False)
    finders = [UsageRecorder(lambda: store, folder, f"i{number}") for number in range(3)]
    assert sum(await asyncio.gather(*(finder.adopt() for finder in finders))) == 50
    assert ask("SELECT count(*) FROM usage_ledger") == [(50,)]
    for finder in finders:
        await finder.close()


async def test_spool_of_a_process_that_lives_is_left_alone(store: LedgerStore, folder: Path) -> None:
    away = AwayStore()
    alive, other = (UsageRecorder(away.reached, folder, name) for name in ("alive", "other"))
    alive.closed([a_row()])
    away.store = store
    assert await other.adopt() == 0
    assert alive.num_waiting == 1
    await other.close()
    await alive.close()
    assert files(folder) == [".lock", ".spool"]  # it was not written: the next process finds it


class OtherLedger:
    """The ledger of another service, which takes what it is given."""

    def __init__(self) -> None:
        self.rows: list[str] = []

    async def identity(self) -> str:
        return "other"

    async def write(self, openings: Sequence[Opening], closed: Sequence[str], rows: Sequence[UsageRow]) -> int:
        self.rows += [row.id for row in rows]
        return len(rows)

    async def beat(self, ingress: str, waiting: int) -> None: ...

    async def leave(self, ingress: str) -> None: ...


async def left_by(made: UsageRecorder, *rows: UsageRow) -> None:
    """A process has reached its database, and ends before its rows are written."""
    await made.adopt()
    for row in rows:
        made.closed([row])
    await made.close()


async def test_services_that_share_a_folder_write_their_own_rows(store: LedgerStore, folder: Path, ask: Ask) -> None:
    other = OtherLedger()
    theirs, ours = a_row(), a_row()
    await left_by(UsageRecorder(lambda: other, folder, "their-0"), theirs)
    await left_by(UsageRecorder(lambda: store, folder, "our-0"), ours)
    for recorder_of in (UsageRecorder(lambda: store, folder, "our-1"), UsageRecorder(lambda: other, folder, "their-1")):
        assert await recorder_of.adopt() == 1
        await recorder_of.close()
    assert (rows_in_ledger(ask), other.rows) == ([ours.id], [theirs.id])
    assert files(folder) == []


async def test_full_spool_of_another_service_stops_nobody(
    store: LedgerStore, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    await left_by(UsageRecorder(OtherLedger, folder, "theirs"), *(a_row() for _ in range(20)))
    monkeypatch.setattr(record_queue, "MAX_SPOOL_BYTES", 5_000)
    made = UsageRecorder(lambda: store, folder, "ours")
    assert made.is_full  # until it knows which ledger is its own
    await made.adopt()
    assert not made.is_full
    await made.close()


async def test_spool_of_which_nobody_knows_whose_it_is_is_written_where_one_service_has_the_folder(
    store: LedgerStore, folder: Path, ask: Ask, caplog: pytest.LogCaptureFixture
) -> None:
    """Its process has never reached its database."""
    left = Spool(folder)
    left.append(msgspec.json.encode(record_queue.Closed([a_row()])))
    left.close(is_written=False)
    stranger = Spool(folder)
    stranger.mark("other")
    made = UsageRecorder(lambda: store, folder, "ours")
    for _ in range(2):
        assert await made.adopt() == 0
    assert caplog.text.count("nobody knows whose records") == 1
    stranger.close(is_written=True)
    assert await made.adopt() == 1
    assert len(rows_in_ledger(ask)) == 1
    await made.close()


async def test_replay_goes_on_after_postgres_was_away(store: LedgerStore, folder: Path, ask: Ask) -> None:
    left = Spool(folder)
    left.append(msgspec.json.encode(record_queue.Closed([a_row()])))
    left.close(is_written=False)
    away = AwayStore()
    made = UsageRecorder(away.reached, folder, "i0")
    with pytest.raises(StateUnavailable):
        await made.adopt()
    away.store = store
    assert await made.adopt() == 1
    assert ask("SELECT count(*) FROM usage_ledger") == [(1,)]
    await made.close()


async def test_memory_is_bounded_and_the_disk_keeps_the_rest(
    store: LedgerStore, folder: Path, ask: Ask, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(record_queue, "MAX_IN_MEMORY", 50)
    monkeypatch.setattr(record_queue, "SEGMENT_BYTES", 10_000)
    monkeypatch.setattr(recorder, "INTERVAL_S", 0.0)  # each segment is a batch of its own
    away = AwayStore()
    made = UsageRecorder(away.reached, folder, "i0")
    rows = [a_row() for _ in range(1000)]
    for row in rows:
        made.closed([row])
        assert made._queue._num_in_memory <= 100
    assert made.num_waiting == 1000
    away.store = store
    made.start()
    assert await made.drained(SOON_S) == 0
    assert rows_in_ledger(ask) == [row.id for row in rows]
    assert files(folder) == [".lock", ".spool"]  # the segment that is written now
    await made.close()


async def test_full_spool_says_so_and_what_comes_nevertheless_is_lost(
    store: LedgerStore, folder: Path, ask: Ask, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(record_queue, "MAX_SPOOL_BYTES", 5000)
    made = UsageRecorder(lambda: store, folder, "i0")
    while not made.is_full:
        made.closed([a_row()])
    number = made.num_waiting
    made.closed([a_row()])
    made.closed([a_row()])
    assert made.num_waiting == number
    assert caplog.text.count("records of usage are lost") == 1
    made.start()
    assert await made.drained(SOON_S) == 0
    assert ask("SELECT count(*) FROM usage_ledger") == [(number,)]
    await made.close()


async def test_disk_that_takes_nothing_leaves_records_in_memory(
    store: LedgerStore, folder: Path, ask: Ask, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def full(self: Spool, record: bytes) -> None:
        raise OSError("no space left on device")

    monkeypatch.setattr(Spool, "append", full)
    made = UsageRecorder(lambda: store, folder, "i0")
    for _ in range(3):
        made.closed([a_row()])
    made.start()
    assert await made.drained(SOON_S) == 0
    assert ask("SELECT count(*) FROM usage_ledger") == [(3,)]
    assert caplog.text.count("in memory alone") == 1
    await made.close()


async def test_record_that_the_ledger_refuses_keeps_no_other_from_it(
    writing: UsageRecorder, folder: Path, ask: Ask, caplog: pytest.LogCaptureFixture
) -> None:
    rows = [a_row() for _ in range(20)]
    for row in rows:
        writing.closed([row])
    writing.closed([a_row(cached_tokens=11)])
    for row in rows[:5]:
        writing.closed([msgspec.structs.replace(row, attempt=2)])
    assert await writing.drained(SOON_S) == 0
    assert len(ask(IDS)) == 25
    refused = folder / "refused"
    assert refused.stat().st_mode & 0o777 == 0o600
    assert len(refused.read_bytes().splitlines()) == 1
    assert "cannot be written" in caplog.text


async def test_files_are_for_their_owner_alone(writing: UsageRecorder, folder: Path) -> None:
    writing.closed([a_row()])
    assert modes(folder) == {0o600}
    assert modes(folder.parent) == {0o700}


async def test_cancellation_that_is_taken_for_an_error_does_not_keep_a_recorder_from_its_end(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ending, "CANCEL_AGAIN_S", 0.05)
    asked = asyncio.Event()

    class DeafStore:
        async def beat(self, ingress: str, num_waiting: int) -> None:
            asked.set()
            try:
                await asyncio.Event().wait()
            except asyncio.CancelledError as error:
                raise StateUnavailable("the connection is broken", 1.0) from error

        async def leave(self, ingress: str) -> None: ...

        async def identity(self) -> str:
            return "ledger"

    store: Any = DeafStore()
    made = UsageRecorder(lambda: store, folder, "i0")
    made.start()
    await asked.wait()
    async with asyncio.timeout(SOON_S):
        await made.close()


async def test_meter_writes_what_a_request_took(writing: UsageRecorder, ask: Ask) -> None:
    prices = price_list((ROOT / "conf/prices.yaml").read_bytes())
    observer = FakeObserver()
    meter = Meter(writing, prices, "i0", observer)
    caller = Caller(tenant=TENANT, project="proj_1", key="key_1", end_user="u\0\ud800")
    told: list[list[UsageRow]] = []
    about: dict[str, Any] = {"model": "baton-demo", "reasoning": lambda: 10, "after": lambda rows, _: told.append(rows)}
    prompt = a_request("r", prompt_token_ids=[0] * 1000)
    began, loop_time = time.time(), asyncio.get_running_loop().time()
    request = meter.opened(caller, prompt, Terms(http_request="req", arrived_at=loop_time - 2.0), **about)
    own = meter.opened(caller, prompt, Terms(), **about)
    receipt = a_receipt(attempts=(an_attempt(num_delivered=100),), num_prompt_tokens=1000, num_output_tokens=100)
    request.closed(receipt)
    own.closed(receipt)
    meter.close_ended()
    await asyncio.sleep(0)  # observers are told after what the event loop is at
    assert observer.receipts == [receipt, receipt]
    assert [[row.cost_micros for row in rows] for rows in told] == [[210], [0]]
    assert meter.most_cost("baton-demo", 1000, 100) >= 210
    assert await writing.drained(SOON_S) == 0
    columns = "end_user, generated_tokens, reasoning_tokens, price_version, cost_micros"
    time_of = "extract(epoch FROM started_at)::float"
    paid, free = ask(f"SELECT {time_of}, {columns} FROM usage_ledger ORDER BY cost_micros DESC")
    assert abs(paid[0] - (began - 2.0)) < 1.0
    assert paid[1:] == ("u\N{REPLACEMENT CHARACTER}\N{REPLACEMENT CHARACTER}", 100, 10, "example-1", 210)
    assert free[4:] == ("", 0)


async def test_usage_without_an_api_key_has_the_tenant_that_other_data_has(writing: UsageRecorder, ask: Ask) -> None:
    meter = Meter(writing, None, "i0", FakeObserver())
    about: dict[str, Any] = {"model": "m", "reasoning": lambda: 0, "after": lambda *_: None}
    request = meter.opened(Caller(), a_request("r"), Terms(http_request="req"), **about)
    request.closed(a_receipt(attempts=(an_attempt(),)))
    meter.close_ended()
    assert await writing.drained(SOON_S) == 0
    assert ask("SELECT tenant_id, cost_micros FROM usage_ledger") == [(NO_KEY, 0)]


async def test_lost_requests_are_ended_when_all_others_had_the_time_to_say_that_they_live(
    store: LedgerStore, jobs: LedgerJobs, ask: Ask
) -> None:
    await store.write([an_opening(ingress="gone")], [], [])
    ask("UPDATE usage_openings SET opened_at = now() - interval '1 h'")
    now = asyncio.get_running_loop().time()
    for since in (None, now):
        await LedgerUpkeep(jobs, None, lambda since=since: since).run()  # type: ignore[misc]  # the default binds it
        assert ask("SELECT count(*) FROM usage_ledger") == [(0,)]
    await LedgerUpkeep(jobs, 365.0, lambda: now - 1000.0).run()
    assert ask("SELECT outcome FROM usage_ledger") == [("lost",)]
