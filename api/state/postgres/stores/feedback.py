"""What users think of stored responses and chat completions, in PostgreSQL."""

from datetime import datetime
from typing import Any, NamedTuple

import msgspec

from api.state.encryption.tenant_keys import TenantKey
from api.state.postgres.database import Row
from api.state.postgres.queries import queries
from api.state.postgres.stores.items import ROW_BYTES, new_id
from api.state.postgres.stores.responses import no_response
from api.state.postgres.tenant_transaction import TenantDatabase, TenantTransaction
from api.wire.feedback import Opinion
from api.wire.pages import Page, Part
from cluster.errors import NotFound

_SQL = queries("feedback.sql")


class Feedback(NamedTuple):
    id: str
    created_at: datetime
    opinion: Opinion


class FeedbackStore:
    def __init__(self, database: TenantDatabase) -> None:
        self._database = database

    async def put(self, tenant: str, opinion: Opinion) -> Feedback:
        """Store an opinion. It replaces an earlier opinion of the same user on the same subject.

        Raises:
            NotFound: there is no such response, chat completion or item.
            InvalidRequest: the tenant's quota is used up.
        """
        adds = ROW_BYTES + len(msgspec.json.encode(opinion))
        try:
            async with self._database.transaction(tenant, adds=adds) as transaction:
                columns = await _columns(transaction, opinion)
                earlier = await transaction.fetch_one(_SQL["of_user"], **columns)
                columns["id"] = feedback = earlier["id"] if earlier else new_id("fb")
                key = await transaction.sealing_key()
                columns["key_version"] = key.version
                columns["comment"] = (
                    None if opinion.comment is None else key.seal(opinion.comment.encode(), _place(feedback))
                )
                row = await transaction.fetch_one(_SQL["put"], **columns)
                assert row is not None
                return Feedback(feedback, row["created_at"], opinion)
        except NotFound as error:
            if error.code != "not_found":
                raise
            raise no_response(opinion.subject) from error  # the subject was deleted meanwhile

    async def find(self, tenant: str, page: Page, subject: str | None, rating: int | None) -> Part[Feedback]:
        """Raises NotFound."""
        query = _SQL["list_newest_first" if page.newest_first else "list_oldest_first"]
        values = {"subject": subject, "rating": rating, "after": page.after, "limit": page.limit + 1}
        async with self._database.transaction(tenant) as transaction:
            rows = await transaction.fetch_all(query, **values)
            if not rows and page.after and await transaction.fetch_one(_SQL["get"], id=page.after) is None:
                raise no_feedback(page.after)
            by_version = await transaction.keys_of(rows)
        shown = [_feedback(row, by_version[row["key_version"]]) for row in rows[: page.limit]]
        return Part(shown, len(rows) > page.limit)

    async def delete(self, tenant: str, feedback: str) -> None:
        """Raises NotFound."""
        async with self._database.transaction(tenant) as transaction:
            if await transaction.fetch_one(_SQL["delete"], id=feedback) is None:
                raise no_feedback(feedback)


async def _columns(transaction: TenantTransaction, opinion: Opinion) -> dict[str, Any]:
    """The columns of an opinion, except the id and the sealed comment. Raises NotFound."""
    subject = opinion.subject
    found = await transaction.fetch_one(_SQL["subject"], id=subject)
    if found is None:
        raise no_response(subject)
    if opinion.item is not None and (
        await transaction.fetch_one(_SQL["item"], response=subject, id=opinion.item) is None
    ):
        raise NotFound(f"no item with id '{opinion.item}' in this response", "item_id", "item_not_found")
    return {
        "response": subject if found["kind"] == "response" else None,
        "chat_completion": subject if found["kind"] == "chat_completion" else None,
        "item": opinion.item,
        "end_user": opinion.end_user,
        "rating": opinion.rating,
        "labels": opinion.labels,
    }


def no_feedback(feedback: str) -> NotFound:
    return NotFound(f"no feedback with id '{feedback}'", "feedback_id", "feedback_not_found")


def _feedback(row: Row, key: TenantKey) -> Feedback:
    comment = None if row["comment"] is None else key.unseal(row["comment"], _place(row["id"])).decode()
    opinion = Opinion(row["subject"], row["rating"], row["labels"], comment, row["item_id"], row["end_user"])
    return Feedback(row["id"], row["created_at"], opinion)


def _place(feedback: str) -> str:
    return f"feedback/{feedback}/comment"
