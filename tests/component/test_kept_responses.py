"""Responses that outlive their streams: resumed, in the background, cancelled, generated anew, and lost."""

import asyncio
import math
from collections.abc import AsyncIterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import psycopg
import pytest
from openai import AsyncOpenAI, BadRequestError, ConflictError, InternalServerError, NotFoundError, RateLimitError

from api.responses import attempts, turn
from api.state import log_writer, orphans
from api.state.chat_state import ChatState
from api.state.responses import LEASE
from cluster.config import StateConfig
from cluster.errors import StateUnavailable, TooManyRequests
from tests.component.answering import Model, texts
from tests.component.remembering import ClientOf, clients_of


@pytest.fixture
def model() -> Model:
    return Model()


@pytest.fixture
async def clients(state: ChatState, model: Model) -> AsyncIterator[ClientOf]:
    async with clients_of(state, model) as found:
        yield found
        model.may_go_on.set()


@pytest.fixture
def client(clients: ClientOf) -> AsyncOpenAI:
    return clients("sk-alice")


@pytest.fixture
async def elsewhere(state: ChatState, postgres: str, redis: str, tmp_path: Path) -> AsyncIterator[AsyncOpenAI]:
    """The same client, of another ingress replica."""
    other = ChatState(StateConfig(database_url=postgres, redis_url=redis, data_dir=str(tmp_path), titles=False))
    await other.look()
    async with clients_of(other, Model()) as found:
        yield found("sk-alice")
    await other.close()


async def cut_after(client: AsyncOpenAI, number: int, **request: Any) -> tuple[str, list[Any]]:
    """A response, and the events that its client has seen before it left."""
    stream = await client.responses.create(model="m", input="Hello", stream=True, **request)
    seen = [event async for _, event in azip(range(number), stream)]
    await stream.close()
    return seen[0].response.id, seen


async def azip(numbers: Any, stream: Any) -> AsyncIterator[tuple[int, Any]]:
    for number in numbers:
        yield number, await anext(aiter(stream))


async def resumed(client: AsyncOpenAI, response: str, after: int | None = None) -> list[Any]:
    options = {} if after is None else {"starting_after": after}
    return [event async for event in await client.responses.retrieve(response, stream=True, **options)]


def numbers(events: list[Any]) -> list[int]:
    return [event.sequence_number for event in events]


async def test_stream_goes_on_where_it_was_cut(client, model):
    model.may_go_on.clear()
    response, seen = await cut_after(client, 3)
    resuming = asyncio.create_task(resumed(client, response, after=2))
    model.may_go_on.set()
    rest = await resuming
    assert numbers(seen + rest) == list(range(len(seen + rest)))
    assert (rest[-1].type, rest[-1].response.output_text) == ("response.completed", "Answer 1")


async def test_stream_of_a_response_that_is_over_can_be_read_again(client):
    stream = await client.responses.create(model="m", input="Hello", stream=True)
    told = [event async for event in stream]
    assert await resumed(client, told[0].response.id) == told
    assert await resumed(client, told[0].response.id, after=len(told) - 2) == told[-1:]
    assert await resumed(client, told[0].response.id, after=len(told) + 5) == []


async def test_stream_is_resumed_on_another_replica(client, model, elsewhere):
    model.may_go_on.clear()
    response, seen = await cut_after(client, 3)
    resuming = asyncio.create_task(resumed(elsewhere, response, after=2))
    model.may_go_on.set()
    rest = await resuming
    assert numbers(seen + rest) == list(range(len(seen + rest)))
    assert rest[-1].type == "response.completed"


async def test_what_a_client_has_seen_is_durable(client, model, postgres):
    model.may_go_on.clear()
    response, _ = await cut_after(client, 5)
    with psycopg.connect(postgres) as connection:
        connection.execute("SELECT set_config('app.tenant_id', '*', true)")
        (last,) = connection.execute("SELECT max(last_number) FROM response_events").fetchone()
        sealed = connection.execute("SELECT events FROM response_events").fetchall()
    assert last >= 4 and not any(b"Answer" in events for (events,) in sealed)
    model.may_go_on.set()
    await resumed(client, response)


