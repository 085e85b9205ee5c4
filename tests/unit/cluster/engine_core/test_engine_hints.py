import pytest

from cluster.engine_core.engine_hints import (
    NO_DEADLINE,
    PUBLIC_TOKENS_KEY,
    RANK_KEY,
    TPOT_KEY,
    extra_args,
    priority_of,
)

NOW = 1000.0


def test_request_that_is_due_first_comes_first_whenever_it_came() -> None:
    early, later = priority_of(5.0, NOW), priority_of(1.0, NOW + 10.0)
    assert early < later < priority_of(None, NOW) == NO_DEADLINE


def test_late_request_comes_before_one_that_is_due_now() -> None:
    assert priority_of(-0.5, NOW) < priority_of(0.0, NOW)


@pytest.mark.parametrize("first_token_within_s", [None, 0.0, 30.0])
def test_pulled_request_is_due_at_once(first_token_within_s: float | None) -> None:
    assert priority_of(first_token_within_s, NOW, is_pulled=True) == priority_of(0.0, NOW)


def test_priority_fits_into_the_engine_s_message() -> None:
    assert NO_DEADLINE < 1 << 63


@pytest.mark.parametrize(
    ("kv_transfer_params", "tpot_s", "expected"),
    [
        (None, None, None),
        (None, 0.03, {TPOT_KEY: 0.03}),
        ({"do_remote_prefill": True}, 0.03, {"kv_transfer_params": {"do_remote_prefill": True}, TPOT_KEY: 0.03}),
        ({"do_remote_decode": True}, 0.03, {"kv_transfer_params": {"do_remote_decode": True}}),
    ],
)
def test_objective_goes_to_the_engine_that_decodes(
    kv_transfer_params: dict[str, bool] | None, tpot_s: float | None, expected: dict[str, object] | None
) -> None:
    assert extra_args(kv_transfer_params, tpot_s, 0) == expected


def test_class_goes_to_every_engine() -> None:
    assert extra_args(None, None, 2) == {RANK_KEY: 2}
    assert (extra_args({"do_remote_decode": True}, 0.03, 2) or {})[RANK_KEY] == 2


def test_public_tokens_go_to_every_engine() -> None:
    assert extra_args(None, None, 0, 32) == {PUBLIC_TOKENS_KEY: 32}
    assert (extra_args({"do_remote_decode": True}, 0.03, 2, 32) or {})[PUBLIC_TOKENS_KEY] == 32
