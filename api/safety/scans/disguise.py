"""Terms that are written so that a list does not find them: spaced out, with digits for letters, or with letters that
are repeated. Pure.

The scan reads a canonical text (normalise.py) without what disguises: `b o m b`, `b.0.m.b` and `bommmb` become `bomb`.
What is found counts if the text has a disguise there; plain terms are words.py's.
"""

from collections import deque
from typing import NamedTuple

from api.safety.scans.trie import Term, Trie
from api.safety.scans.words import TermHit, WordScan

_DIGITS = dict(zip("0134578", "oieastb", strict=True))
_SYMBOLS = dict(zip("@$!|+€", "asiite", strict=True))
"""Letters that digits and symbols stand for. A symbol does so only before a letter or a digit."""
LEAST_SPACES = 2
"""Dropped separators that are a disguise. One is two short words, such as `a bit`."""
MOST_SYMBOLS = 4
"""Symbols in a row that may stand for letters. More are a line; fewer let some disguises pass."""
LEAST_REPEATS = 3
"""Times that a disguised letter stands in a row. Words have two."""


class _Mark(NamedTuple):
    """A disguise."""

    at: int
    is_space: bool


def undisguised(term: Term) -> Term:
    """The term as the scan reads it: without the blanks that follow a word of one letter."""
    letters: list[str] = []
    num_in_word = 0
    for character in term.text:
        read = _DIGITS.get(character, character if character.isalnum() else " ")
        if read == " ":
            is_dropped, num_in_word = num_in_word == 1, 0
            if is_dropped:
                continue
        else:
            num_in_word += 1
        if not letters or letters[-1] != read:
            letters.append(read)
    return term._replace(text="".join(letters).strip() or term.text)


class DisguiseScan:
    """The disguised terms of one text. How it is cut into parts changes nothing."""

    def __init__(self, trie: Trie) -> None:
        """`trie`: of terms as `undisguised` makes them."""
        self._words = WordScan(trie)
        self._marks: deque[_Mark] = deque()
        self._symbols: list[tuple[str, int, int]] = []
        """The last symbols, which are letters if a letter or a digit comes next."""
        self._last = " "
        self._num_same = 0
        self._num_in_word = 0
        """Characters since the last separator."""
        self._is_spaced = False
        """Whether the last separator was dropped."""

    @property
    def open_from(self) -> int | None:
        """Where the first disguised term begins that the text so far may be the beginning of; None if there is none."""
        if self._words.open_from is not None:
            return self._words.open_from
        return self._symbols[0][1] if self._symbols else None

    def step(self, character: str, begin: int, end: int) -> list[TermHit]:
        """The hits that are known with the next canonical character, which the text has from `begin` to `end`."""
        hits: list[TermHit] = []
        if character in _SYMBOLS and len(self._symbols) < MOST_SYMBOLS:
            self._symbols.append((character, begin, end))
            return hits
        if self._symbols:
            hits += self._known_symbols(are_letters=character.isalnum())
        if character.isalnum():
            letter = _DIGITS.get(character, character)
            hits += self._letter(letter, begin, end, letter != character)
        else:
            hits += self._space(begin, end)
        return self._disguised(hits)

    def mark_seam(self) -> None:
        """Disguises are not looked for across a seam: what was read is forgotten."""
        self._words = WordScan(self._words.trie)
        self._marks.clear()
        self._symbols.clear()
        self._last = " "
        self._num_same = self._num_in_word = 0
        self._is_spaced = False

    def finish(self) -> list[TermHit]:
        """The hits that are known at the end of the text."""
        hits = self._known_symbols(are_letters=False)
        return self._disguised(hits + self._words.finish())

    def _known_symbols(self, are_letters: bool) -> list[TermHit]:
        symbols, self._symbols = self._symbols, []
        hits: list[TermHit] = []
        for symbol, begin, end in symbols:
            hits += self._letter(_SYMBOLS[symbol], begin, end, True) if are_letters else self._space(begin, end)
        return hits

    def _letter(self, letter: str, begin: int, end: int, is_disguise: bool) -> list[TermHit]:
        if is_disguise:
            self._marks.append(_Mark(begin, is_space=False))
        self._num_in_word += 1
        self._num_same = self._num_same + 1 if letter == self._last else 1
        self._last = letter
        if self._num_same == 1:
            spaced, self._is_spaced = self._is_spaced, False
            return self._words.step(letter, begin, end, after_edge=spaced)
        if self._num_same == LEAST_REPEATS:
            self._marks.append(_Mark(begin, is_space=False))
        self._words.lengthen(end)
        return []

    def _space(self, begin: int, end: int) -> list[TermHit]:
        num_in_word, self._num_in_word = self._num_in_word, 0
        if num_in_word == 1 or (num_in_word == 0 and self._is_spaced):
            if not self._is_spaced:
                self._marks.append(_Mark(begin, is_space=True))
            self._is_spaced = True
            return []
        self._is_spaced = False
        if self._last == " ":
            return []
        self._last, self._num_same = " ", 1
        return self._words.step(" ", begin, end)

    def _disguised(self, hits: list[TermHit]) -> list[TermHit]:
        """Those that a disguise hides from words.py."""
        found = [hit for hit in hits if self._is_disguise(hit)] if hits else hits
        open_from = self.open_from
        while self._marks and (open_from is None or self._marks[0].at < open_from):
            self._marks.popleft()
        return found

    def _is_disguise(self, hit: TermHit) -> bool:
        """Digits alone are a number."""
        inside = [mark.is_space for mark in self._marks if hit.begin <= mark.at < hit.end]
        has_letters = len(inside) < hit.end - hit.begin
        return has_letters and (sum(inside) >= LEAST_SPACES or not all(inside))
