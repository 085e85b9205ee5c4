"""Regular expressions as finite automata, built in bounded time. Pure.

interegular parses an expression. Its parts become one automaton that may be in several states at once; of these sets of
states the ones that can be reached become the states of a deterministic automaton, and those of its states that nothing
tells apart become one (Hopcroft). Each of the three may explode, so that each step counts.
"""

from collections import defaultdict
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

import interegular
from interegular import patterns as parsed

MOST_STEPS = 500_000
"""Steps of building one automaton, at most: about a fifth of a second. More blocks whoever reloads lists for longer;
fewer refuses expressions with large numbers of repetitions.
"""
STEPS_OF_PART = 20
"""Steps that a part of an expression counts as, each time that it is repeated: it takes as long. More refuses long
lists of words; fewer takes longer to refuse large numbers of repetitions.
"""
MOST_NAMED = 100_000
"""Characters that the ranges of an expression have, at most. More takes longer to parse; fewer refuses scripts."""
MOST_LENGTH = 10_000
"""Characters of an expression, at most. More takes longer to parse; fewer refuses long lists of words."""


class Automaton(NamedTuple):
    """States are numbers, and 0 is the beginning. From each of them, a match is still possible."""

    symbols: dict[str, int]
    """Characters that the same happens with have the same symbol."""
    other: int
    """The symbol of all other characters."""
    next: list[dict[int, int]]
    """The next state, by state and symbol."""
    finals: frozenset[int]


class _Characters(NamedTuple):
    members: frozenset[str]
    is_negated: bool


def automaton_of(expression: str) -> Automaton:
    """Raises ValueError: the expression is not regular, or takes too many steps."""
    if len(expression) > MOST_LENGTH:
        raise ValueError(f"it has {len(expression)} characters, more than {MOST_LENGTH}")
    ranges = zip(expression, expression[1:], expression[2:], strict=False)
    if sum(max(0, ord(last) - ord(first)) for first, dash, last in ranges if dash == "-") > MOST_NAMED:
        raise ValueError(f"its ranges have more than {MOST_NAMED} characters")
    try:
        builder = _Builder()
        end = builder.add(interegular.parse_pattern(expression), 0, parsed.REFlags(0))
        return builder.automaton(end)
    except (interegular.InvalidSyntax, interegular.Unsupported) as error:
        raise ValueError(str(error) or "invalid syntax") from error
    except RecursionError as error:
        raise ValueError("its groups are nested too deeply") from error


class _Builder:
    """The automaton that may be in several states at once. Its states are numbers."""

    def __init__(self) -> None:
        self._num_steps = 0
        self._moves: list[list[tuple[_Characters, int]]] = [[]]
        self._skips: list[list[int]] = [[]]
        """The states that a state becomes without a character."""

    def add(self, part: Any, begin: int, flags: parsed.REFlags) -> int:
        """Let a part of the expression come after a state. Returns the state after it."""
        self._count(STEPS_OF_PART)
        match part:
            case parsed.Pattern():
                flags = (flags | part.added_flags) & ~part.removed_flags
                return self._joined([self.add(option, self._skip(begin), flags) for option in part.options])
            case parsed._Concatenation():
                for one in part.parts:
                    begin = self.add(one, begin, flags)
                return begin
            case parsed._Repeated():
                return self._repeated(part, begin, flags)
            case parsed._CharGroup():
                return self._move(begin, part.chars, part.negated, flags)
            case parsed._NonCapturing():
                raise ValueError("it looks ahead or back")
        if part is parsed._EMPTY:
            return begin
        if part is not parsed._DOT:
            raise ValueError("a part of it is unknown")
        not_in_it = frozenset[str]() if flags & parsed.REFlags.SINGLE_LINE else frozenset("\n")
        return self._move(begin, not_in_it, True, parsed.REFlags(0))

    def automaton(self, end: int) -> Automaton:
        symbols, symbols_of = self._symbols()
        steps, finals = self._deterministic(end, symbols_of)
        return _minimal(Automaton(symbols, 0, steps, finals), self._count)

    def _count(self, num_steps: int) -> None:
        self._num_steps += num_steps
        if self._num_steps > MOST_STEPS:
            raise ValueError(f"its automaton takes more than {MOST_STEPS} steps to build")

    def _state(self) -> int:
        self._moves.append([])
        self._skips.append([])
        return len(self._moves) - 1

    def _skip(self, begin: int) -> int:
        state = self._state()
        self._skips[begin].append(state)
        return state

    def _joined(self, ends: Iterable[int]) -> int:
        state = self._state()
        for end in ends:
            self._skips[end].append(state)
        return state

    def _move(self, begin: int, members: frozenset[str], is_negated: bool, flags: parsed.REFlags) -> int:
        if flags & parsed.REFlags.CASE_INSENSITIVE:
            members = frozenset({*(c.lower() for c in members), *(c.upper() for c in members)})
        state = self._state()
        self._moves[begin].append((_Characters(members, is_negated), state))
        return state

    def _repeated(self, part: Any, begin: int, flags: parsed.REFlags) -> int:
        for _ in range(part.min):
            begin = self.add(part.base, begin, flags)
        if part.max is None:
            head = self._skip(begin)
            self._skips[self.add(part.base, head, flags)].append(head)
            return self._skip(head)
        if part.max < part.min:
            raise ValueError(f"it has something {part.min} to {part.max} times")
        ends = [begin]
        for _ in range(part.max - part.min):
            ends.append(self.add(part.base, ends[-1], flags))
        return self._joined(ends)

    def _symbols(self) -> tuple[dict[str, int], dict[_Characters, list[int]]]:
        """The symbol of each character, and the symbols of each set of characters. 0 is of all others."""
        sets = {characters for moves in self._moves for characters, _ in moves}
        kinds: dict[str, tuple[int, ...]] = {}
        members = list({characters.members for characters in sets})
        for number, one in enumerate(members):
            self._count(len(one))
            for character in one:
                kinds[character] = (*kinds.get(character, ()), number)
        symbol_of = {kind: symbol for symbol, kind in enumerate(dict.fromkeys(kinds.values()), 1)}
        inside: dict[frozenset[str], set[int]] = {one: set() for one in members}
        for kind, symbol in symbol_of.items():
            for number in kind:
                inside[members[number]].add(symbol)
        every = range(len(symbol_of) + 1)
        self._count(len(sets) * len(every))
        symbols_of = {
            one: [symbol for symbol in every if (symbol in inside[one.members]) is not one.is_negated] for one in sets
        }
        return {character: symbol_of[kind] for character, kind in kinds.items()}, symbols_of

    def _deterministic(
        self, end: int, symbols_of: dict[_Characters, list[int]]
    ) -> tuple[list[dict[int, int]], frozenset[int]]:
        first = frozenset(self._reached([0]))
        numbers, found = {first: 0}, [first]
        steps: list[dict[int, int]] = []
        for states in found:
            following: dict[int, set[int]] = defaultdict(set)
            for state in states:
                for characters, target in self._moves[state]:
                    symbols = symbols_of[characters]
                    self._count(1 + len(symbols))
                    for symbol in symbols:
                        following[symbol].add(target)
            steps.append({})
            for symbol, targets in following.items():
                reached = frozenset(self._reached(targets))
                number = numbers.setdefault(reached, len(found))
                if number == len(found):
                    found.append(reached)
                steps[-1][symbol] = number
        return steps, frozenset(number for states, number in numbers.items() if end in states)

    def _reached(self, states: Iterable[int]) -> set[int]:
        reached = set(states)
        left = list(reached)
        while left:
            state = left.pop()
            self._count(1 + len(self._skips[state]))
            for following in self._skips[state]:
                if following not in reached:
                    reached.add(following)
                    left.append(following)
        return reached


