from cluster.messages.ids import Path, Pool
from tests.unit.factories import a_decode_view, a_prefill_view, a_view


def test_view_counts_its_workers_and_links() -> None:
    view = a_view(a_prefill_view("p0"), a_prefill_view("p1"), a_decode_view("d0", connected="p0 p1"))
    assert (view.num_prefill, view.num_decode, view.num_links) == (2, 1, 2)


def test_paths_and_pools_are_written_as_their_values() -> None:
    assert (str(Path.PREFILL_DECODE), str(Path.DECODE), str(Pool.PREFILL)) == ("P->D", "D", "prefill")
