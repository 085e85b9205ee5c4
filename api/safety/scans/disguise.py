"""Terms that are written so that a list does not find them: in pieces, with marks in them, without their blanks, with
digits for letters, or with letters that are repeated. Pure.

The scan compares the letters of a canonical text (normalise.py) with the letters of terms, and nothing else: `b o m b`,
`bo**mb`, `b.0.m.b` and `bommmb` have the letters of `bomb`. When all letters of a term are there, spellings.py weighs
what stands between them. A hit counts if something is disguised; plain terms are words.py's.
"""

from collections import deque
from collections.abc import Sequence
from typing import final

from api.safety.scans.spellings import LETTERS, OTHER, DisguisedTerms, Gap, WrittenTerm, in_gap, is_disguised
from api.safety.scans.words import TermHit

_SYMBOLS = dict(zip("@$!|+€", "asiite", strict=True))
"""Letters that symbols stand for before a letter or a digit."""
MOST_SYMBOLS = 4
"""Symbols in a row that may stand for letters. More are a line; fewer let some disguises pass."""
LEAST_REPEATS = 3
"""Times that a disguised letter stands in a row. Words have two."""
MOST_BEGUN_SAME = 3
"""Beginnings of terms within the same letter in a row, such as `k k k`. More takes longer for texts of one letter;
fewer lets terms pass that begin with a letter so often.
"""
MOST_FILL = 32
"""Characters in a row that add no new letter. More holds a text back for longer; fewer lets wide gaps hide a term."""


@final
class _Begun:
    """What may become a hit."""

    __slots__ = ("begin", "end", "num_letters", "num_runs", "state")

    def __init__(self, state: int, begin: int, end: int, num_runs: int, num_letters: int) -> None:
        self.state = state
        self.begin = begin
        self.end = end
        """The character after the last one so far."""
        self.num_runs = num_runs
        self.num_letters = num_letters
        """Runs and letters of the text before it."""


