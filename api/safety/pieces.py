"""Pieces of a generated text, each with its tokens, that are held until their text may leave. Pure.

A piece leaves as a whole. So no token, and no log probability of a token, leaves before the text that it stands for.
"""

from collections import deque
from collections.abc import Callable, Sequence
from itertools import takewhile
from typing import Any, NamedTuple

from api.safety.scans.screened_text import Mask, masked

CUT = "content_filter"
"""The finish reason of a text that was cut, in OpenAI's words."""


class Piece(NamedTuple):
    """What a sequence adds at a time."""

    text: str
    token_ids: Sequence[int]
    logprobs: list[Any] | None = None
    """Log probabilities of each token, if the request asks for them."""
    finish_reason: str | None = None
    stop_reason: int | str | None = None

    def joined(self, following: "Piece") -> "Piece":
        return Piece(
            self.text + following.text,
            [*self.token_ids, *following.token_ids],
            None if following.logprobs is None else [*(self.logprobs or ()), *following.logprobs],
            following.finish_reason,
            following.stop_reason,
        )


class PieceQueue:
    """The pieces of one sequence that are held."""

    def __init__(self, encode: Callable[[str], Sequence[int]]) -> None:
        """`encode`: the tokens of a text, for texts with a mask in them."""
        self._encode = encode
        self._held: deque[Piece] = deque()
        self._begin = 0
        """The character of the whole text that the first held piece begins with."""

    def put(self, piece: Piece) -> None:
        """A token without text is the beginning of a character, and goes with the piece that ends it."""
        if self._held and not self._held[-1].text:
            self._held[-1] = self._held[-1].joined(piece)
        else:
            self._held.append(piece)

    def release(self, up_to: int, masks: list[Mask], *, holds_end: bool = False) -> list[Piece]:
        """The pieces whose text ends before character `up_to`, with masks. `masks`: by their beginnings; those that no
        held text has are removed. `holds_end`: the piece with the finish reason stays.
        """
        released: list[Piece] = []
        while (piece := self._next(up_to, masks, holds_end)) is not None:
            begin, self._begin = self._begin, self._begin + len(piece.text)
            inside = list(takewhile(lambda mask: mask.begin < self._begin, masks))
            released.append(self._masked(piece, begin, inside) if inside else piece)
            while masks and masks[0].end <= self._begin:
                masks.pop(0)
        return released

    def cut(self, at: int, masks: list[Mask]) -> list[Piece]:
        """The last pieces of a text that ends before character `at`. Tokens that stand for text on both sides of it are
        dropped.
        """
        released = self.release(at, masks)
        text = "".join(piece.text for piece in self._held)[: max(0, at - self._begin)]
        inside = [mask for mask in masks if mask.begin < at]
        has_logprobs = any(piece.logprobs is not None for piece in self._held)
        self._held.clear()
        shown = masked(text, self._begin, inside)
        return [*released, Piece(shown, [], [] if has_logprobs else None, CUT)]

    def _next(self, up_to: int, masks: Sequence[Mask], holds_end: bool) -> Piece | None:
        """The next piece that can leave; more than one, joined, if a mask covers them. None if none can."""
        end, number = self._begin, 0
        while number < len(self._held):
            piece = self._held[number]
            end, number = end + len(piece.text), number + 1
            if end > up_to or not (piece.text or piece.finish_reason) or (holds_end and piece.finish_reason):
                return None
            if not _covers(masks, end):
                break
        else:
            return None
        joined = self._held.popleft()
        for _ in range(number - 1):
            joined = joined.joined(self._held.popleft())
        return joined

    def _masked(self, piece: Piece, begin: int, masks: Sequence[Mask]) -> Piece:
        text = masked(piece.text, begin, masks)
        token_ids = self._encode(text)
        return piece._replace(
            text=text, token_ids=token_ids, logprobs=None if piece.logprobs is None else [None] * len(token_ids)
        )


def _covers(masks: Sequence[Mask], at: int) -> bool:
    """Whether a mask has characters on both sides of character `at`."""
    return any(mask.end > at for mask in takewhile(lambda mask: mask.begin < at, masks))
