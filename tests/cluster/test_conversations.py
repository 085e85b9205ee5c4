"""Conversations of a running service, which starts a PostgreSQL of its own."""

import openai
import pytest

from tests.cluster.service import INGRESS_PROCESS, Service, wait_for


@pytest.fixture(scope="module")
def remembering(service: Service, client: openai.OpenAI) -> openai.OpenAI:
    """Once conversations can be reached: the service is ready before."""
    wait_for(lambda: service.get("/v1/conversations").is_success, 60)
    return client


def test_conversation_is_kept(remembering: openai.OpenAI) -> None:
    made = remembering.conversations.create(
        metadata={"topic": "demo"}, items=[{"type": "message", "role": "user", "content": "Hello"}]
    )
    assert remembering.conversations.retrieve(made.id) == made
    (item,) = remembering.conversations.items.list(made.id)
    assert item.type == "message" and item.content[0].text == "Hello"  # type: ignore[union-attr]


def test_killed_ingress_comes_back_with_the_conversations(service: Service, remembering: openai.OpenAI) -> None:
    made = remembering.conversations.create()
    service.process(INGRESS_PROCESS).kill()
    wait_for(service.is_ready, 60)
    wait_for(lambda: service.get("/v1/conversations").is_success, 60)
    assert remembering.conversations.retrieve(made.id) == made
