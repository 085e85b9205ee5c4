"""What limits cost a request: its reservation and its settlement, on a Redis of this machine.

    make bench-limits

Two sets of limits: four limits in two scopes, and all limits in all five scopes. The burst is 200 requests at the same
time, again and again; none is refused. The latency is that of one request after another: of the reservation, which the
request waits for, and until the settlement is written, which no request waits for. CPU time is that of this process, as
of an ingress, with 200 requests at a time; it does not have Redis's own, which is printed beside it.
"""

import argparse
import asyncio
import tempfile
from pathlib import Path
from statistics import median, quantiles
from time import perf_counter, process_time

from redis import Redis

from api.identity.caller import Caller
from api.limits.limits import Amounts, Bucket, ScopeKind, buckets_of
from api.limits.reservations import Reservations
from api.state.redis.client import RedisClient
from bench.goals.limits_cost import missed
from bench.goals.verdict import conclude
from cluster.config.tenants.limits import MOST_BUDGET, MOST_CONCURRENT, MOST_PER_MINUTE, Limits, LimitsConfig
from cluster.services.redis import LocalRedis

TENANT = "0123456789abcdef"
CALLER = Caller(tenant=TENANT, project="proj_1", key="key_1", key_lineage="key_1", end_user="user")
AT_ONCE = 200
PER_MINUTE = Limits(requests_per_minute=MOST_PER_MINUTE, tokens_per_minute=MOST_PER_MINUTE)
ALL = Limits(
    concurrent_requests=MOST_CONCURRENT,
    tokens_per_day=MOST_BUDGET,
    tokens_per_month=MOST_BUDGET,
    cost_per_day=MOST_BUDGET,
    cost_per_month=MOST_BUDGET,
).over(PER_MINUTE)
SETS = {
    "4 limits, 2 scopes": {ScopeKind.KEY: PER_MINUTE, ScopeKind.TENANT: PER_MINUTE},
    "35 limits, 5 scopes": dict.fromkeys(ScopeKind, ALL),
}
ASKED, USED = Amounts(1, 4000, 800), Amounts(1, 700, 140)


async def reserved_and_settled(reservations: Reservations, which: tuple[Bucket, ...]) -> None:
    (await reservations.reserve(TENANT, which, ASKED)).settle(USED)


async def burst(
    reservations: Reservations, which: tuple[Bucket, ...], redis: Redis, rounds: int
) -> tuple[float, float, float]:
    """Decisions per second; CPU seconds of one request here, and in Redis."""
    rates, cpus, cpus_of_redis = [], [], []
    for _ in range(rounds):
        began, cpu, cpu_of_redis = perf_counter(), process_time(), redis_cpu_s(redis)
        await asyncio.gather(*(reserved_and_settled(reservations, which) for _ in range(AT_ONCE)))
        rates.append(AT_ONCE / (perf_counter() - began))
        await reservations.settled()
        cpus.append((process_time() - cpu) / AT_ONCE)
        cpus_of_redis.append((redis_cpu_s(redis) - cpu_of_redis) / AT_ONCE)
    return median(rates), median(cpus), median(cpus_of_redis)


def redis_cpu_s(redis: Redis) -> float:
    told = redis.info("cpu")
    return float(told["used_cpu_sys"]) + float(told["used_cpu_user"])


async def latencies(
    reservations: Reservations, which: tuple[Bucket, ...], number: int
) -> tuple[list[float], list[float]]:
    """Seconds of each reservation, and of each reservation with its settlement."""
    reserved, settled = [], []
    for _ in range(number):
        began = perf_counter()
        reservation = await reservations.reserve(TENANT, which, ASKED)
        reserved.append(perf_counter() - began)
        reservation.settle(USED)
        await reservations.settled()
        settled.append(perf_counter() - began)
    return reserved, settled


def shown(seconds: list[float]) -> str:
    cuts = quantiles(seconds, n=100)
    return f"{1e3 * cuts[49]:5.2f} {1e3 * cuts[98]:5.2f} ms"


async def measure(url: str, arguments: argparse.Namespace) -> float:
    """Prints the figures. Returns the CPU seconds of a request with few limits."""
    client = RedisClient()
    client.reach(url)
    reservations = Reservations(client, LimitsConfig(), 1)
    found = {}
    with Redis.from_url(url) as redis:
        for name, limits in SETS.items():
            which = buckets_of(CALLER, "model", limits, str)
            await burst(reservations, which, redis, 3)  # warm
            rate, found[name], cpu_of_redis = await burst(reservations, which, redis, arguments.rounds)
            reserved, settled = await latencies(reservations, which, arguments.requests)
            print(f"{name}")
            print(f"  decisions per second, {AT_ONCE} at a time   {rate:8.0f}")
            print(f"  CPU per request here, in Redis        {1e3 * found[name]:5.2f} {1e3 * cpu_of_redis:5.2f} ms")
            print(f"  reservation p50, p99                  {shown(reserved)}")
            print(f"  with its settlement p50, p99          {shown(settled)}")
    await reservations.close(1.0)
    await client.close()
    return min(found.values())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=50, help="bursts (%(default)s)")
    parser.add_argument("--requests", type=int, default=2000, help="requests one after another (%(default)s)")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        server = LocalRedis(Path(folder) / "redis")
        url = server.start()
        try:
            cpu_s = asyncio.run(measure(url, arguments))
        finally:
            server.stop()
    conclude(missed(cpu_s))


if __name__ == "__main__":
    main()
