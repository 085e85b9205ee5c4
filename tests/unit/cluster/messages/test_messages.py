import msgspec
import pytest

from cluster.messages.ids import Path, Pool
from cluster.messages.kv_events import KvChange, KvTier
from tests.unit.factories import a_decode_view, a_prefill_view, a_view


def test_view_counts_its_workers_and_links() -> None:
    view = a_view(a_prefill_view("p0"), a_prefill_view("p1"), a_decode_view("d0", connected="p0 p1"))
    assert (view.num_prefill, view.num_decode, view.num_links) == (2, 1, 2)


def test_paths_and_pools_are_written_as_their_values() -> None:
    assert (str(Path.PREFILL_DECODE), str(Path.DECODE), str(Pool.PREFILL)) == ("P->D", "D", "prefill")


@pytest.mark.parametrize("key", [b"", b"short", b"too long!"])
def test_key_of_a_block_that_has_another_length_is_not_read(key: bytes) -> None:
    message = msgspec.msgpack.encode(KvChange(KvTier.GPU, True, [bytes(8), key]))
    with pytest.raises(msgspec.ValidationError):
        msgspec.msgpack.decode(message, type=KvChange)
