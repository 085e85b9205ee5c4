"""Whatever workers and clients do, and whenever they do it, a session leaves nothing behind."""

import asyncio
from collections import Counter
from collections.abc import Callable

from hypothesis import given
from hypothesis import strategies as st

from cluster.errors import GenerationFailed, InvalidRequest, PrefillFailed, ServingError, WorkerUnreachable
from cluster.messages.generation import TokenLogprob
from cluster.messages.ids import Outcome
from tests.unit.factories import a_request
from tests.unit.fake_ports import SERVED, FakeCluster, FakeDecode, FakePrefill, FakeScheduler, loop_rounds
from tests.unit.timelines import check_explains

PREFILLS, DECODES = ("p0", "p1"), ("d0", "d1")
ERRORS: dict[str, Callable[[str, str], Exception]] = {
    "unreachable": WorkerUnreachable,
    "prefill failed": PrefillFailed,
    "generation failed": GenerationFailed,
    "invalid": lambda message, worker: InvalidRequest(message),
}


def failures(workers: tuple[str, ...], *kinds: str) -> st.SearchStrategy[dict[str, Exception]]:
    kind_of = st.dictionaries(st.sampled_from(workers), st.sampled_from(kinds))
    return kind_of.map(lambda kinds: {worker: ERRORS[kind]("failed", worker) for worker, kind in kinds.items()})


Kind = tuple[bool, bool, bool]
"""Whether the request is resumable, whether its handoff is verified, and whether that is found wrong."""

kinds = st.tuples(st.booleans(), st.booleans(), st.booleans())
delays = st.integers(0, 2)
clusters = st.builds(
    FakeCluster,
    st.builds(FakeScheduler, st.integers(0, 2), st.integers(0, 2), delays),
    st.builds(FakePrefill, failures(PREFILLS, "unreachable", "prefill failed", "invalid"), delays),
    st.builds(
        FakeDecode,
        failures(DECODES + PREFILLS, "unreachable", "invalid"),
        failures(DECODES + PREFILLS, "unreachable", "generation failed"),
        st.sets(st.sampled_from(DECODES + PREFILLS)),
        delays,
    ),
)


async def served(cluster: FakeCluster, kind: Kind, leaves_after_deltas: int | None, released: list[int]) -> None:
    """Read to the end, or close the stream after so many deltas."""
    is_resumable, verifies, differs = kind
    cluster.prefill.top_logprobs = [TokenLogprob(token, -1.0) for token in range(5)]
    cluster.decode.top_logprobs = [TokenLogprob(token, -4.0 if differs else -1.0) for token in range(5)]
    stream = cluster.session(a_request(is_resumable=is_resumable, is_verifiable=True), verifies=verifies).run()
    try:
        num_deltas = 0
        async for delta in stream:
            released += delta.token_ids
            num_deltas += 1
            if num_deltas == leaves_after_deltas:
                break
            await loop_rounds(1)
    except ServingError:
        return
    finally:
        await stream.aclose()


async def settled(cluster: FakeCluster, kind: Kind, leaves_after_deltas: int | None, cancels: list[int]) -> list[int]:
    """Serve one request, and cancel its task after each of `cancels` turns of the loop. Returns the tokens."""
    released: list[int] = []
    task = asyncio.create_task(served(cluster, kind, leaves_after_deltas, released))
    for wait_rounds in cancels:
        await loop_rounds(wait_rounds)
        task.cancel()
    await asyncio.wait([task])
    while rest := asyncio.all_tasks() - {asyncio.current_task()}:
        await asyncio.wait(rest)
    return released


@given(clusters, kinds, st.none() | st.integers(1, 3), st.lists(st.integers(0, 15), max_size=2))
def test_session_leaves_nothing_behind(
    cluster: FakeCluster, kind: tuple[bool, bool, bool], leaves_after_deltas: int | None, cancels: list[int]
) -> None:
    released = asyncio.run(settled(cluster, kind, leaves_after_deltas, [1 + number for number in cancels]))
    assert released == SERVED[: len(released)]
    cluster.check_settled()
    for receipt in cluster.observer.receipts:
        check_explains(receipt)


@given(clusters, kinds)
def test_receipt_says_how_the_request_ended(cluster: FakeCluster, kind: tuple[bool, bool, bool]) -> None:
    released = asyncio.run(settled(cluster, kind, None, []))
    (receipt,) = cluster.observer.receipts
    assert released == SERVED[: receipt.num_output_tokens]
    assert (receipt.outcome is Outcome.FINISHED) == (receipt.num_output_tokens == 3)
    if receipt.outcome is Outcome.REJECTED:
        assert receipt.num_output_tokens == 0
    cluster.check_settled()


@given(clusters, kinds, st.none() | st.integers(1, 3), st.lists(st.integers(0, 15), max_size=2))
def test_attempts_add_up_to_what_engines_count_and_to_what_the_client_has(
    cluster: FakeCluster, kind: tuple[bool, bool, bool], leaves_after_deltas: int | None, cancels: list[int]
) -> None:
    asyncio.run(settled(cluster, kind, leaves_after_deltas, [1 + number for number in cancels]))
    receipts = cluster.observer.receipts  # none if the session was cancelled before it began
    seen: Counter[str] = Counter()
    incomplete: set[str] = set()
    for attempt in (attempt for receipt in receipts for attempt in receipt.attempts):
        seen[attempt.worker] += attempt.num_generated
        seen[attempt.prefill_worker or ""] += attempt.num_prefill_generated
        if not attempt.is_complete:
            incomplete |= {attempt.worker, attempt.prefill_worker or ""}
    engines = cluster.prefill.num_generated + cluster.decode.num_generated
    for worker in {*engines, *seen}:
        assert seen[worker] <= engines[worker]
        assert seen[worker] == engines[worker] or worker in incomplete
    for receipt in receipts:
        assert sum(attempt.num_delivered for attempt in receipt.attempts) == receipt.num_output_tokens
        assert [attempt.number for attempt in receipt.attempts] == [*range(1, receipt.num_attempts + 1)]
