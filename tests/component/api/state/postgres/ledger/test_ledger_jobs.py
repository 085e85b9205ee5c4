"""Partitions that are made and dropped, and requests of processes that are gone."""

import asyncio
import time
from datetime import UTC, datetime

import psycopg

from api.state.postgres.database import Database
from api.state.postgres.ledger.ledger_jobs import MONTHS_AHEAD, RECONCILIATION_LOCK, UPKEEP_LOCK, LedgerJobs
from api.state.postgres.ledger.ledger_store import SQL, LedgerStore
from api.state.postgres.ledger.usage_sums import SUMS_LOCK
from tests.component.api.metering.ledger_rows import Ask
from tests.unit.usage_rows import a_row, an_opening

PARTITIONS = (
    "SELECT relname FROM pg_inherits JOIN pg_class ON pg_class.oid = inhrelid"
    " WHERE inhparent = 'usage_ledger'::regclass ORDER BY relname"
)
WHERE = "SELECT tableoid::regclass::text, count(*) FROM usage_ledger GROUP BY 1 ORDER BY 1"


def ms(year: int, month: int, day: int) -> int:
    return int(datetime(year, month, day, tzinfo=UTC).timestamp() * 1000)


def month_name(months_ahead: int) -> str:
    today = datetime.now(UTC)
    month = today.year * 12 + today.month - 1 + months_ahead
    return f"usage_ledger_{month // 12}_{month % 12 + 1:02d}"


async def test_partitions_are_made_ahead_once(jobs: LedgerJobs, ask: Ask) -> None:
    assert await jobs.make_partitions() == MONTHS_AHEAD - 1  # a migration has made two
    assert await jobs.make_partitions() == 0
    names = [name for (name,) in ask(PARTITIONS)]
    assert names == [month_name(ahead) for ahead in range(MONTHS_AHEAD + 1)] + ["usage_ledger_default"]


async def test_row_without_a_partition_is_kept_and_moved_later(store: LedgerStore, jobs: LedgerJobs, ask: Ask) -> None:
    edges = [ms(2025, 3, 1), ms(2025, 4, 1) - 1]
    rows = [a_row(at) for at in (ms(2025, 3, 1) - 1, *edges, ms(2025, 4, 1), ms(9000, 1, 1))]
    assert await store.write([], [], rows) == 5
    assert ask(WHERE) == [("usage_ledger_default", 5)]
    await jobs.make_partitions()
    assert ask(WHERE) == [
        ("usage_ledger_2025_02", 1),
        ("usage_ledger_2025_03", 2),
        ("usage_ledger_2025_04", 1),
        ("usage_ledger_default", 1),
    ]
    assert await store.write([], [], rows) == 0


async def test_partition_that_was_made_late_is_guarded_like_others(
    store: LedgerStore, jobs: LedgerJobs, ask: Ask, database: Database
) -> None:
    await store.write([], [], [a_row(ms(2025, 3, 1))])
    await jobs.make_partitions()
    for statement in ("DELETE FROM usage_ledger", "TRUNCATE usage_ledger_2025_03"):
        try:
            ask(statement)
        except Exception as error:
            assert "never" in str(error)
        else:
            raise AssertionError(statement)
    assert ask("SELECT count(*) FROM usage_ledger_2025_03") == [(0,)]
    assert ask(WHERE) == [("usage_ledger_2025_03", 1)]


RECORDED = "ALTER TABLE usage_ledger ALTER recorded_at SET DEFAULT "
LONG_AGO, NOW = RECORDED + "'2025-03-02'", RECORDED + "now()"


async def test_partitions_are_dropped_when_their_newest_row_may_be_old_enough(
    store: LedgerStore, jobs: LedgerJobs, ask: Ask
) -> None:
    ask(LONG_AGO)
    await store.write([], [], [a_row(ms(2025, 3, 1)), a_row(ms(2025, 4, 30)), a_row(int(time.time() * 1000))])
    await jobs.make_partitions()
    age_days = (time.time() - ms(2025, 4, 15) / 1000) / 86400
    assert await jobs.drop_partitions(age_days) == ["usage_ledger_2025_03"]
    assert await jobs.drop_partitions(age_days) == []
    assert [name for name, _ in ask(WHERE)] == ["usage_ledger_2025_04", month_name(0)]


async def test_partition_with_a_row_that_was_written_of_late_is_kept(
    store: LedgerStore, jobs: LedgerJobs, ask: Ask
) -> None:
    """The clock of an ingress was years behind."""
    ask(LONG_AGO)
    await store.write([], [], [a_row(ms(2025, 3, 1)), a_row(ms(2025, 4, 1))])
    ask(NOW)
    await store.write([], [], [a_row(ms(2025, 3, 3))])
    await jobs.make_partitions()
    assert await jobs.drop_partitions(30) == ["usage_ledger_2025_04"]
    assert [name for name, _ in ask(WHERE)] == ["usage_ledger_2025_03"]


