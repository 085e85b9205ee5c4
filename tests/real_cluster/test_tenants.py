"""Keys with limits, and the ledger, on real engines."""

import asyncio
import signal
from collections.abc import Iterator
from typing import Any

import openai
import pytest

from tests.real_cluster.accounts import baton
from tests.real_cluster.billing import require_billed
from tests.real_cluster.ledger import Ledger, ledger_of
from tests.real_cluster.mixed_requests import AT_ONCE, offered
from tests.real_cluster.service import DECODE_PROCESS, INGRESS_PROCESS, RESERVATION_S, Service, wait_for

SETTLED_WITHIN_S = 20.0
NUM_REQUESTS = 60
LONG: Any = {"messages": [{"role": "user", "content": "Hello"}], "max_tokens": 2000, "extra_body": {"ignore_eos": True}}
SHORT: Any = {"messages": [{"role": "user", "content": "Hello"}], "max_tokens": 4}


@pytest.fixture(scope="module")
def tenant(service: Service) -> str:
    return str(baton(service, "tenant", "create", "tenants of a test")["tenant"]["id"])


@pytest.fixture(scope="module")
def ledger(service: Service) -> Iterator[Ledger]:
    with ledger_of(service) as found:
        yield found


def client_with(service: Service, key: str) -> openai.OpenAI:
    return openai.OpenAI(base_url=f"{service.url}/v1", api_key=key, max_retries=0, timeout=60)


def test_key_gets_its_limit_its_headers_and_its_row(service: Service, tenant: str, model: str, ledger: Ledger) -> None:
    key = baton(service, "key", "create", tenant, "two", "--limit", "requests_per_minute=2", "--rights", "inference")
    with client_with(service, key["text"]) as client:
        first = client.chat.completions.with_raw_response.create(model=model, user="bob", **SHORT)
        assert first.headers["x-ratelimit-limit-requests"] == "2"
        assert first.headers["x-ratelimit-remaining-requests"] == "1"
        usage = first.parse().usage
        assert usage is not None
        with client.chat.completions.with_streaming_response.create(model=model, stream=True, **SHORT) as second:
            assert second.headers["x-ratelimit-remaining-requests"] == "0"
            second.read()
        with pytest.raises(openai.RateLimitError) as refused:
            client.chat.completions.create(model=model, **SHORT)
        assert refused.value.code == "rate_limit_exceeded"
        assert 1 <= int(refused.value.response.headers["retry-after"]) <= 31
        with pytest.raises(openai.PermissionDeniedError):
            client.conversations.create()
    wait_for(lambda: len(ledger.rows_of(key["key"]["id"])) == 2, SETTLED_WITHIN_S)
    (one, *_) = ledger.rows_of(key["key"]["id"])
    assert one == (tenant, "bob", "finished", usage.prompt_tokens, usage.completion_tokens)


def test_budget_that_is_spent(service: Service, tenant: str, model: str) -> None:
    key = baton(service, "key", "create", tenant, "poor", "--limit", "tokens_per_day=60")
    with client_with(service, key["text"]) as client:
        total = 0
        with pytest.raises(openai.RateLimitError) as refused:
            for _ in range(60):
                answer = client.chat.completions.create(model=model, **SHORT)
                assert answer.usage is not None
                total += answer.usage.total_tokens
        assert refused.value.code == "insufficient_quota"
        assert 0 < total <= 60
        assert "retry-after" not in refused.value.response.headers


def test_revoked_key_is_refused_within_a_second_or_two(service: Service, tenant: str, model: str) -> None:
    key = baton(service, "key", "create", tenant, "gone")
    with client_with(service, key["text"]) as client:
        client.chat.completions.create(model=model, **SHORT)
        baton(service, "key", "revoke", key["key"]["id"])

        def is_refused() -> bool:
            try:
                client.chat.completions.create(model=model, **SHORT)
            except openai.AuthenticationError:
                return True
            return False

        assert wait_for(is_refused, 5.0, interval_s=0.05) < 2.0


def test_killed_ingress_leaves_no_place_taken(service: Service, tenant: str, model: str) -> None:
    key = baton(service, "key", "create", tenant, "one at a time", "--limit", "concurrent_requests=1")
    with client_with(service, key["text"]) as client:
        stream = iter(client.chat.completions.create(model=model, stream=True, **LONG))
        next(stream)
        with pytest.raises(openai.RateLimitError):
            client.chat.completions.create(model=model, **SHORT)
        service.process(INGRESS_PROCESS).kill()
        service.wait_until_whole()

        def is_free() -> bool:
            try:
                client.chat.completions.create(model=model, **SHORT)
            except openai.RateLimitError:
                return False
            return True

        wait_for(is_free, RESERVATION_S + 5.0)


async def test_ledger_equals_the_counters_of_the_engines(
    service: Service, tenant: str, model: str, ledger: Ledger
) -> None:
    before = await asyncio.to_thread(ledger.settled, SETTLED_WITHIN_S)
    key = baton(service, "key", "create", tenant, "many")
    requests = await offered(service, model, key["text"], NUM_REQUESTS)
    assert requests.failed == {}
    await asyncio.to_thread(ledger.settled, SETTLED_WITHIN_S, before)
    require_billed(ledger, key["key"]["id"], requests, model)


async def test_worker_that_is_killed_costs_no_row(service: Service, tenant: str, model: str, ledger: Ledger) -> None:
    before = await asyncio.to_thread(ledger.settled, SETTLED_WITHIN_S)
    key = baton(service, "key", "create", tenant, "killed")
    offering = asyncio.create_task(offered(service, model, key["text"], NUM_REQUESTS))
    await asyncio.to_thread(wait_for, lambda: len(ledger.rows_of(key["key"]["id"])) > AT_ONCE, SETTLED_WITHIN_S)
    service.process(DECODE_PROCESS).send_signal(signal.SIGKILL)
    requests = await offering
    await asyncio.to_thread(service.wait_until_whole)
    await asyncio.to_thread(ledger.settled, SETTLED_WITHIN_S, before)
    require_billed(ledger, key["key"]["id"], requests, model)
