"""The table of Splitwise's measured steps, against the measurements that it was made from."""

import pytest

from bench.matrix.measured_steps import REFERENCE_TOKENS, measured_steps, splitwise_table
from cluster.simulation.experiment import Cluster
from router.prediction.step_model import prompt_attention


@pytest.mark.parametrize(("number", "num_prompt", "seconds"), [(1, 512, 0.0838), (1, 8192, 1.34), (32, 512, 2.398)])
def test_prompts_take_what_was_measured(number: int, num_prompt: int, seconds: float) -> None:
    attended = number * prompt_attention(num_prompt, 0)
    assert splitwise_table().step_s(number * num_prompt, attended, 0, 0) == pytest.approx(seconds, rel=0.03)


@pytest.mark.parametrize(("number", "num_prompt", "seconds"), [(1, 512, 0.0371), (1, 8192, 0.0378), (32, 512, 0.0523)])
def test_decode_steps_take_what_was_measured(number: int, num_prompt: int, seconds: float) -> None:
    assert splitwise_table().step_s(0, 0.0, number, number * num_prompt) == pytest.approx(seconds, rel=0.03)


def test_scaled_table_shares_one_prompt_with_the_roofline() -> None:
    table, factor = measured_steps(Cluster())
    work = REFERENCE_TOKENS, prompt_attention(REFERENCE_TOKENS, 0), 0, 0
    assert table.step_s(*work) == pytest.approx(Cluster().step_model.step_s(*work))
    assert factor == pytest.approx(0.353, abs=0.001)
