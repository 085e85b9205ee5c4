"""The quality probe over real sessions and the real Scheduler's state. The workers are fakes."""

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from pathlib import Path as FilePath

import msgspec
import pytest
from prometheus_client import REGISTRY

from api.quality import prober as module
from api.quality import replicas as replicas_module
from api.quality.board import CommandKind, LearningState, QualityView
from api.quality.comparison import ProbeResult
from api.quality.probe_set import OWN_PROMPTS, ProbeSet
from api.quality.prober import QualityProber
from api.quality.rounds import NO_MAJORITY
from api.state.redis.client import RedisClient
from cluster.errors import NotFound
from cluster.messages.ids import Path, WorkerId
from kvtransfer.tolerance import MIN_TOLERANCE
from tests.component.api.quality.probed_workers import ProbedWorkers, scores

ALL_RIGHT = {
    "p0 P": 1.0,
    "p0 P->D": 1.0,
    "p1 P": 1.0,
    "p1 P->D": 1.0,
    "d0 D": 1.0,
    "d0 P->D": 1.0,
    "d1 D": 1.0,
    "d1 P->D": 1.0,
}
WITHIN_S = 10.0


@pytest.fixture(autouse=True)
def without_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "LOOK_S", 0.01)
    monkeypatch.setattr(module, "HOLD_S", 0.05)
    monkeypatch.setattr(module, "TELL_S", 0.05)


@pytest.fixture
async def workers() -> ProbedWorkers:
    return ProbedWorkers()


@pytest.fixture
async def clients() -> AsyncIterator[list[RedisClient]]:
    """Two of one Redis."""
    made = [RedisClient(), RedisClient()]
    yield made
    for client in made:
        await client.close()


@pytest.fixture
async def probers(clients: list[RedisClient]) -> AsyncIterator[list[QualityProber]]:
    """Those that a test starts. They are closed at its end."""
    started: list[QualityProber] = []
    yield started
    for prober in started:
        await prober.close()


async def seen(prober: QualityProber, what: Callable[[QualityView], object]) -> QualityView:
    """What it shows as soon as this holds."""
    async with asyncio.timeout(WITHIN_S):
        while not what(view := await prober.view()):  # noqa: ASYNC110  # it may be another replica's
            await asyncio.sleep(0.01)
    return view


def a_series(name: str, **labels: str) -> float | None:
    return REGISTRY.get_sample_value(name, labels)


async def test_workers_that_agree_learn_a_reference_and_score_1(
    workers: ProbedWorkers, tmp_path: FilePath, probers: list[QualityProber]
) -> None:
    prober = workers.prober(tmp_path)
    probers.append(prober)
    prober.start()
    view = await seen(prober, lambda view: scores(view) == ALL_RIGHT)
    assert view.reference is not None
    assert (view.reference.origin, view.reference.num_prompts) == ("learned", len(OWN_PROMPTS))
    assert a_series("baton_quality_probe_score", worker="d0", path="D") == 1.0
    assert a_series("baton_quality_reference_usable", origin="learned") == 1.0
    learned = (await prober.reference()).reference
    assert learned is not None and learned.tolerances == dict.fromkeys(Path, MIN_TOLERANCE)
    answered_at = a_series("baton_quality_last_probe_timestamp_seconds", worker="d0", path="D")
    assert answered_at is not None and 0.0 <= time.time() - answered_at < WITHIN_S
    assert (a_series("baton_quality_probe_tokens_total", worker="d0", part="answer") or 0) >= 4
    assert workers.clients.receipts == [], "a probe is no request of a client"
    assert all(workers.asked[pair, Path.PREFILL_DECODE] for pair in ("p0", "p1", "d0", "d1"))
    twice = [salt for salt in workers.salts if workers.salts.count(salt) == 2]
    assert twice and all(workers.salts.count(salt) <= 2 for salt in workers.salts)


