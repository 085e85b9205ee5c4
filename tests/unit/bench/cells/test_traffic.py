"""The traffic of the bench of cells."""

from bench.cells.traffic import APART_S, TRAFFIC, together
from cluster.simulation.traffic.workload import Arrival


def test_copies_share_the_first_block_alone_and_come_in_order() -> None:
    rows = [
        Arrival(arrival_s=10.0 * turn, num_prompt=1024, num_output=1, block_hashes=[b"app", b"chat%d" % turn])
        for turn in range(3)
    ]
    both = together(rows, 2)
    assert [row.arrival_s for row in both] == sorted([0.0, 10.0, 20.0, APART_S, APART_S + 10.0, APART_S + 20.0])
    assert {row.block_hashes[0] for row in both} == {b"app"}
    assert len({row.block_hashes[1] for row in both}) == 6


def test_prompt_without_a_full_block_is_copied() -> None:
    assert [row.block_hashes for row in together([Arrival(arrival_s=0.0, num_prompt=9, num_output=1)], 2)] == [[], []]


def test_agents_share_a_system_prompt_and_go_on() -> None:
    rows = TRAFFIC["agents"].rows(500)
    assert len({row.block_hashes[0] for row in rows}) == 2
    assert sum(len(row.block_hashes) > 8 for row in rows) > 400
    known = {block for row in rows for block in row.block_hashes[:-2]}
    assert len(known) < sum(len(row.block_hashes[:-2]) for row in rows) / 3
