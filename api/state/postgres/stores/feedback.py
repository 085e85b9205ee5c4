"""What users think of stored responses and chat completions, as PostgreSQL holds it. Every look-up is within one
tenant.
"""

from datetime import datetime
from typing import Any, NamedTuple

import msgspec
from psycopg.rows import DictRow

from api.state.encryption.tenant_keys import TenantKey, TenantKeys
from api.state.postgres.database import Database, Transaction, fetch_all, fetch_one
from api.state.postgres.queries import queries
from api.state.postgres.stores.items import ROW_BYTES, new_id
from api.state.postgres.stores.responses import no_response
from api.wire.feedback import Opinion
from api.wire.pages import Page, Part
from cluster.errors import NotFound

_SQL = queries("feedback.sql")


class Feedback(NamedTuple):
    id: str
    created_at: datetime
    opinion: Opinion


class FeedbackStore:
    def __init__(self, database: Database, keys: TenantKeys) -> None:
        self._database = database
        self._keys = keys

    async def put(self, tenant: str, opinion: Opinion) -> Feedback:
        """In place of what the same user said of it before.

        Raises:
            NotFound: there is no such response, or item.
            InvalidRequest: the tenant's quota is used up.
        """
        adds = ROW_BYTES + len(msgspec.json.encode(opinion))
        try:
            async with self._database.transaction(tenant, adds=adds) as transaction:
                columns = await self._columns(transaction, tenant, opinion)
                said_before = await fetch_one(transaction, _SQL["of_user"], **columns)
                columns["id"] = feedback = said_before["id"] if said_before else new_id("fb")
                key = await self._keys.newest(transaction, tenant)
                columns["key_version"] = key.version
                columns["comment"] = (
                    None if opinion.comment is None else key.seal(opinion.comment.encode(), _place(feedback))
                )
                row = await fetch_one(transaction, _SQL["put"], **columns)
                assert row is not None
                return Feedback(feedback, row["created_at"], opinion)
        except NotFound as error:
            if error.code != "not_found":
                raise
            raise no_response(opinion.subject) from error  # it was deleted meanwhile

    async def find(self, tenant: str, page: Page, subject: str | None, rating: int | None) -> Part[Feedback]:
        """Raises NotFound."""
        query = _SQL["list_newest_first" if page.newest_first else "list_oldest_first"]
        values = {"tenant": tenant, "subject": subject, "rating": rating, "after": page.after, "limit": page.limit + 1}
        async with self._database.transaction(tenant) as transaction:
            rows = await fetch_all(transaction, query, **values)
            if (
                not rows
                and page.after
                and await fetch_one(transaction, _SQL["get"], tenant=tenant, id=page.after) is None
            ):
                raise no_feedback(page.after)
            by_version = await self._keys.of_rows(transaction, tenant, rows)
        shown = [_feedback(row, by_version[row["key_version"]]) for row in rows[: page.limit]]
        return Part(shown, len(rows) > page.limit)

    async def delete(self, tenant: str, feedback: str) -> None:
        """Raises NotFound."""
        async with self._database.transaction(tenant) as transaction:
            if await fetch_one(transaction, _SQL["delete"], tenant=tenant, id=feedback) is None:
                raise no_feedback(feedback)

    async def _columns(self, transaction: Transaction, tenant: str, opinion: Opinion) -> dict[str, Any]:
        """All but the id and what is sealed. Raises NotFound."""
        subject = opinion.subject
        found = await fetch_one(transaction, _SQL["subject"], tenant=tenant, id=subject)
        if found is None:
            raise no_response(subject)
        if opinion.item is not None:
            values = {"tenant": tenant, "response": subject, "id": opinion.item}
            if await fetch_one(transaction, _SQL["item"], **values) is None:
                raise NotFound(f"no item with id '{opinion.item}' in this response", "item_id", "item_not_found")
        return {
            "tenant": tenant,
            "response": subject if found["kind"] == "response" else None,
            "chat_completion": subject if found["kind"] == "chat_completion" else None,
            "item": opinion.item,
            "end_user": opinion.end_user,
            "rating": opinion.rating,
            "labels": opinion.labels,
        }


def no_feedback(feedback: str) -> NotFound:
    return NotFound(f"no feedback with id '{feedback}'", "feedback_id", "feedback_not_found")


def _feedback(row: DictRow, key: TenantKey) -> Feedback:
    comment = None if row["comment"] is None else key.unseal(row["comment"], _place(row["id"])).decode()
    said = Opinion(row["subject"], row["rating"], row["labels"], comment, row["item_id"], row["end_user"])
    return Feedback(row["id"], row["created_at"], said)


def _place(feedback: str) -> str:
    return f"feedback/{feedback}/comment"
