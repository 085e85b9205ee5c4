"""A model that answers as a test tells it, over a real PostgreSQL and Redis, and its clients."""

from collections.abc import AsyncGenerator

import pytest

from api.generation import Call
from tests.component.answering import Model, frame
from tests.component.responses.conftest import client, clients, elsewhere
from tests.unit.chat_chunks import answer

__all__ = ["client", "clients", "elsewhere", "model"]


class TalkativeModel(Model):
    """Says these pieces, where a test gives some."""

    pieces: tuple[str, ...] = ()

    async def _told(self, number: int, call: Call) -> AsyncGenerator[str, None]:
        if not self.pieces:
            async for one in super()._told(number, call):
                yield one
            return
        call.placement = self.placement
        for chunk in answer(*self.pieces):
            yield frame(chunk)
        yield "data: [DONE]\n\n"


@pytest.fixture
def model() -> TalkativeModel:
    return TalkativeModel()
