import msgspec
import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from api.quality.comparison import Difference, ProbeResult
from api.quality.schedule import PATHS, ProbeTarget
from api.quality.target_record import STRIKES, WINDOW, TargetResult
from api.quality.verdicts import ABSENT_S, MAX_ABSENT, RECOVERIES, Verdicts
from cluster.messages.ids import Path, WorkerId
from tests.unit.api.quality.answers import pools

AGREES, DIFFERS = ProbeResult.AGREES, ProbeResult.DIFFERS
D0 = ProbeTarget(WorkerId("d0"), Path.DECODE)
WRONG = Difference(prompt="water", position=3, expected=1, got=2, distance=None)


class Judged:
    """Verdicts on some workers, which answer one after another."""

    def __init__(self, num_prefill: int = 2, num_decode: int = 3, num_prompts: int = 1) -> None:
        self.pools = pools(num_prefill, num_decode)
        self.verdicts = Verdicts()
        self.verdicts.keep(self.pools, 0.0)
        self.num_prompts = num_prompts
        self.now = 0.0

    def answers(self, worker: str, result: ProbeResult, path: Path | None = None, prompt: str = "water") -> None:
        self.now += 1.0
        of_worker = WorkerId(worker)
        target = ProbeTarget(of_worker, path or PATHS[self.pools[of_worker]][0])
        wrong = msgspec.structs.replace(WRONG, prompt=prompt) if result is DIFFERS else None
        self.verdicts.note(target, TargetResult(result, wrong, prompt, self.num_prompts), self.now)
        self.verdicts.validate()

    def see(self, *but: str) -> None:
        """All workers are in a view but these."""
        self.verdicts.keep({worker: pool for worker, pool in self.pools.items() if worker not in but}, self.now)
        self.verdicts.validate()

    @property
    def quarantined(self) -> list[str]:
        return sorted(self.verdicts.quarantined)


def a_wrong_d0() -> Judged:
    """d0 is in quarantine."""
    judged = Judged()
    for worker, result in (("d0", DIFFERS), ("d1", AGREES), ("d0", DIFFERS)):
        judged.answers(worker, result)
    assert judged.quarantined == ["d0"]
    return judged


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
    judged.see("d1")
    assert judged.quarantined == []
    judged.see()
    assert judged.quarantined == ["d0"], "it is not the last one any more"


def test_quarantine_and_record_outlast_a_view_without_the_worker() -> None:
    judged = a_wrong_d0()
    judged.see("d0")
    assert judged.quarantined == []
    assert list(judged.verdicts.told) == ["d0"], "a Scheduler may see the worker first"
    judged.now += ABSENT_S
    judged.see()
    assert judged.quarantined == ["d0"]
    assert judged.verdicts.scores[D0] == 0.0


def test_worker_that_is_missing_for_long_is_forgotten() -> None:
    judged = a_wrong_d0()
    judged.see("d0")
    judged.now += ABSENT_S + 1.0
    judged.see("d0")
    assert judged.verdicts.told == {}
    judged.see()
    assert (judged.quarantined, judged.verdicts.record(D0).score) == ([], None)


def test_number_of_missing_workers_that_are_remembered_is_bounded() -> None:
    judged = Judged(1, MAX_ABSENT + 5)
    for worker in judged.pools:
        judged.answers(worker, AGREES)
    judged.see(*judged.pools.keys())
    judged.see()
    assert len(judged.verdicts.scores) == MAX_ABSENT


def test_worker_that_is_wrong_on_two_of_four_prompts_is_quarantined_until_both_are_right() -> None:
    judged = Judged(num_prompts=4)
    for worker in ("d1", "d0"):
        for prompt in "abcd":
            is_wrong = worker == "d0" and prompt in "ac"
            judged.answers(worker, DIFFERS if is_wrong else AGREES, prompt=prompt)
            judged.answers("d1", AGREES, prompt="d")
    assert judged.quarantined == ["d0"]
    assert "answers to a, c differ" in judged.verdicts.quarantined[WorkerId("d0")]
    for prompt, is_over in (("a", False), ("b", False), ("d", False), ("c", True)):
        judged.answers("d0", AGREES, prompt=prompt)
        assert (judged.quarantined == []) is is_over


def test_worker_that_is_wrong_on_one_of_four_prompts_has_a_lower_score_and_its_requests() -> None:
    judged = Judged(num_prompts=4)
    for prompt in "abcd" * 4:
        judged.answers("d1", AGREES, prompt=prompt)
        judged.answers("d0", DIFFERS if prompt == "b" else AGREES, prompt=prompt)
        judged.answers("d0", ProbeResult.FAILED, prompt=prompt)
        assert judged.quarantined == []
    assert judged.verdicts.scores[D0] == 0.75


def test_same_prompt_twice_in_a_row_is_not_enough_if_there_are_others() -> None:
    judged = Judged(num_prompts=2)
    for worker, result in (("d1", AGREES), ("d0", DIFFERS), ("d1", AGREES), ("d0", DIFFERS)):
        judged.answers(worker, result)
    assert judged.quarantined == []


def test_prompts_that_all_workers_fail_quarantine_nobody() -> None:
    judged = Judged(num_prompts=4)
    for prompt in "abcd" * 3:
        for worker in judged.pools:
            judged.answers(worker, DIFFERS if prompt in "ab" else AGREES, prompt=prompt)
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
    assert judged.verdicts.scores == {D0: 0.5}


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

    @rule(
        number=st.integers(0, 7),
        result=st.sampled_from(ProbeResult),
        is_pair=st.booleans(),
        prompt=st.sampled_from("abc"),
    )
    def answer(self, number: int, result: ProbeResult, is_pair: bool, prompt: str) -> None:
        several = sorted(self.judged.pools)
        worker = several[number % len(several)]
        self.judged.answers(worker, result, Path.PREFILL_DECODE if is_pair else None, prompt)

    @rule(number=st.integers(0, 7))
    def leave(self, number: int) -> None:
        several = sorted(self.judged.pools)
        if len(several) > 1:
            del self.judged.pools[several[number % len(several)]]
            self.judged.see()

    @rule(number=st.integers(0, 7), seconds=st.sampled_from([0.0, 100.0, 700.0]))
    def be_missing(self, number: int, seconds: float) -> None:
        several = sorted(self.judged.pools)
        self.judged.see(several[number % len(several)])
        self.judged.now += seconds
        self.judged.see()

    @invariant()
    def nobody_is_quarantined_wrongly(self) -> None:
        verdicts = self.judged.verdicts
        verdicts.validate()
        if verdicts.is_reference_at_fault:
            assert not verdicts.quarantined
        for worker in verdicts.quarantined:
            alone = verdicts.record(ProbeTarget(worker, PATHS[self.judged.pools[worker]][0]))
            assert alone.streak < RECOVERIES or alone.failing


TestAnyAnswers = AnyAnswers.TestCase
