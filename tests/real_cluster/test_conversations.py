"""Conversations of a running service, which starts a PostgreSQL of its own."""

import openai

from tests.component.openai_objects import first_text_of
from tests.real_cluster.service import INGRESS_PROCESS, Service


def test_conversation_is_kept(strict: openai.OpenAI) -> None:
    made = strict.conversations.create(
        metadata={"topic": "demo"}, items=[{"type": "message", "role": "user", "content": "Hello"}]
    )
    assert strict.conversations.retrieve(made.id) == made
    (item,) = strict.conversations.items.list(made.id)
    assert item.type == "message" and first_text_of(item) == "Hello"


def test_killed_ingress_comes_back_with_the_conversations(service: Service, strict: openai.OpenAI) -> None:
    made = strict.conversations.create()
    service.process(INGRESS_PROCESS).kill()
    service.wait_until_whole()
    assert strict.conversations.retrieve(made.id) == made
