"""What the dialogs of `make bench-chat-state` tell the model: the same, whoever remembers it."""

import pytest

from api.state.lifecycle import ChatState
from bench.turns.dialogs import Dialog, Spec, Stateless, Stored
from tests.component.answering import Model
from tests.component.app_with_postgres import clients_of


@pytest.mark.parametrize("kind", [Stored, Stateless])
async def test_second_turn_tells_the_first(state: ChatState, kind: type[Dialog]) -> None:
    model = Model()
    async with clients_of(state, model) as clients:
        dialog = kind(clients("sk-alice"), Spec("m", "Be brief.", 8))
        await dialog.open()
        first, second = [await dialog.say(question) for question in ("One", "Two")]
    assert [message["content"] for message in model.chats[1]][-3:] == ["One", "Answer 1", "Two"]
    assert (first.text, second.text) == ("Answer 1", "Answer 2")
    assert 0 < second.ttft_s <= second.total_s
    assert second.prompt_tokens > 0 and second.known == 1.0