async def test_unknown_response_has_no_stream(client, clients):
    made = await client.responses.create(model="m", input="Hello")
    for who, response in ((client, "resp_x"), (clients("sk-bob"), made.id)):
        with pytest.raises(NotFoundError):
            await who.responses.retrieve(response, stream=True)


@pytest.mark.parametrize("query", ["stream=maybe", "stream=true&starting_after=-1", "stream=true&starting_after=x"])
async def test_bad_place_to_resume_at_is_refused(client, query):
    made = await client.responses.create(model="m", input="Hello")
    with pytest.raises(BadRequestError):
        await client.get(f"/responses/{made.id}?{query}", cast_to=object)


async def test_background_response_is_there_before_it_is_generated(client, model):
    model.may_go_on.clear()
    made = await client.responses.create(model="m", input="Hello", background=True)
    assert (made.status, made.background, made.output) == ("queued", True, [])
    waiting = asyncio.create_task(resumed(client, made.id))
    model.may_go_on.set()
    events = await waiting
    assert [event.type for event in events[:3]] == ["response.created", "response.queued", "response.in_progress"]
    found = await client.responses.retrieve(made.id)
    assert (found.status, found.output_text) == ("completed", "Answer 1")


async def test_background_response_waits_for_workers(client, model, monkeypatch):
    monkeypatch.setattr(turn, "MAX_BACKGROUND_WAIT_S", 0.02)
    model.error = TooManyRequests("busy", 3.0)
    made = await client.responses.create(model="m", input="Hello", background=True)
    waiting = asyncio.create_task(resumed(client, made.id))
    await model.asked(2)
    assert (await client.responses.retrieve(made.id)).status == "queued"
    model.error = None
    assert (await waiting)[-1].type == "response.completed"


async def test_background_response_that_cannot_be_generated_has_failed(client, model):
    model.error = RuntimeError("a bug")
    made = await client.responses.create(model="m", input="Hello", background=True)
    assert (await resumed(client, made.id))[-1].type == "response.failed"
    assert (await client.responses.retrieve(made.id)).error.code == "server_error"


async def test_background_response_must_be_stored(client, model):
    with pytest.raises(BadRequestError) as caught:
        await client.responses.create(model="m", input="Hello", background=True, store=False)
    assert caught.value.param == "background" and not model.bodies


@pytest.mark.parametrize("where", ["here", "elsewhere"])
async def test_cancelled_response_keeps_what_was_generated(client, elsewhere, model, where):
    model.may_go_on.clear()
    made = await client.responses.create(model="m", input="Hello", background=True)
    stream = await client.responses.retrieve(made.id, stream=True)
    async for event in stream:
        if event.type == "response.output_text.delta":
            break
    cancelled = await (client if where == "here" else elsewhere).responses.cancel(made.id)
    assert (cancelled.status, cancelled.output_text) == ("cancelled", "Answer ")
    assert cancelled.output[0].status == "incomplete"
    *_, last = [event async for event in stream]
    assert last.response.status == "cancelled"
    assert await client.responses.cancel(made.id) == cancelled


async def test_only_background_responses_can_be_cancelled(client, clients):
    made = await client.responses.create(model="m", input="Hello")
    with pytest.raises(BadRequestError):
        await client.responses.cancel(made.id)
    for who, response in ((client, "resp_x"), (clients("sk-bob"), made.id)):
        with pytest.raises(NotFoundError):
            await who.responses.cancel(response)


async def again(client: AsyncOpenAI, response: str, **overrides: Any) -> Any:
    return await client.post(f"/responses/{response}/regenerate", cast_to=object, body=overrides)


