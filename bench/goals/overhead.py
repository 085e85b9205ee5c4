"""The goals of bench/overhead.py: Baton's front relative to vllm-router's and to the floor, in one run. Pure."""

from collections.abc import Mapping

from bench.fronts.measure import Cell
from bench.fronts.report import FLOOR, OURS, PEER, Figures
from bench.goals.verdict import above

MOST_TOKEN_RATIO = 1.0
"""CPU time per token, relative to vllm-router's, with several streams: a front that costs more than the Rust router and
its API servers is not worth its place on a GPU node. 0.51 to 0.78 are measured. A higher goal accepts a dearer front; a
lower one fails in noise, because rounds differ by up to a factor of 1.8.
"""
MOST_LONE_TOKEN_RATIO = 1.5
"""The same with one stream, where each token wakes up two processes. 1.09 and 1.14 are measured; higher and lower as
above.
"""
MOST_REQUEST_RATIO = 1.0
"""CPU time per request, relative to vllm-router's. 0.38 to 0.60 are measured; higher and lower as above."""
MOST_GAP_RATIO = 2.0
"""The 99th percentile of the gap between tokens, relative to the floor's, with paced engines. 1.0 to 1.3 are
measured. A higher goal accepts streams that stutter; a lower one fails in noise. Without pace the figure is the whole
machine's.
"""


def missed(paces_s: Mapping[str, float], cells: Mapping[Cell, Figures]) -> list[str]:
    """Where the systems for a ratio have been measured. `paces_s`: by mode, 0 without pace."""
    found, num_compared = [], 0
    for cell, ours in cells.items():
        if cell.system != OURS:
            continue
        where = f"{cell.mode}, {cell.streams} streams"
        peer, floor = (cells.get(Cell(cell.mode, cell.streams, system)) for system in (PEER, FLOOR))
        if peer:
            most = MOST_LONE_TOKEN_RATIO if cell.streams == 1 else MOST_TOKEN_RATIO
            found += above(f"{where}: CPU time per token, {OURS} / {PEER}", ours.token_us / peer.token_us, most)
            ratio = ours.request_ms / peer.request_ms
            found += above(f"{where}: CPU time per request, {OURS} / {PEER}", ratio, MOST_REQUEST_RATIO)
        if floor and paces_s[cell.mode]:
            ratio = ours.gap_p99_ms / floor.gap_p99_ms
            found += above(f"{where}: p99 of the gap, {OURS} / {FLOOR}", ratio, MOST_GAP_RATIO)
        num_compared += bool(peer or floor)
    return found if num_compared else [f"{OURS} was compared with neither {PEER} nor {FLOOR}"]
