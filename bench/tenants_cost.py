"""What API keys, limits and the ledger cost a request: each by itself, and all of it.

Five applications in this process take turns, with the same front half. In place of an engine, each request waits for
FIRST_TOKEN_S. PostgreSQL and Redis are real, on this machine. The clients are in a process of their own: one that sends
one request after another, PAUSE_S after the answer before it, and then 64 at a time. CPU time is that of this process,
of PostgreSQL and of Redis, with what they write after the answers. The event loop is a replica's. With asyncio's own,
which rounds times up to milliseconds, the first token would come later whenever an answer of Redis came before it.
"""

import argparse
import statistics
import tempfile
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any, NamedTuple

import psutil
import uvloop

from api.charging.accounting import Accounting
from api.charging.charging import Charging
from api.frontend.frontend import Frontend
from api.identity.access import Access
from api.identity.authentication import Authentication
from api.identity.rights import ALL_RIGHTS
from api.limits.reservations import Reservations
from api.metering.meter import Meter
from api.server.listener import HttpListener
from api.server.protocol import Gatekeeper
from api.server.receipt_log import ReceiptLog
from api.state.lifecycle import ChatState
from api.state.postgres.accounts.api_keys import KeyTerms
from api.state.postgres.ledger.entries import Opening, UsageRow
from bench.fronts.free_ports import free_port
from bench.fronts.waiting_clients import ClientLoad, latencies_s
from bench.goals.tenants_cost import missed
from bench.goals.verdict import conclude
from cluster.config.application import AppConfig, parse
from cluster.config.ingress import IngressConfig
from cluster.config.tenants.limits import MOST_BUDGET, MOST_CONCURRENT, MOST_PER_MINUTE, Limits
from cluster.metrics.page import Scrape
from tests.component.app_with_fakes import NoEvents, an_app
from tests.component.fake_engines import FakeEngines

NUM_REQUESTS = {1: 50, 64: 256}
"""Requests of one turn, by the number of clients at a time."""
NOTHING, KEYS, LEDGER, LIMITED, ALL = "nothing", "keys", "keys, ledger", "keys, limits", "keys, limits, ledger"
BODY = b'{"model": "baton-demo", "messages": [{"role": "user", "content": "Hello"}], "max_tokens": 8}'
LIMITS = Limits(
    requests_per_minute=MOST_PER_MINUTE,
    tokens_per_minute=MOST_PER_MINUTE,
    concurrent_requests=MOST_CONCURRENT,
    tokens_per_day=MOST_BUDGET,
)
FIRST_TOKEN_S = 0.003
"""Time until the first token, in seconds: less than any engine takes. A longer one hides no more of what is measured as
long as the first token comes after the answer of Redis; a shorter one shows what no client sees.
"""
PAUSE_S = 0.01
"""Time between an answer and the next request of a client that is alone, in seconds: a shorter one measures what is
written after the answer before it, too, which no request of a person waits for.
"""
PATIENCE_S = 20.0


class Turn(NamedTuple):
    latency_s: list[float]
    cpu_s: float
    """Of one request."""


class Part(NamedTuple):
    """An application, and the key of its clients."""

    url: str
    key: str
    turns: dict[int, list[Turn]]
    """By the number of clients."""


class NoRecords:
    """Takes records of usage, and keeps none."""

    is_full = False

    def opened(self, opening: Opening) -> None: ...

    def closed(self, rows: list[UsageRow]) -> None: ...

    def withdrawn(self, id: str) -> None: ...


class Servers:
    """PostgreSQL and Redis, which are no children of this process."""

    def __init__(self, folder: str) -> None:
        found = [one for one in psutil.process_iter(["cmdline"]) if _is_in(one, folder)]
        self._servers = [one for one in found if one.parent() not in found]

    def cpu_s(self) -> float:
        """Their CPU time so far, of all of their processes."""
        total = 0.0
        for server in self._servers:
            ended = server.cpu_times()
            total += ended.children_user + ended.children_system
            for process in (server, *server.children(recursive=True)):
                times = process.cpu_times()
                total += times.user + times.system
        return total


async def no_scrapes() -> list[Scrape]:
    return []


@asynccontextmanager
async def listening(app: Any) -> AsyncIterator[str]:
    port = free_port()
    listener = await HttpListener.start(app, Gatekeeper(IngressConfig(port=port)), "baton")
    yield f"http://127.0.0.1:{port}"
    await listener.close()


async def turn(part: Part, num_clients: int, settle: Callable[[], Awaitable[None]], of: Servers) -> Turn:
    load = ClientLoad(
        part.url,
        {"authorization": f"Bearer {part.key}"} if part.key else {},
        BODY,
        num_clients,
        NUM_REQUESTS[num_clients],
        PAUSE_S if num_clients == 1 else 0.0,
    )
    cpu_s = time.process_time() + of.cpu_s()
    found = await latencies_s(load)
    await settle()
    return Turn(found, (time.process_time() + of.cpu_s() - cpu_s) / len(found))


async def a_key(state: ChatState, name: str, limits: Limits) -> str:
    accounts = state.accounts()
    tenant, _ = await accounts.tenants.create(name, "bench")
    terms = KeyTerms(name="bench", rights=ALL_RIGHTS, limits=limits)
    return (await accounts.keys.create(tenant.id, terms, "bench")).text


