"""Conversations that outgrow the model's window, over HTTP and in a real PostgreSQL. The model is a stand-in whose
tokens are words."""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from itertools import pairwise
from typing import Any, cast

import msgspec
import pytest
from openai import AsyncOpenAI, BadRequestError, InternalServerError
from openai.types.responses import ResponseCompactionItem

from api.context import manager, summary_jobs, token_counter
from api.context.manager import ContextManager
from api.context.prompt_notes import user_message
from api.context.token_counter import TokenCounter
from api.frontend.frontend import Frontend
from api.frontend.generation import Call
from api.identity.tenants import tenant_of_key
from api.limits.limits import LimitKind
from api.state.lifecycle import ChatState
from api.wire.pages import Page
from cluster.config.context import ContextConfig
from cluster.config.tenants.limits import Limits
from cluster.errors import InvalidRequest, QuotaExceeded, RateLimited, ServingError
from cluster.messages.ids import SloClass
from tests.component.app_with_fakes import CARD, FakeFrontend
from tests.component.app_with_postgres import ClientOf, clients_of
from tests.component.charged import ChargedBooks, charged
from tests.component.openai_objects import id_of
from tests.expected import of_kind
from tests.unit.chat_chunks import answer, usage

WINDOW = 1200
MESSAGE_TOKENS, CHAT_TOKENS = 4, 3
LIMIT = WINDOW - int(ContextConfig().answer_share * WINDOW)
LONG = "word " * 60

Messages = list[dict[str, Any]]


class Model(FakeFrontend):
    """Answers "Answer 1", "Answer 2" and so on, and writes "Summary 1", "Summary 2" and so on."""

    def __init__(self) -> None:
        super().__init__()
        self.chats: list[Messages] = []
        self.summarized: list[str] = []
        self.writes_summaries = True
        self.is_stuck = False

    async def models(self) -> list[dict[str, Any]]:
        return [CARD | {"id": "m", "max_model_len": WINDOW}]

    async def count_texts(self, texts: Sequence[str]) -> list[int]:
        return [len(text.split()) for text in texts]

    async def count_tokens(self, body: Any) -> int:
        return CHAT_TOKENS + sum(MESSAGE_TOKENS + len(text_of(message).split()) for message in body["messages"])

    async def chat_completion(self, body: Any, call: Call) -> Any:
        self.terms.append(call.terms)
        await charged(call)
        if not body.get("stream"):
            self.summarized.append(body["messages"][-1]["content"])
            assert await self.count_tokens(body) + body["max_completion_tokens"] <= WINDOW
            if self.is_stuck:
                await asyncio.Event().wait()
            text = f"Summary {len(self.summarized)}" if self.writes_summaries else ""
            return {"choices": [{"message": {"content": text}}], "usage": usage()["usage"]}
        self.chats.append(body["messages"])
        return self._told(len(self.chats), call)

    async def _told(self, number: int, call: Call) -> AsyncGenerator[str, None]:
        call.placement = self.placement
        for chunk in answer("Answer ", str(number)):
            yield f"data: {msgspec.json.encode(chunk).decode()}\n\n"
        yield "data: [DONE]\n\n"


class Index:
    """Finds the oldest messages, whoever is asked to remember."""

    def __init__(self, state: ChatState) -> None:
        self._state = state
        self.error: Exception | None = None

    async def relevant(
        self, tenant: str, conversation: str, text: str, limit: int, before_item: str | None = None
    ) -> list[str]:
        if self.error is not None:
            raise self.error
        page = Page(None, limit, newest_first=False)
        oldest = await self._state.stores.conversations.items(tenant, conversation, page)
        return [item["id"] for item in oldest.data] if "remember" in text else []


def text_of(message: dict[str, Any]) -> str:
    content = message.get("content") or ""
    return content if isinstance(content, str) else "\n".join(part["text"] for part in content)


@pytest.fixture
def model() -> Model:
    return Model()


@pytest.fixture
def index(state: ChatState) -> Index:
    return Index(state)


@pytest.fixture
def context(state: ChatState, model: Model, index: Index) -> ContextManager:
    return ContextManager(cast(Frontend, model), lambda: state.stores.context, ContextConfig(), lambda: index)