async def test_regenerated_answer_is_a_sibling_and_the_conversation_goes_on_from_it(client, model):
    conversation = await client.conversations.create()
    first = await client.responses.create(model="m", input="One", conversation=conversation.id, temperature=0.5)
    await client.responses.create(model="m", input="Two", conversation=conversation.id)
    sibling = await again(client, first.id, temperature=0.7)
    assert sibling["metadata"] == {"regenerated_from": first.id} and sibling["temperature"] == 0.7
    assert model.chats[2] == [{"role": "user", "content": "One"}]
    assert await texts(client, conversation.id) == ["One", "Answer 3"]
    await client.responses.create(model="m", input="Then?", conversation=conversation.id)
    assert [message["content"] for message in model.chats[3]] == ["One", "Answer 3", "Then?"]

    branch = await client.responses.create(model="m", input="Or?", previous_response_id=first.id)
    assert [message["content"] for message in model.chats[4]] == ["One", "Answer 1", "Or?"]
    assert (await client.responses.retrieve(first.id)).output_text == "Answer 1"
    assert branch.conversation is None


async def test_response_with_all_the_metadata_it_may_have_can_be_regenerated(client):
    full = {str(number): "" for number in range(16)}
    first = await client.responses.create(model="m", input="One", metadata=full)
    second = await again(client, first.id)
    assert second["metadata"] == {**full, "regenerated_from": first.id}
    assert (await again(client, second["id"]))["metadata"] == {**full, "regenerated_from": second["id"]}
    with pytest.raises(BadRequestError):
        await again(client, first.id, metadata={**full, "more": ""})


async def test_first_try_can_be_regenerated_again_but_not_what_followed_it(client):
    conversation = await client.conversations.create()
    first = await client.responses.create(model="m", input="One", conversation=conversation.id)
    second = await client.responses.create(model="m", input="Two", conversation=conversation.id)
    await again(client, first.id)
    await again(client, first.id)
    assert await texts(client, conversation.id) == ["One", "Answer 4"]
    with pytest.raises(ConflictError) as caught:
        await again(client, second.id)
    assert caught.value.code == "response_superseded"


async def test_regeneration_that_is_refused_changes_nothing(client, model):
    conversation = await client.conversations.create()
    first = await client.responses.create(model="m", input="One", conversation=conversation.id)
    model.error = TooManyRequests("busy", 3.0)
    with pytest.raises(Exception, match="busy"):
        await again(client, first.id)
    assert await texts(client, conversation.id) == ["One", "Answer 1"]


async def test_regeneration_outside_of_a_conversation_follows_the_same_response(client, model):
    first = await client.responses.create(model="m", input="One")
    second = await client.responses.create(model="m", input="Two", previous_response_id=first.id)
    sibling = await again(client, second.id)
    assert [message["content"] for message in model.chats[2]] == ["One", "Answer 1", "Two"]
    assert sibling["previous_response_id"] == first.id
    with pytest.raises(BadRequestError):
        await again(client, second.id, input="Something else")
    with pytest.raises(NotFoundError):
        await again(client, "resp_x")


