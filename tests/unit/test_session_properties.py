"""Whatever workers and clients do, and whenever they do it, a session leaves nothing behind."""

import asyncio

from factories import a_request
from fake_ports import FakeCluster, FakeDecode, FakePrefill, FakeScheduler, turns
from hypothesis import given
from hypothesis import strategies as st

from cluster.errors import GenerationFailed, InvalidRequest, PrefillFailed, ServingError, WorkerUnreachable
from cluster.types import Outcome

PREFILLS, DECODES = ("p0", "p1"), ("d0", "d1")
ERRORS = {
    "unreachable": WorkerUnreachable,
    "prefill failed": PrefillFailed,
    "generation failed": GenerationFailed,
    "invalid": lambda message, worker: InvalidRequest(message),
}


def failures(workers: tuple[str, ...], *kinds: str) -> st.SearchStrategy[dict[str, Exception]]:
    kind_of = st.dictionaries(st.sampled_from(workers), st.sampled_from(kinds))
    return kind_of.map(lambda kinds: {worker: ERRORS[kind]("failed", worker) for worker, kind in kinds.items()})


delays = st.integers(0, 2)
clusters = st.builds(
    FakeCluster,
    st.builds(FakeScheduler, st.integers(0, 2), st.integers(0, 2), delays),
    st.builds(FakePrefill, failures(PREFILLS, "unreachable", "prefill failed", "invalid"), delays),
    st.builds(
        FakeDecode,
        failures(DECODES, "unreachable", "invalid"),
        failures(DECODES, "unreachable", "generation failed"),
        st.sets(st.sampled_from(DECODES)),
        delays,
    ),
)


async def served(cluster: FakeCluster, leaves_after_deltas: int | None) -> None:
    """Read to the end, or close the stream after so many deltas."""
    stream = cluster.session(a_request()).run()
    try:
        num_deltas = 0
        async for _ in stream:
            num_deltas += 1
            if num_deltas == leaves_after_deltas:
                break
            await turns(1)
    except ServingError:
        return
    finally:
        await stream.aclose()


async def settled(
    cluster: FakeCluster, abort_comes_too_late: bool, leaves_after_deltas: int | None, cancels: list[int]
) -> None:
    """Serve one request, and cancel its task after each of `cancels` turns of the loop."""
    cluster.prefill.abort_comes_too_late = abort_comes_too_late
    task = asyncio.create_task(served(cluster, leaves_after_deltas))
    for wait_turns in cancels:
        await turns(wait_turns)
        task.cancel()
    await asyncio.wait([task])
    while rest := asyncio.all_tasks() - {asyncio.current_task()}:
        await asyncio.wait(rest)


@given(clusters, st.booleans(), st.none() | st.integers(1, 3), st.lists(st.integers(0, 15), max_size=2))
def test_session_leaves_nothing_behind(cluster, abort_comes_too_late, leaves_after_deltas, cancels):
    asyncio.run(settled(cluster, abort_comes_too_late, leaves_after_deltas, [1 + number for number in cancels]))
    cluster.check_settled()


@given(clusters)
def test_receipt_says_how_the_request_ended(cluster):
    asyncio.run(settled(cluster, False, None, []))
    (receipt,) = cluster.observer.receipts
    assert (receipt.outcome is Outcome.FINISHED) == (receipt.num_output_tokens == 3)
    if receipt.outcome is Outcome.REJECTED:
        assert receipt.num_output_tokens == 0
    cluster.check_settled()
