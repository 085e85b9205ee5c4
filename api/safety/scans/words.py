"""Terms in a canonical text that comes in parts. Pure.

A term begins where a word begins, and ends where a word ends. So at any time there is at most one beginning of a term
for each of the last words, and the text from the first of them on may still become a hit: that is what has to be held
back, no more and no less.
"""

from typing import NamedTuple

from api.safety.scans.trie import Trie


class TermHit(NamedTuple):
    """A term in a text."""

    label: int
    begin: int
    """Its first character in the text."""
    end: int
    """The character after its last one."""


class _Begun(NamedTuple):
    """What may become a hit."""

    state: int
    begin: int
    end: int
    """The character after the last one so far."""


class WordScan:
    """The hits of one text. How it is cut into parts changes nothing."""

    def __init__(self, trie: Trie) -> None:
        self._trie = trie
        self._begun: list[_Begun] = []
        """In the order of their beginnings."""
        self._is_in_word = False

    @property
    def open_from(self) -> int | None:
        """Where the first term begins that the text so far may be the beginning of; None if there is none."""
        return self._begun[0].begin if self._begun else None

    def step(self, character: str, begin: int, end: int) -> list[TermHit]:
        """The hits that are known with the next character, which the text has from `begin` to `end`."""
        trie, hits = self._trie, list[TermHit]()
        is_word = character.isalnum()
        is_edge = not (is_word and self._is_in_word)
        if self._begun:
            self._begun = self._gone_on(character, end, hits, is_edge)
        if is_edge and (state := trie.step(0, character)) is not None:
            self._keep(_Begun(state, begin, end), self._begun, hits)
        self._is_in_word = is_word
        return hits

    def finish(self) -> list[TermHit]:
        """The hits that are known at the end of the text."""
        hits = [TermHit(label, one.begin, one.end) for one in self._begun for label in self._trie.words(one.state)]
        self._begun, self._is_in_word = [], False
        return hits

    def _gone_on(self, character: str, end: int, hits: list[TermHit], is_edge: bool) -> list[_Begun]:
        trie, kept = self._trie, list[_Begun]()
        for one in self._begun:
            if is_edge:
                hits.extend(TermHit(label, one.begin, one.end) for label in trie.words(one.state))
            if (state := trie.step(one.state, character)) is not None:
                self._keep(_Begun(state, one.begin, end), kept, hits)
        return kept

    def _keep(self, one: _Begun, kept: list[_Begun], hits: list[TermHit]) -> None:
        trie = self._trie
        hits.extend(TermHit(label, one.begin, one.end) for label in trie.stems(one.state))
        if trie.can_go_on(one.state) or trie.words(one.state):
            kept.append(one)
