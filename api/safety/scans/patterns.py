"""Regular expressions in a canonical text that comes in parts. Pure.

Each expression is a finite automaton (interegular), so that a character costs the same whatever came before, and the
text from the first character of an open match on is all that has to be held back. Of matches that begin at different
characters and are in the same state, the first one goes on alone.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

import interegular
from interegular.fsm import anything_else

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


MOST_KEPT = 20_000
"""Characters whose patterns are kept. Fewer looks for those of rare ones again; more lets one client fill memory."""


class Pattern:
    """An expression whose matches begin and end where words do."""

    def __init__(self, expression: str, label: int) -> None:
        """Raises ValueError: the expression is not regular, matches an empty text, or needs too many states."""
        try:
            whole: Any = interegular.parse_pattern(expression).to_fsm()
            automaton = whole.reduce()
        except (interegular.InvalidSyntax, interegular.Unsupported, ValueError) as error:
            raise ValueError(f"the pattern {expression!r} is not supported: {error or 'invalid syntax'}") from error
        if len(automaton.states) > MOST_STATES:
            raise ValueError(f"the pattern {expression!r} has {len(automaton.states)} states, more than {MOST_STATES}")
        if automaton.initial in automaton.finals:
            raise ValueError(f"the pattern {expression!r} matches an empty text")
        self.label = label
        self.initial: Any = automaton.initial
        self._symbols = {s: key for s, key in automaton.alphabet.items() if s is not anything_else}
        self._else = automaton.alphabet.get(anything_else, None)
        self._next = {
            state: {symbol: following for symbol, following in steps.items() if automaton.islive(following)}
            for state, steps in automaton.map.items()
        }
        self._finals = frozenset(automaton.finals)

    def step(self, state: Any, character: str) -> Any | None:
        """The next state; None if no match goes on so."""
        return self._next.get(state, {}).get(self._symbols.get(character, self._else))

    def is_match(self, state: Any) -> bool:
        return state in self._finals


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
        places = tuple(
            place for place, pattern in enumerate(self.patterns) if pattern.step(pattern.initial, character) is not None
        )
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
        self._open: dict[int, dict[Any, _Open]] = {}
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

    def mark_seam(self) -> None:
        """A match may begin with the next character, also within a word."""
        self._is_in_word = False

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
        matches: dict[Any, _Open],
        character: str,
        begin: int,
        end: int,
        is_edge: bool,
        found: list[PatternMatch],
    ) -> dict[Any, _Open]:
        kept: dict[Any, _Open] = {}
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
        if is_edge and (state := pattern.step(pattern.initial, character)) is not None:
            new = _Open(begin, end)
            new.is_complete = pattern.is_match(state)
            kept[state] = _joined(new, kept.get(state))
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