def _minimal(automaton: Automaton, count: Callable[[int], None]) -> Automaton:
    """Without states that no match is possible from, and with one for those that nothing tells apart."""
    before: list[dict[int, list[int]]] = [defaultdict(list) for _ in automaton.next]
    for state, steps in enumerate(automaton.next):
        for symbol, following in steps.items():
            before[following][symbol].append(state)
    block_of = _blocks(_live(automaton, before, count), automaton.finals, before, count)
    numbers: dict[int, int] = {block_of.get(0, -1): 0}
    for block in block_of.values():
        numbers.setdefault(block, len(numbers))
    merged: list[dict[int, int]] = [{} for _ in numbers]
    for state, block in block_of.items():
        for symbol, following in automaton.next[state].items():
            if following in block_of:
                merged[numbers[block]][symbol] = numbers[block_of[following]]
    finals = frozenset(numbers[block_of[state]] for state in automaton.finals)
    return Automaton(automaton.symbols, automaton.other, merged, finals)


def _live(automaton: Automaton, before: list[dict[int, list[int]]], count: Callable[[int], None]) -> set[int]:
    live = set(automaton.finals)
    left = list(live)
    while left:
        for states in before[left.pop()].values():
            count(len(states))
            new = [state for state in states if state not in live]
            live.update(new)
            left += new
    return live


def _blocks(
    live: set[int], finals: frozenset[int], before: list[dict[int, list[int]]], count: Callable[[int], None]
) -> dict[int, int]:
    """The block of each live state. Nothing tells the states of a block apart."""
    blocks = [block for block in (set(finals), live - finals) if block]
    block_of = {state: number for number, block in enumerate(blocks) for state in block}
    left = list(range(len(blocks)))
    waiting = set(left)
    while left:
        splitter = left.pop()
        waiting.discard(splitter)
        leading: dict[int, set[int]] = defaultdict(set)
        for state in blocks[splitter]:
            for symbol, states in before[state].items():
                count(1 + len(states))
                leading[symbol].update(states)
        for leading_there in leading.values():
            touched: dict[int, set[int]] = defaultdict(set)
            for state in leading_there & live:
                touched[block_of[state]].add(state)
            for number, inside in touched.items():
                if len(inside) == len(blocks[number]):
                    continue
                if 2 * len(inside) > len(blocks[number]):
                    blocks[number], inside = inside, blocks[number] - inside
                else:
                    blocks[number] -= inside
                blocks.append(inside)
                new = len(blocks) - 1
                for state in inside:
                    block_of[state] = new
                for one in (new, number) if number in waiting else (new,):
                    if one not in waiting:
                        waiting.add(one)
                        left.append(one)
    return block_of
