"""A model that answers as a test tells it, and what is then in a conversation."""

import asyncio
from collections.abc import AsyncGenerator
from typing import Any

import msgspec
from openai import AsyncOpenAI

from api.frontend.generation import Call
from tests.component.app_with_fakes import FakeFrontend
from tests.component.openai_objects import first_text_of
from tests.unit.chat_chunks import answer


class Model(FakeFrontend):
    """Answers each chat by "Answer 1", "Answer 2" and so on; those in `waiting` when they may."""

    def __init__(self) -> None:
        super().__init__()
        self.may_go_on = asyncio.Event()
        self.may_go_on.set()
        self.waiting = {1}
        self.error: Exception | None = None
        self._asked = asyncio.Condition()

    async def asked(self, times: int) -> None:
        """Returns when it has been."""
        async with self._asked:
            await self._asked.wait_for(lambda: len(self.bodies) >= times)

    @property
    def chats(self) -> list[list[dict[str, Any]]]:
        return [body["messages"] for _, body in self.bodies]

    async def chat_completion(self, body: Any, call: Call) -> AsyncGenerator[str, None]:
        self.bodies.append(("chat", body))
        self.terms.append(call.terms)
        async with self._asked:
            self._asked.notify_all()
        if self.error is not None:
            await self.may_go_on.wait()
            raise self.error
        return self._told(len(self.bodies), call)

    async def _told(self, number: int, call: Call) -> AsyncGenerator[str, None]:
        call.placement = self.placement
        role, answer_, *others = answer("Answer ", str(number))
        yield frame(role)
        yield frame(answer_)
        for other in others:
            if number in self.waiting:
                await self.may_go_on.wait()
            yield frame(other)
        yield "data: [DONE]\n\n"


def frame(chunk: Any) -> str:
    return f"data: {msgspec.json.encode(chunk).decode()}\n\n"


async def texts(client: AsyncOpenAI, conversation: str) -> list[str]:
    return [first_text_of(item) async for item in client.conversations.items.list(conversation, order="asc")]