async def measured(
    config: AppConfig, folder: str, num_turns: int, nums_clients: Sequence[int]
) -> dict[str, dict[int, list[Turn]]]:
    """The turns of each part, by the number of clients."""
    state = ChatState(config.state, serves=True, publishes_usage=True)
    await state.look()
    await state.look_for_redis()
    state.start()
    accounting = Accounting(config, state, "bench", ReceiptLog(0), no_scrapes)
    accounting.start()
    reservations = Reservations(state.limits_redis, config.limits, 1)
    nowhere = NoRecords()
    limiting = Charging(
        config.limits,
        config.model_name,
        meter=Meter(nowhere, None, "bench", ReceiptLog(0)),
        recorder=nowhere,
        reserver=reservations,
        hashed=state.hashed,
    )
    authentication = Authentication(state.known_accounts, time.time, 300.0)
    authentication.start()
    engines = FakeEngines()
    engines.first_token_s = FIRST_TOKEN_S
    start: Any = engines.start_session  # whose sessions are fakes
    frontend = await Frontend.start(config, start, NoEvents())
    access = Access(authentication.identify, is_required=True)
    limited, unlimited = await a_key(state, "limited", LIMITS), await a_key(state, "unlimited", Limits())
    apps = {
        NOTHING: (an_app(frontend), ""),
        KEYS: (an_app(frontend, access=access), unlimited),
        LEDGER: (an_app(frontend, access=access, charging=accounting.charging), unlimited),
        LIMITED: (an_app(frontend, access=access, charging=limiting), limited),
        ALL: (an_app(frontend, access=access, charging=accounting.charging), limited),
    }

    async def settle() -> None:
        await accounting.drained(PATIENCE_S)
        await reservations.settled()

    async with AsyncExitStack() as stack:
        parts = {
            name: Part(await stack.enter_async_context(listening(app)), key, {number: [] for number in nums_clients})
            for name, (app, key) in apps.items()
        }
        servers = Servers(folder)
        for index in range(num_turns + 1):
            in_turn = list(parts.values())
            for part in in_turn[index % len(parts) :] + in_turn[: index % len(parts)]:
                for num_clients, done in part.turns.items():
                    done.append(await turn(part, num_clients, settle, servers))
    await reservations.close(PATIENCE_S)
    await accounting.close(PATIENCE_S)
    await authentication.close()
    await frontend.close()
    await state.close()
    warm = slice(1, None)
    return {name: {num_clients: done[warm] for num_clients, done in part.turns.items()} for name, part in parts.items()}


def added(turns: dict[str, dict[int, list[Turn]]], part: str, num_clients: int) -> list[float]:
    """Seconds that a part adds to the median latency of each turn."""
    pairs = zip(turns[part][num_clients], turns[NOTHING][num_clients], strict=True)
    return [statistics.median(one.latency_s) - statistics.median(other.latency_s) for one, other in pairs]


def report(turns: dict[str, dict[int, list[Turn]]]) -> None:
    print("clients  what is on              median      p99      CPU   added, median (tenths over turns): latency, CPU")
    for num_clients, nothing in turns[NOTHING].items():
        print(f"{len(nothing)} turns of {NUM_REQUESTS[num_clients]} requests of each, in ms:")
        for part, of_part in turns.items():
            own = of_part[num_clients]
            latency_s = [latency for one in own for latency in one.latency_s]
            cpu_s = [one.cpu_s - other.cpu_s for one, other in zip(own, nothing, strict=True)]
            columns = (
                statistics.median(latency_s),
                statistics.quantiles(latency_s, n=100)[-1],
                statistics.median(one.cpu_s for one in own),
            )
            figures = " ".join(f"{1e3 * value:8.2f}" for value in columns)
            print(f"{num_clients:7}  {part:20} {figures}   {_range(added(turns, part, num_clients))}  {_range(cpu_s)}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--turns", type=int, default=12, help="turns of each application (default: %(default)s)")
    parser.add_argument(
        "--clients", type=int, nargs="+", choices=NUM_REQUESTS, default=list(NUM_REQUESTS), help="at a time (1 and 64)"
    )
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        Path(folder).chmod(0o755)  # PostgreSQL may run as another user
        args: dict[str, Any] = {"model": "conf/models/baton-demo", "state": {"data_dir": f"{folder}/state"}}
        engine = {"max_model_len": 4096, "dtype": "bfloat16", "enforce_eager": True}
        config = parse({**args, "engine": engine, "metering": {"prices": "conf/prices.yaml", "publishes": True}})
        turns = uvloop.run(measured(config, folder, arguments.turns, arguments.clients))
    report(turns)
    if 1 in arguments.clients:
        conclude(missed(statistics.median(added(turns, LIMITED, 1))))


def _range(values: list[float]) -> str:
    low, *_, high = statistics.quantiles(values, n=10)
    return f"{1e3 * statistics.median(values):6.2f} ({1e3 * low:.2f} to {1e3 * high:.2f})"


def _is_in(process: psutil.Process, folder: str) -> bool:
    return any(folder in argument for argument in process.info["cmdline"] or [])


if __name__ == "__main__":
    main()
