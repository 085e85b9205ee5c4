"""Regular expressions in a canonical text that comes in parts. Pure.

Each expression is a finite automaton (automata.py), so that a character costs the same whatever came before, and the
text from the first character of an open match on is all that has to be held back. Of matches that begin at different
characters and are in the same state, the first one goes on alone.
"""

from collections.abc import Sequence
from typing import NamedTuple

from api.safety.scans.automata import automaton_of

MOST_MATCH_LENGTH = 256
"""Characters of a match, at most, as the text has them. A longer one is found in pieces that overlap. More holds back
more of a text that never ends to match; fewer cuts long matches into more pieces.
"""
KEPT_LENGTH = 80
"""Characters of a longer match that the next one begins with, so that what lies across the border is in one of both: an
IBAN with its separators has 67. More looks at more characters twice; fewer misses what is longer.
"""
MOST_STATES = 2000
"""States of an automaton, at most. More takes memory; fewer refuses expressions with large numbers of repetitions."""

MOST_SHOWN = 100
"""Characters of an expression in an error. More makes lines of the log long; fewer makes it harder to find."""
MOST_KEPT = 20_000
"""Characters whose patterns are kept. Fewer looks for those of rare ones again; more lets one client fill memory."""


class Pattern:
    """An expression whose matches begin and end where words do."""

    def __init__(self, expression: str, label: int) -> None:
        """Raises ValueError: the expression is not regular, matches an empty text, or needs too many states."""
        try:
            automaton = automaton_of(expression)
        except ValueError as error:
            raise ValueError(f"the pattern {_shown(expression)} is not supported: {error}") from error
        num_states = len(automaton.next)
        if num_states > MOST_STATES:
            raise ValueError(f"the pattern {_shown(expression)} has {num_states} states, more than {MOST_STATES}")
        if 0 in automaton.finals:
            raise ValueError(f"the pattern {_shown(expression)} matches an empty text")
        self.label = label
        self._symbols = automaton.symbols
        self._other = automaton.other
        self._next = automaton.next
        self._finals = automaton.finals

    def step(self, state: int, character: str) -> int | None:
        """The next state; None if no match goes on so. A match begins with state 0."""
        return self._next[state].get(self._symbols.get(character, self._other))

    def is_match(self, state: int) -> bool:
        return state in self._finals


def _shown(expression: str) -> str:
    return repr(expression if len(expression) <= MOST_SHOWN else f"{expression[:MOST_SHOWN]}…")


class PatternSet:
    """Patterns, and which of them begin with which character."""

    def __init__(self, patterns: Sequence[Pattern]) -> None:
        self.patterns = patterns
        self._beginning: dict[str, tuple[int, ...]] = {}

    def beginning(self, character: str) -> tuple[int, ...]:
        """The places of the patterns that a match of can begin with the character."""
        known = self._beginning.get(character)
        if known is not None:
            return known
        places = tuple(place for place, pattern in enumerate(self.patterns) if pattern.step(0, character) is not None)
        if len(self._beginning) < MOST_KEPT:
            self._beginning[character] = places
        return places


class PatternMatch(NamedTuple):
    """A match, the longest one that begins there."""

    label: int
    begin: int
    """Its first character in the text."""
    end: int
    """The character after its last one."""


class _Open:
    __slots__ = ("begin", "end", "is_complete", "last_begin", "matched_to")

    def __init__(self, begin: int, end: int) -> None:
        self.begin = begin
        self.last_begin = begin
        """Where the last of the matches begins that this one goes on for."""
        self.end = end
        """The character after the last one so far."""
        self.is_complete = False
        """Whether it matches up to `end`."""
        self.matched_to: int | None = None
        """The end of the longest match that ends where a word does."""


