from api.quality.learning import Learner
from api.quality.schedule import targets_of
from cluster.messages.ids import Path, WorkerId
from kvtransfer.tolerance import MIN_TOLERANCE
from tests.unit.api.quality.answers import a_cluster, an_answer

RIGHT, WRONG = an_answer(1, 2, 3), an_answer(7, 8, 9)
TARGETS = targets_of(a_cluster(2, 2).workers)


def test_answers_on_which_most_workers_agree_become_the_reference() -> None:
    learner = Learner(["a", "b"])
    for target in TARGETS:
        assert learner.learned(TARGETS) is None
        learner.note(target, "a", WRONG if target.worker == "p0" else RIGHT)
        learner.note(target, "b", RIGHT)
    assert learner.learned(TARGETS) == {"a": RIGHT, "b": RIGHT}


def test_prompt_on_which_workers_do_not_agree_has_no_reference() -> None:
    learner = Learner(["a", "b"])
    for target in TARGETS:
        learner.note(target, "a", an_answer(1, 2) if target.worker in ("p0", "p1") else an_answer(5, 6))
        learner.note(target, "b", RIGHT)
    assert learner.learned(TARGETS) == {"b": RIGHT}


def test_worker_that_is_gone_is_not_waited_for() -> None:
    learner = Learner(["a"])
    left = [target for target in TARGETS if target.worker != WorkerId("d1")]
    for target in TARGETS[:1] + left:
        learner.note(target, "a", RIGHT)
    learner.keep(left)
    assert learner.learned(left) == {"a": RIGHT}


def test_half_of_the_targets_is_enough_when_it_waits_no_longer() -> None:
    learner = Learner(["a"])
    for number, target in enumerate(TARGETS, 1):
        learner.note(target, "a", RIGHT)
        is_enough = 2 * number >= len(TARGETS)
        assert (learner.learned(TARGETS, waits_for_all=False) is not None) is is_enough


def test_tolerance_is_that_of_the_answers_that_agree() -> None:
    learner = Learner(["a"])
    answer = an_answer(*range(0, 2000, 10))
    for target in TARGETS:
        learner.note(target, "a", WRONG if target.worker == "p0" else list(answer))
    found = learner.learned(TARGETS)
    assert found == {"a": answer}
    assert learner.tolerances(found).of(Path.DECODE) == MIN_TOLERANCE
