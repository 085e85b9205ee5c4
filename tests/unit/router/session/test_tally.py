"""What a receipt says of each attempt: tokens that engines computed, and tokens that the client has."""

import pytest

from cluster.errors import WorkerUnreachable
from cluster.messages.generation import PromptTokenSources
from cluster.messages.ids import Path
from router.session.receipt import AttemptEnd, AttemptReceipt
from tests.unit.factories import a_request
from tests.unit.fake_ports import FakeCluster, FakeDecode
from tests.unit.router.session.test_pauses import paused
from tests.unit.router.session.test_resume import a_resumable
from tests.unit.router.session.test_session import read


def attempts_of(cluster: FakeCluster) -> tuple[AttemptReceipt, ...]:
    (receipt,) = cluster.observer.receipts
    return receipt.attempts


async def test_token_that_both_workers_of_a_handoff_compute_is_delivered_once() -> None:
    """A request that cannot go on after a token gets its first token from the decode worker."""
    cluster = FakeCluster()
    await read(cluster.session(a_request()))
    (attempt,) = attempts_of(cluster)
    assert (attempt.path, attempt.worker, attempt.prefill_worker) == (Path.PREFILL_DECODE, "d0", "p0")
    assert (attempt.num_generated, attempt.num_prefill_generated, attempt.num_delivered) == (3, 1, 3)
    assert (attempt.end, attempt.is_complete) == (AttemptEnd.FINISHED, True)


async def test_first_token_of_a_resumable_request_comes_from_the_prefill_worker_alone() -> None:
    cluster = FakeCluster()
    await read(cluster.session(a_resumable()))
    (attempt,) = attempts_of(cluster)
    assert (attempt.num_generated, attempt.num_prefill_generated, attempt.num_delivered) == (2, 1, 3)
    assert attempt.shown_sources == PromptTokenSources(computed=3, local=1, pulled=0)
    assert attempt.is_complete


async def test_worker_that_dies_leaves_an_attempt_that_may_have_computed_more() -> None:
    cluster = FakeCluster(decode=FakeDecode(fails_after={"d0": WorkerUnreachable("gone", "d0")}))
    await read(cluster.session(a_resumable(), Path.DECODE))
    first, second = attempts_of(cluster)
    assert (first.end, first.is_complete, first.num_delivered, first.num_generated) == (AttemptEnd.FAILED, False, 1, 1)
    assert (second.end, second.is_complete, second.num_delivered) == (AttemptEnd.FINISHED, True, 2)
    assert (first.num_prompt_tokens, second.num_prompt_tokens) == (4, 5)
    assert (first.shown_sources is None, second.shown_sources) == (False, None)


async def test_paused_attempt_has_the_tokens_before_the_pause() -> None:
    cluster = FakeCluster()
    await paused(cluster)
    first, second = attempts_of(cluster)
    assert (first.end, first.is_complete, first.num_delivered) == (AttemptEnd.PAUSED, False, 2)
    assert (second.end, second.num_delivered) == (AttemptEnd.FINISHED, 1)
    assert first.ended_s <= second.began_s <= second.ended_s


async def test_client_that_leaves_ends_its_attempt_before_the_engine_does() -> None:
    cluster = FakeCluster()
    stream = cluster.session(a_resumable()).run()
    await anext(stream)
    await stream.aclose()
    (attempt,) = attempts_of(cluster)
    assert (attempt.end, attempt.num_delivered) == (AttemptEnd.ABORTED, 1)


@pytest.mark.parametrize("verifies", [False, True])
async def test_check_of_a_handoff_computes_what_the_client_does_not_get(verifies: bool) -> None:
    cluster = FakeCluster()
    await read(cluster.session(a_resumable(), verifies=verifies))
    (attempt,) = attempts_of(cluster)
    assert (attempt.num_prefill_generated, attempt.num_delivered) == (1 + verifies, 3)
    assert attempt.is_complete == (not verifies)  # the check stops its engine after the first token
