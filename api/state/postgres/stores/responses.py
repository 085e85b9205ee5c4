"""Responses as PostgreSQL holds them: admitted before anything is generated, finished once. Every look-up is within one
tenant.
"""

from datetime import timedelta
from typing import Any, NamedTuple

import msgspec
from psycopg.errors import UniqueViolation
from psycopg.rows import DictRow

from api.state.encryption.tenant_keys import TenantKey, TenantKeys
from api.state.event_streams.response_events import Body, add_events, created_in, events_of
from api.state.postgres.database import Database, Transaction, fetch_all, fetch_one
from api.state.postgres.derived import lock_of_derived
from api.state.postgres.parts import PAGE_BYTES, items_in
from api.state.postgres.queries import queries
from api.state.postgres.stores.conversations import found_conversation
from api.state.postgres.stores.history import Histories, History
from api.state.postgres.stores.history_space import HistorySpace
from api.state.postgres.stores.items import (
    ROW_BYTES,
    Item,
    Limits,
    StoredTurn,
    append,
    packed,
    referred,
    too_large,
    unsealed,
)
from api.wire.differences import Difference, applied, difference
from api.wire.pages import Page, Part
from api.wire.responses.request import Asked
from api.wire.responses.short_events import Line
from cluster.errors import Conflict, InvalidRequest, NotFound

LEASE = timedelta(seconds=15)
"""A response that nobody has renewed for so long has lost whoever generated it."""

RUNNING = ("queued", "in_progress")

_SQL = queries("responses.sql")


class Admission(NamedTuple):
    """A turn that is to be generated."""

    created: Body
    """The response as it is created, without output."""
    items: list[Item]
    """Its input, with ids."""
    conversation: str | None
    previous: str | None
    replaced: str | None
    """The response that it is generated anew for."""
    asked: dict[str, Any]
    """Its request, as the client said it, without the input."""


class Admitted(NamedTuple):
    history: History
    """What it follows."""
    key: TenantKey
    """For its events."""


class Ending(NamedTuple):
    """What becomes of a response."""

    response: str
    status: str
    outcome: Difference
    """The response at its end, without output, to what it was when it was created."""
    output: list[Item]
    lines: list[Line]
    """All its events (api/wire/responses/short_events.py)."""

    @classmethod
    def of(cls, response: Body, created: Body, lines: list[Line]) -> "Ending":
        """`response`: at its end."""
        outcome = difference({**response, "output": []}, created)
        return cls(response["id"], response["status"], outcome, response["output"], lines)


