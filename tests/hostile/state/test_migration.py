"""A database that an older Baton has filled is brought up to date."""

from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest

from api.state.postgres.database import MIGRATIONS
from cluster.services.postgres import LocalPostgres
from tests.component.emptied import migrate
from tests.hostile.state.stored import rows

OLD = 7
"""The last migration that the older Baton knew."""
BEFORE_LINEAGE = 15
"""The last migration before keys had a lineage."""
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
        apply(filling, 1, OLD)
    for tenant in "ab":
        with psycopg.connect(url) as filling:
            filling.execute("SELECT set_config('app.tenant_id', %s, true)", [tenant])
            for statement in of_tenant(tenant):
                filling.execute(statement)
    yield url
    server.stop()


def apply(connection: psycopg.Connection, first: int, last: int) -> None:
    """The migrations with these numbers."""
    for number, file in enumerate(sorted(MIGRATIONS.glob("*.sql"))[first - 1 : last], first):
        connection.execute(file.read_bytes())
        connection.execute("INSERT INTO schema_migrations VALUES (%s, %s)", [number, file.stem])


def of_tenant(tenant: str) -> list[bytes]:
    """The policies let each tenant write its own rows alone."""
    statements = []
    for statement in FILL.strip().split(";\n"):
        head, _, values = statement.rstrip(";").partition(" VALUES")
        own = [row for row in values.replace("), (", "),\n  (").split(",\n") if row.strip().startswith(f"('{tenant}'")]
        if own:
            statements.append(f"{head} VALUES {','.join(own)}".encode())
    return statements


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


async def test_keys_that_were_rotated_before_are_of_one_lineage(old: str) -> None:
    with psycopg.connect(old) as filling:
        filling.execute("SELECT set_config('app.tenant_id', '*', true)")
        apply(filling, OLD + 1, BEFORE_LINEAGE)
        filling.execute("SELECT set_config('app.tenant_id', 'a', true)")
        filling.execute("INSERT INTO accounts (tenant_id, name, changed_in) VALUES ('a', 'team', 1)")
        filling.execute("INSERT INTO projects (tenant_id, id, name, changed_in) VALUES ('a', 'proj_1', 'p', 1)")
        for key, rotated_to in (("key_3", None), ("key_2", "key_3"), ("key_1", "key_2"), ("key_alone", None)):
            filling.execute(
                "INSERT INTO api_keys "
                "(tenant_id, id, project_id, digest, handle, name, rights, rotated_to, changed_in) "
                "VALUES ('a', %s, 'proj_1', sha256(%s), 'handle', 'laptop', '{inference}', %s, 1)",
                [key, key.encode(), rotated_to],
            )
    await migrate(old)
    assert dict(rows(old, "SELECT id, lineage FROM api_keys", tenant="a")) == {
        "key_1": "key_1",
        "key_2": "key_1",
        "key_3": "key_1",
        "key_alone": "key_alone",
    }
