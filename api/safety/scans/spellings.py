"""How a term may be written: its letters, and what may stand between them in a text. Pure."""

import unicodedata
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from api.safety.scans.trie import Term, Trie

LETTERS = dict(zip("0134578", "oieastb", strict=True))
"""Letters that digits stand for."""
LONG_FROM = 8
"""Letters of a term that no other words have by chance, wherever their blanks are. More lets `pi pe bomb` pass; fewer
takes `pen is` for one word.
"""
LEAST_CUTS = 2
"""Weak cuts in a shorter term that are a disguise. More lets `s e x` pass; fewer takes `a bit` for one word."""
LEAST_PIECE = 2
"""Letters of a piece that cannot be a word for want of a vowel. More lets `bo-mb` pass; fewer reads `s-hit` as one."""
_VOWELS = frozenset("aeiouy")

_BLANK, _DASH, _MARKUP, OTHER = 1, 2, 4, 8
"""What a gap between two letters has, as bits. Readers do not see the marks of markup, or see through them."""
_OF_ONE_KIND = (_BLANK, _DASH, _MARKUP)
_IN_GAPS = {" ": _BLANK, **dict.fromkeys("-._", _DASH), **dict.fromkeys("*~`·•", _MARKUP)}


def in_gap(character: str) -> int:
    """What a gap has with the character."""
    known = _IN_GAPS.get(character)
    if known is not None:
        return known
    return _MARKUP if not character.isascii() and unicodedata.category(character) == "So" else OTHER


def _is_loose(gap: int) -> bool:
    """Whether what comes before the gap and what comes after it are two words, or two parts of a sentence."""
    return gap & OTHER != 0 or gap & (_BLANK | _DASH) == _BLANK | _DASH


class Gap(NamedTuple):
    """What stands between two letters of the text."""

    has: int
    first: str
    """Its first character."""
    length: int
    num_runs: int
    """Letters of the text before it; those in a row that are the same are one."""
    num_letters: int
    """Letters of the text before it."""
    num_in_piece: int
    """Letters between the gap before it and this one."""
    is_in_run: bool
    """Whether the letters on both sides are the same."""

    def after(self, num_runs: int, num_letters: int) -> "Gap":
        """The same, counted from a later letter on."""
        return self._replace(num_runs=self.num_runs - num_runs, num_letters=self.num_letters - num_letters)

    @property
    def is_markup(self) -> bool:
        """Whether such a gap is in no word that is not disguised."""
        return self.has & _MARKUP != 0 and self.has & (_BLANK | OTHER) == 0

    def is_like(self, other: "Gap") -> bool:
        """Whether both are of one way to space a word out."""
        if self.has in _OF_ONE_KIND and other.has in _OF_ONE_KIND:
            return True
        return (self.has, self.first, self.length) == (other.has, other.first, other.length)

    @property
    def is_odd_blank(self) -> bool:
        """Whether it is a blank of a term in another form."""
        return not _is_loose(self.has) and (self.has != _BLANK or self.length > 1)


class WrittenTerm(NamedTuple):
    """What of a text has the letters of a term."""

    gaps: Sequence[Gap]
    """Counted from the first letter on."""
    num_letters: int
    num_odd: int
    """How many of them are digits and symbols in place of letters."""
    has_repeats: bool
    """Whether a letter stands more often in a row than in words."""

    def num_after(self, number: int) -> int:
        """Letters between the gap of this number and the next one."""
        is_last = number + 1 == len(self.gaps)
        return (self.num_letters if is_last else self.gaps[number + 1].num_letters) - self.gaps[number].num_letters

    @property
    def is_spelled_out(self) -> bool:
        """Whether a gap follows each letter, as in a product."""
        return len(self.gaps) + 1 == self.num_letters


class Spelling(NamedTuple):
    """The letters of a term."""

    label: int
    runs: str
    """Letters in a row that are the same are one."""
    num_letters: int
    blanks: frozenset[int]
    """Before which of the `runs` the term has a blank, or within the run before."""
    places: frozenset[int]
    """After how many letters the term has a blank."""

    @property
    def is_long(self) -> bool:
        return self.num_letters >= LONG_FROM


def _spelling(term: Term) -> Spelling:
    runs: list[str] = []
    blanks: set[int] = set()
    places: set[int] = set()
    num_letters = 0
    for character in term.text.strip():
        if not character.isalnum():
            blanks.add(len(runs))
            places.add(num_letters)
            continue
        letter = LETTERS.get(character, character)
        num_letters += 1
        if not runs or runs[-1] != letter:
            runs.append(letter)
    return Spelling(term.label, "".join(runs), num_letters, frozenset(blanks - {0, len(runs)}), frozenset(places))


