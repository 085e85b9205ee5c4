"""Which conversations wait for tools, told by an ingress to the workers that answered; and what became of those that
were kept.
"""

from typing import Annotated, Final

import msgspec

from cluster.messages.kv_events import BlockKey

TOOL_GROUPS: Final = 32
"""Groups of tools whose times of return are learned apart. More learns each later; fewer mixes tools."""
TENANT_GROUPS: Final = 32
"""Groups of tenants whose times of return are learned apart. More learns each later; fewer mixes tenants."""


class ToolWait(msgspec.Struct, frozen=True, array_like=True):
    """An answer has called tools: its conversation will soon go on behind the same prompt (router/retention/). It may
    be lost, come late or twice, or name a prompt that the worker does not know.
    """

    mark: BlockKey
    """Key of the last full KV block of the prompt that was answered."""
    tools: Annotated[int, msgspec.Meta(ge=0, lt=TOOL_GROUPS)] = 0
    """The group of the tools that were called, which no name can be read from."""


class RetentionCounts(msgspec.Struct, array_like=True):
    """What has become of kept conversations, since the engine started."""

    kept_blocks: int = 0
    """Blocks that are kept now, in use or free. Those that the engine has taken do not count, until they are computed
    again.
    """
    hit_blocks: int = 0
    """Kept blocks that the next prompt of their conversation began with."""
    returned: int = 0
    """Kept conversations that came back."""
    late: int = 0
    """Conversations that were kept, and came back after they had expired or were dropped. They count there, too."""
    expired: int = 0
    """Kept conversations that did not come back in time: wrongly kept, unless they come late."""
    dropped: int = 0
    """Kept conversations that were let go because of a bound: for others that are likelier to come back, or because too
    many are known.
    """
    dead_blocks: int = 0
    """Blocks of former states that a next prompt did not have any more."""
    taken_blocks: int = 0
    """Kept blocks that the engine took for other prompts, because no others were free."""
