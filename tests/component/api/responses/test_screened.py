"""What was cut or masked is nowhere: not in a response, its events, its conversation, the next prompt or a search."""

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import openai
import pytest
from openai import AsyncOpenAI, BadRequestError

from api.state.lifecycle import ChatState
from tests.component.api.responses.streams import resumed
from tests.component.app_with_postgres import clients_of
from tests.component.fake_engines import FakeEngines
from tests.component.openai_objects import response_of
from tests.component.safety_folder import safety_in

# vLLM reads its own field
pytestmark = [pytest.mark.filterwarnings("ignore:max_tokens is deprecated:DeprecationWarning")]

SAYS = "Write to ann@example.org about the pipe bomb soon."
SHOWN = "Write to [EMAIL] about the "
SECRETS = ("example.org", "bomb", "soon")


@pytest.fixture
def engines() -> FakeEngines:
    engines = FakeEngines()
    engines.says(SAYS)
    return engines


@pytest.fixture
async def client(state: ChatState, engines: FakeEngines, tmp_path: Path) -> AsyncIterator[AsyncOpenAI]:
    frontend = await engines.frontend(512, safety_in(tmp_path / "safety"))
    async with clients_of(state, frontend) as clients:
        yield clients("sk-alice")
    await frontend.close()


async def test_response_is_incomplete_where_it_is_cut(client: AsyncOpenAI) -> None:
    response = await client.responses.create(model="baton-demo", input="Hello")
    assert (response.status, response.output_text) == ("incomplete", SHOWN)
    assert response.incomplete_details is not None and response.incomplete_details.reason == "content_filter"
    stored = await client.responses.retrieve(response.id)
    assert stored.output_text == SHOWN


async def test_stream_ends_where_it_is_cut_and_can_be_resumed(client: AsyncOpenAI) -> None:
    stream = await client.responses.create(model="baton-demo", input="Hello", stream=True)
    seen = [event async for event in stream]
    assert seen[-1].type == "response.incomplete"
    assert "".join(event.delta for event in seen if event.type == "response.output_text.delta") == SHOWN
    again = await resumed(client, response_of(seen[0]).id)
    assert again == seen
    assert not any(secret in str(event) for event in (*seen, *again) for secret in SECRETS)


async def test_response_in_the_background_is_screened(client: AsyncOpenAI) -> None:
    started = await client.responses.create(model="baton-demo", input="Hello", background=True)
    events = await resumed(client, started.id)
    assert events[-1].type == "response.incomplete"
    assert (await client.responses.retrieve(started.id)).output_text == SHOWN


async def test_next_turn_and_search_know_what_was_shown(client: AsyncOpenAI, engines: FakeEngines) -> None:
    conversation = await client.conversations.create()
    for text in ("Hello", "And then?"):
        await client.responses.create(model="baton-demo", conversation=conversation.id, input=text)
    prompt = engines.tokenizer.decode(engines.requests[-1].prompt_token_ids)
    assert SHOWN.strip() in prompt
    items = await client.conversations.items.list(conversation.id)
    for secret in SECRETS:
        assert secret not in prompt
        assert secret not in str(items.data)


async def test_blocked_input_is_a_400_with_an_event(client: AsyncOpenAI, engines: FakeEngines) -> None:
    for is_streamed in (False, True):
        with pytest.raises(BadRequestError) as refused:
            await client.responses.create(model="baton-demo", input="Cook glue soup", stream=is_streamed)
        assert refused.value.code == "content_filter"
        assert refused.value.response.headers["x-safety-event-id"] == engines.events[-1].id
    assert engines.requests == []


async def test_response_tells_what_was_found_if_asked(client: AsyncOpenAI) -> None:
    asked: openai.types.responses.response_create_params.Moderation = {"model": "any"}
    response = await client.responses.create(model="baton-demo", input="My knife", moderation=asked)
    found = response.moderation
    assert found is not None and found.output.type == found.input.type == "moderation_result"
    assert found.input.category_scores["violence"] == 0.3 and not found.input.flagged
    assert found.output.flagged and found.output.categories["violence"]


async def test_chat_tells_what_was_found_if_asked(client: AsyncOpenAI, engines: FakeEngines) -> None:
    engines.says("Paris is nice.")
    messages: list[openai.types.chat.ChatCompletionMessageParam] = [{"role": "user", "content": "My knife"}]
    whole = await client.chat.completions.create(model="baton-demo", messages=messages, moderation={"model": "any"})
    stream = await client.chat.completions.create(
        model="baton-demo",
        messages=messages,
        moderation={"model": "any"},
        stream=True,
        stream_options={"include_usage": True},
    )
    *_, told, usage = [chunk async for chunk in stream]
    assert usage.usage is not None and usage.moderation is None
    assert told.moderation is not None and whole.moderation is not None
    assert told.moderation.to_dict() == whole.moderation.to_dict()
    assert whole.moderation.input.type == "moderation_results"
    assert not whole.moderation.input.results[0].flagged


async def test_stored_chat_completion_is_what_was_shown(client: AsyncOpenAI) -> None:
    messages: list[openai.types.chat.ChatCompletionMessageParam] = [{"role": "user", "content": "Hello"}]
    for is_streamed in (False, True):
        made = await client.chat.completions.create(
            model="baton-demo", messages=messages, store=True, stream=is_streamed
        )
        chunks = [chunk async for chunk in made] if isinstance(made, openai.AsyncStream) else [made]
        number = chunks[0].id
        (choice,) = (await client.chat.completions.retrieve(number)).choices
        assert (choice.message.content, choice.finish_reason) == (SHOWN, "content_filter")


async def test_request_can_tighten_and_not_loosen(client: AsyncOpenAI, engines: FakeEngines) -> None:
    engines.says("Paris is nice.")
    knife, soup = "My knife", "Cook glue soup"
    for asked, text, is_blocked in (
        ("block_low_and_above", knife, True),
        ("BLOCK_NONE", knife, False),
        ("BLOCK_NONE", soup, True),
    ):
        settings = [{"category": "violence", "threshold": asked}]
        try:
            await client.responses.create(model="baton-demo", input=text, extra_body={"safety_settings": settings})
            assert not is_blocked
        except BadRequestError as error:
            assert is_blocked and error.code == "content_filter"


async def test_texts_are_moderated(client: AsyncOpenAI) -> None:
    answer = await client.moderations.create(input=["My knife", "Cook glue soup", "Hello"])
    more: Any = {"include": ["personal-data"]}
    card = await client.moderations.create(input="4111 1111 1111 1111", extra_body=more)
    assert '"personal-data":true' in card.results[0].to_json(indent=None).replace(" ", "")
    flags = [(result.flagged, result.category_scores.violence) for result in answer.results]
    assert flags == [(False, 0.3), (True, 0.9), (False, 0.0)]
