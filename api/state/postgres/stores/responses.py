"""Responses in PostgreSQL: admitted before anything is generated, and finished once."""

from datetime import timedelta
from typing import Any, NamedTuple

import msgspec
from psycopg.errors import UniqueViolation

from api.state.encryption.tenant_keys import TenantKey
from api.state.event_streams.response_events import Body, add_events, created_in, events_of
from api.state.postgres.database import Row
from api.state.postgres.derived import lock_of_derived
from api.state.postgres.list_pages import PAGE_BYTES, items_in
from api.state.postgres.queries import queries
from api.state.postgres.stores.conversations import found_conversation
from api.state.postgres.stores.history import Histories, History
from api.state.postgres.stores.history_space import HistorySpace
from api.state.postgres.stores.items import (
    ROW_BYTES,
    Item,
    ItemLimits,
    StoredTurn,
    append,
    packed,
    referred,
    too_large,
    unsealed,
)
from api.state.postgres.tenant_transaction import TenantDatabase, TenantTransaction
from api.wire.differences import Difference, applied, difference
from api.wire.pages import Page, Part
from api.wire.responses.asked import Asked
from api.wire.responses.short_events import Line
from cluster.errors import Conflict, InvalidRequest, NotFound

GENERATION_CLAIM = timedelta(seconds=15)
"""How long the generation claim of an ingress lasts after its last renewal (`lease_until` in the table). Shorter takes
an ingress for lost that was cut off for a moment, and ends its responses; longer leaves the responses of a lost ingress
in progress for longer.
"""

RUNNING = ("queued", "in_progress")
"""The statuses of a response that is not over."""

_SQL = queries("responses.sql")


class Admission(NamedTuple):
    """A turn that is to be generated."""

    created: Body
    """The response as it is created, without output."""
    items: list[Item]
    """The input of the turn, with ids."""
    conversation: str | None
    previous: str | None
    replaced: str | None
    """The response in whose place the turn is generated."""
    asked: dict[str, Any]
    """The request of the client, without the input."""


class Admitted(NamedTuple):
    """The history of an admitted turn, and the key that seals its events."""

    history: History
    key: TenantKey


class Ending(NamedTuple):
    """How a response ends."""

    response: str
    status: str
    outcome: Difference
    """The difference between the response at its end and the response as it was created, without output."""
    output: list[Item]
    lines: list[Line]
    """All events of the response (api/wire/responses/short_events.py)."""

    @classmethod
    def of(cls, response: Body, created: Body, lines: list[Line]) -> "Ending":
        """`response`: the response at its end, with output."""
        outcome = difference({**response, "output": []}, created)
        return cls(response["id"], response["status"], outcome, response["output"], lines)


