"""Two thousand requests while workers, PostgreSQL, Redis and the ingress die: ledger and engines agree to the token.
`make drills-services` runs this.
"""

import asyncio
import itertools
import signal
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from cluster.services.redis import LIMITS_REDIS_FOLDER
from tests.real_cluster.accounts import baton
from tests.real_cluster.billing import counted_of, require_billed, tokens_of
from tests.real_cluster.ledger import Ledger, ledger_of
from tests.real_cluster.mixed_requests import AT_ONCE, Offered, offered
from tests.real_cluster.postgres_loss import postgres_away
from tests.real_cluster.service import DECODE_PROCESS, INGRESS_PROCESS, PREFILL_PROCESS, Service, wait_for

pytestmark = [pytest.mark.timeout(1800), pytest.mark.full_matrix]

NUM_REQUESTS, AT_A_TIME, NUM_LAST = 1600, 200, 400
BETWEEN_S = 20.0
"""From one fault to the next."""
POSTGRES_AWAY_S = 10.0
SETTLED_WITHIN_S = 60.0
MOST_OF_A_REQUEST = 900
"""Tokens that one lost request may have generated: three streams of 300 at most. Those of its prompt are fewer."""
WITHIN_S = 30.0
"""For the first of the last requests to be in the ledger as open."""
MOST_MISCOUNTED = 2 * AT_ONCE * 2 * MOST_OF_A_REQUEST
"""Tokens by which the counter of a budget may differ from the ledger before it is reconciled: of requests that ended as
Redis was killed, or the ingress with its settlements.
"""


@pytest.fixture(scope="module")
def ledger(service: Service) -> Iterator[Ledger]:
    with ledger_of(service) as found:
        yield found


async def faults(service: Service, num_rows: Callable[[], int]) -> list[int]:
    """The number of rows before each fault."""

    def postgres() -> None:
        with postgres_away(service, signal.SIGSTOP), pytest.raises(TimeoutError):
            wait_for(lambda: False, POSTGRES_AWAY_S)

    strikes: list[Callable[[], object]] = [
        lambda: service.process(DECODE_PROCESS).kill(),
        lambda: service.redis(LIMITS_REDIS_FOLDER).kill(),
        lambda: service.process(PREFILL_PROCESS).kill(),
        lambda: service.process(DECODE_PROCESS).kill(),
        postgres,
    ]
    numbers = []
    for strike in strikes:
        await asyncio.sleep(BETWEEN_S)
        numbers.append(await asyncio.to_thread(num_rows))
        await asyncio.to_thread(strike)
        await asyncio.to_thread(service.wait_until_whole)
    return numbers


async def test_ledger_agrees_with_the_engines_whatever_dies(service: Service, model: str, ledger: Ledger) -> None:
    tenant = baton(service, "tenant", "create", "chaos")["tenant"]["id"]
    limits = ("--limit", "concurrent_requests=1000", "--limit", "tokens_per_month=1000000000")
    key = baton(service, "key", "create", tenant, "chaos", *limits)
    key_id = str(key["key"]["id"])
    before = await asyncio.to_thread(ledger.settled, SETTLED_WITHIN_S)
    striking = asyncio.create_task(faults(service, lambda: len(ledger.rows_of(key_id))))
    requests, number = Offered({}, {}, {}), 0
    while number < NUM_REQUESTS or not striking.done():
        requests = requests.with_more(await offered(service, model, key["text"], AT_A_TIME, number))
        number += AT_A_TIME
    numbers = [0, *await striking, len(await asyncio.to_thread(ledger.rows_of, key_id))]
    assert all(earlier < later for earlier, later in itertools.pairwise(numbers)), numbers
    await asyncio.to_thread(service.wait_until_whole)
    found = await asyncio.to_thread(ledger.settled, SETTLED_WITHIN_S, before)
    require_billed(ledger, key_id, requests, model)
    assert len(requests.told) > len(requests.failed)

    offering = asyncio.create_task(offered(service, model, key["text"], NUM_LAST))
    await asyncio.to_thread(wait_for, lambda: ledger.num_open() > 0, WITHIN_S)
    service.process(INGRESS_PROCESS).kill()
    requests = requests.with_more(await offering)
    await asyncio.to_thread(service.wait_until_whole)
    lost = await asyncio.to_thread(lost_requests, ledger, key)
    found_then = await asyncio.to_thread(ledger.settled, SETTLED_WITHIN_S)
    beyond = sum(found_then.values()) - sum(found.values())
    assert 0 <= beyond <= lost * MOST_OF_A_REQUEST
    require_billed(ledger, key_id, requests, model)
    assert abs(await counted_of(service, key_id) - tokens_of(ledger, key_id)) <= MOST_MISCOUNTED


def lost_requests(ledger: Ledger, key: dict[str, Any]) -> int:
    """Their number, when all that the killed ingress had open have ended as lost."""
    wait_for(lambda: not ledger.num_open(), 300.0, interval_s=2.0)
    return sum(outcome == "lost" for _, _, outcome, _, _ in ledger.rows_of(key["key"]["id"]))
