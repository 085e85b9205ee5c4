from collections.abc import Mapping
from random import Random
from time import process_time
from typing import NamedTuple

import msgspec
import pytest

from api.quality.comparison import ProbeResult, compared
from api.quality.learning import Learner
from api.quality.probe_set import Reference
from api.quality.schedule import targets_of
from api.quality.tolerances import MAX_LEARNED, tolerance_of
from cluster.messages.generation import TokenLogprob
from cluster.messages.ids import Path, WorkerId
from cluster.messages.quality import Answer
from kvtransfer.tolerance import MIN_TOLERANCE
from tests.unit.api.quality.answers import a_cluster, an_answer

NUM_SEEDS = 20
RIGHTS = {name: an_answer(*range(first, first + 80, 10)) for name, first in (("a", 1), ("b", 2), ("c", 3), ("d", 4))}
RIGHT, WRONG = an_answer(1, 2, 3), an_answer(7, 8, 9)
TARGETS = targets_of(a_cluster(2, 2).workers)


class Learned(NamedTuple):
    reference: Reference

    def share_that_differs(self, off: float, seed: int) -> float:
        """Of the answers of a worker that is off by so many nats, on each path and to each prompt."""
        rng, answers = Random(seed), self.reference.answers
        results = [
            compared(prompt, right, noisy(rng, RIGHTS[prompt], off), self.reference.tolerance(path)).result
            for path in Path
            for prompt, right in answers.items()
        ]
        return results.count(ProbeResult.DIFFERS) / len(results)


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


def noisy(rng: Random, right: Answer, shift: float = 0.0, noise: float = 0.02) -> Answer:
    """An answer of a worker that rounds, and whose most likely tokens are off by `shift` nats."""
    return [
        msgspec.structs.replace(
            step,
            top=[
                TokenLogprob(of.token_id, of.logprob + rng.gauss(0.0, noise) + (0.0 if number else shift))
                for number, of in enumerate(step.top)
            ],
        )
        for step in right
    ]


def learned(num_prefill: int, num_decode: int, off: Mapping[str, float], seed: int, noise: float = 0.02) -> Learned:
    """What is learned from workers of which some are off by so many nats, alone and in pairs."""
    rng, targets = Random(seed), targets_of(a_cluster(num_prefill, num_decode).workers)
    rng.shuffle(targets)
    learner = Learner(list(RIGHTS))
    for target in targets:
        for prompt, right in RIGHTS.items():
            shift = off.get(target.worker, 0.0)
            answers = [noisy(rng, right, shift, noise) for _ in range(2)]
            learner.note(target, prompt, *answers)
    found = learner.learned(targets)
    assert found is not None
    tolerances = learner.tolerances(found) if found else {}
    return Learned(Reference(fingerprint="f", model="m", learned_at=0.0, answers=found, tolerances=tolerances))


@pytest.mark.parametrize("off", [0.7, -0.7, 1.5])
@pytest.mark.parametrize("of_pool", [(1, 1), (2, 0)])
def test_two_workers_of_which_one_is_a_little_wrong_make_no_reference(off: float, of_pool: tuple[int, int]) -> None:
    for seed in range(NUM_SEEDS):
        assert learned(*of_pool, {"p0": off}, seed).reference.answers == {}


@pytest.mark.parametrize("off", [0.7, -0.7, 1.5])
@pytest.mark.parametrize("of_pool", [(1, 2), (2, 1), (0, 3), (4, 4), (1, 7)])
def test_worker_that_is_a_little_wrong_differs_from_what_is_learned_and_no_other_does(
    off: float, of_pool: tuple[int, int]
) -> None:
    wrong = "p0" if of_pool[0] else "d0"
    for seed in range(NUM_SEEDS):
        found = learned(*of_pool, {wrong: off}, seed)
        assert len(found.reference.answers) == len(RIGHTS)
        assert found.share_that_differs(off, seed) == 1.0
        assert found.share_that_differs(0.0, seed) == 0.0


def test_worker_that_drifts_slowly_is_noticed_when_it_leaves_the_tolerance() -> None:
    found = learned(2, 2, {}, 0)
    tolerance = found.reference.tolerance(Path.DECODE)
    noticed = next(drift for drift in range(100) if found.share_that_differs(0.01 * drift, drift) == 1.0)
    assert 0.01 * noticed < tolerance + 0.05
    assert found.reference.tolerance(Path.DECODE) == tolerance == MIN_TOLERANCE


def test_tolerance_is_that_of_workers_that_round_coarsely_and_has_a_bound() -> None:
    fine, coarse, coarsest = [learned(2, 2, {}, 0, noise).reference.tolerances for noise in (0.01, 0.06, 0.6)]
    assert set(fine.values()) == {MIN_TOLERANCE}
    assert all(MIN_TOLERANCE < of_path < MAX_LEARNED for of_path in coarse.values())
    assert coarsest == {}, "they agree on nothing"
    assert tolerance_of([9.0, 9.0, 9.0]) == MAX_LEARNED


def test_worker_whose_answers_change_from_time_to_time_does_not_raise_the_tolerance_of_others() -> None:
    assert tolerance_of([0.01, 0.02, 5.0]) == tolerance_of([0.01, 5.0]) == MIN_TOLERANCE


def test_one_wrong_prefill_worker_does_not_keep_others_from_learning() -> None:
    learner, targets = Learner(["a"]), targets_of(a_cluster(1, 3).workers)
    for target in targets:
        is_wrong = target.worker == "p0" or target.path is Path.PREFILL_DECODE
        learner.note(target, "a", WRONG if is_wrong else RIGHT)
    assert learner.learned(targets) == {"a": RIGHT}
    assert Path.PREFILL_DECODE not in learner.tolerances({"a": RIGHT})


def test_large_cluster_is_learned_from_in_a_moment() -> None:
    began = process_time()
    found = learned(100, 200, {f"d{i}": 1.5 for i in range(140)}, 0)
    assert len(found.reference.answers) == len(RIGHTS)
    assert found.share_that_differs(0.0, 0) == 0.0
    assert process_time() - began < 20.0
