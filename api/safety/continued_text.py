"""An answer that goes on in the middle of its prompt's text. Pure.

The answer is screened like any other, as if there were no prompt. Besides, what begins in the prompt and ends in the
answer is looked for across the seam, until nothing that has begun in the prompt is open any more: mostly a word or two.
"""

from collections.abc import Sequence
from typing import NamedTuple

from api.safety.scans.screened_text import Cut, Found, Judge, Mask, Scan, ScreenedText

MOST_CONTEXT = 128
"""Characters of a prompt that are read with its answer: as many as the longest term has. More finds longer texts across
the seam; fewer costs the first token less.
"""


class _Crossing(NamedTuple):
    """What is found across the seam, as the answer has it: its beginning is negative."""

    label: int
    begin: int
    end: int


class ContinuedText:
    """As ScreenedText, for the answer alone."""

    def __init__(self, text: ScreenedText, scans: Sequence[Scan], judge: Judge, context: str) -> None:
        """`scans`: fresh ones, for what crosses the seam. `context`: the end of the prompt."""
        self._text = text
        self._judge = judge
        self._context = context[-MOST_CONTEXT:]
        self._across: ScreenedText | None = ScreenedText(scans, self._crossing)
        """Prompt and answer as one text; None once nothing can cross the seam any more."""
        self._is_read = False
        """Whether the context is read. It is when the first part of the answer comes."""
        self._cut: Cut | None = None
        self._is_over = False

    def feed(self, part: str) -> None:
        if self._across is not None:
            if not self._is_read:
                self._is_read = True
                self._across.feed(self._context)
            self._across.feed(part)
            self._look_across()
        self._text.feed(part)

    def finish(self) -> None:
        """The text is over."""
        self._is_over = True
        if self._across is not None:
            self._across.finish()
            self._look_across()
        self._text.finish()

    @property
    def decided_to(self) -> int:
        """The characters of the answer before this one are decided."""
        return 0 if self._across is not None else self._text.decided_to

    @property
    def masks(self) -> list[Mask]:
        """In the order of their beginnings. Whoever has released them may remove them."""
        return self._text.masks

    @property
    def cut(self) -> Cut | None:
        return self._text.cut if self._cut is None else self._cut

    def _look_across(self) -> None:
        across = self._across
        assert across is not None
        if across.cut is not None:
            self._cut = Cut(0)
        elif not self._is_over and across.decided_to < len(self._context):
            return
        self._text.masks[:0] = [mask for mask in across.masks if mask.end > 0]
        self._across = None

    def _crossing(self, number: int, found: Found, text: str) -> Sequence[Cut | Mask]:
        begin, end = found.begin - len(self._context), found.end - len(self._context)
        if not begin < 0 < end:
            return ()
        judged = self._judge(number, _Crossing(found.label, begin, end), text)
        return [one._replace(begin=max(0, one.begin)) for one in judged]