async def test_wrong_worker_is_found_quarantined_and_used_again_when_it_is_right(
    workers: ProbedWorkers, tmp_path: FilePath, probers: list[QualityProber]
) -> None:
    prober = workers.prober(tmp_path, quarantine="on")
    probers.append(prober)
    prober.start()
    await seen(prober, lambda view: scores(view) == ALL_RIGHT)
    assert await workers.workers_of_clients() >= {"d0", "d1"}
    workers.wrong = {"d0"}
    view = await seen(prober, lambda view: any(target.quarantined for target in view.targets))
    await asyncio.sleep(0.2)
    assert "d0" not in await workers.workers_of_clients()
    (target,) = [target for target in view.targets if (target.worker, target.path) == ("d0", Path.DECODE)]
    assert target.result is ProbeResult.DIFFERS
    assert target.difference is not None
    assert target.difference.got == (target.difference.expected or 0) + 5000
    score = a_series("baton_quality_probe_score", worker="d0", path="D")
    assert score is not None and score < 1.0
    assert a_series("baton_quality_quarantined_workers") == 1.0
    assert {w.worker for w in (await workers.view()).workers if w.quarantined} == {"d0"}
    assert a_series("baton_quality_probe_score", worker="d1", path="D") == 1.0

    workers.wrong = set()
    await seen(prober, lambda view: not any(target.quarantined for target in view.targets))
    await asyncio.sleep(0.2)
    assert "d0" in await workers.workers_of_clients(40)


async def test_wrong_worker_keeps_its_requests_unless_the_config_says_otherwise(
    workers: ProbedWorkers, tmp_path: FilePath, probers: list[QualityProber]
) -> None:
    workers.wrong = {"p0"}
    workers_right = ProbedWorkers()
    first = workers_right.prober(tmp_path)
    probers.append(first)
    first.start()
    await seen(first, lambda view: scores(view) == ALL_RIGHT)
    await first.close()
    prober = workers.prober(tmp_path)
    probers.append(prober)
    prober.start()
    view = await seen(prober, lambda view: any(target.quarantined for target in view.targets))
    assert view.reference is not None and view.reference.origin == "learned", "the folder has it"
    assert not any(worker.quarantined for worker in (await workers.view()).workers)


async def test_update_that_changes_all_answers_is_the_fault_of_the_reference(
    workers: ProbedWorkers, tmp_path: FilePath, probers: list[QualityProber]
) -> None:
    prober = workers.prober(tmp_path, quarantine="on")
    probers.append(prober)
    prober.start()
    await seen(prober, lambda view: scores(view) == ALL_RIGHT)
    workers.shift = 7
    view = await seen(prober, lambda view: view.reference is not None and view.reference.is_at_fault)
    assert not any(target.quarantined for target in view.targets)
    assert a_series("baton_quality_reference_usable", origin="learned") == 0.0
    await prober.command(CommandKind.LEARN)
    await seen(prober, lambda view: scores(view) == ALL_RIGHT)
    assert a_series("baton_quality_reference_usable", origin="learned") == 1.0


async def test_operator_s_round_probes_everyone_now_and_says_how_far_it_is(
    workers: ProbedWorkers, tmp_path: FilePath, probers: list[QualityProber]
) -> None:
    prober = workers.prober(tmp_path, every_s=1000.0)
    probers.append(prober)
    prober.start()
    await seen(prober, lambda view: view.targets)
    id = await prober.command(CommandKind.RUN)
    view = await seen(prober, lambda view: view.run is not None and view.run.is_over)
    assert view.run is not None
    assert (view.run.id, view.run.num_targets) == (id, 8)
    await seen(prober, lambda view: view.reference is not None and view.reference.origin == "learned")
    await prober.command(CommandKind.RUN)
    await seen(prober, lambda view: scores(view) == ALL_RIGHT)


async def test_reference_of_a_file_counts_at_once(
    workers: ProbedWorkers, tmp_path: FilePath, probers: list[QualityProber]
) -> None:
    first = workers.prober(tmp_path)
    probers.append(first)
    first.start()
    with pytest.raises(NotFound, match="no reference is learned yet"):
        await first.reference()
    await seen(first, lambda view: scores(view) == ALL_RIGHT)
    given = await first.reference()
    await first.close()
    workers.shift = 3
    prober = workers.prober(tmp_path / "other", given=given)
    probers.append(prober)
    prober.start()
    view = await seen(prober, lambda view: view.reference is not None and view.reference.is_at_fault)
    assert view.reference is not None and view.reference.origin == "file"


