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
MOST_LONE_TOKEN_RATIO = 1.0
"""The same with one stream and paced engines, where each token wakes up two processes. 1.09 was measured before tokens
had a pipe out of the engine's core; higher and lower as above.
"""
MOST_LONE_FREE_RATIO = 1.5
"""The same with one stream and engines at full speed, which compete with the fronts for the cores. 1.14 was measured;
higher and lower as above.
"""
MANY_STREAMS = 64
"""Streams, in number, from which one wake-up serves so many tokens that MOST_TOKEN_US holds. Lower asks it of more
loads, where a token costs more; higher asks it of none.
"""
MOST_TOKEN_US = 50.0
"""CPU time per token in microseconds, with MANY_STREAMS and paced engines, on a core of an AMD EPYC. 83 was measured. A
higher goal accepts a dearer front; a lower one is less than the kernel takes to send a frame, with its share of the
rest.
"""
MOST_IDLE_MS_PER_S = 60.0
"""CPU time of a service without load, in milliseconds per second, Ray's processes included. 135 was measured. A higher
goal accepts nodes that do nothing dearly; a lower one cannot be reached with Ray's processes.
"""
MOST_ADDED_TTFT_MS = 5.0
"""Median time to the first token of a stream alone, beyond the floor's, in milliseconds. A higher goal accepts a slower
front; a lower one is less than the noise of a shared machine.
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
    found, num_compared, idle_ms = [], 0, 0.0
    for cell, ours in cells.items():
        if cell.system != OURS:
            continue
        idle_ms = sum(ours.idle_ms_per_s.values())
        where, is_paced = f"{cell.mode}, {cell.streams} streams", paces_s[cell.mode] > 0
        peer, floor = (cells.get(Cell(cell.mode, cell.streams, system)) for system in (PEER, FLOOR))
        if is_paced and cell.streams >= MANY_STREAMS:
            found += above(f"{where}: CPU time per token", ours.token_us, MOST_TOKEN_US, " us")
        if peer:
            found += _beside_peer(where, cell.streams, ours, peer, is_paced=is_paced)
        if floor:
            found += _beside_floor(where, cell.streams, ours, floor, is_paced=is_paced)
        num_compared += bool(peer or floor)
    found += above("CPU time without load", idle_ms, MOST_IDLE_MS_PER_S, " ms/s")
    return found if num_compared else [f"{OURS} was compared with neither {PEER} nor {FLOOR}"]


def _beside_peer(where: str, streams: int, ours: Figures, peer: Figures, *, is_paced: bool) -> list[str]:
    most = MOST_TOKEN_RATIO
    if streams == 1:
        most = MOST_LONE_TOKEN_RATIO if is_paced else MOST_LONE_FREE_RATIO
    return [
        *above(f"{where}: CPU time per token, {OURS} / {PEER}", ours.token_us / peer.token_us, most),
        *above(
            f"{where}: CPU time per request, {OURS} / {PEER}", ours.request_ms / peer.request_ms, MOST_REQUEST_RATIO
        ),
    ]


def _beside_floor(where: str, streams: int, ours: Figures, floor: Figures, *, is_paced: bool) -> list[str]:
    found = []
    if is_paced:
        ratio = ours.gap_p99_ms / floor.gap_p99_ms
        found += above(f"{where}: p99 of the gap, {OURS} / {FLOOR}", ratio, MOST_GAP_RATIO)
    if streams == 1:
        added_ms = ours.ttft_p50_ms - floor.ttft_p50_ms
        found += above(f"{where}: median TTFT beyond {FLOOR}", added_ms, MOST_ADDED_TTFT_MS, " ms")
    return found
