"""What Redis is told of requests that may be sent again: nothing that tells what a client has said."""

import hashlib
from collections.abc import Awaitable, Callable

from redis import Redis

from api.state.lifecycle import ChatState
from tests.component.emptied import emptied
from tests.hostile.state.conftest import HttpOf

KEY = "invoice-2024-0017"
TURN = {"model": "m", "input": "Hello"}


async def test_nobody_can_check_guesses_of_what_was_said_by_what_is_in_redis(
    http_of: HttpOf, state: ChatState, state_with: Callable[..., Awaitable[ChatState]], redis: str
) -> None:
    """Replicas of one database know a request again; without its keys its name cannot be told from any other."""
    with Redis.from_url(redis) as client:
        client.flushall()
        answer = (await http_of(state).post("/v1/responses", json=TURN, headers={"idempotency-key": KEY})).json()
        await state.idempotency_keys.settled()
        said = [(name, client.get(name)) for name in client.scan_iter("baton:request:*")]
    assert said
    again = await http_of(await state_with()).post("/v1/responses", json=TURN, headers={"idempotency-key": KEY})
    assert again.json()["id"] == answer["id"]
    for guess in (KEY, f"key {KEY}", f'"{KEY}"'):
        for name in ("md5", "sha1", "sha256", "sha512", "blake2b", "blake2s"):
            assert hashlib.new(name, guess.encode()).hexdigest()[:16] not in str(said)


async def test_another_database_has_other_names(
    state: ChatState, state_with: Callable[..., Awaitable[ChatState]], postgres: str
) -> None:
    """They are made with a key of its own."""
    one = state.idempotency_keys.hashed(KEY)
    assert (await state_with()).idempotency_keys.hashed(KEY) == one
    emptied(postgres)
    assert (await state_with()).idempotency_keys.hashed(KEY) != one
