"""The section `scheduler:` of the config. Pure."""

from typing import Annotated, Final

import msgspec
from msgspec import Meta

from cluster.config.node_choice import NodeChoice
from cluster.config.observability.stimulus_log import StimulusLogConfig

MAX_INDEXED_BLOCKS: Final = 1 << 24
"""Default of `max_indexed_blocks`."""


class SchedulerConfig(NodeChoice, msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How the Scheduler treats requests, how much it keeps in memory, and where it runs."""

    max_indexed_blocks: Annotated[int, Meta(ge=1024, le=1 << 28)] = MAX_INDEXED_BLOCKS
    """KV blocks in the prefix index, of all workers together; a block that several workers cache counts once. The index
    takes memory for blocks that it has, 80 to 115 bytes each. The default suits 600 GPU workers of 24,000 blocks each,
    and takes some 1.5 GB when it is full. When 7/8 of the blocks are in the index, it drops those that were not used
    for longest. With fewer blocks than the workers cache, prefixes are found too short, and requests go to workers that
    compute them again; more take memory on the Scheduler's node.
    """
    stimulus_log: StimulusLogConfig | None = None
    """What the Scheduler is told and what it decides is written to files. Nothing is written if it is missing."""