class Responses:
    def __init__(self, database: Database, keys: TenantKeys, limits: Limits, space: HistorySpace) -> None:
        """`limits`: only the answer to a turn may be more. `space`: for what turns follow."""
        self._database = database
        self._keys = keys
        self._limits = limits
        self._histories = Histories(keys, limits, space)

    async def history(self, tenant: str, conversation: str | None, previous: str | None) -> History:
        """What a turn follows. Raises NotFound, Conflict, InvalidRequest, TooManyRequests, Overloaded."""
        async with self._database.transaction(tenant) as transaction:
            return await self._histories.of(transaction, tenant, conversation, previous)

    async def referred(self, tenant: str, items: list[Item]) -> list[Item]:
        """An input with what it refers to. Raises NotFound, InvalidRequest."""
        async with self._database.transaction(tenant) as transaction:
            return await referred(transaction, self._keys, tenant, items, "input")

    async def admit(self, tenant: str, turn: Admission) -> Admitted:
        """The turn is durable from here on, and nobody else's on its conversation.

        Raises:
            NotFound: no such conversation or previous response.
            InvalidRequest: the conversation is full, or the tenant's quota; or something in the turn is too large.
            TooManyRequests, Overloaded: there is no room in memory for what it follows.
            Conflict: another turn is running on the conversation, or what was replaced is no part of it any more.
        """
        conversation, limits = turn.conversation, self._limits
        added, texts = await packed(turn.items, "input", limits), _texts(turn, limits)
        adds = added.num_bytes + ROW_BYTES + texts.num_bytes
        try:
            async with self._database.transaction(tenant, adds=adds) as transaction:
                if conversation is not None:
                    await found_conversation(transaction, tenant, conversation)
                key = await self._keys.newest(transaction, tenant)
                await self._create(transaction, key, turn, texts)  # from here on the conversation is this turn's
                if conversation is not None and turn.replaced is not None:
                    await _supersede(transaction, tenant, turn)
                history = await self._histories.of(transaction, tenant, conversation, turn.previous)
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
        """Returns the events that are written: others, if it was over before."""
        async with self._database.transaction(tenant) as transaction:
            if await end_response(transaction, self._keys, tenant, ending):
                return ending.lines
            return await events_of(transaction, self._keys, tenant, ending.response)

    async def cancel(self, tenant: str, response: str) -> bool:
        """Have a background response end; False for one that is over. Raises NotFound, InvalidRequest."""
        async with self._database.transaction(tenant) as transaction:
            row = await fetch_one(transaction, _SQL["lock"], tenant=tenant, id=response)
            if row is None:
                raise no_response(response)
            if not row["is_background"]:
                raise InvalidRequest(
                    f"response '{response}' was not created in the background: leave its stream to be rid of it",
                    None,
                    "not_in_background",
                )
            await transaction.execute(_SQL["cancel"], {"tenant": tenant, "id": response})
            return row["status"] in RUNNING

    async def withdraw(self, tenant: str, response: str) -> None:
        """It was never admitted, and neither was its input."""
        async with self._database.transaction(tenant) as transaction:
            for statement in ("lock", "restore", "withdraw_items", "delete"):
                await transaction.execute(_SQL[statement], {"tenant": tenant, "id": response})

    async def get(self, tenant: str, response: str) -> Body:
        """Raises NotFound."""
        async with self._database.transaction(tenant) as transaction:
            row = await fetch_one(transaction, _SQL["get"], tenant=tenant, id=response)
            if row is None:
                raise no_response(response)
            key = await self._keys.of_version(transaction, tenant, row["key_version"])
            output = await fetch_all(transaction, _SQL["output"], tenant=tenant, id=response)
            keys = await self._keys.of_rows(transaction, tenant, output)
        items = await unsealed(keys, output)
        return _shown(key, row) | {"status": row["status"], "output": items}

    async def delete(self, tenant: str, response: str) -> None:
        """Its items stay in the conversation that they belong to.

        Raises:
            NotFound: there is no such response.
            Conflict: it is being generated.
        """
        async with self._database.transaction(tenant, lock=lock_of_derived(tenant)) as transaction:
            row = await fetch_one(transaction, _SQL["lock"], tenant=tenant, id=response)
            if row is None:
                raise no_response(response)
            if row["status"] in RUNNING:
                raise Conflict(f"response '{response}' is still being generated", None, "response_in_progress")
            await transaction.execute(_SQL["delete_items"], {"tenant": tenant, "id": response})
            await transaction.execute(_SQL["delete"], {"tenant": tenant, "id": response})

    async def input_items(self, tenant: str, response: str, page: Page) -> Part[Item]:
        """Raises NotFound."""
        query = _SQL["input_newest_first" if page.newest_first else "input_oldest_first"]
        async with self._database.transaction(tenant) as transaction:
            if await fetch_one(transaction, _SQL["get"], tenant=tenant, id=response) is None:
                raise no_response(response)
            values = {"id": response, "after": page.after, "limit": page.limit + 1, "max_bytes": PAGE_BYTES}
            rows = await fetch_all(transaction, query, tenant=tenant, **values)
            if not rows and page.after:
                place = {"tenant": tenant, "id": response, "item": page.after}
                if await fetch_one(transaction, _SQL["input_item"], **place) is None:
                    raise NotFound(f"no item with id '{page.after}' in this response", "after", "item_not_found")
            keys = await self._keys.of_rows(transaction, tenant, rows)
        return await items_in(page, keys, rows)

    async def asked(self, tenant: str, response: str) -> Asked:
        """Raises NotFound."""
        query = _SQL["input_oldest_first"]
        values = {"id": response, "after": None, "limit": None, "max_bytes": None}
        async with self._database.transaction(tenant) as transaction:
            row = await fetch_one(transaction, _SQL["asked"], tenant=tenant, id=response)
            if row is None:
                raise no_response(response)
            if row["asked"] is None:
                raise InvalidRequest(f"response '{response}' was made by an older Baton: send its request again")
            key = await self._keys.of_version(transaction, tenant, row["key_version"])
            rows = await fetch_all(transaction, query, tenant=tenant, **values)
            keys = await self._keys.of_rows(transaction, tenant, rows)
        body, items = _asked(key, row), await unsealed(keys, rows)
        return Asked(response, body, items, row["conversation_id"], row["previous_response_id"])

    async def _create(self, transaction: Transaction, key: TenantKey, turn: Admission, texts: "_Texts") -> None:
        response = turn.created["id"]
        values = {
            "tenant": key.tenant,
            "id": response,
            "conversation": turn.conversation,
            "previous": turn.previous,
            "status": turn.created["status"],
            "is_background": turn.created["background"],
            "body": key.seal(texts.created, _place(response, "body")),
            "asked": key.seal(texts.asked, _place(response, "asked")),
            "key_version": key.version,
            "lease": LEASE,
        }
        await transaction.execute(_SQL["create"], values)