@pytest.fixture
def knows_that_nobody_comes_back(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(orphans, "LEASE", timedelta(0))


async def lose(state: ChatState, postgres: str) -> None:
    """The servers of all running responses."""
    with psycopg.connect(postgres) as connection:
        connection.execute("SELECT set_config('app.tenant_id', '*', true)")
        connection.execute("UPDATE responses SET lease_until = now() - %s", [LEASE])
    for _ in range(1000):  # it passes over those that are just being written to
        if await state.stores.orphans.end():
            return
        await asyncio.sleep(0.01)
    raise TimeoutError


@pytest.mark.usefixtures("knows_that_nobody_comes_back")
async def test_lost_turn_keeps_its_partial_answer_and_locks_nothing(client, model, state, postgres):
    model.may_go_on.clear()
    conversation = await client.conversations.create()
    stream = await client.responses.create(model="m", input="Hello", conversation=conversation.id, stream=True)
    async for event in stream:
        if event.type == "response.output_text.delta":
            break
    await lose(state, postgres)
    (lost,) = [item async for item in client.conversations.items.list(conversation.id, limit=1)][:1]
    assert lost.status == "incomplete"
    await client.responses.create(model="m", input="Still there?", conversation=conversation.id)
    assert await texts(client, conversation.id) == ["Hello", "Answer ", "Still there?", "Answer 2"]
    assert [message["content"] for message in model.chats[1]] == ["Hello", "Answer ", "Still there?"]

    model.may_go_on.set()  # it was slow, not lost: what it says now counts no more
    assert [event.type async for event in stream][-1] == "response.failed"
    assert len(await texts(client, conversation.id)) == 4


@pytest.mark.usefixtures("knows_that_nobody_comes_back")
async def test_stream_of_a_lost_response_ends(client, model, state, postgres, elsewhere):
    model.may_go_on.clear()
    made = await client.responses.create(model="m", input="Hello", background=True)
    waiting = asyncio.create_task(resumed(elsewhere, made.id))
    await model.asked(1)
    await lose(state, postgres)
    events = await waiting
    assert numbers(events) == list(range(len(events))) and events[-1].type == "response.failed"
    model.may_go_on.set()


async def test_after_an_outage_others_have_the_time_to_renew_their_leases(client, model, state, postgres):
    model.may_go_on.clear()
    made = await client.responses.create(model="m", input="Hello", background=True)
    with psycopg.connect(postgres) as connection:
        connection.execute("SELECT set_config('app.tenant_id', '*', true)")
        connection.execute("UPDATE responses SET lease_until = now() - %s", [LEASE])
    assert await state.stores.orphans.end() == 0
    assert (await client.responses.retrieve(made.id)).status in ("queued", "in_progress")
    model.may_go_on.set()
    assert (await resumed(client, made.id))[-1].type == "response.completed"


async def tried(client: AsyncOpenAI, number: int, **request: Any) -> Any:
    """As the official client tries by itself after a connection error."""
    headers = {"x-stainless-retry-count": str(number)}
    return await client.responses.create(model="m", input="Hello", extra_headers=headers, **request)


async def test_retry_finds_the_response_that_is_being_generated(client, model):
    model.may_go_on.clear()
    conversation = await client.conversations.create()
    first, _ = await cut_after(client, 3, conversation=conversation.id)
    stream = await tried(client, 1, conversation=conversation.id, stream=True)
    model.may_go_on.set()
    events = [event async for event in stream]
    assert {event.response.id for event in events if hasattr(event, "response")} == {first}
    assert numbers(events) == list(range(len(events))) and len(model.bodies) == 1
    assert await texts(client, conversation.id) == ["Hello", "Answer 1"]


async def test_retry_without_a_stream_waits_for_the_whole(client, model, elsewhere):
    model.may_go_on.clear()
    asked = asyncio.create_task(client.responses.create(model="m", input="Hello"))
    await model.asked(1)
    asked.cancel()
    again = asyncio.create_task(tried(elsewhere, 2))
    model.may_go_on.set()
    assert (await again).output_text == "Answer 1"
    assert len(model.bodies) == 1


async def test_same_request_that_is_no_retry_is_another(client, model):
    one = await client.responses.create(model="m", input="Hello")
    other = await client.responses.create(model="m", input="Hello")
    assert one.id != other.id and len(model.bodies) == 2


async def test_retry_after_a_refusal_is_tried(client, model):
    model.error = TooManyRequests("busy", 3.0)
    with pytest.raises(RateLimitError):
        await client.responses.create(model="m", input="Hello", extra_headers={"Idempotency-Key": "k"})
    model.error = None
    assert (await tried(client, 1)).output_text == "Answer 2"
    keyed = await client.responses.create(model="m", input="Hello again", extra_headers={"Idempotency-Key": "k"})
    assert keyed.output_text == "Answer 3"


async def test_idempotency_key_gives_the_first_answer_and_belongs_to_one_request(client, clients, model):
    key = {"Idempotency-Key": "k"}
    first = await client.responses.create(model="m", input="Hello", extra_headers=key)
    assert await client.responses.create(model="m", input="Hello", extra_headers=key) == first
    assert len(model.bodies) == 1
    with pytest.raises(ConflictError) as caught:
        await client.responses.create(model="m", input="Other", extra_headers=key)
    assert caught.value.code == "idempotency_key_conflict"
    assert (await clients("sk-bob").responses.create(model="m", input="Other", extra_headers=key)).id != first.id


async def test_stream_does_not_wait_for_a_slow_database_and_nothing_is_lost(client, model, postgres):
    model.may_go_on.clear()
    stream = aiter(await client.responses.create(model="m", input="Hello", stream=True))
    first = await anext(stream)
    with psycopg.connect(postgres) as connection:
        connection.execute("SELECT set_config('app.tenant_id', '*', true)")
        connection.execute("SELECT FROM responses FOR UPDATE")
        model.may_go_on.set()
        rest = [event async for event in stream]
        assert rest[-1].type == "response.completed"
    for _ in range(1000):
        if (found := await client.responses.retrieve(first.response.id)).status == "completed":
            break
        await asyncio.sleep(0.01)
    assert found == rest[-1].response
    assert numbers(await resumed(client, found.id)) == numbers([first, *rest])


async def test_page_after_an_item_of_something_else_is_not_found(client):
    made = await client.responses.create(model="m", input="Hello")
    (asked,) = [item async for item in client.responses.input_items.list(made.id)]
    assert [item async for item in client.responses.input_items.list(made.id, after=asked.id)] == []
    with pytest.raises(NotFoundError):
        await client.responses.input_items.list(made.id, after="msg_x")


@pytest.mark.usefixtures("knows_that_nobody_comes_back")
async def test_tenant_that_waits_for_a_lock_keeps_no_lost_response_from_ending(client, model, state, postgres):
    model.may_go_on.clear()
    lost = await client.responses.create(model="m", input="Hello", background=True)
    await model.asked(1)
    conversation = await client.conversations.create()
    with psycopg.connect(postgres) as other:
        other.execute("SELECT set_config('app.tenant_id', '*', true)")
        other.execute("SELECT 1 FROM conversations FOR UPDATE")
        with pytest.raises(InternalServerError):
            await client.conversations.update(conversation.id, metadata={})
    await lose(state, postgres)
    assert (await client.responses.retrieve(lost.id)).status == "failed"
    model.may_go_on.set()


@pytest.mark.usefixtures("knows_that_nobody_comes_back")
async def test_server_that_was_lost_meanwhile_is_noticed(state, postgres):
    with psycopg.connect(postgres) as connection:
        connection.execute(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity "
            "WHERE datname = current_database() AND pid <> pg_backend_pid()"
        )
    with pytest.raises(StateUnavailable):
        await state.look()
    assert math.isinf(state._database.reachable_since)
    await state.look()
    assert math.isfinite(state._database.reachable_since)


async def test_superseded_item_is_not_found_and_can_be_deleted(client):
    conversation = await client.conversations.create()
    made = await client.responses.create(model="m", input="Hello", conversation=conversation.id)
    (said, _) = [item.id async for item in client.conversations.items.list(conversation.id, order="asc")]
    assert (await client.conversations.items.retrieve(said, conversation_id=conversation.id)).id == said
    await again(client, made.id)
    with pytest.raises(NotFoundError):
        await client.conversations.items.retrieve(said, conversation_id=conversation.id)
    await client.conversations.items.delete(said, conversation_id=conversation.id)


@pytest.mark.usefixtures("knows_that_nobody_comes_back")
async def test_response_that_cannot_be_read_keeps_no_other_from_ending(client, clients, model, state, postgres):
    model.may_go_on.clear()
    model.waiting = {1, 2}
    conversation = await client.conversations.create()
    broken = await clients("sk-bob").responses.create(model="m", input="Hello", background=True)
    lost = await client.responses.create(model="m", input="Hello", background=True, conversation=conversation.id)
    await model.asked(2)
    with psycopg.connect(postgres) as connection:
        connection.execute("SELECT set_config('app.tenant_id', '*', true)")
        connection.execute(
            "UPDATE responses SET body = 'x', lease_until = now() - interval '1 h' WHERE id = %s", [broken.id]
        )
    await lose(state, postgres)
    assert (await client.responses.retrieve(lost.id)).status == "failed"
    model.may_go_on.set()


async def test_deleted_answer_is_gone_from_the_stream_too(client):
    conversation = await client.conversations.create()
    made = await client.responses.create(model="m", input="Hello", conversation=conversation.id)
    await client.conversations.items.delete(made.output[0].id, conversation_id=conversation.id)
    with pytest.raises(BadRequestError) as caught:
        await client.responses.retrieve(made.id, stream=True)
    assert caught.value.code == "events_expired"


async def test_events_are_kept_for_a_while_after_the_end(client, model, state):
    model.may_go_on.clear()
    running, _ = await cut_after(client, 3)
    over = await client.responses.create(model="m", input="Hello")
    await state.stores.response_events.purge(timedelta(hours=1))
    assert numbers(await resumed(client, over.id))[0] == 0
    await state.stores.response_events.purge(timedelta(0))
    with pytest.raises(BadRequestError) as caught:
        await resumed(client, over.id)
    assert caught.value.code == "events_expired"
    model.may_go_on.set()
    assert numbers(await resumed(client, running))[0] == 0


async def test_what_has_piled_up_is_written_little_by_little(client, model, state, postgres, monkeypatch):
    monkeypatch.setattr(log_writer, "MAX_BYTES_OF_ONE", 1.0)
    stream = await client.responses.create(model="m", input="Hello", stream=True)
    told = [event async for event in stream]
    assert await resumed(client, told[-1].response.id) == told


async def test_admission_that_nobody_heard_of_leaves_nothing(client, state, monkeypatch):
    store = state.stores.responses
    admit = store.admit

    async def admitted_and_lost(*admission: Any) -> None:
        await admit(*admission)
        raise StateUnavailable("lost", 1.0)

    conversation = await client.conversations.create()
    with monkeypatch.context() as patched:
        patched.setattr(store, "admit", admitted_and_lost)
        with pytest.raises(InternalServerError):
            await client.responses.create(model="m", input="Hello", conversation=conversation.id)
    for _ in range(1000):
        if not await texts(client, conversation.id):
            break
        await asyncio.sleep(0.01)
    await client.responses.create(model="m", input="Hello", conversation=conversation.id)
    assert await texts(client, conversation.id) == ["Hello", "Answer 1"]


async def test_regenerated_is_asked_as_it_was_asked_first(client, model):
    first = await client.responses.create(model="m", input="One", metadata={str(n): "x" for n in range(16)})
    second = await again(client, first.id)
    await again(client, second["id"])
    assert model.bodies[0] == model.bodies[1] == model.bodies[2]


async def test_try_that_was_refused_while_another_one_waited_for_it_is_to_be_tried_again(client, model, elsewhere):
    model.may_go_on.clear()
    model.error = TooManyRequests("busy", 3.0)
    first = asyncio.create_task(client.responses.create(model="m", input="Hello"))
    await model.asked(1)
    second = asyncio.create_task(tried(elsewhere, 1))
    for _ in range(20):
        await asyncio.sleep(0.01)
    model.may_go_on.set()
    with pytest.raises(RateLimitError):
        await first
    with pytest.raises(ConflictError):
        await second


async def test_later_request_that_is_the_same_gets_an_answer_of_its_own(client, model, monkeypatch):
    first = await client.responses.create(model="m", input="Hello")
    assert (await tried(client, 1)).id == first.id
    monkeypatch.setattr(attempts, "ATTACHED_WITHIN_S", 0.0)
    assert (await tried(client, 1)).id != first.id


async def test_regeneration_is_tried_once(client, model):
    first = await client.responses.create(model="m", input="Hello")
    key = {"Idempotency-Key": "k"}
    path = f"/responses/{first.id}/regenerate"
    one: Any = await client.post(path, cast_to=object, body={}, options={"headers": key})
    other: Any = await client.post(path, cast_to=object, body={}, options={"headers": key})
    assert one["id"] == other["id"] != first.id and len(model.bodies) == 2
