"""The Scheduler as a process of its own, without Ray: what bench/scheduler/load.py measures.

It prints its address as JSON, and ends with its standard input.
"""

import asyncio
import logging
import sys

import msgspec
import uvloop

from cluster.rpc.listener import Listener
from cluster.slo import Objective, SloConfig
from router.garbage import collect_rarely
from router.scheduler_service import SchedulerService
from router.state import RouterState

SLO = SloConfig(standard=Objective(ttft_s=2.0, ttft_per_prefill=3.0, tpot_s=0.1))


async def serve() -> None:
    listener = await Listener.start("127.0.0.1", SchedulerService(RouterState(SLO)).service)
    print(msgspec.json.encode(listener.address).decode(), flush=True)
    collect_rarely()
    await asyncio.get_running_loop().run_in_executor(None, sys.stdin.read)
    await listener.close()


if __name__ == "__main__":
    logging.getLogger("baton").setLevel(logging.ERROR)
    uvloop.run(serve())
