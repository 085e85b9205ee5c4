"""What API keys, limits and the ledger cost a request: each by itself, and all of it.

Five applications in this process have the same front half. In place of an engine, each request waits for FIRST_TOKEN_S.
PostgreSQL and Redis are real, on this machine. The clients are in a process of their own. The latency of one client is
that of rounds: it sends a request to each application, in another order each time, and each PAUSE_S after the answer
before it. So what else happens on the machine meets all of them alike. The CPU time of one client, and all of 64, is
that of turns, in which one application has all requests. CPU time is that of this process, of PostgreSQL and of Redis,
with what they write after the answers. The event loop is a replica's. With asyncio's own, which rounds times up to
milliseconds, the first token would come later whenever an answer of Redis came before it.
"""

import argparse
import statistics
import tempfile
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
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
from bench.fronts.waiting_clients import ClientLoad, Target, latencies_s
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
PAUSE_S = 0.03
"""Time between an answer and the next request of a client that is alone, in seconds: a shorter one measures what is
written after the answer before it, too, which no request of a person waits for. That begins 10 ms after the answer.
"""
BOOTSTRAPS = 2000
"""Samples of the rounds that an interval is made of. More takes longer; fewer gives ends that vary from run to run."""
WARM_ROUNDS = 20
"""Rounds before those that count. More takes longer; fewer counts the first requests of a connection."""
PATIENCE_S = 20.0


class Turn(NamedTuple):
    latency_s: list[float]
    cpu_s: float
    """Of one request."""


class Part(NamedTuple):
    """An application, as its clients reach it."""

    target: Target
    turns: dict[int, list[Turn]]
    """By the number of clients."""
    round_s: list[float]
    """The latency of a lone client in each round, in seconds."""


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
    pause_s = PAUSE_S if num_clients == 1 else 0.0
    load = ClientLoad([part.target], BODY, num_clients, NUM_REQUESTS[num_clients], pause_s)
    cpu_s = time.process_time() + of.cpu_s()
    (found,) = await latencies_s(load)
    await settle()
    return Turn(found, (time.process_time() + of.cpu_s() - cpu_s) / len(found))


async def rounds(parts: Sequence[Part], num_rounds: int) -> None:
    """Have a lone client send to all parts alike."""
    load = ClientLoad([part.target for part in parts], BODY, 1, WARM_ROUNDS + num_rounds, PAUSE_S)
    for part, found in zip(parts, await latencies_s(load), strict=True):
        part.round_s.extend(found[WARM_ROUNDS:])


async def a_key(state: ChatState, name: str, limits: Limits) -> str:
    accounts = state.accounts()
    tenant, _ = await accounts.tenants.create(name, "bench")
    terms = KeyTerms(name="bench", rights=ALL_RIGHTS, limits=limits)
    return (await accounts.keys.create(tenant.id, terms, "bench")).text


