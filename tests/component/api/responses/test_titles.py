"""Titles of conversations: the client's, or the model's, which is a stand-in here."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, cast

import psycopg
import pytest
from openai import AsyncOpenAI, BadRequestError

from api.frontend.frontend import Frontend
from api.frontend.generation import Call
from api.identity.tenants import tenant_of_key
from api.limits.limits import LimitKind
from api.responses.titles import MAX_TITLES, Titles
from api.state.lifecycle import ChatState
from cluster.config.state import StateConfig
from cluster.config.tenants.limits import Limits
from cluster.errors import InvalidRequest, StateUnavailable, TooManyRequests
from cluster.messages.ids import SloClass
from tests.component.answering import frame
from tests.component.app_with_fakes import FakeFrontend
from tests.component.app_with_postgres import ClientOf, clients_of
from tests.component.charged import ChargedBooks, charged
from tests.component.openai_objects import id_of
from tests.component.reached import reached
from tests.unit.chat_chunks import answer

ALICE = tenant_of_key("sk-alice")
SAID: list[Any] = [
    {"role": "user", "content": "How do I get to the forum?"},
    {"role": "assistant", "content": "On foot."},
]


class Model(FakeFrontend):
    def __init__(self) -> None:
        super().__init__({"choices": [{"message": {"content": '"A walk in Rome"'}}]})
        self.may_answer = asyncio.Event()
        self.may_answer.set()
        self.is_asked = asyncio.Event()
        self.titled = asyncio.Event()

    async def chat_completion(self, body: Any, call: Call) -> Any:
        self.is_asked.set()
        await self.may_answer.wait()
        await charged(call)
        if body.get("stream"):
            return self._frames([frame(chunk) for chunk in answer("On foot.")], call)
        self.titled.set()
        return await super().chat_completion(body, call)


@pytest.fixture
def has_titles() -> bool:
    return True


@pytest.fixture
def model() -> Model:
    return Model()


@pytest.fixture
def books() -> ChargedBooks:
    return ChargedBooks(Limits(requests_per_minute=1000, tokens_per_minute=10**6))


@pytest.fixture
async def clients(state: ChatState, model: Model, books: ChargedBooks) -> AsyncIterator[ClientOf]:
    async with clients_of(state, model, charging=books.charging) as found:
        yield found


@pytest.fixture
def client(clients: ClientOf) -> AsyncOpenAI:
    return clients("sk-alice")


@pytest.fixture
async def titles(state: ChatState, model: Model) -> AsyncIterator[Titles]:
    made = Titles(cast(Frontend, model), state)
    yield made
    await made.close()


async def title(client: AsyncOpenAI, conversation: str) -> str | None:
    shown: Any = await client.conversations.retrieve(conversation)
    return str(shown.title) if shown.title is not None else None


async def after_turn(titles: Titles, conversation: str) -> None:
    await titles.after_turn(ALICE, conversation, Call(tenant=ALICE))
    await titles.drained()


async def test_conversation_gets_a_title_after_its_turn(client: AsyncOpenAI, titles: Titles, model: Model) -> None:
    made = await client.conversations.create(items=SAID)
    assert await title(client, made.id) is None
    await after_turn(titles, made.id)
    assert await title(client, made.id) == "A walk in Rome"
    assert "How do I get to the forum?" in model.bodies[0][1]["messages"][0]["content"]
    assert model.terms[0].slo_class is SloClass.BATCH
    await after_turn(titles, made.id)
    assert len(model.bodies) == 1


async def test_title_is_the_clients_to_set_and_is_never_overwritten(
    client: AsyncOpenAI, titles: Titles, model: Model
) -> None:
    made = await client.conversations.create(items=SAID, metadata={"a": "b"}, extra_body={"title": "Mine"})
    assert await title(client, made.id) == "Mine"
    await after_turn(titles, made.id)
    assert await title(client, made.id) == "Mine" and model.bodies == []
    changed: Any = await client.post(f"/conversations/{made.id}", cast_to=object, body={"title": "Still mine"})
    assert (changed["title"], changed["metadata"]) == ("Still mine", {"a": "b"})
    await client.conversations.update(made.id, metadata={})
    assert await title(client, made.id) == "Still mine"


async def test_title_that_the_client_sets_meanwhile_stays(client: AsyncOpenAI, titles: Titles, model: Model) -> None:
    made = await client.conversations.create(items=SAID)
    model.may_answer.clear()
    await titles.after_turn(ALICE, made.id, Call(tenant=ALICE))
    await client.post(f"/conversations/{made.id}", cast_to=object, body={"title": "Mine"})
    model.may_answer.set()
    await titles.drained()
    assert await title(client, made.id) == "Mine"


async def test_title_that_the_client_removes_is_made_again(client: AsyncOpenAI, titles: Titles) -> None:
    made = await client.conversations.create(items=SAID, extra_body={"title": "Mine"})
    await client.post(f"/conversations/{made.id}", cast_to=object, body={"title": None})
    assert await title(client, made.id) is None
    await after_turn(titles, made.id)
    assert await title(client, made.id) == "A walk in Rome"


async def test_refusal_is_no_title_this_time(client: AsyncOpenAI, titles: Titles, model: Model) -> None:
    made = await client.conversations.create(items=SAID)
    answer, model.answer = model.answer, TooManyRequests("the queue is long", 1.0)
    await after_turn(titles, made.id)
    assert await title(client, made.id) is None
    model.answer = answer
    await after_turn(titles, made.id)
    assert await title(client, made.id) == "A walk in Rome"


@pytest.mark.parametrize(
    "answer", [{"choices": [{"message": {"content": None}}]}, InvalidRequest("the prompt is too long")]
)
async def test_model_that_gives_nothing_usable_leaves_the_question_as_the_title(
    client: AsyncOpenAI, titles: Titles, model: Model, answer: dict[str, list[Any]] | InvalidRequest
) -> None:
    made = await client.conversations.create(items=SAID)
    model.answer = answer
    await after_turn(titles, made.id)
    assert await title(client, made.id) == "How do I get to the forum?"


@pytest.mark.parametrize("answer", [RuntimeError("a bug"), StateUnavailable("away", 1.0), {"choices": [{}]}])
async def test_what_goes_wrong_harms_nobody(
    client: AsyncOpenAI, titles: Titles, model: Model, answer: RuntimeError | StateUnavailable | dict[str, list[Any]]
) -> None:
    made = await client.conversations.create(items=SAID)
    model.answer = answer
    await after_turn(titles, made.id)
    await after_turn(titles, "conv_1")
    assert await title(client, made.id) is None


async def test_few_titles_are_made_at_a_time_and_one_of_each_tenant(
    clients: ClientOf, titles: Titles, model: Model
) -> None:
    keys = ["sk-alice", *(f"sk-{number}" for number in range(MAX_TITLES + 1))]
    made = {key: [(await clients(key).conversations.create(items=SAID)).id for _ in range(2)] for key in keys}
    model.may_answer.clear()
    for key, conversations in made.items():
        for conversation in conversations:
            await titles.after_turn(tenant_of_key(key), conversation, Call(tenant=tenant_of_key(key)))
    model.may_answer.set()
    await titles.drained()
    shown = [[await title(clients(key), conversation) is not None for conversation in made[key]] for key in keys]
    assert shown == [[True, False]] * MAX_TITLES + [[False, False]] * 2


async def test_title_is_charged_to_the_client_of_the_turn(
    client: AsyncOpenAI, model: Model, books: ChargedBooks
) -> None:
    conversation = await client.conversations.create()
    await client.responses.create(model="m", input="How do I get to the forum?", conversation=conversation.id)
    await model.titled.wait()
    assert [(row.tenant_id, row.slo_class) for row in books.recorder.rows] == [
        (ALICE, SloClass.STANDARD),
        (ALICE, SloClass.BATCH),
    ]
    assert all(row.cost_micros for row in books.recorder.rows)
    made, turn, title_of_it = books.reservations.kinds
    assert (made, turn) == ({LimitKind.REQUESTS}, {LimitKind.REQUESTS, LimitKind.TOKENS})
    assert title_of_it == {LimitKind.TOKENS}


async def test_close_gives_up_what_is_being_made(client: AsyncOpenAI, titles: Titles, model: Model) -> None:
    made = await client.conversations.create(items=SAID)
    model.may_answer.clear()
    await titles.after_turn(ALICE, made.id, Call(tenant=ALICE))
    await titles.close()
    assert await title(client, made.id) is None


async def test_titles_can_be_switched_off(client: AsyncOpenAI, model: Model, postgres: str, tmp_path: Path) -> None:
    made = await client.conversations.create(items=SAID)
    async with reached(ChatState(StateConfig(database_url=postgres, data_dir=str(tmp_path), titles=False))) as state:
        await after_turn(Titles(cast(Frontend, model), state), made.id)
    assert model.bodies == []


async def test_titles_are_encrypted_at_rest_and_listed(client: AsyncOpenAI, postgres: str) -> None:
    made = await client.conversations.create(extra_body={"title": "a private matter"})
    listed: Any = await client.get("/conversations", cast_to=object)
    assert [shown["title"] for shown in listed["data"]] == ["a private matter"]
    with psycopg.connect(postgres) as connection:
        connection.execute("SELECT set_config('app.tenant_id', '*', true)")
        ((stored,),) = connection.execute("SELECT title FROM conversations WHERE id = %s", [made.id]).fetchall()
    assert b"private" not in stored


@pytest.mark.parametrize("value", [1, ["x"], "x" * 201])
async def test_bad_titles_are_refused(client: AsyncOpenAI, value: int | list[str] | str) -> None:
    for path in ("/conversations", "/conversations/conv_1"):
        with pytest.raises(BadRequestError) as caught:
            await client.post(path, cast_to=object, body={"title": value})
        assert caught.value.param == "title"


async def test_title_of_what_was_deleted_meanwhile_is_dropped(
    client: AsyncOpenAI, titles: Titles, model: Model
) -> None:
    made = await client.conversations.create(items=SAID)
    model.may_answer.clear()
    await titles.after_turn(ALICE, made.id, Call(tenant=ALICE))
    await model.is_asked.wait()
    question = (await client.conversations.items.list(made.id, order="asc")).data[0]
    await client.conversations.items.delete(id_of(question), conversation_id=made.id)
    model.may_answer.set()
    await titles.drained()
    assert await title(client, made.id) is None