class Responses:
    def __init__(self, database: TenantDatabase, limits: ItemLimits, space: HistorySpace) -> None:
        """`limits`: for everything but the answer to a turn. `space`: the memory of the histories of turns."""
        self._database = database
        self._limits = limits
        self._histories = Histories(limits, space)

    async def history(self, tenant: str, conversation: str | None, previous: str | None) -> History:
        """The history of a turn. Raises NotFound, Conflict, InvalidRequest, TooManyRequests, Overloaded."""
        async with self._database.transaction(tenant) as transaction:
            return await self._histories.of(transaction, conversation, previous)

    async def referred(self, tenant: str, items: list[Item]) -> list[Item]:
        """The items, with each reference replaced by the stored item. Raises NotFound, InvalidRequest."""
        async with self._database.transaction(tenant) as transaction:
            return await referred(transaction, items, "input")

    async def admit(self, tenant: str, turn: Admission) -> Admitted:
        """Store a turn before it is generated. Until the turn is over, no other turn is admitted to its conversation.

        Raises:
            NotFound: no such conversation or previous response.
            InvalidRequest: the conversation or the tenant's quota is full; or a part of the turn is too large.
            TooManyRequests, Overloaded: the replica has no memory for the history of the turn.
            Conflict: another turn is running in the conversation, or the replaced response has left the conversation.
        """
        conversation, limits = turn.conversation, self._limits
        added, texts = await packed(turn.items, "input", limits), _texts(turn, limits)
        adds = added.num_bytes + ROW_BYTES + texts.num_bytes
        try:
            async with self._database.transaction(tenant, adds=adds) as transaction:
                if conversation is not None:
                    await found_conversation(transaction, conversation)
                key = await transaction.sealing_key()
                await _create(transaction, key, turn, texts)  # a unique index refuses a second running turn
                if conversation is not None and turn.replaced is not None:
                    await _supersede(transaction, turn)
                history = await self._histories.of(transaction, conversation, turn.previous)
                place = StoredTurn(turn.created["id"], 0, is_output=False)
                await append(transaction, key, added, conversation=conversation, turn=place, limits=limits)
                return Admitted(history, key)
        except UniqueViolation as error:
            raise Conflict(
                f"another response is being generated in conversation '{conversation}'",
                "conversation",
                "conversation_locked",
            ) from error

    async def finish(self, tenant: str, ending: Ending) -> list[Line]:
        """Store the end of a response. Returns the stored events, which differ from those of `ending` if the response
        was already over.
        """
        async with self._database.transaction(tenant) as transaction:
            if await end_response(transaction, ending):
                return ending.lines
            return await events_of(transaction, ending.response)

    async def cancel(self, tenant: str, response: str) -> bool:
        """Mark a background response as cancelled. Returns False if it is over. Raises NotFound, InvalidRequest."""
        async with self._database.transaction(tenant) as transaction:
            row = await transaction.fetch_one(_SQL["lock"], id=response)
            if row is None:
                raise no_response(response)
            if not row["is_background"]:
                raise InvalidRequest(
                    f"response '{response}' was not created in the background: close its stream to cancel it",
                    None,
                    "not_in_background",
                )
            await transaction.execute(_SQL["cancel"], id=response)
            return row["status"] in RUNNING

    async def withdraw(self, tenant: str, response: str) -> None:
        """Undo an admission: delete the response and its input, and restore the items that the turn superseded."""
        async with self._database.transaction(tenant) as transaction:
            for statement in ("lock", "restore", "withdraw_items", "delete"):
                await transaction.execute(_SQL[statement], id=response)

    async def get(self, tenant: str, response: str) -> Body:
        """Raises NotFound."""
        async with self._database.transaction(tenant) as transaction:
            row = await transaction.fetch_one(_SQL["get"], id=response)
            if row is None:
                raise no_response(response)
            key = await transaction.key(row["key_version"])
            output = await transaction.fetch_all(_SQL["output"], id=response)
            keys = await transaction.keys_of(output)
        items = await unsealed(keys, output)
        return _shown(key, row) | {"status": row["status"], "output": items}

    async def delete(self, tenant: str, response: str) -> None:
        """Delete a response. Its items stay in their conversation.

        Raises:
            NotFound: there is no such response.
            Conflict: the response is being generated.
        """
        async with self._database.transaction(tenant, lock=lock_of_derived(tenant)) as transaction:
            row = await transaction.fetch_one(_SQL["lock"], id=response)
            if row is None:
                raise no_response(response)
            if row["status"] in RUNNING:
                raise Conflict(f"response '{response}' is still being generated", None, "response_in_progress")
            await transaction.execute(_SQL["delete_items"], id=response)
            await transaction.execute(_SQL["delete"], id=response)

    async def input_items(self, tenant: str, response: str, page: Page) -> Part[Item]:
        """Raises NotFound."""
        query = _SQL["input_newest_first" if page.newest_first else "input_oldest_first"]
        async with self._database.transaction(tenant) as transaction:
            if await transaction.fetch_one(_SQL["get"], id=response) is None:
                raise no_response(response)
            values = {"id": response, "after": page.after, "limit": page.limit + 1, "max_bytes": PAGE_BYTES}
            rows = await transaction.fetch_all(query, **values)
            if not rows and page.after:
                await _require_input_item(transaction, response, page.after)
            keys = await transaction.keys_of(rows)
        return await items_in(page, keys, rows)

    async def asked(self, tenant: str, response: str) -> Asked:
        """The request that a response answers. Raises NotFound, InvalidRequest."""
        query = _SQL["input_oldest_first"]
        values = {"id": response, "after": None, "limit": None, "max_bytes": None}
        async with self._database.transaction(tenant) as transaction:
            row = await transaction.fetch_one(_SQL["asked"], id=response)
            if row is None:
                raise no_response(response)
            if row["asked"] is None:
                raise InvalidRequest(
                    f"the request of response '{response}' is not stored, because an older version of Baton made the "
                    "response: send the request again"
                )
            key = await transaction.key(row["key_version"])
            rows = await transaction.fetch_all(query, **values)
            keys = await transaction.keys_of(rows)
        body, items = _asked(key, row), await unsealed(keys, rows)
        return Asked(response, body, items, row["conversation_id"], row["previous_response_id"])