async def measured(
    config: AppConfig, folder: str, num_turns: int, num_rounds: int, nums_clients: Sequence[int]
) -> dict[str, Part]:
    """The parts, with what was measured."""
    state = ChatState(config.state, serves=True, publishes_usage=True)
    await state.look()
    await state.look_for_redis()
    state.start()
    accounting = Accounting(config, state, "bench", ReceiptLog(0), no_scrapes)
    accounting.start()
    reservations = Reservations(state.limits_redis, config.limits, 1)
    nowhere = NoRecords()
    meter = Meter(nowhere, None, "bench", ReceiptLog(0))
    limiting = Charging(
        config.limits,
        config.model_name,
        meter=meter,
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
        meter.close_ended()
        await accounting.drained(PATIENCE_S)
        await reservations.settled()

    async with AsyncExitStack() as stack:
        parts: dict[str, Part] = {}
        for name, (app, key) in apps.items():
            headers = {"authorization": f"Bearer {key}"} if key else {}
            target = Target(await stack.enter_async_context(listening(app)), headers)
            parts[name] = Part(target, {number: [] for number in nums_clients}, [])
        in_turn = list(parts.values())
        if 1 in nums_clients:
            await rounds(in_turn, num_rounds)
        servers = Servers(folder)
        for index in range(num_turns + 1):
            for part in in_turn[index % len(parts) :] + in_turn[: index % len(parts)]:
                for num_clients, done in part.turns.items():
                    done.append(await turn(part, num_clients, settle, servers))
    await reservations.close(PATIENCE_S)
    await accounting.close(PATIENCE_S)
    await authentication.close()
    await frontend.close()
    await state.close()
    for part in parts.values():
        for done in part.turns.values():
            del done[0]  # it warms up
    return parts


def added_s(parts: dict[str, Part], name: str) -> list[float]:
    """Seconds that a part adds to the median latency of a lone client; then the ends of the 95 % interval, by bootstrap
    over the rounds.
    """
    both = np.array([parts[name].round_s, parts[NOTHING].round_s])
    picked = np.random.default_rng(0).integers(both.shape[1], size=(BOOTSTRAPS, both.shape[1]))
    of_part, of_nothing = np.median(both[:, picked], axis=2)
    medians = np.median(both, axis=1)
    return [float(medians[0] - medians[1]), *map(float, np.quantile(of_part - of_nothing, [0.025, 0.975]))]


def report(parts: dict[str, Part]) -> None:
    nothing = parts[NOTHING]
    if nothing.round_s:
        print(f"1 client, {len(nothing.round_s)} rounds, latency in ms:")
        print(f"{'what is on':20} {'median':>8} {'p99':>8}   added to the median (95 %)")
        for name, part in parts.items():
            _, p99 = np.quantile(part.round_s, [0.5, 0.99])
            median = statistics.median(part.round_s)
            print(f"{name:20} {1e3 * median:8.2f} {1e3 * p99:8.2f}   {_interval(*added_s(parts, name))}")
    for num_clients, of_nothing in nothing.turns.items():
        print(f"{num_clients} clients, {len(of_nothing)} turns of {NUM_REQUESTS[num_clients]} requests of each, in ms:")
        print(f"{'what is on':20} {'median':>8} {'p99':>8} {'CPU':>8}   added CPU, median (tenths over turns)")
        for name, part in parts.items():
            own = part.turns[num_clients]
            latency_s = [latency for one in own for latency in one.latency_s]
            cpu_s = [one.cpu_s - other.cpu_s for one, other in zip(own, of_nothing, strict=True)]
            columns = (
                statistics.median(latency_s),
                statistics.quantiles(latency_s, n=100)[-1],
                statistics.median(one.cpu_s for one in own),
            )
            print(f"{name:20} " + " ".join(f"{1e3 * value:8.2f}" for value in columns) + f"   {_range(cpu_s)}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--turns", type=int, default=12, help="turns of each application (default: %(default)s)")
    parser.add_argument("--rounds", type=int, default=1500, help="of a client that is alone (default: %(default)s)")
    parser.add_argument(
        "--clients", type=int, nargs="+", choices=NUM_REQUESTS, default=list(NUM_REQUESTS), help="at a time (1 and 64)"
    )
    arguments = parser.parse_args()
    if min(arguments.turns, arguments.rounds if 1 in arguments.clients else 2) < 2:
        parser.error("quantiles need two turns and two rounds at least")
    with tempfile.TemporaryDirectory() as folder:
        Path(folder).chmod(0o755)  # PostgreSQL may run as another user
        args: dict[str, Any] = {"model": "conf/models/baton-demo", "state": {"data_dir": f"{folder}/state"}}
        engine = {"max_model_len": 4096, "dtype": "bfloat16", "enforce_eager": True}
        config = parse({**args, "engine": engine, "metering": {"prices": "conf/prices.yaml", "publishes": True}})
        parts = uvloop.run(measured(config, folder, arguments.turns, arguments.rounds, arguments.clients))
    report(parts)
    if 1 in arguments.clients:
        conclude(missed(added_s(parts, LIMITED)[0]))


def _interval(value: float, low: float, high: float) -> str:
    return f"{1e3 * value:6.2f} ({1e3 * low:.2f} to {1e3 * high:.2f})"


def _range(values: list[float]) -> str:
    low, *_, high = statistics.quantiles(values, n=10)
    return f"{1e3 * statistics.median(values):6.2f} ({1e3 * low:.2f} to {1e3 * high:.2f})"


def _is_in(process: psutil.Process, folder: str) -> bool:
    return any(folder in argument for argument in process.info["cmdline"] or [])


if __name__ == "__main__":
    main()
