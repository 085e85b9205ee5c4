"""Which requests are sent and when: rows of a trace, of a mix, or of one length. The same seed gives the same rows."""

import itertools
import math
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Protocol

import msgspec

from cluster.simulation.traffic.mixes import Mix, Renewal, Spread, Stream, generate
from cluster.simulation.traffic.traces import read_trace, repeated
from cluster.simulation.traffic.workload import BLOCK_TOKENS, Arrival, PromptPiece, Speaker, rate_per_s

DEFAULT_REQUESTS = 200
"""Requests of a mix, if neither their number nor a time is given. More take longer; fewer say less about p99."""
ROUND_REQUESTS = 1000
"""Requests that a closed loop without an end draws at a time. More take longer to draw; fewer draw more often."""
QUESTION_SHARE = 0.25
"""Share of a prompt that is cut which its last piece may keep. Higher keeps less of what prompts share; lower makes
prompts alike.
"""
SPARSE_PER_S = 0.2
"""Rate at which the sessions of a closed loop are drawn, which ignores the times. Higher cuts off more sessions at the
first and at the last request; lower makes no difference.
"""

Session = list[Arrival]
"""The turns of one conversation, or a single request."""


class LengthCut(msgspec.Struct, frozen=True):
    """Bounds that a model sets. None is no bound."""

    max_prompt: int | None = None
    max_output: int | None = None
    max_total: int | None = None
    """Tokens of a prompt and its answer together."""

    def apply(self, row: Arrival) -> Arrival:
        """The row within the bounds. A prompt keeps its question, which it shares with none, and of the rest its begin,
        which others may have.
        """
        num_output = min(row.num_output, self.max_output or row.num_output)
        if self.max_total is not None:
            num_output = max(1, min(num_output, self.max_total - 1))
        num_prompt = min(row.num_prompt, self.max_prompt or row.num_prompt)
        if self.max_total is not None:
            num_prompt = max(1, min(num_prompt, self.max_total - num_output))
        if (num_prompt, num_output) == (row.num_prompt, row.num_output):
            return row
        pieces = tuple(_shortened(row.pieces, num_prompt))
        return msgspec.structs.replace(row, num_prompt=num_prompt, num_output=num_output, pieces=pieces)


class Source(Protocol):
    """Where rows come from."""

    name: str
    """For reports."""
    has_times: bool
    """Whether the rows arrived at times of their own, which a load may keep."""

    def rows(self, number: int | None, seed: int, per_s: float | None) -> list[Arrival]:
        """So many rows in order of arrival; None for as many as there are, or DEFAULT_REQUESTS. `per_s`: requests per
        second; None for the times that rows have by themselves.
        """


class TraceSource:
    """Rows of a trace. A trace that has fewer than are asked for repeats, with new prompts."""

    has_times = True

    def __init__(self, file: Path, rows: slice) -> None:
        self.name = f"trace {file.name}"
        self._file, self._rows = file, rows

    def rows(self, number: int | None, seed: int, per_s: float | None) -> list[Arrival]:
        """Raises BadTrace for a file that is no trace, or has no such rows, and OSError."""
        read = read_trace(self._file, self._rows.start or 0, self._rows.stop, seed)
        rows = [_in_pieces(index, row) for index, row in enumerate(repeated(read, number) if number else read)]
        own = rate_per_s(rows)
        return rows if per_s is None or not own else [_sooner(row, per_s / own) for row in rows]


class MixSource:
    """Rows of a mix. `cv`: how uneven the gaps between the arrivals of sessions are; None for the mix's own.

    At another rate, sessions begin more or less often, and their think times stay.
    """

    has_times = False

    def __init__(self, name: str, mix: Mix, cv: float | None) -> None:
        self.name = name
        self._mix = mix if cv is None else msgspec.structs.replace(mix, arrivals=Renewal(cv=cv))

    def rows(self, number: int | None, seed: int, per_s: float | None) -> list[Arrival]:
        mix = self._mix if per_s is None else msgspec.structs.replace(self._mix, rate_per_s=per_s)
        return generate(mix, number or DEFAULT_REQUESTS, seed, starts_in_equilibrium=True)


def fixed_mix(num_prompt: int, num_output: int) -> Mix:
    """Single requests of one length."""
    prompts, outputs = (Spread(((0, n), (1, n))) for n in (num_prompt, num_output))
    return Mix(what="requests of one length", rate_per_s=1.0, streams=(Stream(prompts=prompts, outputs=outputs),))


def open_rows(
    source: Source, *, rate: float | None, speed: float, number: int | None, duration_s: float | None, seed: int
) -> list[Arrival]:
    """Rows with the times at which an open loop sends them. `rate`: None for the source's own times, `speed` times as
    fast.
    """
    if number is None and rate is not None and duration_s is not None:
        number = max(1, math.ceil(rate * duration_s))
    rows = source.rows(number, seed, rate)
    if rate is None:
        rows = [_sooner(row, speed) for row in rows]
    return rows if duration_s is None else [row for row in rows if row.arrival_s <= duration_s]


def _sooner(row: Arrival, factor: float) -> Arrival:
    return msgspec.structs.replace(row, arrival_s=row.arrival_s / factor)


def sessions(rows: Iterable[Arrival]) -> list[Session]:
    """The rows by session, in the order of the first turns. Turns keep their order."""
    found: dict[str, Session] = {}
    for number, row in enumerate(rows):
        found.setdefault(row.session or f"{number}", []).append(row)
    return list(found.values())


def endless(source: Source, seed: int, cut: LengthCut) -> Iterator[Session]:
    """Sessions without an end."""
    for number in itertools.count():
        drawn = source.rows(None if source.has_times else ROUND_REQUESTS, seed + number, SPARSE_PER_S)
        for session in sessions(map(cut.apply, drawn)):
            yield [_of_round(row, number) for row in session] if number else session


def _of_round(row: Arrival, number: int) -> Arrival:
    """With prompts of its own, except for system prompts."""
    pieces = tuple(
        piece if piece.speaker is Speaker.SYSTEM else msgspec.structs.replace(piece, name=f"{piece.name}, {number}")
        for piece in row.pieces
    )
    return msgspec.structs.replace(row, pieces=pieces, session=row.session and f"{row.session}, {number}")


def _in_pieces(number: int, row: Arrival) -> Arrival:
    """A row of a trace with its prompt in pieces: a block for each hash, and the rest, which no other prompt has."""
    pieces = [PromptPiece(Speaker.USER, block.hex(), BLOCK_TOKENS) for block in row.block_hashes]
    rest = row.num_prompt - BLOCK_TOKENS * len(pieces)
    if rest:
        pieces.append(PromptPiece(Speaker.USER, f"row {number}", rest))
    return msgspec.structs.replace(row, pieces=tuple(pieces))


def _shortened(pieces: Sequence[PromptPiece], number: int) -> Iterator[PromptPiece]:
    """Pieces with so many tokens together, which are fewer than they have."""
    *before, last = pieces
    num_last = min(last.num_tokens, max(1, round(QUESTION_SHARE * number)))
    num_last = max(num_last, number - sum(piece.num_tokens for piece in before))
    left = number - num_last
    for piece in before:
        if left > 0:
            yield _with_tokens(piece, min(left, piece.num_tokens))
        left -= piece.num_tokens
    yield _with_tokens(last, num_last)


def _with_tokens(piece: PromptPiece, number: int) -> PromptPiece:
    return msgspec.structs.replace(piece, num_tokens=number)
