"""A draft of a prompt: which part of the conversation it has, and how it gets smaller. Pure."""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from api.context.plan import Measured, next_cut
from api.context.prompt_notes import composed, memory_note
from api.context.turn_boundaries import Item


class Memory(NamedTuple):
    """The messages that the newest turn is reminded of."""

    message: str
    """The id of the message that the memory is put in front of."""
    items: Sequence[Item]
    """The remembered messages, the oldest first."""


class Draft(NamedTuple):
    items: Sequence[Item]
    """All items of the conversation, the new ones last."""
    measured: Measured
    cut: int
    covered: int
    """The number of items up to the last one that the summary stands for."""
    summary: str | None
    notes: Mapping[str, str]
    """The memories of earlier turns, by the id of the message that each is put in front of."""
    memory: Memory | None = None

    def sent(self) -> list[Item]:
        newest = {self.memory.message: memory_note(self.memory.items)} if self.memory else {}
        return composed(self.items, self.cut, self.summary, {**self.notes, **newest})

    def smaller(self, num_tokens: int) -> "Draft | None":
        """A draft that has about `num_tokens` fewer. The memory goes first, then turns, then the summary. None if only
        the system prompt and the last turn are left.
        """
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
