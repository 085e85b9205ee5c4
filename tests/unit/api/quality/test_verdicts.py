import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from api.quality.comparison import Difference, ProbeResult
from api.quality.schedule import PATHS, ProbeTarget
from api.quality.verdicts import RECOVERIES, STRIKES, WINDOW, Verdicts
from cluster.messages.ids import Path, WorkerId
from tests.unit.api.quality.answers import pools

AGREES, DIFFERS = ProbeResult.AGREES, ProbeResult.DIFFERS
WRONG = Difference(prompt="water", position=3, expected=1, got=2, distance=None)


class Judged:
    """Verdicts on some workers, which answer one after another."""

    def __init__(self, num_prefill: int = 2, num_decode: int = 3) -> None:
        self.pools = pools(num_prefill, num_decode)
        self.verdicts = Verdicts()
        self.verdicts.keep(self.pools)
        self.now = 0.0

    def answers(self, worker: str, result: ProbeResult, path: Path | None = None) -> None:
        self.now += 1.0
        of_worker = WorkerId(worker)
        target = ProbeTarget(of_worker, path or PATHS[self.pools[of_worker]][0])
        self.verdicts.note(target, result, WRONG if result is DIFFERS else None, self.now)
        self.verdicts.validate()

    @property
    def quarantined(self) -> list[str]:
        return sorted(self.verdicts.quarantined)


def test_worker_that_answers_wrongly_twice_is_quarantined_once_another_agrees() -> None:
    judged = Judged()
    judged.answers("d0", DIFFERS)
    judged.answers("d1", AGREES)
    assert judged.quarantined == []
    judged.answers("d0", DIFFERS)
    assert judged.quarantined == ["d0"]
    assert "prompt water, token 3 is 2 and should be 1" in judged.verdicts.quarantined[WorkerId("d0")]


def test_right_answers_end_the_quarantine() -> None:
    judged = Judged()
    for worker, result in (("d0", DIFFERS), ("d1", AGREES), ("d0", DIFFERS), ("d0", AGREES)):
        judged.answers(worker, result)
    assert judged.quarantined == ["d0"], f"it takes {RECOVERIES}"
    judged.answers("d0", AGREES)
    assert judged.quarantined == []


def test_single_wrong_answers_are_no_reason() -> None:
    judged = Judged()
    for _ in range(5):
        judged.answers("d1", AGREES)
        judged.answers("d0", DIFFERS)
        judged.answers("d0", ProbeResult.NEAR)
    assert judged.quarantined == []


def test_reference_that_all_workers_fail_is_at_fault_and_quarantines_nobody() -> None:
    judged = Judged()
    for worker in judged.pools:
        judged.answers(worker, AGREES)
    for _ in range(4):
        for worker in judged.pools:
            judged.answers(worker, DIFFERS)
            assert judged.quarantined == []
    assert judged.verdicts.is_reference_at_fault


def test_wrong_pair_quarantines_neither() -> None:
    judged = Judged()
    judged.answers("d1", AGREES)
    for _ in range(5):
        judged.answers("d0", DIFFERS, Path.PREFILL_DECODE)
    assert judged.quarantined == []
    assert judged.verdicts.scores[ProbeTarget(WorkerId("d0"), Path.PREFILL_DECODE)] == 0.0


@pytest.mark.parametrize(("num_decode", "most"), [(1, 0), (2, 1), (3, 1), (5, 2)])
def test_at_most_half_of_a_pool_is_quarantined(num_decode: int, most: int) -> None:
    judged = Judged(2, num_decode)
    for _ in range(STRIKES + 1):
        for worker in judged.pools:
            judged.answers(worker, DIFFERS if worker.startswith("d") else AGREES)
    assert len(judged.quarantined) == most


def test_worker_that_is_the_last_of_its_pool_leaves_the_quarantine() -> None:
    judged = Judged(1, 2)
    for worker, result in (("d0", DIFFERS), ("d1", AGREES), ("d0", DIFFERS)):
        judged.answers(worker, result)
    assert judged.quarantined == ["d0"]
    judged.verdicts.keep({worker: pool for worker, pool in judged.pools.items() if worker != "d1"})
    assert judged.quarantined == []


def test_operator_releases_a_worker() -> None:
    judged = Judged()
    for worker, result in (("d0", DIFFERS), ("d1", AGREES), ("d0", DIFFERS)):
        judged.answers(worker, result)
    judged.verdicts.release(WorkerId("d0"))
    assert judged.quarantined == []
    judged.answers("d0", DIFFERS)
    assert judged.quarantined == [], "its answers count anew"


def test_score_is_that_of_the_last_answers_and_probes_without_one_do_not_count() -> None:
    judged = Judged()
    for result in [DIFFERS] * WINDOW + [AGREES] * (WINDOW // 2):
        judged.answers("d0", result)
        judged.answers("d0", ProbeResult.SKIPPED)
        judged.answers("d0", ProbeResult.FAILED)
    assert judged.verdicts.scores == {ProbeTarget(WorkerId("d0"), Path.DECODE): 0.5}


def test_quarantine_of_another_replica_goes_on_until_the_worker_answers_rightly() -> None:
    judged = Judged()
    judged.verdicts.adopt({WorkerId("d0"): "wrong", WorkerId("gone"): "wrong"})
    assert judged.quarantined == ["d0"]
    judged.answers("d0", AGREES)
    judged.answers("d0", AGREES)
    assert judged.quarantined == []


class AnyAnswers(RuleBasedStateMachine):
    """Whatever workers answer: at most half of a pool is in quarantine, and nobody without a reason."""

    @initialize(num_prefill=st.integers(1, 4), num_decode=st.integers(1, 4))
    def begin(self, num_prefill: int, num_decode: int) -> None:
        self.judged = Judged(num_prefill, num_decode)

    @rule(number=st.integers(0, 7), result=st.sampled_from(ProbeResult), is_pair=st.booleans())
    def answer(self, number: int, result: ProbeResult, is_pair: bool) -> None:
        several = sorted(self.judged.pools)
        worker = several[number % len(several)]
        self.judged.answers(worker, result, Path.PREFILL_DECODE if is_pair else None)

    @rule(number=st.integers(0, 7))
    def leave(self, number: int) -> None:
        several = sorted(self.judged.pools)
        if len(several) > 1:
            del self.judged.pools[several[number % len(several)]]
            self.judged.verdicts.keep(self.judged.pools)

    @invariant()
    def nobody_is_quarantined_wrongly(self) -> None:
        verdicts = self.judged.verdicts
        verdicts.validate()
        if verdicts.is_reference_at_fault:
            assert not verdicts.quarantined
        for worker in verdicts.quarantined:
            alone = verdicts.record(ProbeTarget(worker, PATHS[self.judged.pools[worker]][0]))
            assert alone.streak < RECOVERIES


TestAnyAnswers = AnyAnswers.TestCase