@pytest.fixture
def books() -> ChargedBooks:
    return ChargedBooks(Limits(requests_per_minute=1000, tokens_per_minute=10**6, concurrent_requests=9))


@pytest.fixture
async def clients(
    state: ChatState, model: Model, context: ContextManager, books: ChargedBooks
) -> AsyncIterator[ClientOf]:
    async with clients_of(state, model, context=context, charging=books.charging) as found:
        yield found


@pytest.fixture
def client(clients: ClientOf) -> AsyncOpenAI:
    return clients("sk-alice")


class Talk:
    """Turns of one conversation, each with a summary if it wants one."""

    def __init__(self, client: AsyncOpenAI, context: ContextManager, conversation: str) -> None:
        self._client = client
        self._context = context
        self.conversation = conversation

    async def ask(self, said: str | list[Any], **options: Any) -> Any:
        asked = {"model": "m", "input": said, "conversation": self.conversation, "truncation": "auto"} | options
        made = await self._client.responses.create(**asked)
        await self._context.idle()
        return made

    async def grow(self, num_turns: int) -> Any:
        for number in range(num_turns):
            made = await self.ask(f"Question {number} {LONG}")
        return made

    async def items(self) -> list[Any]:
        return [item async for item in self._client.conversations.items.list(self.conversation, order="asc")]


@pytest.fixture
async def talk(client: AsyncOpenAI, context: ContextManager) -> Talk:
    return Talk(client, context, (await client.conversations.create()).id)


def report_of(response: Any) -> Any:
    return response.model_extra["context"]


async def test_conversation_of_any_length_is_fitted(talk: Talk, model: Model, client: AsyncOpenAI) -> None:
    await client.conversations.items.create(talk.conversation, items=[{"role": "developer", "content": "Be kind."}])
    last = await talk.grow(30)
    for chat in model.chats:
        assert await model.count_tokens({"messages": chat}) <= LIMIT
        assert chat[0] == {"role": "developer", "content": "Be kind."}
    assert text_of(model.chats[-1][-1]).startswith("Question 29")
    report = report_of(last)
    assert report["window"] == WINDOW
    assert report["prompt_tokens"] == await model.count_tokens({"messages": model.chats[-1]})
    assert report["kept_items"] + report["dropped_items"] + report["summarized_items"] == 60
    assert report["summarized_items"] > 0
    assert last.truncation == "auto"
    assert await client.responses.retrieve(last.id) == last


async def test_prompts_extend_each_other_for_many_turns(talk: Talk, model: Model) -> None:
    await talk.grow(40)
    extends = [longer[: len(shorter)] == shorter for shorter, longer in pairwise(model.chats)]
    assert extends.count(True) > 3 * extends.count(False)


async def test_nothing_is_left_out_of_a_short_conversation(talk: Talk, model: Model) -> None:
    made = await talk.grow(3)
    assert "context" not in made.model_extra
    assert len(model.chats[-1]) == 5
    assert not model.summarized


async def test_everything_is_sent_unless_asked_otherwise(talk: Talk, model: Model) -> None:
    await talk.grow(20)
    await talk.ask("And now?", truncation="disabled")
    assert len(model.chats[-1]) == 41


async def test_summary_stands_for_what_is_left_out(talk: Talk, model: Model, client: AsyncOpenAI) -> None:
    last = await talk.grow(30)
    assert "Question 0 " in model.summarized[0]
    assert "The notes so far:\nSummary 1" in model.summarized[1]
    assert "What was said before, in short:\nSummary" in text_of(model.chats[-1][0])
    classes = [terms.slo_class for terms in model.terms]
    assert (classes.count(SloClass.STANDARD), classes.count(SloClass.BATCH)) == (30, len(model.summarized))
    made = [item for item in await talk.items() if item.type == "compaction"]
    assert len(made) == len(model.summarized)
    assert all(item.encrypted_content and "Summary" not in item.encrypted_content for item in made)
    assert [item.type for item in last.output] == ["message"]
    assert len([item async for item in client.responses.input_items.list(last.id)]) == 1


