"""Blocks of a prompt as runs of equal bit masks.

Blocks that follow each other mostly have the same holders, so everything that looks at the blocks of a prompt works on
runs. A walk costs little more than the look-ups.
"""

from collections.abc import Iterator, Sequence
from itertools import groupby
from typing import Final

DENSE_BLOCKS: Final = 64
"""Leading blocks of a prompt that are looked at one by one. More costs CPU for each long prompt; fewer finds short
prefixes too short.
"""
STRIDE_BLOCKS: Final = 16
"""Distance of the blocks that are looked at beyond DENSE_BLOCKS. A prefix is found too short by less than this: a
larger distance has more tokens computed again, a smaller one costs CPU and memory for each long prompt.
"""


def runs(masks: Sequence[int]) -> Iterator[tuple[int, int, int]]:
    """Mask, start and end of each run, of the masks of a prompt's blocks."""
    end = 0
    for mask, run in groupby(masks):
        start, end = end, end + len(list(run))
        yield mask, start, end
