from random import Random

import msgspec
import pytest

from api.quality.board import CommandKind, LearningState, ProbeCommand
from api.quality.comparison import Difference, ProbeResult
from api.quality.probe_set import Reference
from api.quality.rounds import LEARNING_ROUNDS, NO_MAJORITY, TOO_FEW, ProbeRounds
from api.quality.schedule import ProbeTarget
from api.quality.visit import Visit, VisitResult
from cluster.config.observability.quality_probe import QualityProbeConfig
from cluster.messages.ids import Path, WorkerId
from cluster.messages.quality import Answer
from cluster.messages.views import ClusterView, WorkerView
from kvtransfer.tolerance import MIN_TOLERANCE
from tests.unit.api.quality.answers import a_cluster, an_answer

EVERY_S = 100.0
REFERENCE = Reference(fingerprint="f", model="m", learned_at=0.0, answers={"water": an_answer(1, 2)})
RUN = ProbeCommand(id="1", kind=CommandKind.RUN)
LEARN = ProbeCommand(id="L", kind=CommandKind.LEARN)
AGREES = VisitResult(ProbeResult.AGREES)
DIFFERS = VisitResult(ProbeResult.DIFFERS, Difference(prompt="water", position=0, expected=1, got=9, distance=None))


def rounds(view: ClusterView, reference: Reference | None = REFERENCE) -> ProbeRounds:
    """A round of an operator has begun."""
    config = QualityProbeConfig(every_s=EVERY_S, max_share=1.0)
    made = ProbeRounds(config, ["water"], reference, "learned", Random(0).random)
    made.see(view, 0.0)
    made.obey(RUN, 0.0)
    return made


def whole_round(made: ProbeRounds, found: VisitResult, answer: Answer | None = None) -> list[Visit]:
    """All visits of the operator's round, one after another, each of a second."""
    visits: list[Visit] = []
    while (visit := made.next_visit(float(len(visits)))) is not None:
        visits.append(visit)
        result = found if answer is None else VisitResult(found.result, answers={"water": answer})
        made.ended(visit, result, len(visits) - 1.0, float(len(visits)))
    return visits


def test_round_visits_each_target_and_counts() -> None:
    made = rounds(a_cluster(1, 2))
    visits = whole_round(made, AGREES)
    assert len({visit.target for visit in visits}) == len(visits) == 6
    run = made.view("i0", 10.0, 1000.0).run
    assert run is not None
    assert (run.id, run.num_done, run.num_targets) == ("1", 6, 6)


def test_visits_of_two_at_a_time_share_no_worker_and_none_is_skipped() -> None:
    made = rounds(a_cluster(2, 2))
    begun: list[Visit] = []
    while (visit := made.next_visit(0.0)) is not None:
        begun.append(visit)
    workers = [worker for visit in begun for worker in visit.workers]
    assert len(set(workers)) == len(workers) == 4
    for visit in begun:
        made.ended(visit, AGREES, 0.0, 1.0)
    whole_round(made, AGREES)
    assert not made.skipped
    assert all(target.result is ProbeResult.AGREES for target in made.view("i0", 2.0, 2.0).targets)


def test_pair_without_a_right_partner_is_skipped() -> None:
    made = rounds(a_cluster(1, 1))
    while (visit := made.next_visit(0.0)) is not None:
        made.ended(visit, DIFFERS if visit.target.worker == "d0" else AGREES, 0.0, 1.0)
        if visit.target == ProbeTarget(WorkerId("d0"), Path.DECODE):
            break
    whole_round(made, AGREES)
    seen = {(t.worker, t.path): t.result for t in made.view("i0", 5.0, 5.0).targets}
    assert seen[WorkerId("p0"), Path.PREFILL_DECODE] is ProbeResult.SKIPPED
    assert [target.path for target in made.skipped] == [Path.PREFILL_DECODE]
    assert made.verdicts.is_suspect(WorkerId("d0"))


def test_wrong_worker_is_asked_again_soon_and_so_is_a_witness() -> None:
    made = rounds(a_cluster(2, 2))
    whole_round(made, AGREES)
    made.obey(RUN, 50.0)
    while (visit := made.next_visit(50.0)) is not None:
        is_wrong = visit.target == ProbeTarget(WorkerId("d0"), Path.DECODE)
        made.ended(visit, DIFFERS if is_wrong else AGREES, 50.0, 51.0)
        if is_wrong:
            break
    again: set[ProbeTarget] = set()
    while (visit := made.next_visit(62.0)) is not None:
        again.add(visit.target)
        made.ended(visit, AGREES, 62.0, 62.0)
    assert ProbeTarget(WorkerId("d0"), Path.DECODE) in again
    assert again & {ProbeTarget(WorkerId(worker), Path.PREFILL) for worker in ("p0", "p1")}


@pytest.mark.parametrize("is_overload", [True, False])
def test_nothing_is_probed_for_a_while_after_a_refusal_for_the_load(is_overload: bool) -> None:
    made = rounds(a_cluster(1, 1))
    visits = whole_round(made, VisitResult(ProbeResult.SKIPPED, is_overload=is_overload))
    is_due = 1.0 + 0.1 * EVERY_S  # the first one
    assert (made.next_visit(is_due) is None) is is_overload
    assert made.next_visit(len(visits) + 0.1 * EVERY_S) is not None


def test_reference_is_learned_when_all_have_answered() -> None:
    made = rounds(a_cluster(1, 2), None)
    assert made.learned("f", "m", 0.0, 7.0) is None
    whole_round(made, AGREES, an_answer(1, 2))
    learned = made.learned("f", "m", 9.0, 7.0)
    assert learned == Reference(
        fingerprint="f",
        model="m",
        learned_at=7.0,
        answers={"water": an_answer(1, 2)},
        tolerances=dict.fromkeys(Path, MIN_TOLERANCE),
    )
    assert made.learned("f", "m", 9.0, 8.0) is None
    assert all(target.score is None for target in made.view("i0", 9.0, 9.0).targets), "nothing is compared yet"