async def test_summaries_are_charged_to_the_client_whose_turn_needs_them(
    talk: Talk, model: Model, books: ChargedBooks
) -> None:
    """They draw on its limits of tokens. Its limits of requests are for what it sends."""
    await talk.grow(20)
    rows, classes = books.recorder.rows, [terms.slo_class for terms in model.terms]
    assert [row.slo_class for row in rows] == classes and SloClass.BATCH in classes
    assert {row.tenant_id for row in rows} == {tenant_of_key("sk-alice")}
    assert all(row.cost_micros and row.http_request for row in rows)
    tokens, of_requests = {LimitKind.TOKENS}, {LimitKind.REQUESTS, LimitKind.CONCURRENT}
    generated = [tokens if one is SloClass.BATCH else tokens | of_requests for one in classes]
    assert books.reservations.kinds == [of_requests, *generated]  # the conversation is made first


@pytest.mark.parametrize("refusal", [RateLimited("no room", "tokens", 1.0, {}), QuotaExceeded("the budget is spent")])
async def test_summary_that_limits_refuse_is_written_after_a_later_turn(
    talk: Talk, model: Model, books: ChargedBooks, refusal: ServingError
) -> None:
    books.reservations.refusal_of_summaries = refusal
    made = await talk.grow(20)
    assert made.status == "completed" and report_of(made)["summarized_items"] == 0 and not model.summarized
    books.reservations.refusal_of_summaries = None
    await talk.grow(2)
    assert model.summarized


async def test_model_that_writes_no_summary_does_no_harm(talk: Talk, model: Model) -> None:
    model.writes_summaries = False
    last = await talk.grow(20)
    assert report_of(last)["summarized_items"] == 0
    assert model.summarized


async def test_branch_does_not_see_the_summary_of_a_later_turn(
    client: AsyncOpenAI, context: ContextManager, model: Model
) -> None:
    options: dict[str, Any] = {"model": "m", "truncation": "auto"}
    chain = [await client.responses.create(input=f"Question 0 {LONG}", **options)]
    while not model.summarized:
        previous = chain[-1].id
        chain.append(await client.responses.create(input=f"Question {LONG}", previous_response_id=previous, **options))
        await context.idle()
    big = "word " * 700
    await client.responses.create(input=big, previous_response_id=chain[-1].id, **options)
    assert "Summary 1" in text_of(model.chats[-1][0])
    await client.responses.create(input=big, previous_response_id=chain[-2].id, **options)
    assert "Summary" not in text_of(model.chats[-1][0])


async def test_turn_is_reminded_of_what_was_left_out_and_stays_so(talk: Talk, model: Model) -> None:
    await talk.grow(20)
    reminded = await talk.ask("Do you remember?")
    first, *_ = await talk.items()
    assert first.id in report_of(reminded)["retrieved"]
    told = text_of(model.chats[-1][-1])
    assert told.startswith("Said earlier in this conversation:\n- User: Question 0")
    assert told.endswith("Do you remember?")
    await talk.ask("Thank you")
    assert text_of(model.chats[-1][-3]) == told
    assert await model.count_tokens({"messages": model.chats[-1]}) <= LIMIT


async def test_index_that_is_away_does_no_harm(talk: Talk, index: Index) -> None:
    await talk.grow(20)
    index.error = TimeoutError()
    assert report_of(await talk.ask("Do you remember?"))["retrieved"] == []


async def test_what_is_deleted_is_in_no_summary_and_no_memory(talk: Talk, model: Model, client: AsyncOpenAI) -> None:
    await talk.grow(20)
    await talk.ask("Do you remember?")
    first, *others = await talk.items()
    assert any(item.type == "compaction" for item in others)
    await client.conversations.items.delete(first.id, conversation_id=talk.conversation)
    assert not any(item.type == "compaction" for item in await talk.items())
    await talk.ask("And now?")
    assert not any("Question 0 " in text_of(message) or "Summary" in text_of(message) for message in model.chats[-1])


async def test_summary_of_a_deleted_response_is_not_used(
    client: AsyncOpenAI, context: ContextManager, model: Model
) -> None:
    options: dict[str, Any] = {"model": "m", "truncation": "auto"}
    conversation = (await client.conversations.create()).id
    first = await client.responses.create(input=f"Question 0 {LONG}", conversation=conversation, **options)
    last = first
    while not model.summarized:
        last = await client.responses.create(input=f"Q {LONG}", previous_response_id=last.id, **options)
        await context.idle()
    asked, *_ = [item async for item in client.conversations.items.list(conversation, order="asc")]
    await client.conversations.items.delete(id_of(asked), conversation_id=conversation)
    await client.responses.create(input="word " * 700, previous_response_id=last.id, **options)
    assert not any("Summary" in text_of(message) for message in model.chats[-1])


