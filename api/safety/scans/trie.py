"""The terms of word lists as one automaton. Pure."""

from collections.abc import Iterable
from typing import NamedTuple

MOST_TERM_LENGTH = 128
"""Characters of a term, at most. More holds a text back for longer that begins like a term."""


class Term(NamedTuple):
    """A term in canonical form."""

    text: str
    label: int
    """What a hit tells: the place of the term in the lists."""
    is_stem: bool = False
    """Whether words that begin with the term are hits, too."""


class Trie:
    """States are numbers, and 0 is the beginning."""

    def __init__(self, terms: Iterable[Term]) -> None:
        """Raises ValueError: a term is empty or too long."""
        self._next: list[dict[str, int]] = [{}]
        self._words: list[tuple[int, ...]] = [()]
        self._stems: list[tuple[int, ...]] = [()]
        for term in terms:
            if not 0 < len(term.text) <= MOST_TERM_LENGTH:
                raise ValueError(f"a term has 1 to {MOST_TERM_LENGTH} characters, not {len(term.text)}: {term.text!r}")
            state = 0
            for character in term.text:
                state = self._next[state].setdefault(character, len(self._next))
                if state == len(self._next):
                    self._next.append({})
                    self._words.append(())
                    self._stems.append(())
            ends = self._stems if term.is_stem else self._words
            ends[state] += (term.label,)

    def step(self, state: int, character: str) -> int | None:
        """The next state; None if no term goes on so."""
        return self._next[state].get(character)

    def words(self, state: int) -> tuple[int, ...]:
        """Labels of the terms that end here if a word does."""
        return self._words[state]

    def stems(self, state: int) -> tuple[int, ...]:
        """Labels of the terms that end here, whatever follows."""
        return self._stems[state]

    def can_go_on(self, state: int) -> bool:
        return bool(self._next[state])