class DisguisedTerms:
    """The letters of terms as an automaton. Its labels are places in `spellings`."""

    def __init__(self, terms: Iterable[Term]) -> None:
        """Raises ValueError: a term is too long. Terms without letters cannot be disguised."""
        self.spellings: list[Spelling] = []
        letters: list[Term] = []
        for term in terms:
            spelling = _spelling(term)
            if spelling.runs:
                letters.append(Term(spelling.runs, len(self.spellings), term.is_stem))
                self.spellings.append(spelling)
        self.trie = Trie(letters)
        self._num_letters: dict[int, int] = {}
        """Of the longest term, by the states that it goes through."""
        self._before_blank: set[int] = set()
        for spelling in self.spellings:
            self._add(spelling)

    def _add(self, spelling: Spelling) -> None:
        state = 0
        for number, letter in enumerate(spelling.runs, 1):
            state = self.trie.step(state, letter) or 0
            self._num_letters[state] = max(self._num_letters.get(state, 0), spelling.num_letters)
            if number in spelling.blanks:
                self._before_blank.add(state)

    def needs_letters(self, state: int, num_letters: int) -> bool:
        """Whether a term goes on from the state after so many letters, be it with the last one again."""
        return self.trie.can_go_on(state) or num_letters < self._num_letters[state]

    def can_have(self, gap: int, state: int, num_in_piece: int) -> bool:
        """Whether a term may go on from the state after such a gap."""
        if state in self._before_blank or num_in_piece == 1:
            return True
        return not _is_loose(gap) and (gap & _BLANK == 0 or self._num_letters[state] >= LONG_FROM)


def is_disguised(spelling: Spelling, written: WrittenTerm) -> bool:
    """Whether a text with the letters of a term hides the term."""
    if written.num_letters < spelling.num_letters or written.num_odd == written.num_letters:
        return False  # digits alone are a number
    has_odd = written.num_odd > 0 or written.has_repeats
    blanks: set[int] = set()
    cuts: list[int] = []
    has_odd_blank = False
    for number, gap in enumerate(written.gaps):
        if gap.num_runs in spelling.blanks:
            blanks.add(gap.num_runs)
            has_odd_blank = has_odd_blank or gap.is_odd_blank or _is_moved(gap, spelling, written)
        elif gap.is_in_run and written.num_letters > spelling.num_letters:
            return False  # a letter too many, in another word
        else:
            cuts.append(number)
    has_all_blanks = len(blanks) == len(spelling.blanks)
    if not (has_all_blanks or has_odd or spelling.is_long):
        return False
    return (has_odd or has_odd_blank or not has_all_blanks or bool(cuts)) and _can_cut(cuts, spelling, written)


def _is_moved(gap: Gap, spelling: Spelling, written: WrittenTerm) -> bool:
    """Whether the blank of a term is at another place beside equal letters: `kil llots` is not `kill lots`."""
    return written.num_letters == spelling.num_letters and gap.num_letters not in spelling.places


def _can_cut(cuts: Sequence[int], spelling: Spelling, written: WrittenTerm) -> bool:
    """Whether these of the gaps, which the term does not have, leave pieces that are no words of their own."""
    weak = [number for number in cuts if written.is_spelled_out or not written.gaps[number].is_markup]
    gaps = [written.gaps[number] for number in weak]
    if not gaps:
        return True
    if spelling.is_long and not any(_is_loose(gap.has) and gap.num_in_piece > 1 for gap in gaps):
        return True
    if len(gaps) >= LEAST_CUTS and all(gap.num_in_piece == 1 and gap.is_like(gaps[0]) for gap in gaps):
        return True
    if any(gap.has != _DASH for gap in gaps):
        return False
    return len(gaps) >= LEAST_CUTS or _leaves_no_words(weak[0], spelling, written)


def _leaves_no_words(cut: int, spelling: Spelling, written: WrittenTerm) -> bool:
    """Whether one of the pieces on both sides of the gap cannot be a word."""
    gaps, gap = written.gaps, written.gaps[cut]
    if min(gap.num_in_piece, written.num_after(cut)) < LEAST_PIECE:
        return False
    before = spelling.runs[gaps[cut - 1].num_runs if cut else 0 : gap.num_runs]
    after = spelling.runs[gap.num_runs : len(spelling.runs) if cut + 1 == len(gaps) else gaps[cut + 1].num_runs]
    return any(piece.isascii() and piece.isalpha() and _VOWELS.isdisjoint(piece) for piece in (before, after))