async def test_reference_that_was_forgotten_comes_back_in_no_replica(
    workers: ProbedWorkers, tmp_path: FilePath, probers: list[QualityProber]
) -> None:
    first, second = workers.prober(tmp_path), workers.prober(tmp_path)
    probers += [first, second]
    first.start()
    await seen(first, lambda view: scores(view) == ALL_RIGHT)
    workers.wrong = {"p0", "p1"}
    id = await first.command(CommandKind.LEARN)
    with pytest.raises(NotFound, match="no reference is learned yet"):
        await first.reference()
    view = await seen(first, lambda view: view.run is not None and view.run.is_over)
    assert view.run is not None and view.reference is not None
    assert (view.run.id, view.run.learning, view.reference.note) == (id, LearningState.FAILED, NO_MAJORITY)
    await first.close()
    second.start()
    view = await seen(second, lambda view: view.targets)
    assert view.reference is not None and view.reference.origin == "none"
    workers.wrong = set()
    await seen(second, lambda view: scores(view) == ALL_RIGHT)


async def test_reference_that_was_learned_in_place_of_a_file_counts_until_the_file_changes(
    workers: ProbedWorkers, tmp_path: FilePath, probers: list[QualityProber]
) -> None:
    origins: list[str] = []
    given: ProbeSet | None = None
    for learns, changes in ((False, False), (True, False), (False, False), (False, True)):
        if given is not None and given.reference is not None and changes:
            changed = msgspec.structs.replace(given.reference, learned_at=1.0)
            given = ProbeSet(prompts=given.prompts, reference=changed)
        prober = workers.prober(tmp_path, given=given)
        probers.append(prober)
        prober.start()
        view = await seen(prober, lambda view: scores(view) == ALL_RIGHT)
        assert view.reference is not None
        origins.append(view.reference.origin)
        given = given or await prober.reference()
        if learns:
            await prober.command(CommandKind.LEARN)
            await seen(prober, lambda view: view.run is not None and view.run.learning is LearningState.LEARNED)
        await prober.close()
    assert origins == ["learned", "file", "learned", "file"]


async def test_reference_of_another_model_is_not_used(
    workers: ProbedWorkers, tmp_path: FilePath, probers: list[QualityProber], caplog: pytest.LogCaptureFixture
) -> None:
    first = workers.prober(tmp_path)
    probers.append(first)
    first.start()
    await seen(first, lambda view: scores(view) == ALL_RIGHT)
    other = (await first.reference()).reference
    assert other is not None
    await first.close()
    given = ProbeSet(prompts=OWN_PROMPTS, reference=msgspec.structs.replace(other, fingerprint="other"))
    prober = workers.prober(tmp_path / "other", given=given)
    probers.append(prober)
    prober.start()
    view = await seen(prober, lambda view: scores(view) == ALL_RIGHT)
    assert view.reference is not None and view.reference.origin == "learned"
    assert "of another model" in caplog.text


async def test_nothing_is_probed_while_requests_of_clients_wait(
    workers: ProbedWorkers, tmp_path: FilePath, probers: list[QualityProber], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(type(workers.state._admission._queue), "__len__", lambda queue: 1)
    prober = workers.prober(tmp_path)
    probers.append(prober)
    prober.start()
    await seen(prober, lambda view: any(target.result is ProbeResult.SKIPPED for target in view.targets))
    assert not workers.asked


async def test_one_replica_probes_and_another_one_when_it_is_gone(
    workers: ProbedWorkers,
    tmp_path: FilePath,
    probers: list[QualityProber],
    clients: list[RedisClient],
    redis: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(replicas_module, "LEASE_S", 0.5)
    for number, client in enumerate(clients):
        client.reach(redis)
        probers.append(workers.prober(tmp_path / str(number), client, f"i{number}", quarantine="on"))
    first, second = probers
    first.start()
    await seen(first, lambda view: view.replica == "i0")
    second.start()
    workers.wrong = {"d1"}
    await first.command(CommandKind.RELEASE, WorkerId("d1"))
    await seen(second, lambda view: any(score for score in scores(view).values()))
    assert (await second.view()).replica == "i0", "any replica shows what the one that probes has found"
    id = await second.command(CommandKind.RUN)
    await seen(first, lambda view: view.run is not None and view.run.id == id)
    assert first._probing is not None
    first._probing.cancel()  # it dies, and gives nothing back
    view = await seen(second, lambda view: view.replica == "i1" and any(scores(view).values()))
    assert view.reference is not None and view.reference.origin == "learned", "Redis has it"


async def test_replica_without_redis_and_with_others_does_not_probe(
    workers: ProbedWorkers, tmp_path: FilePath, probers: list[QualityProber]
) -> None:
    prober = workers.prober(tmp_path, RedisClient())
    probers.append(prober)
    prober.start()
    await asyncio.sleep(0.2)
    assert (await prober.view()).replica is None
    assert not workers.asked
