"""A model that answers as a test tells it, over a real PostgreSQL and Redis, and its clients."""

from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import httpx
import pytest

from api.frontend.generation import Call
from api.state.lifecycle import ChatState
from cluster.config.state import StateConfig
from tests.component.answering import Model, frame
from tests.component.api.responses.conftest import client, clients, elsewhere
from tests.component.app_with_fakes import an_app
from tests.unit.chat_chunks import answer

__all__ = ["client", "clients", "elsewhere", "model"]

HttpOf = Callable[..., httpx.AsyncClient]


class TalkativeModel(Model):
    """A model that answers with these pieces, where a test gives some."""

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


@pytest.fixture
async def state_with(postgres: str, redis: str, tmp_path: Path) -> AsyncIterator[Callable[..., Awaitable[ChatState]]]:
    """Replicas of the state with this configuration, over the PostgreSQL of `state`."""
    opened: list[ChatState] = []

    async def made(**config: Any) -> ChatState:
        urls = {"database_url": postgres, "redis_url": redis}
        opened.append(ChatState(StateConfig(**{**urls, "data_dir": str(tmp_path), "titles": False, **config})))
        await opened[-1].look()
        return opened[-1]

    yield made
    for one in opened:
        await one.close()


@pytest.fixture
async def http_of(model: TalkativeModel) -> AsyncIterator[HttpOf]:
    """HTTP clients by state and API key."""
    made: list[httpx.AsyncClient] = []

    def of(state: ChatState, key: str = "sk-alice") -> httpx.AsyncClient:
        transport = httpx.ASGITransport(app=an_app(model, state=state), raise_app_exceptions=False)
        headers = {"authorization": f"Bearer {key}", "content-type": "application/json"}
        made.append(httpx.AsyncClient(transport=transport, base_url="http://baton", timeout=60, headers=headers))
        return made[-1]

    yield of
    model.may_go_on.set()
    for one in made:
        await one.aclose()


@pytest.fixture
def http(http_of: HttpOf, state: ChatState) -> httpx.AsyncClient:
    return http_of(state)
