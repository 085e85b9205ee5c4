"""Which dimension of the model's hidden state means what.

The state consists of one-hot groups and of a token's code, which is a vector of +1 and -1. Its mean is 0 and its
variance is 1 at each layer norm before the last attention, so these change nothing, and all arithmetic is exact in
bfloat16. For that, a group that a layer fills later has a PLACE that is 1 before and 0 from then on, and PADDING makes
up the rest. What the last attention copies has no PLACE: the layer norms after it scale all logits alike.
"""

from dataclasses import dataclass

from chat import MOST_STEPS

HIDDEN, NUM_HEADS, HEAD = 384, 3, 128
CODE = 64
"""Dimensions of a token's code."""
PERIODS = (3, 5, 7, 11)
"""Positions are known modulo these. Their product is the longest step in tokens."""
DIGITS = (16, 16, 16, 16, 2)
"""Values of each digit of a position, the least one first: 131,072 positions. They are powers of two, so that bfloat16
has each score exactly.
"""
NUM_KINDS = MOST_STEPS + 2
"""Kinds of token: the marker of each step, that of the text for no step, and any other."""
OTHERWISE_KIND, OTHER_KIND = MOST_STEPS, MOST_STEPS + 1
PADDING = (-16, -5, -3, 3, 1)
"""Makes the sum of a state 0 and the sum of its squares HIDDEN."""


@dataclass(frozen=True)
class Group:
    start: int
    size: int

    def __getitem__(self, index: int) -> int:
        """The dimension of an index, which counts modulo the group's size."""
        return self.start + index % self.size

    @property
    def all(self) -> slice:
        return slice(self.start, self.start + self.size)


class Layout:
    """The groups, one behind the other."""

    def __init__(self) -> None:
        self._next = 0
        self.code, self.copied = self._group(CODE), self._group(CODE)
        self.digits = [self._group(values) for values in DIGITS]
        """Of the position, the least one first."""
        self.position = [self._group(period) for period in PERIODS]
        """The position modulo each period."""
        self.is_marker = self._group(2)
        self.kind = self._group(NUM_KINDS)
        self.start = [self._group(period) for period in PERIODS]
        """The position of the latest marker modulo each period. Layer 0 fills it."""
        self.step = self._group(NUM_KINDS)
        """The kind of the latest marker. Layer 0 fills it."""
        self.offset = [self._group(period) for period in PERIODS]
        """Tokens since the latest marker modulo each period. Layer 0 fills it, behind its attention."""
        self.places_of_attention = self._group(len(PERIODS) + 1)
        self.places_of_offset = self._group(len(PERIODS))
        self.padding = self._group(len(PADDING))
        if self._next > HIDDEN:
            raise ValueError(f"{self._next} dimensions are needed, and there are {HIDDEN}")

    def _group(self, size: int) -> Group:
        group = Group(self._next, size)
        self._next += size
        return group
