"""Summaries as they are kept: readable by nobody else, and of nothing that has left its conversation."""

from collections.abc import AsyncIterator

import pytest
from openai import AsyncOpenAI

from api.identity.tenants import tenant_of_key
from api.state.encryption.tenant_keys import TenantKeys
from api.state.lifecycle import ChatState
from api.state.postgres.stores.items import Coverage
from api.state.postgres.stores.summaries import ContextStore
from api.state.postgres.tenant_transaction import TenantDatabase
from cluster.errors import StateUnavailable
from tests.component.answering import Model
from tests.component.app_with_postgres import clients_of
from tests.component.openai_objects import id_of
from tests.expected import present

ALICE = tenant_of_key("sk-alice")


class AwayKey:
    """A key management service that does not answer."""

    name = "away"

    def wrap(self, key: bytes) -> bytes:
        raise StateUnavailable("the key service is away", 1.0)

    def unwrap(self, wrapped: bytes) -> bytes:
        raise StateUnavailable("the key service is away", 1.0)


@pytest.fixture
async def client(state: ChatState) -> AsyncIterator[AsyncOpenAI]:
    async with clients_of(state, Model()) as found:
        yield found("sk-alice")


async def test_compaction_is_to_be_retried_while_its_key_cannot_be_had(state: ChatState) -> None:
    item = await state.stores.context.compaction(ALICE, "They said hello.")
    assert (await state.stores.context.opened(ALICE, [item]))[0]["summary"] == "They said hello."
    store = ContextStore(TenantDatabase(present(state._database), TenantKeys(AwayKey())))
    with pytest.raises(StateUnavailable):
        await store.opened(ALICE, [item])


@pytest.mark.parametrize("is_late", [False, True])
async def test_summary_tells_nothing_of_what_is_no_part_of_the_conversation_any_more(
    client: AsyncOpenAI, state: ChatState, is_late: bool
) -> None:
    conversation = await client.conversations.create()
    made = await client.responses.create(model="m", input="secret", conversation=conversation.id)
    items = [id_of(item) async for item in client.conversations.items.list(conversation.id, order="asc")]
    if is_late:
        await client.post(f"/responses/{made.id}/regenerate", cast_to=object)
    coverage = Coverage(items[-1], len(items))
    assert await state.stores.context.add_summary(ALICE, made.id, coverage, "a secret") is not is_late


async def test_summary_of_what_was_partly_deleted_is_not_kept(client: AsyncOpenAI, state: ChatState) -> None:
    conversation = await client.conversations.create()
    made = await client.responses.create(model="m", input="secret", conversation=conversation.id)
    items = [id_of(item) async for item in client.conversations.items.list(conversation.id, order="asc")]
    await client.conversations.items.delete(items[0], conversation_id=conversation.id)
    coverage = Coverage(items[-1], len(items))
    assert not await state.stores.context.add_summary(ALICE, made.id, coverage, "a secret")