async def test_turn_that_alone_is_too_long_is_refused_and_leaves_nothing(talk: Talk) -> None:
    await talk.grow(2)
    with pytest.raises(BadRequestError) as caught:
        await talk.ask("word " * WINDOW)
    assert (caught.value.code, caught.value.param) == ("context_length_exceeded", "input")
    assert len(await talk.items()) == 4


async def test_system_prompt_leaves_room_for_a_conversation(talk: Talk) -> None:
    with pytest.raises(BadRequestError) as caught:
        await talk.ask("Hello", instructions="word " * 600)
    assert (caught.value.code, caught.value.param) == ("context_length_exceeded", "instructions")


async def test_threshold_makes_the_prompt_shorter_than_the_window(
    talk: Talk, model: Model, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tests.component.api.context.test_context.WINDOW", 100_000)
    management = [{"type": "compaction", "compact_threshold": 1000}]
    for number in range(30):
        made = await talk.ask(f"Question {number} {LONG}", truncation=None, context_management=management)
    assert report_of(made)["prompt_tokens"] <= 1000
    assert made.truncation == "auto"


@pytest.mark.parametrize(
    ("management", "param"),
    [
        ([{"type": "compaction", "compact_threshold": 10}], "context_management[0].compact_threshold"),
        ([{"type": "other"}], "context_management[0].type"),
        (["compaction"], "context_management[0].type"),
    ],
)
async def test_bad_context_management_is_told_where_it_is_bad(
    client: AsyncOpenAI, management: list[Any], param: str
) -> None:
    with pytest.raises(BadRequestError) as caught:
        await client.responses.create(model="m", input="x", context_management=management)
    assert caught.value.param == param


async def test_compacted_conversation_goes_on_from_its_summary(client: AsyncOpenAI, model: Model) -> None:
    first = await client.responses.create(model="m", input="Hello")
    compacted = await client.responses.compact(model="m", previous_response_id=first.id, input="And then?")
    assert "User: Hello\nAssistant: Answer 1\nUser: And then?\n" in model.summarized[0]
    assert (compacted.object, compacted.usage.total_tokens) == ("response.compaction", 7)
    (item,) = compacted.output
    later: list[Any] = [item.model_dump(), {"role": "user", "content": "Where were we?"}]
    await client.responses.create(model="m", input=later)
    (message,) = model.chats[-1]
    assert text_of(message) == "What was said before, in short:\nSummary 1\n\nWhere were we?"


async def test_compacted_conversation_goes_on_over_a_websocket(client: AsyncOpenAI, model: Model) -> None:
    async with client.responses.connect() as connection:
        await connection.send({"type": "response.create", "model": "m", "input": "Hello"})
        first = await last_of(connection)
        compacted = await client.responses.compact(model="m", previous_response_id=first.id)
        later: list[Any] = [item.model_dump() for item in compacted.output]
        later.append({"role": "user", "content": "Where were we?"})
        await connection.send({"type": "response.create", "model": "m", "input": later, "store": False})
        assert (await last_of(connection)).previous_response_id is None
    assert text_of(model.chats[-1][0]) == "What was said before, in short:\nSummary 1\n\nWhere were we?"


async def test_conversation_on_a_websocket_is_compacted_at_its_threshold(client: AsyncOpenAI, model: Model) -> None:
    management = [{"type": "compaction", "compact_threshold": 1000}]
    previous = None
    async with client.responses.connect() as connection:
        for _ in range(20):
            message: Any = {"type": "response.create", "model": "m", "input": LONG, "store": False}
            message |= {"context_management": management, "previous_response_id": previous}
            await connection.send(message)
            previous = (await last_of(connection)).id
    assert len(model.chats[-1]) < 39


async def last_of(connection: Any) -> Any:
    """The response, when it is over."""
    async for event in connection:
        assert event.type != "error", event
        if event.type == "response.completed":
            return event.response


async def test_items_that_are_referred_to_are_counted_and_compacted(client: AsyncOpenAI, model: Model) -> None:
    first = await client.responses.create(model="m", input="Hello")
    (item,) = first.output
    reference: Any = {"type": "item_reference", "id": item.id}
    several: list[Any] = [reference, item.model_dump()]
    counted = [await client.responses.input_tokens.count(model="m", input=[one]) for one in several]
    assert counted[0] == counted[1]
    await client.responses.compact(model="m", input=[reference])
    assert "Assistant: Answer 1\n" in model.summarized[0]


async def test_long_conversation_is_compacted_in_pieces_that_fit(client: AsyncOpenAI, model: Model) -> None:
    asked: list[Any] = [{"role": "user", "content": f"Question {number} {LONG}"} for number in range(40)]
    asked.append({"role": "user", "content": "word " * 5000})
    compacted = await client.responses.compact(model="m", input=asked)
    assert len(model.summarized) > 3
    assert compacted.usage.total_tokens == 7 * len(model.summarized)
    assert len(model.terms) == len(model.summarized)
    assert all(terms.http_request for terms in model.terms), "its client asks for it, and pays"


async def test_items_of_a_long_conversation_are_counted_at_once(model: Model, monkeypatch: pytest.MonkeyPatch) -> None:
    """Which would take minutes otherwise."""
    monkeypatch.setattr(token_counter, "KEPT_COUNTS", 10)
    counter = TokenCounter(cast(Frontend, model))
    items = [{"id": str(n), **user_message("word " * (n % 3))} for n in range(40_000)]
    counts = await counter.items(items)
    assert [count - counts[0] for count in counts[:6]] == [0, 1, 2, 0, 1, 2]
    assert await counter.items(items[-20:]) == counts[-20:]


async def test_template_that_cannot_be_measured_is_estimated(model: Model, monkeypatch: pytest.MonkeyPatch) -> None:
    async def refuses(body: Any) -> int:
        raise InvalidRequest("roles must be others")

    monkeypatch.setattr(model, "count_tokens", refuses)
    counter = TokenCounter(cast(Frontend, model))
    items = [{"id": "1", **user_message("one two three")}]
    assert await counter.in_prompt(items) == await counter.items(items)


async def test_what_is_far_too_long_is_not_compacted(client: AsyncOpenAI, model: Model) -> None:
    with pytest.raises(BadRequestError) as caught:
        await client.responses.compact(model="m", input="word " * 8 * WINDOW)
    assert (caught.value.code, caught.value.param) == ("context_length_exceeded", "input")
    assert not model.summarized


async def test_history_of_very_many_items_is_not_compacted(
    client: AsyncOpenAI, model: Model, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And it is not counted either."""
    monkeypatch.setattr(manager, "COMPACTED_ITEMS", 40)
    asked: list[Any] = [{"role": "user", "content": "Hi"}] * 40
    (compaction,) = (await client.responses.compact(model="m", input=asked)).output
    monkeypatch.setattr(TokenCounter, "items", lambda *_: pytest.fail("it was counted"))
    with pytest.raises(BadRequestError) as caught:
        await client.responses.compact(model="m", input=[*asked, asked[0]])
    assert (caught.value.code, caught.value.param) == ("context_length_exceeded", "input")
    assert "41 items" in caught.value.message and compaction.type == "compaction"


async def test_instructions_that_leave_no_room_are_not_repeated_with_each_part(
    client: AsyncOpenAI, model: Model
) -> None:
    with pytest.raises(BadRequestError) as caught:
        await client.responses.compact(model="m", input="Hello", instructions="word " * (WINDOW * 2 // 3))
    assert (caught.value.code, caught.value.param) == ("context_length_exceeded", "instructions")
    assert not model.summarized


async def test_long_history_is_summarized_bit_by_bit(
    client: AsyncOpenAI, context: ContextManager, model: Model
) -> None:
    """Whose summaries each come after a turn."""
    turns: list[Any] = [{"role": role, "content": LONG} for _ in range(60) for role in ("user", "assistant")]
    turns.append({"role": "user", "content": "1"})
    made = await client.responses.create(model="m", input=turns, truncation="auto")
    await context.idle()
    assert len(model.summarized) == 4
    made = await client.responses.create(model="m", input="2", previous_response_id=made.id, truncation="auto")
    await context.idle()
    assert len(model.summarized) == 8
    assert "Summary 4" in model.summarized[4]
    assert report_of(made)["summarized_items"] > 0


async def test_long_turn_is_summarized_without_its_middle(
    client: AsyncOpenAI, context: ContextManager, model: Model
) -> None:
    call = {"type": "function_call", "call_id": "c", "name": "f", "arguments": "{}"}
    results = [{"type": "function_call_output", "call_id": "c", "output": f"Result {n} {LONG}"} for n in range(60)]
    done, question = {"role": "assistant", "content": "Done"}, {"role": "user", "content": "And?"}
    history: list[Any] = [{"role": "user", "content": "Go"}, call, *results, done, question]
    await client.responses.create(model="m", input=history, truncation="auto")
    await context.idle()
    assert len(model.summarized) == 4
    assert "Result 0 " in model.summarized[0] and "Result 59 " in model.summarized[-1]
    assert not any("Result 30 " in told for told in model.summarized)


async def test_summary_that_takes_too_long_is_given_up(
    talk: Talk, model: Model, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(summary_jobs, "TIMEOUT_S", 0.01)
    model.is_stuck = True
    await talk.grow(20)
    assert model.summarized and not any(item.type == "compaction" for item in await talk.items())


async def test_turn_over_nothing_but_instructions_is_answered(client: AsyncOpenAI, talk: Talk) -> None:
    made = await talk.ask([], instructions="word " * 300)
    assert made.status == "completed"


async def test_compaction_is_kept_in_a_conversation(talk: Talk, model: Model, client: AsyncOpenAI) -> None:
    (item,) = (await client.responses.compact(model="m", input="Hello")).output
    sent: Any = item.model_dump()
    await client.conversations.items.create(talk.conversation, items=[sent])
    await talk.ask("Where were we?", truncation=None)
    assert "Summary 1" in text_of(model.chats[-1][0])
    assert (await talk.items())[0].encrypted_content == of_kind(ResponseCompactionItem, item).encrypted_content


@pytest.mark.parametrize("content", ["nonsense", "", "AAAAAQ==", "é"])
async def test_compaction_that_is_not_ours_is_refused(client: AsyncOpenAI, talk: Talk, content: str) -> None:
    item: Any = {"type": "compaction", "encrypted_content": content}
    for ask in (
        client.responses.create(model="m", input=[item, {"role": "user", "content": "x"}]),
        client.conversations.items.create(talk.conversation, items=[item]),
    ):
        with pytest.raises(BadRequestError) as caught:
            await ask
        assert (caught.value.code, caught.value.param) == ("invalid_value", "encrypted_content")


async def test_compaction_of_another_tenant_is_refused(clients: ClientOf, client: AsyncOpenAI) -> None:
    (item,) = (await client.responses.compact(model="m", input="Hello")).output
    sent: Any = item.model_dump()
    with pytest.raises(BadRequestError):
        await clients("sk-bob").responses.create(model="m", input=[sent])


async def test_compaction_needs_what_is_remembered(model: Model) -> None:
    async with clients_of(None, model) as clients:
        with pytest.raises(InternalServerError) as caught:
            await clients("sk-alice").responses.compact(model="m", input="Hello")
    assert caught.value.code == "state_unavailable"


async def test_input_tokens_are_those_of_the_prompt(talk: Talk, client: AsyncOpenAI, model: Model) -> None:
    await talk.grow(20)
    for truncation in ("auto", "disabled"):
        counted = await client.responses.input_tokens.count(
            model="m", input="Hello", conversation=talk.conversation, instructions="Be brief.", truncation=truncation
        )
        await talk.ask("Hello", instructions="Be brief.", truncation=truncation)
        assert counted.input_tokens == await model.count_tokens({"messages": model.chats[-1]})
        assert counted.object == "response.input_tokens"


async def test_input_tokens_need_no_model_name_and_nothing_remembered(model: Model) -> None:
    async with clients_of(None, model) as clients:
        counted = await clients("sk-alice").responses.input_tokens.count(input="one two three")
    assert counted.input_tokens == CHAT_TOKENS + MESSAGE_TOKENS + 3
