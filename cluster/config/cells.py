"""The config section `cells:`."""

import re
from typing import Annotated

import msgspec
from msgspec import Meta

from cluster.messages.ids import CellName

_NAME = re.compile(r"[a-z0-9]([a-z0-9-]{0,18}[a-z0-9])?")
"""A name is a part of names of deployments and of processes, and a value of a label of Kubernetes."""


class CellsConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The cells: each is a Scheduler with a prefill and a decode pool of its own (docs/cells.md). With one cell, the
    ingress chooses none.
    """

    names: Annotated[list[CellName], Meta(min_length=1, max_length=64)] = msgspec.field(
        default_factory=lambda: [CellName("main")]
    )
    """The name of each cell. Each has pools of the sizes in `prefill:` and `decode:`. More cells serve more workers
    than one Scheduler can; fewer cells find more prefixes and share their workers better.
    """
    load_bound: Annotated[float, Meta(ge=1, le=10)] = 1.25
    """Most open work of a cell, in tokens, as a multiple of its share of the open work of an ingress replica. A lower
    bound moves requests away from the KV that their cell has of their prompts; a higher one loads the cells less
    evenly.
    """
    label: str | None = None
    """Label of nodes (`ray start --labels`), e.g. "cell". If it is set, the Scheduler and the workers of a cell run on
    nodes whose label has the cell's name. Without it, any node may run any cell, and a handoff may cross the network
    between nodes that are far apart.
    """

    def __post_init__(self) -> None:
        for name in self.names:
            if not _NAME.fullmatch(name):
                raise ValueError(
                    f"names: {name!r} must be 1 to 20 lower-case letters, digits and dashes, with no dash at either end"
                )
            if self.names.count(name) > 1:
                raise ValueError(f"names: {name!r} is there twice")
        if self.label == "":
            raise ValueError("label: leave it out, or give the name of a label of nodes")

    @property
    def are_several(self) -> bool:
        return len(self.names) > 1
