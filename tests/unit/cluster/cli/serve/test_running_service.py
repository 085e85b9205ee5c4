import pytest

from cluster.cli.serve.running_service import mismatch


@pytest.mark.parametrize(("num_decode", "is_final"), [(1, False), (2, True)])
def test_pools_that_do_not_fit_end_the_start_once_all_workers_are_there(num_decode: int, is_final: bool) -> None:
    state = {"prefill_workers": 1, "decode_workers": num_decode, "mismatch": "dtype is a in one and b in the other"}
    said = mismatch(state, {"prefill_workers": 1, "decode_workers": 2})
    assert (said is not None and "dtype is a" in said) is is_final


def test_service_that_still_starts_has_no_mismatch() -> None:
    assert mismatch({}, {"prefill_workers": 1}) is None
    assert mismatch({"prefill_workers": 1}, {"prefill_workers": 1}) is None
