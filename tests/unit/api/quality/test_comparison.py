import msgspec

from api.quality.comparison import ProbeResult, compared
from cluster.messages.generation import TokenLogprob
from cluster.messages.quality import AnswerStep
from tests.unit.api.quality.answers import a_step, an_answer

RIGHT = an_answer(10, 20, 30)
TOLERANCE = 0.5


def test_same_tokens_with_rounded_log_probabilities_agree() -> None:
    seen = compared("water", RIGHT, an_answer(10, 20, 30, shift=0.25), TOLERANCE)
    assert (seen.result, seen.distances, seen.difference) == (ProbeResult.AGREES, [0.25] * 3, None)


def test_swap_of_two_tokens_that_are_about_equally_likely_is_near() -> None:
    near = [*RIGHT[:1], AnswerStep(21, RIGHT[1].top), a_step(99)]
    seen = compared("water", RIGHT, near, TOLERANCE)
    assert seen.result is ProbeResult.NEAR
    assert seen.difference is not None
    assert (seen.difference.position, seen.difference.expected, seen.difference.got) == (1, 20, 21)


def test_other_token_that_rounding_does_not_explain_differs() -> None:
    seen = compared("water", RIGHT, an_answer(10, 500, 30), TOLERANCE)
    assert seen.result is ProbeResult.DIFFERS
    assert seen.difference is not None
    assert (seen.difference.expected, seen.difference.got, seen.difference.distance) == (20, 500, None)


def test_same_tokens_with_other_log_probabilities_differ() -> None:
    seen = compared("water", RIGHT, an_answer(10, 20, 30, shift=-1.0), TOLERANCE)
    assert seen.result is ProbeResult.DIFFERS
    assert seen.difference is not None
    assert (seen.difference.position, seen.difference.distance) == (0, 1.0)


def test_shorter_and_longer_answers_differ() -> None:
    shorter, longer = compared("w", RIGHT, RIGHT[:2], TOLERANCE), compared("w", RIGHT, [*RIGHT, a_step(1)], TOLERANCE)
    assert (shorter.result, longer.result) == (ProbeResult.DIFFERS, ProbeResult.DIFFERS)
    assert shorter.difference is not None and longer.difference is not None
    assert (shorter.difference.expected, shorter.difference.got) == (30, None)
    assert (longer.difference.expected, longer.difference.got) == (None, 1)


def test_answer_that_is_no_number_differs() -> None:
    broken = msgspec.structs.replace(RIGHT[0], top=[TokenLogprob(t.token_id, float("nan")) for t in RIGHT[0].top])
    assert compared("water", RIGHT, [broken, *RIGHT[1:]], TOLERANCE).result is ProbeResult.DIFFERS
