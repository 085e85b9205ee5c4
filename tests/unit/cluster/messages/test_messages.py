import pytest

from cluster.messages.ids import Path, Pool
from cluster.messages.views import ClusterView
from tests.unit.factories import a_decode_view, a_prefill_view, a_view


def test_view_counts_its_workers_and_links() -> None:
    view = a_view(a_prefill_view("p0"), a_prefill_view("p1"), a_decode_view("d0", connected="p0 p1"))
    assert (view.num_prefill, view.num_decode, view.num_links, view.is_ready) == (2, 1, 2, True)


@pytest.mark.parametrize(
    "view",
    [
        ClusterView(workers=[]),
        a_view(a_prefill_view("p0")),
        a_view(a_prefill_view("p0"), a_decode_view("d0", connected="")),
    ],
    ids=["no workers", "no decode worker", "no link"],
)
def test_cluster_is_ready_once_a_pair_can_hand_over(view: ClusterView) -> None:
    assert not view.is_ready


def test_paths_and_pools_are_written_as_their_values() -> None:
    assert (str(Path.PREFILL_DECODE), str(Path.DECODE), str(Pool.PREFILL)) == ("P->D", "D", "prefill")
