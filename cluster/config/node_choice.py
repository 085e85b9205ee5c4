"""Keys of each config section whose replicas Ray puts on nodes."""

import msgspec


class NodeChoice(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The nodes that may run the replicas of a section. Without these keys, any node with free CPUs may."""

    resources: dict[str, float] = {}
    """Custom Ray resources that each replica takes. They pin the replicas to nodes that offer them."""
    label_selector: dict[str, str] = {}
    """Labels that a replica's node must have (`ray start --labels`), e.g. {"pool": "decode"}."""
