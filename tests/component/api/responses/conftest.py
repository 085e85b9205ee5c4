"""A model that answers as a test tells it, and its clients."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from openai import AsyncOpenAI

from api.state.lifecycle import ChatState
from cluster.config.state import StateConfig
from tests.component.answering import Model
from tests.component.app_with_postgres import ClientOf, clients_of
from tests.component.reached import reached


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
    """A client of another ingress replica with the same API key."""
    other = ChatState(StateConfig(database_url=postgres, redis_url=redis, data_dir=str(tmp_path), titles=False))
    async with reached(other), clients_of(other, Model()) as found:
        yield found("sk-alice")
