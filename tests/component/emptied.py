"""A database without rows for each test, on a server that all tests share."""

import asyncio
from concurrent.futures import ThreadPoolExecutor
from typing import NamedTuple

import psycopg

from api.state.postgres.database import Database

_SHAPE = """
SELECT md5(string_agg(part, ';' ORDER BY part)) FROM (
  SELECT format('%s %s %s %s', attrelid::regclass, attname, atttypid, attnotnull) AS part
    FROM pg_attribute JOIN pg_class ON pg_class.oid = attrelid WHERE relnamespace = 'public'::regnamespace
  UNION ALL SELECT format('%s %s %s', tgrelid::regclass, tgname, tgenabled) FROM pg_trigger
  UNION ALL SELECT format('%s %s', polrelid::regclass, polname) FROM pg_policy
  UNION ALL SELECT proname || md5(prosrc) FROM pg_proc WHERE pronamespace = 'public'::regnamespace
  UNION ALL SELECT 'version ' || version FROM schema_migrations) AS parts
"""
"""The tables, as far as tests change them."""

_TABLES = "SELECT oid::regclass::text FROM pg_class WHERE relnamespace = 'public'::regnamespace AND relkind = 'r'"

_DELETE = """
DO $$
DECLARE found record; is_used boolean;
BEGIN
  SET LOCAL session_replication_role = replica;  -- no triggers: some refuse to delete
  FOR found IN SELECT oid::regclass AS name FROM pg_class WHERE relnamespace = 'public'::regnamespace
      AND relkind = 'r' AND relname <> ALL (ARRAY[{kept}]) LOOP
    EXECUTE format('SELECT EXISTS (SELECT FROM %s)', found.name) INTO is_used;
    IF is_used THEN EXECUTE format('DELETE FROM %s', found.name); END IF;
  END LOOP;
  FOR found IN SELECT sequencename AS name FROM pg_sequences WHERE schemaname = 'public' AND last_value IS NOT NULL LOOP
    PERFORM setval(found.name::regclass, 1, false);
  END LOOP;
END $$
"""


class _Migrated(NamedTuple):
    """A database after all migrations."""

    shape: str
    kept: str
    """The tables to which migrations have given rows, as a list of SQL."""


_migrated: dict[str, _Migrated] = {}
"""By URL."""


def emptied(url: str) -> None:
    """Leave the tables as they are after all migrations. Rows are deleted, which takes a tenth of the time, unless a
    test has changed the tables.
    """
    with psycopg.connect(as_superuser(url), autocommit=True) as connection:
        if (found := _migrated.get(url)) is not None and _shape(connection) == found.shape:
            connection.execute(_DELETE.format(kept=found.kept))
            return
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute("DROP SCHEMA public CASCADE; CREATE SCHEMA public")
    with ThreadPoolExecutor(1) as pool:  # the caller's event loop may run
        pool.submit(asyncio.run, migrate(url)).result()
    with psycopg.connect(as_superuser(url), autocommit=True) as connection:
        tables = [name for (name,) in connection.execute(_TABLES).fetchall()]
        kept = [name for name in tables if connection.execute(f"SELECT FROM {name} LIMIT 1").fetchone() is not None]
        _migrated[url] = _Migrated(_shape(connection), ", ".join(f"'{name}'" for name in kept))


def as_superuser(url: str) -> str:
    """The URL of a server that Baton has started, for its administrator."""
    return url.replace("//baton@", "//postgres:@")


def _shape(connection: psycopg.Connection[tuple[str]]) -> str:
    try:
        row = connection.execute(_SHAPE).fetchone()
    except psycopg.errors.UndefinedTable:
        return "none"
    assert row is not None
    return row[0]


async def migrate(url: str) -> None:
    """Bring the tables up to date, as an ingress does at its start."""
    database = Database(url, 1)
    await database.open()
    try:
        await database.migrate()
    finally:
        await database.close()