def test_workers_that_do_not_agree_make_no_reference_and_it_is_said() -> None:
    made = rounds(a_cluster(1, 1), None)
    number = 0
    while (visit := made.next_visit(0.0)) is not None:
        number += 1
        made.ended(visit, VisitResult(ProbeResult.AGREES, answers={"water": an_answer(100 * number)}), 0.0, 0.5)
    assert made.learned("f", "m", 1.0, 1.0) is None
    view = made.view("i0", 1.0, 1.0)
    assert view.reference is not None
    assert (view.reference.origin, view.reference.note) == ("none", NO_MAJORITY)


def state_of_learning(made: ProbeRounds) -> LearningState | None:
    run = made.view("i0", 0.0, 0.0).run
    assert run is not None
    assert run.is_over is (run.learning is not LearningState.LEARNING)
    return run.learning


def test_round_of_learning_is_over_when_a_reference_is_learned() -> None:
    made = rounds(a_cluster(1, 2))
    made.obey(LEARN, 0.0)
    visits = whole_round(made, VisitResult(ProbeResult.SKIPPED))
    assert made.learned("f", "m", len(visits), 0.0) is None
    assert (made.reference, state_of_learning(made)) == (None, LearningState.LEARNING), "nobody has answered"
    made.obey(LEARN, 20.0)
    while (visit := made.next_visit(20.0)) is not None:
        made.ended(visit, VisitResult(ProbeResult.AGREES, answers={"water": an_answer(3)}), 20.0, 20.0)
    assert state_of_learning(made) is LearningState.LEARNING
    assert made.learned("f", "m", 21.0, 0.0) is not None
    assert state_of_learning(made) is LearningState.LEARNED


def test_round_of_learning_fails_without_a_majority() -> None:
    made = rounds(a_cluster(1, 1))
    made.obey(LEARN, 0.0)
    number = 0
    while (visit := made.next_visit(0.0)) is not None:
        number += 1
        made.ended(visit, VisitResult(ProbeResult.AGREES, answers={"water": an_answer(100 * number)}), 0.0, 0.0)
    assert made.learned("f", "m", 1.0, 1.0) is None
    assert state_of_learning(made) is LearningState.FAILED


def test_round_of_learning_fails_if_too_few_answer_in_time() -> None:
    made = rounds(a_cluster(1, 2))
    made.obey(LEARN, 5.0)
    until = 5.0 + LEARNING_ROUNDS * EVERY_S
    assert made.learned("f", "m", until - 1.0, 0.0) is None
    assert state_of_learning(made) is LearningState.LEARNING
    assert made.learned("f", "m", until, 0.0) is None
    assert state_of_learning(made) is LearningState.FAILED
    reference = made.view("i0", until, until).reference
    assert reference is not None and reference.note == TOO_FEW


def test_visit_that_began_with_the_reference_before_says_nothing_and_comes_again_at_once() -> None:
    made = rounds(a_cluster(1, 2))
    late = made.next_visit(0.0)
    assert late is not None
    made.obey(LEARN, 1.0)
    made.ended(late, DIFFERS, 0.0, 2.0)
    assert made.verdicts.record(late.target).result is None
    again = set()
    while (visit := made.next_visit(2.0)) is not None:
        again.add(visit.target)
        made.ended(visit, VisitResult(ProbeResult.AGREES, answers={"water": an_answer(3)}), 2.0, 2.0)
    assert late.target in again
    assert made.learned("f", "m", 3.0, 0.0) is not None


def test_time_of_the_last_answer_is_that_of_whole_answers_of_workers_that_live() -> None:
    made = rounds(a_cluster(1, 1))
    whole_round(made, AGREES)
    before = dict(made.answered_at)
    assert len(before) == 4
    made.obey(RUN, 50.0)
    whole_round(made, VisitResult(ProbeResult.FAILED))
    assert made.answered_at == before
    made.see(a_cluster(1, 0), 60.0)
    assert {target.worker for target in made.answered_at} == {"p0"}


def test_worker_that_is_missing_in_one_view_stays_in_quarantine() -> None:
    made = rounds(a_cluster(2, 2))
    for now in range(40):
        while (visit := made.next_visit(10.0 * now)) is not None:
            is_wrong = visit.target == ProbeTarget(WorkerId("d0"), Path.DECODE)
            made.ended(visit, DIFFERS if is_wrong else AGREES, 10.0 * now, 10.0 * now)
    assert list(made.verdicts.quarantined) == ["d0"]
    whole = a_cluster(2, 2)
    made.see(ClusterView(workers=[worker for worker in whole.workers if worker.worker != "d0"]), 400.0)
    made.see(whole, 420.0)
    assert list(made.verdicts.quarantined) == ["d0"]


def test_worker_that_is_in_quarantine_already_stays_there() -> None:
    view = a_cluster(2, 2)
    shown = [w if w.worker != "d0" else _quarantined(w) for w in view.workers]
    made = ProbeRounds(QualityProbeConfig(), ["water"], REFERENCE, "file", Random(0).random)
    made.see(ClusterView(workers=shown), 0.0)
    made.adopt()
    assert made.verdicts.quarantined == {WorkerId("d0"): "wrong"}
    made.obey(ProbeCommand(id="2", kind=CommandKind.RELEASE, worker=WorkerId("d0")), 0.0)
    assert made.verdicts.quarantined == {}


def _quarantined(worker: WorkerView) -> WorkerView:
    return msgspec.structs.replace(worker, quarantined="wrong")
