"""The tables with rows of tenants, which of their columns are sealed, and the statements on all of them."""

from typing import LiteralString, NamedTuple

from psycopg import sql


class SealedTable(NamedTuple):
    """A table with sealed columns. All sealed columns of a row have the same key."""

    name: LiteralString
    columns: tuple[LiteralString, ...]
    """The sealed columns."""
    key_version: LiteralString = "key_version"
    """The column with the version of the key."""
    place: LiteralString = "r.id"
    """The row's part of the place that a text is sealed for, between the table and the column."""
    is_free: LiteralString = "true"
    """The condition that no running response is about to seal another text for the row."""

    def older_rows(self) -> sql.Composed:
        """Some rows that are sealed with an older key than `version`: at most `limit`, and at most `max_bytes` unless a
        single row is larger.
        """
        size = sql.SQL(" + ").join(
            sql.SQL("coalesce(octet_length({}), 0)").format(sql.Identifier(name)) for name in self.columns
        )
        return sql.SQL(
            "SELECT r.ctid::text, {place} AS place, r.{version} AS key_version, {columns} FROM {table} r "
            "WHERE r.ctid IN ("
            "SELECT ctid FROM (SELECT ctid, sum({size}) OVER (ROWS UNBOUNDED PRECEDING) - ({size}) AS before FROM ("
            "SELECT r.ctid, {columns} FROM {table} r"
            " WHERE r.tenant_id = %(tenant)s AND r.{version} < %(version)s AND {is_free} LIMIT %(limit)s"
            ") AS page) AS measured WHERE before < %(max_bytes)s) FOR UPDATE OF r"
        ).format(
            place=sql.SQL(self.place),
            version=sql.Identifier(self.key_version),
            columns=sql.SQL(", ").join(map(sql.Identifier, self.columns)),
            table=sql.Identifier(self.name),
            size=size,
            is_free=sql.SQL(self.is_free),
        )

    def update(self) -> sql.Composed:
        """Replace the sealed columns of the row `ctid`, and its key version."""
        columns = [sql.SQL("{} = {}").format(sql.Identifier(name), sql.Placeholder(name)) for name in self.columns]
        return sql.SQL("UPDATE {table} SET {columns}, {version} = %(version)s WHERE ctid = %(ctid)s::tid").format(
            table=sql.Identifier(self.name),
            columns=sql.SQL(", ").join(columns),
            version=sql.Identifier(self.key_version),
        )

    def oldest_version(self) -> sql.Composed:
        """The version of the oldest key that a row is sealed with; a large number if the tenant has no rows."""
        query = "SELECT coalesce(min({version}), 2147483647) AS oldest FROM {table} WHERE tenant_id = %(tenant)s"
        return sql.SQL(query).format(version=sql.Identifier(self.key_version), table=sql.Identifier(self.name))


def deletion_from(table: LiteralString) -> sql.Composed:
    """Delete up to `limit` rows of the tenant."""
    return sql.SQL(
        "DELETE FROM {table} WHERE ctid IN (SELECT ctid FROM {table} WHERE tenant_id = %(tenant)s LIMIT %(limit)s)"
    ).format(table=sql.Identifier(table))


_IS_OVER: LiteralString = (
    "NOT EXISTS (SELECT FROM responses x WHERE x.tenant_id = r.tenant_id AND x.id = r.response_id \
AND x.status IN ('queued', 'in_progress'))"
)

SEALED_TABLES = (
    SealedTable("conversations", ("title",), "title_key_version"),
    SealedTable("items", ("body",)),
    SealedTable("response_events", ("events",), place="r.response_id || '/' || r.first_number", is_free=_IS_OVER),
    SealedTable("responses", ("body", "asked", "outcome"), is_free="r.status NOT IN ('queued', 'in_progress')"),
    SealedTable("chat_completions", ("body", "messages")),
    SealedTable("feedback", ("comment",)),
    SealedTable("safety_chains", ("chain_key",), place="r.tenant_id"),
    SealedTable("safety_events", ("evidence",)),
    SealedTable("safety_appeals", ("reason", "note", "review")),
)

TABLES: tuple[LiteralString, ...] = (
    "safety_appeals",
    "safety_events",
    "safety_chains",
    "feedback",
    "chat_completions",
    "item_words",
    "items",
    "response_events",
    "responses",
    "conversations",
    "tenant_bytes",
)
"""All tables with rows of tenants, except `tenants` and `tenant_keys`. No table refers to a table before it, so an
erasure can empty them in this order.
"""