async def test_writes_go_on_while_a_partition_waits_for_a_sum(
    store: LedgerStore, jobs: LedgerJobs, ask: Ask, postgres: str
) -> None:
    ask(LONG_AGO)
    await store.write([], [], [a_row(ms(2025, 3, 1))])
    await jobs.make_partitions()
    with psycopg.connect(postgres) as summing:
        summing.execute(SQL["begin_sum"], {"lock": SUMS_LOCK})
        summing.execute("SELECT count(*) FROM usage_ledger")
        dropping = asyncio.create_task(jobs.drop_partitions(30))
        await until_one_waits(ask)
        async with asyncio.timeout(1):
            await store.write([], [], [a_row(int(time.time() * 1000))])
        assert not dropping.done()
    assert await dropping == ["usage_ledger_2025_03"]


async def until_one_waits(ask: Ask) -> None:
    """Until a transaction waits for a lock."""
    for _ in range(1000):
        if ask("SELECT 1 FROM pg_locks WHERE NOT granted"):
            return
        await asyncio.sleep(0.01)
    raise TimeoutError


async def test_partitions_wait_for_a_reconciliation(jobs: LedgerJobs) -> None:
    async with jobs.alone(RECONCILIATION_LOCK):
        assert await jobs.make_partitions() == 0
    assert await jobs.make_partitions() == 1


async def test_look_for_missing_partitions_reads_the_default_one_alone(
    store: LedgerStore, jobs: LedgerJobs, database: Database
) -> None:
    await store.write([], [], [a_row(int(time.time() * 1000))])
    await jobs.make_partitions()
    async with database.transaction("*") as transaction:
        found = await transaction.execute("EXPLAIN " + SQL["missing_partitions"], {"ahead": 2, "strays": 3})
        plan = "\n".join(str(row["QUERY PLAN"]) for row in await found.fetchall())
    assert "usage_ledger_default" in plan and "usage_ledger_20" not in plan, plan


async def test_rows_are_written_while_partitions_are_made_and_dropped(
    store: LedgerStore, jobs: LedgerJobs, ask: Ask
) -> None:
    async def write() -> None:
        for _ in range(20):
            await store.write([], [], [a_row(ms(2025, 3, 2)), a_row(int(time.time() * 1000))])

    async def keep_up() -> None:
        for _ in range(5):
            await jobs.make_partitions()
            await jobs.drop_partitions(10_000)

    await asyncio.gather(write(), write(), keep_up())
    assert ask("SELECT count(*) FROM usage_ledger") == [(80,)]


async def test_requests_of_a_process_that_is_gone_are_lost_and_others_run_on(
    store: LedgerStore, jobs: LedgerJobs, ask: Ask
) -> None:
    gone, closed = an_opening(ingress="gone"), an_opening(ingress="gone")
    alive = an_opening(ingress="alive")
    await store.write([gone, closed, alive], [], [])
    ask("UPDATE usage_openings SET opened_at = now() - interval '1 h'")
    await store.write([], [], [a_row(id=closed.id)])  # its opening comes back with a spool
    await store.beat("alive", 0)
    assert await jobs.reap(90.0) == (2, 1)
    assert await jobs.reap(90.0) == (0, 0)
    rows = ask("SELECT id::text, attempt, outcome, prompt_tokens, generated_tokens, cost_micros FROM usage_ledger")
    assert sorted(rows) == sorted([(gone.id, 0, "lost", 10, 0, 0), (closed.id, 1, "finished", 10, 5, 7)])
    assert [str(entry) for (entry,) in ask("SELECT id FROM usage_openings")] == [alive.id]


async def test_request_that_has_just_begun_is_not_lost(store: LedgerStore, jobs: LedgerJobs) -> None:
    await store.write([an_opening(ingress="new")], [], [])
    assert await jobs.reap(90.0) == (0, 0)


async def test_rows_that_come_after_all_are_beside_the_lost_one(store: LedgerStore, jobs: LedgerJobs, ask: Ask) -> None:
    """An ingress that was cut off from PostgreSQL for long comes back."""
    opening = an_opening(ingress="cut off")
    await store.write([opening], [], [])
    ask("UPDATE usage_openings SET opened_at = now() - interval '1 h'")
    await jobs.reap(90.0)
    assert await store.write([opening], [opening.id], [a_row(id=opening.id)]) == 1
    assert ask("SELECT count(*) FROM usage_openings") == [(0,)]


async def test_one_process_at_a_time_does_a_job(jobs: LedgerJobs, ask: Ask) -> None:
    async with jobs.alone(UPKEEP_LOCK) as transaction:
        assert transaction is not None
        assert await jobs.make_partitions() == 0
        assert await jobs.drop_partitions(0.0) == []
    assert await jobs.make_partitions() == 1


async def test_processes_that_are_gone_are_forgotten(store: LedgerStore, jobs: LedgerJobs, ask: Ask) -> None:
    await store.beat("old", 3)
    ask("UPDATE usage_writers SET seen_at = now() - interval '1 h'")
    await store.beat("new", 0)
    await store.beat("left", 0)
    await store.leave("left")
    await jobs.reap(90.0)
    assert ask("SELECT ingress FROM usage_writers") == [("new",)]
