"""A database that an older Baton has filled is brought up to date."""

from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest

from api.state.postgres.database import MIGRATIONS, Database
from cluster.services.postgres import LocalPostgres
from tests.hostile.state.stored import rows

OLD = 7
"""The last migration that the older Baton knew."""
ROW_BYTES = 500

FILL = """
INSERT INTO tenants (id) VALUES ('a'), ('b');
INSERT INTO conversations (tenant_id, id, title, title_key_version, metadata) VALUES
  ('a', 'conv_titled', '\\x0102', 1, '{"k": "v"}'),
  ('a', 'conv_plain', NULL, NULL, '{}'),
  ('b', 'conv_b', NULL, NULL, '{}');
INSERT INTO responses (tenant_id, id, conversation_id, status, body, asked, key_version, lease_until) VALUES
  ('a', 'resp_a', 'conv_titled', 'completed', '\\x010203', '\\x0405', 1, now());
INSERT INTO items (tenant_id, id, conversation_id, seq, type, role, body, key_version) VALUES
  ('a', 'msg_1', 'conv_titled', 1, 'message', 'user', '\\x01020304', 1),
  ('a', 'msg_2', 'conv_titled', 2, 'message', 'assistant', '\\x0102', 1),
  ('a', 'msg_3', 'conv_titled', 3, 'message', 'user', '\\x01', 1),
  ('b', 'msg_4', 'conv_b', 1, 'message', 'user', '\\x010203', 1);
INSERT INTO chat_completions (tenant_id, id, model, body, messages, key_version, created_at) VALUES
  ('b', 'chatcmpl_b', 'm', '\\x0102', '\\x03', 1, now());
INSERT INTO feedback (tenant_id, id, response_id, rating, comment, key_version) VALUES
  ('a', 'fb_a', 'resp_a', 1, '\\x010203', 1);
"""


@pytest.fixture
def old(tmp_path: Path) -> Iterator[str]:
    server = LocalPostgres(tmp_path / "postgres")
    url = server.start()
    with psycopg.connect(url) as filling:
        filling.execute("SELECT set_config('app.tenant_id', '*', true)")
        filling.execute(
            "CREATE TABLE schema_migrations "
            "(version int PRIMARY KEY, name text NOT NULL, applied_at timestamptz NOT NULL DEFAULT now())"
        )
        for number, file in enumerate(sorted(MIGRATIONS.glob("*.sql"))[:OLD], 1):
            filling.execute(file.read_bytes())
            filling.execute("INSERT INTO schema_migrations VALUES (%s, %s)", [number, file.stem])
    for tenant in "ab":
        with psycopg.connect(url) as filling:
            filling.execute("SELECT set_config('app.tenant_id', %s, true)", [tenant])
            for statement in of_tenant(tenant):
                filling.execute(statement)
    yield url
    server.stop()


def of_tenant(tenant: str) -> list[bytes]:
    """The policies let each tenant write its own rows alone."""
    statements = []
    for statement in FILL.strip().split(";\n"):
        head, _, values = statement.rstrip(";").partition(" VALUES")
        own = [row for row in values.replace("), (", "),\n  (").split(",\n") if row.strip().startswith(f"('{tenant}'")]
        if own:
            statements.append(f"{head} VALUES {','.join(own)}".encode())
    return statements


async def migrate(url: str) -> None:
    database = Database(url, 1)
    await database.open()
    try:
        await database.migrate()
    finally:
        await database.close()


async def test_what_is_there_counts_and_is_given_back(old: str) -> None:
    await migrate(old)
    counted = dict(rows(old, "SELECT tenant_id, sum(bytes)::int FROM tenant_bytes GROUP BY tenant_id"))
    assert counted == {
        "a": 7 * ROW_BYTES + (4 + 2 + 1) + (3 + 2) + (2 + len('{"k": "v"}') + len("{}")) + (3 + len("{}")),
        "b": 3 * ROW_BYTES + 3 + (2 + 1 + len("{}")) + len("{}"),
    }
    assert dict(rows(old, "SELECT id, bytes::int FROM conversations")) == {
        "conv_titled": 7,
        "conv_plain": 0,
        "conv_b": 3,
    }
    for tenant in "ab":
        for table in ("feedback", "items", "responses", "chat_completions", "conversations"):
            rows(old, f"DELETE FROM {table}", tenant=tenant)
    left = dict(rows(old, "SELECT tenant_id, sum(bytes)::int FROM tenant_bytes GROUP BY tenant_id"))
    assert left == {"a": 0, "b": 0}


async def test_titles_that_are_there_go_with_what_they_would_have_been_made_of(old: str) -> None:
    await migrate(old)
    assert dict(rows(old, "SELECT id, title_of FROM conversations")) == {
        "conv_titled": ["msg_2", "msg_1"],
        "conv_plain": None,
        "conv_b": None,
    }


async def test_what_is_up_to_date_stays_as_it_is(old: str) -> None:
    await migrate(old)
    before = rows(old, "SELECT tenant_id, bytes FROM tenant_bytes ORDER BY 1, 2")
    await migrate(old)
    assert rows(old, "SELECT tenant_id, bytes FROM tenant_bytes ORDER BY 1, 2") == before
