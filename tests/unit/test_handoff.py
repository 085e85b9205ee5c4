import msgspec
import pytest
from factories import a_handoff, a_prefill_result, handoff_params

from kvtransfer.handoff import KVHandoff, PrefillResult

REQUIRED = [name for name in handoff_params() if name.startswith("remote_")]


def test_handoff_knows_its_tokens():
    handoff = KVHandoff.from_engine(handoff_params(remote_block_ids=[[3, 4], [5]], remote_num_tokens=80))
    assert handoff.num_tokens == 80


def test_engine_gets_back_what_the_other_engine_returned_and_looks_nowhere_else():
    assert a_handoff().to_engine() == handoff_params() | {"max_load_tokens": 0}


def test_engine_that_changes_its_parameters_does_not_change_the_handoff():
    handoff = a_handoff()
    handoff.to_engine().clear()
    assert handoff.params == handoff_params()


@pytest.mark.parametrize("key", REQUIRED)
def test_handoff_without_a_required_key_is_refused_by_name(key):
    params = handoff_params()
    del params[key]
    with pytest.raises(ValueError, match=rf"missing: {key}\)"):
        KVHandoff.from_engine(params)


@pytest.mark.parametrize("params", [None, {}], ids=str)
def test_engine_that_returns_no_parameters_gives_no_handoff(params):
    with pytest.raises(ValueError, match="no usable hand-over"):
        KVHandoff.from_engine(params)


def test_handoff_without_blocks_is_refused():
    with pytest.raises(ValueError, match="remote_block_ids"):
        KVHandoff.from_engine(handoff_params(remote_block_ids=[]))


def test_prefill_result_survives_the_wire():
    result = a_prefill_result()
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(result), type=PrefillResult) == result
