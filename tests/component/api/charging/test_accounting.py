"""Limits and the ledger of an ingress replica, on embedded servers as it starts them."""

import asyncio
from pathlib import Path

import psutil
import pytest

from api.charging.accounting import Accounting
from api.charging.charge import Tell
from api.identity.principal import Principal
from api.identity.rights import ALL_RIGHTS
from api.state.lifecycle import ChatState
from cluster.config.tenants.limits import Limits
from cluster.errors import RateLimited
from cluster.messages.ids import Outcome
from cluster.services.redis import LIMITS_REDIS_FOLDER
from router.session.receipt import RequestObserver, Terms
from tests.expected import present
from tests.unit.factories import a_receipt, a_request
from tests.unit.usage_rows import TENANT, an_attempt

MEMORY = 4 << 20
"""Of the Redis for copies, in the test."""
COPY = bytes(100_000)
PATIENCE_S = 20.0


def principal(**limits: int) -> Principal:
    of_key = Limits(**limits)
    return Principal(
        tenant=TENANT, project="proj_1", key="key_1", key_lineage="key_1", rights=ALL_RIGHTS, key_limits=of_key
    )


async def begin(
    accounting: Accounting, who: Principal, number: int = 1, tell: Tell = lambda _: None
) -> list[RequestObserver]:
    """Of one HTTP request, the sessions of so many prompts."""
    charge = accounting.charging.charge(who, "", tell, names_maximum=True)
    for _ in range(number):
        charge.expect(4, 10)
    terms = Terms(http_request="req_1")
    return await asyncio.gather(*(charge.begin(a_request(f"r{index}"), terms, lambda: 0) for index in range(number)))


def end(session: RequestObserver) -> None:
    attempt = an_attempt(num_delivered=3)
    session.closed(a_receipt(outcome=Outcome.FINISHED, attempts=(attempt,), num_prompt_tokens=4, num_output_tokens=3))


async def test_tenant_that_stores_much_does_not_have_its_limits_forgotten(
    accounting: Accounting, state: ChatState
) -> None:
    who = principal(requests_per_minute=1, concurrent_requests=1)
    await begin(accounting, who)
    assert await state.redis.run(("CONFIG", "SET", "maxmemory", MEMORY)) is not None
    for number in range(10 * MEMORY // len(COPY)):
        await state.redis.run(("SET", f"baton:cache:{TENANT}:conv_{number}", COPY))
    assert await state.redis.run(("EXISTS", f"baton:cache:{TENANT}:conv_0")) == [0]
    with pytest.raises(RateLimited):
        await begin(accounting, who)


async def test_prompts_of_one_request_count_once_though_redis_restarts_between_their_ends(
    accounting: Accounting, state: ChatState, tmp_path: Path
) -> None:
    who = principal(requests_per_minute=60, tokens_per_minute=6000, tokens_per_day=1000, concurrent_requests=2)
    first, second = await begin(accounting, who, 2)
    end(first)
    server = psutil.Process(int((tmp_path / LIMITS_REDIS_FOLDER / "redis.pid").read_text()))
    server.kill()
    server.wait(30)
    await state.look_for_redis()
    end(second)
    await accounting.drained(PATIENCE_S)
    told: list[dict[str, str]] = []
    await begin(accounting, who, 1, told.append)
    assert told[0]["x-ratelimit-remaining-requests"] == "58"
    # two prompts of 7 tokens were used, and one of 14 at most is open; some has come back since
    assert 6000 - 28 <= int(told[0]["x-ratelimit-remaining-tokens"]) < 6000
    name = f"baton:limits:{{{TENANT}}}:key:key_1"
    counted = present(await state.limits_redis.run(("HGET", name, "td")))[0]
    assert counted.split()[1] == b"28"
