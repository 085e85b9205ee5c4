"""The Scheduler on the event loop that Serve's replicas have."""

import asyncio

import uvloop

from cluster.messages.placement import Placement
from router.pending_placements import PendingPlacements
from router.state import RouterState
from tests.unit.factories import a_decode_report, a_placement_request, a_prefill_report


def test_requests_that_come_together_in_an_outage_all_wait_and_are_all_placed() -> None:
    async def run() -> list[object]:
        pending = PendingPlacements(RouterState())
        asked = [asyncio.ensure_future(pending.place(a_placement_request(f"r{number}"))) for number in range(5)]
        done, _ = await asyncio.wait(asked, timeout=0.1)
        assert not done
        pending.report(a_prefill_report("p0"))
        pending.report(a_decode_report("d0", "p0"))
        return list(await asyncio.wait_for(asyncio.gather(*asked), 10.0))

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        assert all(isinstance(answer, Placement) for answer in runner.run(run()))
