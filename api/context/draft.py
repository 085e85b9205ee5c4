"""A prompt that is being fitted: what of the conversation it holds, and how it gets smaller. Pure."""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from api.context.plan import Measured, next_cut
from api.context.prompt_notes import composed, memory_note
from api.context.turn_boundaries import Item


class Memory(NamedTuple):
    """What the newest turn is reminded of."""

    message: str
    """The message that it is put in front of, by its id."""
    items: Sequence[Item]
    """The oldest first."""


class Draft(NamedTuple):
    items: Sequence[Item]
    """Of the whole conversation, the new ones last."""
    measured: Measured
    cut: int
    covered: int
    """How many items the summary stands for."""
    summary: str | None
    notes: Mapping[str, str]
    """What earlier turns were reminded of, by message."""
    memory: Memory | None = None

    def sent(self) -> list[Item]:
        newest = {self.memory.message: memory_note(self.memory.items)} if self.memory else {}
        return composed(self.items, self.cut, self.summary, {**self.notes, **newest})

    def smaller(self, num_tokens: int) -> "Draft | None":
        """By so many tokens, or nearly; what is most easily done without goes first. None: by nothing more."""
        if self.memory is not None:
            return self._replace(memory=None)
        cut = next_cut(self.measured, self.cut, num_tokens)
        if cut is not None:
            return self._replace(cut=cut)
        if self.summary is not None:
            return self._replace(summary=None, covered=self.measured.first)
        return None

    @property
    def leaves_out(self) -> Sequence[Item]:
        """The items that are not sent."""
        return self.items[self.measured.first : self.cut]

    def report(self, window: int, prompt_tokens: int) -> dict[str, Any]:
        return {
            "window": window,
            "prompt_tokens": prompt_tokens,
            "kept_items": len(self.items) - len(self.leaves_out),
            "dropped_items": self.cut - self.covered,
            "summarized_items": self.covered - self.measured.first,
            "retrieved": [item["id"] for item in self.memory.items] if self.memory else [],
        }
