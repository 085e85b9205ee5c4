"""The client's faults are told to the client, and ours are ours."""

from typing import Any

import httpx
import psycopg
import pytest

from api.state.lifecycle import ChatState
from tests.hostile.state.stored import database_of

NUL = "\x00"


async def test_statement_of_ours_that_is_wrong_is_not_the_clients_fault(state: ChatState) -> None:
    with pytest.raises(psycopg.DataError):
        async with database_of(state).transaction("alice") as transaction:
            await transaction.execute("SELECT 'x'::int")


async def test_reference_of_ours_to_what_never_was_is_not_the_clients_fault(state: ChatState) -> None:
    with pytest.raises(psycopg.errors.ForeignKeyViolation):
        async with database_of(state).transaction("alice") as transaction:
            await transaction.execute(
                "INSERT INTO tenant_keys (tenant_id, version, wrapped_key, master_key) VALUES ('alice', 1, '', '')"
            )


@pytest.mark.parametrize(
    ("method", "path", "body"),
    [
        ("GET", "/v1/responses/%00", None),
        ("GET", "/v1/conversations/x%00y", None),
        ("GET", "/v1/conversations?user=%00", None),
        ("GET", "/v1/conversations?query=%00", None),
        ("GET", "/v1/conversations?metadata[a]=%00", None),
        ("GET", "/v1/chat/completions?model=%00", None),
        ("GET", "/v1/feedback?response_id=%00", None),
        ("POST", "/v1/conversations", {"metadata": {"a": NUL}}),
        ("POST", "/v1/conversations", {"metadata": {NUL: "a"}}),
        ("POST", "/v1/conversations", {"user": NUL}),
        ("POST", "/v1/responses", {"model": "m", "input": "x", "metadata": {"a": NUL}}),
        ("POST", "/v1/responses", {"model": "m", "input": "x", "previous_response_id": NUL}),
        ("POST", "/v1/responses", {"model": "m", "input": "x", "conversation": NUL}),
        ("POST", "/v1/feedback", {"response_id": NUL, "rating": 1}),
    ],
)
async def test_text_that_cannot_be_stored_is_the_clients_fault(
    http: httpx.AsyncClient, state: ChatState, method: str, path: str, body: dict[str, Any] | None
) -> None:
    answer = await http.request(method, path, json=body)
    assert answer.status_code in (400, 404)
    assert "DETAIL" not in answer.text and "LINE" not in answer.text


@pytest.mark.parametrize("field", ["metadata", "user", "title", "items"])
async def test_halves_of_surrogate_pairs_are_the_clients_fault(
    http: httpx.AsyncClient, state: ChatState, field: str
) -> None:
    half = r'"\ud800"'
    values = {"metadata": f'{{"a": {half}}}', "items": f'[{{"role": "user", "content": {half}}}]'}
    json_type = {"content-type": "application/json"}
    answer = await http.post(
        "/v1/conversations", content=f'{{"{field}": {values.get(field, half)}}}', headers=json_type
    )
    assert answer.status_code == 400


@pytest.mark.parametrize("query", ["-" * 900, "- " * 400 + "a", '"-" -' * 150, "or " * 300, "!(" * 400 + "a"])
async def test_query_that_postgresql_cannot_parse_is_the_clients_fault(
    http: httpx.AsyncClient, state: ChatState, query: str
) -> None:
    await http.post("/v1/conversations", json={"items": [{"type": "message", "role": "user", "content": "a b"}]})
    answer = await http.get("/v1/conversations", params={"query": query})
    assert answer.status_code in (200, 400), answer.text
