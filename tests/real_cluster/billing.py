"""What a key is charged, beside what its answers told."""

import time
from typing import NamedTuple

from api.limits.limits import ScopeKind
from api.limits.redis_budgets import RedisBudgets
from api.metering.differences import BudgetScope
from api.metering.prices import PricedTokens, price_list
from api.state.redis.client import RedisClient
from cluster.repository import REPO_ROOT
from cluster.services.redis import KEEPING, LIMITS_REDIS_FOLDER, LocalRedis
from tests.expected import present
from tests.real_cluster.ledger import Ledger
from tests.real_cluster.mixed_requests import Offered
from tests.real_cluster.service import Service

BY_REQUEST = """
SELECT http_request, count(DISTINCT id), count(*), sum(prompt_tokens)::bigint, sum(cached_tokens)::bigint,
  sum(generated_tokens)::bigint, sum(cost_micros)::bigint
FROM usage_ledger WHERE key_id = %s GROUP BY http_request
"""
WITHOUT_ONE_LAST_ROW = """
SELECT id FROM usage_ledger WHERE key_id = %s GROUP BY id HAVING count(*) FILTER (WHERE is_last) <> 1
"""
TOKENS = """
SELECT coalesce(sum(prompt_tokens + generated_tokens), 0)::bigint
FROM usage_ledger WHERE key_id = %s AND outcome <> 'lost'
"""
PRICES = "conf/prices.yaml"
"""What the service charges (tests/real_cluster/service.py)."""


class Billed(NamedTuple):
    """The rows of one HTTP request."""

    num_entries: int
    num_rows: int
    prompt_tokens: int
    cached_tokens: int
    generated_tokens: int
    cost_micros: int


def require_billed(ledger: Ledger, key: str, offered: Offered, model: str) -> None:
    """Each answer is charged what it told, to the token, and the price of it. Other requests are charged no more than
    they may have been given.

    Raises AssertionError.
    """
    billed = {name: Billed(*rows) for name, *rows in ledger.ask(BY_REQUEST, key)}
    untold = offered.left | offered.failed
    assert billed.keys() <= offered.told.keys() | untold.keys()
    priced = present(price_list((REPO_ROOT / PRICES).read_bytes()).of(model, time.time_ns() // 1_000_000))
    for name, told in offered.told.items():
        found = billed[name]
        expected = (told.num_prompts, told.prompt_tokens, told.completion_tokens)
        assert (found.num_entries, found.prompt_tokens, found.generated_tokens) == expected, (name, found, told)
        assert told.cached_tokens in (None, found.cached_tokens), (name, found, told)
        require_price(found, priced)
    for name, most in untold.items():
        if name in billed:
            assert billed[name].generated_tokens <= most, (name, billed[name])
            assert billed[name].cost_micros <= priced.prices.most_micros(billed[name].prompt_tokens, most)
    assert ledger.ask(WITHOUT_ONE_LAST_ROW, key) == []


def require_price(found: Billed, priced: PricedTokens) -> None:
    """Each row is rounded by itself. Raises AssertionError."""
    cost = priced.prices.cost_micros(found.prompt_tokens, found.cached_tokens, found.generated_tokens, 0)
    assert abs(found.cost_micros - cost) <= (1 + found.num_rows) / 2, (found, cost)


def tokens_of(ledger: Ledger, key: str) -> int:
    """What the ledger says that a key has spent."""
    return int(ledger.ask(TOKENS, key)[0][0])


async def counted_of(service: Service, key: str) -> int:
    """The tokens of the month that a key has spent, as the limits count them."""
    server = LocalRedis(service.data / LIMITS_REDIS_FOLDER, KEEPING)
    client = RedisClient()
    try:
        client.reach(server.start())
        budgets, found = RedisBudgets(client, str), dict[BudgetScope, int]()
        for tenant, scopes in present(await budgets.scopes()).items():
            found |= present(await budgets.settled(tenant, scopes))
    finally:
        await client.close()
        server.stop()
    (counted,) = [
        used
        for scope, used in found.items()
        if scope.scope_id == f"{ScopeKind.KEY}:{key}" and not scope.is_cost and scope.end - scope.start > 86_400
    ]
    return counted
