"""What a worker's time costs while prompts keep the workers busy."""

import pytest

from router.placement.time_price import FULL_PRICE, time_price


def test_time_of_idle_workers_costs_nothing() -> None:
    assert time_price(prompt_use=0.0, usual_s=0.5) == 0.0


def test_time_that_no_other_prompt_would_use_costs_little() -> None:
    assert time_price(0.4, usual_s=0.5) < 0.1 * time_price(1.0, usual_s=0.5)


def test_usual_prompt_costs_the_same_whatever_it_takes() -> None:
    assert 0.1 * time_price(1.0, usual_s=0.1) == pytest.approx(10.0 * time_price(1.0, usual_s=10.0)) == FULL_PRICE


def test_without_prompts_there_is_no_price() -> None:
    assert time_price(0.5, usual_s=0.0) == 0.0
