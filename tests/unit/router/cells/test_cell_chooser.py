"""CellChooser: which cell a request goes to."""

from cluster.messages.ids import CellName, RequestId
from cluster.messages.placement import PlacementRequest
from router.cells.cell_chooser import CellChooser


def a_chooser(*names: str, capacity: float = 4.0) -> CellChooser:
    chooser = CellChooser()
    for name in names:
        chooser.set_cell(CellName(name), capacity=capacity, is_open=True)
    return chooser


def a_request(request_id: str, *blocks: str) -> PlacementRequest:
    return PlacementRequest(
        request_id=RequestId(request_id),
        num_prompt_tokens=16 * len(blocks) + 1,
        block_hashes=[block.encode().ljust(8, b"\0") for block in blocks],
    )


def test_a_cell_that_drains_gets_nothing() -> None:
    chooser = a_chooser("a", "b")
    chooser.set_cell(CellName("a"), capacity=4.0, is_open=False)
    assert chooser.order(a_request("r", "x")) == ["b"]
