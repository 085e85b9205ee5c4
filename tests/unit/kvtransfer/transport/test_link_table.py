import msgspec
import pytest

from cluster.messages.ids import CellName, WorkerId
from cluster.messages.transport import LinkSpeed, Transport
from cluster.messages.views import ClusterView
from kvtransfer.transport.link_table import LinkTable, render, table_of
from kvtransfer.transport.topology import Device, Node, choose
from tests.unit.factories import a_decode_view, a_prefill_view, a_view

TRANSPORT = choose(Node(device=Device.CPU), None, {"UCX_LOG_LEVEL": "info"})


def a_cluster() -> ClusterView:
    """One decode worker with a link that is measured, one that is proved only, one that is neither."""
    decode = a_decode_view("d0", connected="p0")
    links = {WorkerId("p0"): LinkSpeed(0.00125, 4.5e9), WorkerId("p1"): None}
    prefills = [a_prefill_view(f"p{number}") for number in range(3)]
    workers = [msgspec.structs.replace(worker, transport=TRANSPORT) for worker in prefills]
    return a_view(*workers, msgspec.structs.replace(decode, links=links, transport=TRANSPORT))


def test_every_pair_is_listed() -> None:
    rows = {row.prefill: row for row in table_of(a_cluster()).links}
    assert [(row.is_proved, row.latency_s, row.bytes_per_s) for row in rows.values()] == [
        (True, 0.00125, 4.5e9),
        (True, None, None),
        (False, None, None),
    ]
    assert {row.transport for row in rows.values()} == {Transport.SHARED_MEMORY}


def test_table_survives_the_way_to_the_command() -> None:
    table = table_of(a_cluster())
    assert msgspec.json.decode(msgspec.json.encode(table), type=LinkTable) == table


def test_links_read_as_a_table() -> None:
    lines = render(table_of(a_cluster())).splitlines()
    assert [line.split()[:7] for line in lines[:4]] == [
        ["prefill", "node", "decode", "node", "latency", "bandwidth", "transport"],
        ["p0", "n0", "d0", "n0", "1.25", "ms", "4.50"],
        ["p1", "n0", "d0", "n0", "not", "measured", "-"],
        ["p2", "n0", "d0", "n0", "not", "proved", "-"],
    ]
    assert all("shared_memory  one node: CMA copies" in line for line in lines[1:4])


def test_settings_of_each_worker_follow_with_their_reasons() -> None:
    text = render(table_of(a_cluster()))
    assert text.count("\nprefill worker p") == 3
    _, settings = text.split("\ndecode worker d0 on n0\n")
    assert ["UCX_LOG_LEVEL", "info", "set", "by", "the", "operator"] in [line.split() for line in settings.splitlines()]
    assert "UCX_TLS" in settings


@pytest.mark.parametrize(
    ("view", "says"),
    [
        (a_view(), "no worker reports to the Scheduler yet"),
        (a_view(a_prefill_view("p0")), "no links: both pools need a worker"),
    ],
    ids=["no worker", "one pool"],
)
def test_cluster_without_links_says_so(view: ClusterView, says: str) -> None:
    assert render(table_of(view)).splitlines()[0] == says


def test_there_is_no_link_between_cells() -> None:
    names = [CellName("a"), CellName("b")]
    workers = [
        msgspec.structs.replace(worker, cell=cell)
        for cell in names
        for worker in (a_prefill_view(f"p-{cell}"), a_decode_view(f"d-{cell}", connected=f"p-{cell}"))
    ]
    table = table_of(ClusterView(workers=workers, cells_away=[]))
    assert [(link.cell, link.prefill, link.decode) for link in table.links] == [
        ("a", "p-a", "d-a"),
        ("b", "p-b", "d-b"),
    ]
    header, row, *_ = render(table).splitlines()
    assert (header.split()[:2], row.split()[:2]) == (["cell", "prefill"], ["a", "p-a"])
