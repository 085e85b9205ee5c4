"""The worker that has generated an answer is told that its conversation waits for tools, whatever the path was."""

import pytest

from cluster.messages.ids import Path
from cluster.messages.retention import ToolWait
from tests.expected import present
from tests.unit.factories import a_request
from tests.unit.fake_ports import FakeCluster, FakeDecode
from tests.unit.router.session.test_session import gone, read

HASHES = [b"1st hash", b"2nd hash", b"3rd hash"]
WAIT = ToolWait(HASHES[-1], 3)
"""Names the last whole block of the prompt, whose hash stands for all blocks before it."""


@pytest.mark.parametrize(
    ("path", "worker"), [(Path.DECODE, "d0"), (Path.PREFILL, "p0"), (Path.PREFILL_DECODE, "d0")], ids=str
)
async def test_worker_that_generated_is_told_the_last_block(path: Path, worker: str) -> None:
    cluster = FakeCluster()
    session = cluster.session(a_request(), path, block_hashes=HASHES)
    await read(session)
    session.await_tools(3)
    assert present(session.placement).path is path
    assert cluster.decode.waits == [(worker, WAIT)]


async def test_worker_of_the_last_attempt_is_told_alone() -> None:
    cluster = FakeCluster(decode=FakeDecode(gone("d0")))
    session = cluster.session(a_request(), block_hashes=HASHES)
    await read(session)
    session.await_tools(3)
    assert cluster.decode.waits == [("d1", WAIT)]


async def test_prompt_without_a_whole_block_and_request_without_a_place_are_not_told_of() -> None:
    cluster = FakeCluster()
    cluster.session(a_request(), block_hashes=HASHES).await_tools(3)
    short = cluster.session(a_request(), block_hashes=[])
    await read(short)
    short.await_tools(3)
    assert cluster.decode.waits == []