class DisguiseScan:
    """The disguised terms of one text. How it is cut into parts changes nothing."""

    def __init__(self, terms: DisguisedTerms) -> None:
        self._terms = terms
        self._begun: list[_Begun] = []
        """In the order of their beginnings."""
        self._gaps: deque[Gap] = deque()
        self._odd: deque[int] = deque()
        """The letters that a digit or a symbol stands for, by number."""
        self._repeats: deque[int] = deque()
        """The letters that are the last one of too many, by number."""
        self._symbols: list[tuple[str, int, int]] = []
        """The last symbols, which are letters if a letter or a digit comes next."""
        self._last = ""
        """The last letter."""
        self._num_same = 0
        """How often it stands in a row, gaps aside."""
        self._num_runs = 0
        self._num_letters = 0
        self._num_in_piece = 0
        """Letters since the last gap."""
        self._gap = OTHER
        """What the gap has that the text ends with; 0 if it ends with a letter."""
        self._gap_first = ""
        self._gap_length = 0

    @property
    def open_from(self) -> int | None:
        """Where the first disguised term begins that the text so far may be the beginning of; None if there is none."""
        if self._begun:
            return self._begun[0].begin
        return self._symbols[0][1] if self._symbols else None

    def step(self, character: str, begin: int, end: int) -> list[TermHit]:
        """The hits that are known with the next canonical character, which the text has from `begin` to `end`."""
        hits: list[TermHit] = []
        if character in _SYMBOLS and len(self._symbols) < MOST_SYMBOLS:
            self._symbols.append((character, begin, end))
            return hits
        is_letter = character.isalnum()
        if self._symbols:
            self._read_symbols(is_letter, hits)
        if is_letter:
            letter = LETTERS.get(character, character)
            self._read_letter(letter, begin, end, letter != character, hits)
        else:
            self._read_gap(character, hits)
        return hits

    def finish(self) -> list[TermHit]:
        """The hits that are known at the end of the text."""
        hits: list[TermHit] = []
        self._read_symbols(False, hits)
        if self._gap == 0:
            self._end_piece(hits)
        self._begun = []
        return hits

    def _read_symbols(self, are_letters: bool, hits: list[TermHit]) -> None:
        symbols, self._symbols = self._symbols, []
        for symbol, begin, end in symbols:
            if are_letters:
                self._read_letter(_SYMBOLS[symbol], begin, end, True, hits)
            else:
                self._read_gap(symbol, hits)

    def _read_letter(self, letter: str, begin: int, end: int, is_odd: bool, hits: list[TermHit]) -> None:
        is_same, is_first = letter == self._last, self._gap != 0
        if is_first:
            self._end_gap(is_same)
        self._num_letters += 1
        self._num_in_piece += 1
        if is_same:
            self._num_same += 1
        else:
            self._last, self._num_same, self._num_runs = letter, 1, self._num_runs + 1
        if not (self._begun or is_first):
            return
        self._go_on(letter, is_same, end)
        if is_first and (state := self._terms.trie.step(0, letter)) is not None:
            self._begin(state, begin, end)
        if not self._begun:
            self._forget()
            return
        if is_odd:
            self._odd.append(self._num_letters)
        if min(self._num_same, self._num_in_piece) == LEAST_REPEATS:
            self._repeats.append(self._num_letters)
        for one in self._begun:
            if stems := self._terms.trie.stems(one.state):
                self._find(one, stems, hits)

    def _go_on(self, letter: str, is_same: bool, end: int) -> None:
        if is_same:
            if self._num_same > MOST_FILL:
                self._begun = []
            for one in self._begun:
                one.end = end
            return
        kept: list[_Begun] = []
        for one in self._begun:
            state = self._terms.trie.step(one.state, letter)
            if state is not None:
                one.state, one.end = state, end
                kept.append(one)
        self._begun = kept
        self._forget()

    def _begin(self, state: int, begin: int, end: int) -> None:
        """Of those that begin with one letter in a row, the last ones are kept."""
        if len(self._begun) >= MOST_BEGUN_SAME and self._begun[-MOST_BEGUN_SAME].state == state:
            del self._begun[-MOST_BEGUN_SAME]
        self._begun.append(_Begun(state, begin, end, self._num_runs - 1, self._num_letters - 1))

    def _read_gap(self, character: str, hits: list[TermHit]) -> None:
        if self._gap == 0:
            self._end_piece(hits)
            self._gap_first, self._gap_length = character, 0
        self._gap |= in_gap(character)
        self._gap_length += 1
        if self._begun:
            terms, gap, num_in_piece = self._terms, self._gap, self._num_in_piece
            is_wide = self._gap_length > MOST_FILL
            self._begun = [one for one in self._begun if not is_wide and terms.can_have(gap, one.state, num_in_piece)]
            self._forget()

    def _end_piece(self, hits: list[TermHit]) -> None:
        """The text ends with a letter, and no letter comes next."""
        terms, kept = self._terms, list[_Begun]()
        for one in self._begun:
            if words := terms.trie.words(one.state):
                self._find(one, words, hits)
            if terms.needs_letters(one.state, self._num_letters - one.num_letters):
                kept.append(one)
        self._begun = kept

    def _end_gap(self, is_in_run: bool) -> None:
        if self._begun:
            gap = Gap(
                self._gap,
                self._gap_first,
                self._gap_length,
                self._num_runs,
                self._num_letters,
                self._num_in_piece,
                is_in_run,
            )
            self._gaps.append(gap)
        self._gap, self._num_in_piece = 0, 0

    def _forget(self) -> None:
        """What lies before all that may become a hit."""
        if not self._begun:
            self._gaps.clear()
            self._odd.clear()
            self._repeats.clear()
            return
        num_before = self._begun[0].num_letters
        while self._gaps and self._gaps[0].num_letters <= num_before:
            self._gaps.popleft()
        while self._odd and self._odd[0] <= num_before:
            self._odd.popleft()
        while self._repeats and self._repeats[0] <= num_before:
            self._repeats.popleft()

    def _find(self, one: _Begun, numbers: Sequence[int], hits: list[TermHit]) -> None:
        num_before = one.num_letters
        gaps = [gap.after(one.num_runs, num_before) for gap in self._gaps if gap.num_letters > num_before]
        num_odd = sum(1 for number in self._odd if number > num_before)
        has_repeats = any(number > num_before for number in self._repeats)
        written = WrittenTerm(gaps, self._num_letters - num_before, num_odd, has_repeats)
        for number in numbers:
            spelling = self._terms.spellings[number]
            if is_disguised(spelling, written):
                hits.append(TermHit(spelling.label, one.begin, one.end))