class _Texts(NamedTuple):
    """Of a turn that is to be admitted, as JSON."""

    created: bytes
    asked: bytes

    @property
    def num_bytes(self) -> int:
        return len(self.created) + len(self.asked)


def _texts(turn: Admission, limits: Limits) -> _Texts:
    """Raises InvalidRequest where there is too much beside the input."""
    asked = difference(turn.asked, turn.created)
    texts = _Texts(msgspec.json.encode(turn.created), msgspec.json.encode(asked))
    if texts.num_bytes > limits.item_bytes:
        largest = max(turn.asked, key=lambda name: len(msgspec.json.encode(turn.asked[name])))
        raise too_large(largest, texts.num_bytes, limits.item_bytes)
    return texts


async def end_response(transaction: Transaction, keys: TenantKeys, tenant: str, ending: Ending) -> bool:
    """Write its end, output, and those of all its events that are not written yet. False for one that is over, or
    gone.
    """
    response = ending.response
    row = await fetch_one(transaction, _SQL["lock"], tenant=tenant, id=response)
    if row is None or row["status"] not in RUNNING:
        return False
    newest = await keys.newest(transaction, tenant)
    version = row["key_version"]
    key = newest if version == newest.version else await keys.of_version(transaction, tenant, version)
    await add_events(transaction, key, response, row["last_number"] + 1, ending.lines[row["last_number"] + 1 :])
    values = {
        "tenant": tenant,
        "id": response,
        "status": ending.status,
        "outcome": key.seal(msgspec.json.encode(ending.outcome), _place(response, "outcome")),
        "last_number": len(ending.lines) - 1,
    }
    await transaction.execute(_SQL["finish"], values)
    if ending.output:
        place = await fetch_one(transaction, _SQL["next_position"], tenant=tenant, id=response)
        assert place is not None
        turn = StoredTurn(response, place["position"], is_output=True)
        output = await packed(ending.output, "output")
        await append(transaction, newest, output, conversation=row["conversation_id"], turn=turn)
    return True


def no_response(response: str) -> NotFound:
    return NotFound(f"no response with id '{response}'", "response_id", "response_not_found")


def _shown(key: TenantKey, row: DictRow) -> Body:
    """As it is now, without output."""
    created = created_in(key, row)
    if row["outcome"] is None:
        return created
    outcome = msgspec.json.decode(key.unseal(row["outcome"], _place(row["id"], "outcome")))
    body: Body = applied(outcome, created)
    return body


def _asked(key: TenantKey, row: DictRow) -> dict[str, Any]:
    """Its request. Older ones are stored whole."""
    asked = msgspec.json.decode(key.unseal(row["asked"], _place(row["id"], "asked")))
    body: dict[str, Any] = asked if isinstance(asked, dict) else applied(asked, created_in(key, row))
    return body


def _place(response: str, column: str) -> str:
    return f"responses/{response}/{column}"


async def _supersede(transaction: Transaction, tenant: str, turn: Admission) -> None:
    values = {"id": turn.created["id"], "replaced": turn.replaced}
    if await fetch_one(transaction, _SQL["supersede"], tenant=tenant, **values) is None:
        raise Conflict(
            f"response '{turn.replaced}' follows what is no part of the conversation any more: go on from there by "
            "previous_response_id",
            None,
            "response_superseded",
        )