async def _require_input_item(transaction: TenantTransaction, response: str, item: str) -> None:
    if await transaction.fetch_one(_SQL["input_item"], id=response, item=item) is None:
        raise NotFound(f"no item with id '{item}' in this response", "after", "item_not_found")


class _Texts(NamedTuple):
    """A turn that is to be admitted, as JSON: the response as it is created, and the request."""

    created: bytes
    asked: bytes

    @property
    def num_bytes(self) -> int:
        return len(self.created) + len(self.asked)


def _texts(turn: Admission, limits: ItemLimits) -> _Texts:
    """Raises InvalidRequest if the turn is too large even without its input."""
    asked = difference(turn.asked, turn.created)
    texts = _Texts(msgspec.json.encode(turn.created), msgspec.json.encode(asked))
    if texts.num_bytes > limits.item_bytes:
        largest = max(turn.asked, key=lambda name: len(msgspec.json.encode(turn.asked[name])))
        raise too_large(largest, texts.num_bytes, limits.item_bytes)
    return texts


async def _create(transaction: TenantTransaction, key: TenantKey, turn: Admission, texts: _Texts) -> None:
    response = turn.created["id"]
    await transaction.execute(
        _SQL["create"],
        id=response,
        conversation=turn.conversation,
        previous=turn.previous,
        status=turn.created["status"],
        is_background=turn.created["background"],
        body=key.seal(texts.created, _place(response, "body")),
        asked=key.seal(texts.asked, _place(response, "asked")),
        key_version=key.version,
        claim=GENERATION_CLAIM,
    )


async def end_response(transaction: TenantTransaction, ending: Ending) -> bool:
    """Store the end of a response, its output, and the events that are not stored yet. Returns False if the response is
    already over, or gone.
    """
    response = ending.response
    row = await transaction.fetch_one(_SQL["lock"], id=response)
    if row is None or row["status"] not in RUNNING:
        return False
    newest = await transaction.sealing_key()
    version = row["key_version"]
    key = newest if version == newest.version else await transaction.key(version)
    await add_events(transaction, key, response, row["last_number"] + 1, ending.lines[row["last_number"] + 1 :])
    outcome = key.seal(msgspec.json.encode(ending.outcome), _place(response, "outcome"))
    values = {"id": response, "status": ending.status, "outcome": outcome, "last_number": len(ending.lines) - 1}
    await transaction.execute(_SQL["finish"], **values)
    if ending.output:
        place = await transaction.fetch_one(_SQL["next_position"], id=response)
        assert place is not None
        turn = StoredTurn(response, place["position"], is_output=True)
        output = await packed(ending.output, "output")
        await append(transaction, newest, output, conversation=row["conversation_id"], turn=turn)
    return True


def no_response(response: str) -> NotFound:
    return NotFound(f"no response with id '{response}'", "response_id", "response_not_found")


def _shown(key: TenantKey, row: Row) -> Body:
    """The response as it is now, without output."""
    created = created_in(key, row)
    if row["outcome"] is None:
        return created
    outcome = msgspec.json.decode(key.unseal(row["outcome"], _place(row["id"], "outcome")))
    body: Body = applied(outcome, created)
    return body


def _asked(key: TenantKey, row: Row) -> dict[str, Any]:
    """The request of a response. An older version of Baton stored requests whole, not as a difference."""
    asked = msgspec.json.decode(key.unseal(row["asked"], _place(row["id"], "asked")))
    body: dict[str, Any] = asked if isinstance(asked, dict) else applied(asked, created_in(key, row))
    return body


def _place(response: str, column: str) -> str:
    return f"responses/{response}/{column}"


async def _supersede(transaction: TenantTransaction, turn: Admission) -> None:
    if await transaction.fetch_one(_SQL["supersede"], id=turn.created["id"], replaced=turn.replaced) is None:
        raise Conflict(
            f"response '{turn.replaced}' follows items that have left the conversation: continue from it with "
            "previous_response_id",
            None,
            "response_superseded",
        )