class PatternScan:
    """The matches of one text. How it is cut into parts changes nothing."""

    def __init__(self, patterns: PatternSet) -> None:
        self._set = patterns
        self._open: dict[int, dict[int, _Open]] = {}
        """Open matches by state, of each pattern that has any, by its place."""
        self._is_in_word = False

    @property
    def open_from(self) -> int | None:
        """Where the first match begins that is open; None if there is none."""
        if not self._open:
            return None
        return min(one.begin for matches in self._open.values() for one in matches.values())

    def step(self, character: str, begin: int, end: int) -> Sequence[PatternMatch]:
        """The matches that are known with the next character, which the text has from `begin` to `end`."""
        is_word = character.isalnum()
        is_edge = not (is_word and self._is_in_word)
        self._is_in_word = is_word
        beginning = self._set.beginning(character) if is_edge else ()
        if not (self._open or beginning):
            return ()
        found: list[PatternMatch] = []
        for place in sorted({*self._open, *beginning}):
            pattern, matches = self._set.patterns[place], self._open.pop(place, {})
            kept = self._gone_on(pattern, matches, character, begin, end, is_edge, found)
            if kept:
                self._open[place] = kept
        return found

    def finish(self) -> list[PatternMatch]:
        """The matches that are known at the end of the text."""
        found: list[PatternMatch] = []
        for place in sorted(self._open):
            for one in self._open[place].values():
                _ended(self._set.patterns[place], one, True, found)
        self._open.clear()
        self._is_in_word = False
        return _without_inner(found)

    def _gone_on(
        self,
        pattern: Pattern,
        matches: dict[int, _Open],
        character: str,
        begin: int,
        end: int,
        is_edge: bool,
        found: list[PatternMatch],
    ) -> dict[int, _Open]:
        kept: dict[int, _Open] = {}
        ended: list[PatternMatch] = []
        for state, one in matches.items():
            if is_edge and one.is_complete:
                one.matched_to = one.end
            following = pattern.step(state, character)
            if following is not None and end - one.begin > MOST_MATCH_LENGTH:
                self._go_on_from_later(pattern, one, end, found)
            if following is None or end - one.begin > MOST_MATCH_LENGTH:
                _ended(pattern, one, False, ended)
                continue
            one.end, one.is_complete = end, pattern.is_match(following)
            kept[following] = _joined(one, kept.get(following))
        ended = _without_inner(ended)
        if ended:
            last = max(match.end for match in ended)
            kept = {state: one for state, one in kept.items() if one.begin >= last}
            found.extend(ended)
        if is_edge and (first := pattern.step(0, character)) is not None:
            new = _Open(begin, end)
            new.is_complete = pattern.is_match(first)
            kept[first] = _joined(new, kept.get(first))
        return kept

    def _go_on_from_later(self, pattern: Pattern, one: _Open, end: int, found: list[PatternMatch]) -> None:
        """Let go of the beginning of a long match, so that it hides nothing: what matches so far is found."""
        matched_to = one.end if one.is_complete else one.matched_to
        if matched_to is None:
            one.begin = one.last_begin
            return
        found.append(PatternMatch(pattern.label, one.begin, matched_to))
        one.begin = max(one.begin, end - KEPT_LENGTH)
        one.matched_to = None


def _joined(one: _Open, other: _Open | None) -> _Open:
    """Of two matches in the same state, the one that begins first."""
    if other is None:
        return one
    first = one if one.begin <= other.begin else other
    first.last_begin = max(one.last_begin, other.last_begin)
    return first


def _ended(pattern: Pattern, one: _Open, is_edge: bool, found: list[PatternMatch]) -> None:
    if is_edge and one.is_complete:
        one.matched_to = one.end
    if one.matched_to is not None:
        found.append(PatternMatch(pattern.label, one.begin, one.matched_to))


def _without_inner(found: list[PatternMatch]) -> list[PatternMatch]:
    """Of matches of one pattern that overlap, the first."""
    kept: list[PatternMatch] = []
    for match in sorted(found, key=lambda one: (one.label, one.begin, -one.end)):
        if not kept or kept[-1].label != match.label or match.begin >= kept[-1].end:
            kept.append(match)
    return kept
