"""What of a text may be released while it comes in parts: all that no open hit can reach, without what is cut, and with
masks in place of what is masked. Pure.
"""

from collections.abc import Callable, Sequence
from typing import NamedTuple, Protocol

from api.safety.normalise import Canonical, Normaliser


class Found(Protocol):
    """What a scan has found in the text, from character `begin` to the one before `end`."""

    @property
    def label(self) -> int: ...
    @property
    def begin(self) -> int: ...
    @property
    def end(self) -> int: ...


class Scan(Protocol):
    """A scan of a canonical text: WordScan, DisguiseScan, PatternScan."""

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
    """One text. How it is cut into parts changes nothing of what is released in all."""

    def __init__(self, scans: Sequence[Scan], judge: Judge) -> None:
        self._scans = scans
        self._judge = judge
        self._normaliser = Normaliser()
        self._held = ""
        self._num_released = 0
        """Characters of the text before `_held`."""
        self._masks: list[Mask] = []
        self.cut: Cut | None = None
        """Where the text ends. Nothing of what comes after it is read."""

    def feed(self, part: str) -> str:
        """What may be released with this part."""
        if self.cut is not None:
            return ""
        self._held += part
        self._scan(self._normaliser.feed(part))
        open_from = [scan.open_from for scan in self._scans]
        return self._release(min([self._normaliser.open_from, *(at for at in open_from if at is not None)]))

    def finish(self) -> str:
        """The rest of the text."""
        if self.cut is not None:
            return ""
        self._scan(self._normaliser.finish())
        if self.cut is None:
            for number, scan in enumerate(self._scans):
                self._take(number, scan.finish())
        return self._release(self._num_released + len(self._held))

    def _scan(self, known: Canonical) -> None:
        """Character by character up to the first cut, so that it is the same one however the text is cut into parts."""
        steps = [(number, scan.step) for number, scan in enumerate(self._scans)]
        for character, at in zip(known.text, known.offsets, strict=True):
            for number, step in steps:
                if found := step(character, at, at + 1):
                    self._take(number, found)
            if self.cut is not None:
                return

    def _take(self, number: int, found: Sequence[Found]) -> None:
        for one in found:
            text = self._held[one.begin - self._num_released : one.end - self._num_released]
            for judged in self._judge(number, one, text):
                if isinstance(judged, Mask):
                    self._masks.append(judged)
                elif self.cut is None or judged.begin < self.cut.begin:
                    self.cut = judged

    def _release(self, up_to: int) -> str:
        """The text up to a character, which no scan finds anything before any more."""
        if self.cut is not None:
            up_to = min(up_to, self.cut.begin)
        released: list[str] = []
        kept: list[Mask] = []
        at = self._num_released
        for mask in sorted(self._masks, key=lambda mask: (mask.begin, -mask.end)):
            if mask.end > up_to:
                kept.append(mask)
                up_to = min(up_to, max(mask.begin, at))
            elif mask.end > at:
                released += [self._text(at, max(at, mask.begin)), mask.mask if mask.begin >= at else ""]
                at = mask.end
        self._masks = kept
        released.append(self._text(at, up_to))
        self._held, self._num_released = self._held[max(at, up_to) - self._num_released :], max(at, up_to)
        return "".join(released)

    def _text(self, begin: int, end: int) -> str:
        return self._held[begin - self._num_released : max(begin, end) - self._num_released]
