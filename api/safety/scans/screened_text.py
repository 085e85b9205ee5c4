"""What of a text is decided while it comes in parts: all that no open hit can reach. Pure."""

from bisect import insort
from collections.abc import Callable, Sequence
from typing import NamedTuple, Protocol

from api.safety.scans.normalise import Canonical, Normaliser


class Found(Protocol):
    """What a scan has found in the text, from character `begin` to the one before `end`."""

    @property
    def label(self) -> int: ...
    @property
    def begin(self) -> int: ...
    @property
    def end(self) -> int: ...


class Scan(Protocol):
    """A scan of a canonical text: WordScan, DisguiseScan, PatternScan, ClassifierScan."""

    @property
    def open_from(self) -> int | None: ...
    def step(self, character: str, begin: int, end: int) -> Sequence[Found]: ...
    def finish(self) -> Sequence[Found]: ...


class Cut(NamedTuple):
    """The text ends before `begin`."""

    begin: int


class Mask(NamedTuple):
    """The text has `mask` from character `begin` to the one before `end`."""

    begin: int
    end: int
    mask: str


Judge = Callable[[int, Found, str], Sequence[Cut | Mask]]
"""What is to be done about what the scan of this number has found, whose text it gets."""


class ScreenedText:
    """One text. How it is cut into parts changes nothing of what is decided in all."""

    def __init__(self, scans: Sequence[Scan], judge: Judge) -> None:
        self._scans = scans
        self._judge = judge
        self._normaliser = Normaliser()
        self._open = ""
        """The text from `decided_to` on."""
        self.decided_to = 0
        """The characters before this one are decided: no scan finds anything before it any more."""
        self.masks: list[Mask] = []
        """In the order of their beginnings. They may overlap. Whoever has released them may remove them."""
        self.cut: Cut | None = None
        """Where the text ends. Nothing of what comes after it is read."""

    def feed(self, part: str) -> None:
        if self.cut is not None:
            return
        self._open += part
        self._scan(self._normaliser.feed(part))
        open_from = [scan.open_from for scan in self._scans]
        self._decide(min([self._normaliser.open_from, *(at for at in open_from if at is not None)]))

    def finish(self) -> None:
        """The text is over."""
        if self.cut is not None:
            return
        self._scan(self._normaliser.finish())
        if self.cut is None:
            for number, scan in enumerate(self._scans):
                self._take(number, scan.finish())
        self._decide(self.decided_to + len(self._open))

    def _scan(self, known: Canonical) -> None:
        """Character by character up to the first cut, so that it is the same one however the text is cut into parts."""
        steps = [(number, scan.step) for number, scan in enumerate(self._scans)]
        for character, at, end in zip(known.text, known.offsets, known.ends, strict=True):
            for number, step in steps:
                if found := step(character, at, end):
                    self._take(number, found)
            if self.cut is not None:
                return

    def _take(self, number: int, found: Sequence[Found]) -> None:
        for one in found:
            text = self._open[one.begin - self.decided_to : one.end - self.decided_to]
            for judged in self._judge(number, one, text):
                if isinstance(judged, Mask):
                    insort(self.masks, judged, key=lambda mask: (mask.begin, -mask.end))
                elif self.cut is None or judged.begin < self.cut.begin:
                    self.cut = judged

    def _decide(self, up_to: int) -> None:
        if self.cut is not None:
            up_to = min(up_to, self.cut.begin)
        if up_to > self.decided_to:
            self._open = self._open[up_to - self.decided_to :]
            self.decided_to = up_to


def masked(text: str, begin: int, masks: Sequence[Mask]) -> str:
    """A part of the text with the masks that lie in it. `begin`: of the part in the text. Of masks that overlap, the
    first one is shown.
    """
    shown: list[str] = []
    at = begin
    for mask in masks:
        if mask.end > at:
            shown += [text[at - begin : max(at, mask.begin) - begin], mask.mask if mask.begin >= at else ""]
            at = mask.end
    return "".join([*shown, text[at - begin :]])
