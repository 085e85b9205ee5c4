"""Every route that takes an id answers 404 for another tenant's, with all rights and whatever the id is of."""

from collections.abc import Iterator
from typing import Any

import httpx
import pytest
from starlette.routing import Route, WebSocketRoute

from api.identity.access import HAS_TENANTS
from api.identity.tenants import tenant_of_key
from api.state.lifecycle import ChatState
from tests.component.app_with_fakes import FakeFrontend, an_app
from tests.expected import of_kind
from tests.hostile.state.conftest import HttpOf, TalkativeModel
from tests.hostile.state.stored import rows, services_of, with_everything

ALICE = tenant_of_key("sk-alice")
TABLES = {
    "conversation": "conversations",
    "item": "items",
    "response": "responses",
    "completion": "chat_completions",
    "feedback": "feedback",
    "event": "safety_events",
    "appeal": "safety_appeals",
}
"""Where the objects are stored that a path names."""
BODIES: dict[str, dict[str, Any]] = {
    "/v1/conversations/{conversation}": {"title": "mine"},
    "/v1/conversations/{conversation}/items": {"items": [{"type": "message", "role": "user", "content": "mine"}]},
    "/v1/chat/completions/{completion}": {"metadata": {"mine": "1"}},
}
"""Bodies of paths that take one which is not empty."""
IN_BODIES: list[tuple[str, dict[str, Any]]] = [
    ("/v1/responses", {"model": "m", "input": "What was it?", "previous_response_id": "{response}"}),
    ("/v1/responses", {"model": "m", "input": "What was it?", "conversation": "{conversation}"}),
    ("/v1/responses", {"model": "m", "input": [{"type": "item_reference", "id": "{item}"}]}),
    ("/v1/responses/compact", {"model": "m", "input": "What was it?", "previous_response_id": "{response}"}),
    ("/v1/responses/input_tokens", {"model": "m", "input": "What was it?", "previous_response_id": "{response}"}),
    ("/v1/responses/input_tokens", {"model": "m", "input": "What was it?", "conversation": "{conversation}"}),
    ("/v1/feedback", {"response_id": "{response}", "rating": 1}),
    ("/v1/safety/appeals", {"event_id": "{event}", "reason": "It is mine."}),
]


def paths_with_ids() -> Iterator[tuple[str, str]]:
    """Methods and paths. The id of a model is no tenant's."""
    declared = [route for route in an_app(FakeFrontend()).routes if not isinstance(route, WebSocketRoute)]
    for route in [of_kind(Route, route) for route in declared]:
        if route.path.startswith(HAS_TENANTS) and "{" in route.path and "{model:path}" not in route.path:
            yield from ((method, route.path) for method in sorted(route.methods or ()) if method != "HEAD")


@pytest.fixture
async def ids(http_of: HttpOf, state: ChatState, postgres: str) -> dict[str, str]:
    """An object of Alice for each name in a path."""
    await with_everything(http_of(state))
    of_alice = "SELECT id FROM {} WHERE tenant_id = %s"
    return {name: rows(postgres, of_alice.format(table), [ALICE])[0][0] for name, table in TABLES.items()}


def filled(value: Any, ids: dict[str, str]) -> Any:
    if isinstance(value, dict):
        return {name: filled(one, ids) for name, one in value.items()}
    if isinstance(value, list):
        return [filled(one, ids) for one in value]
    return value.format(**ids) if isinstance(value, str) else value


async def test_ids_of_others_are_those_of_nothing(
    http_of: HttpOf, state: ChatState, ids: dict[str, str], model: TalkativeModel, postgres: str
) -> None:
    bob, asked = http_of(state, "sk-bob"), list(paths_with_ids())
    assert len(asked) > 15
    before, times = everything(postgres), len(model.bodies)
    answers: dict[str, httpx.Response] = {}
    for method, path in asked:
        body = BODIES.get(path, {}) if method == "POST" else None
        answers[f"{method} {path}"] = await bob.request(method, filled(path, ids), json=body)
    for path, body in IN_BODIES:
        answers[f"{path} {body}"] = await bob.post(path, json=filled(body, ids))
    wrong = {name: (answer.status_code, answer.text) for name, answer in answers.items() if answer.status_code != 404}
    assert not wrong
    assert not [name for name, answer in answers.items() if "canary" in answer.text]
    await services_of(bob).turns.drained(60)
    assert everything(postgres) == before and len(model.bodies) == times


def everything(postgres: str) -> dict[str, list[tuple[Any, ...]]]:
    return {table: sorted(rows(postgres, f"SELECT t::text FROM {table} t")) for table in TABLES.values()}


async def test_the_same_requests_of_the_owner_find_what_they_name(
    http_of: HttpOf, state: ChatState, ids: dict[str, str]
) -> None:
    """So the test above asks with ids that exist."""
    alice = http_of(state)
    for method, path in paths_with_ids():
        if method == "GET":
            answer = await alice.get(filled(path, ids))
            assert answer.status_code == 200, (path, answer.text)
