"""One generated sequence on its way out: pieces come in, and leave when every stage that must see them has. Pure.

Lists, personal data and the classifier decide as the text comes (screened_text.py). The guard decides windows of
WINDOW_LENGTH characters, whose borders depend on the text alone, so that a stream is cut where a whole answer is. If
the policy asks the guard in doubt only, a window without a doubt needs no guard.
"""

import hashlib
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

from api.safety.judge import Judged
from api.safety.pieces import Piece, PieceQueue
from api.safety.policy import Policy, Runs, SafetyStage

WINDOW_LENGTH = 256
"""Characters that the guard judges at a time. More holds answers back for longer; fewer asks the guard more often, and
shows it less.
"""
CONTEXT_LENGTH = 256
"""Characters before a window that the guard sees with it, so that nothing hides across a border. More costs the guard
time; fewer hides more.
"""

ENDED = "stop"
"""How an answer ends that may get a disclaimer. One that `max_tokens` has ended may be continued."""
_OF_PROGRAMS = ("{", "[", "<", "```")
"""What answers begin with that programs read: they get no disclaimer."""
LONGEST_MARKER = max(map(len, _OF_PROGRAMS))


class GuardWindow(NamedTuple):
    """What the guard is to judge."""

    text: str
    """With its context."""
    end: int
    """The character after its last one, in the whole text."""


class AnswerScreen:
    def __init__(
        self,
        judged: Judged,
        policy: Policy,
        has_guard: bool,
        encode: Callable[[str], Sequence[int]],
        *,
        context: str = "",
        disclaimers: Mapping[str, str] | None = None,
    ) -> None:
        """`encode`: the tokens of a text. `context`: the end of the prompt, if the answer continues it, for the guard.
        `disclaimers`: what an answer about a topic ends with, by topic.
        """
        self.judged = judged
        self._encode = encode
        self._disclaimers = disclaimers or {}
        self._queue = PieceQueue(encode)
        runs = policy.stage(SafetyStage.GUARD).runs if has_guard else Runs.NEVER
        self._is_guarded = runs is not Runs.NEVER
        self._is_always = runs is Runs.ALWAYS
        self._is_live = policy.is_live
        self._guarded_to = 0
        """The guard, or the absence of doubts, has cleared the characters before this one."""
        self._tail = context[-CONTEXT_LENGTH:]
        """The text from `_tail_from` on. What the answer continues lies before character 0."""
        self._tail_from = -len(self._tail)
        self._is_asked = False
        """Whether the guard has a window now."""
        self._is_finished = False
        """Whether the text is all there."""
        self._digest = hashlib.sha256()
        self._kept: list[str] | None = [context] if policy.keeps_text else None
        self._opening = ""
        """The first characters that are no blanks."""
        self.is_over = False
        """Whether its last piece has left."""
        self.is_cut = False
        self.has_left = False
        """Whether anything has."""

    def put(self, piece: Piece) -> list[Piece]:
        """The pieces that leave with this one. Nothing leaves after the end or a cut."""
        if self.is_over:
            return []
        self._digest.update(piece.text.encode("utf-8", "surrogatepass"))
        if self._kept is not None:
            self._kept.append(piece.text)
        if len(self._opening) < LONGEST_MARKER:
            self._opening = (self._opening + piece.text).lstrip()[:LONGEST_MARKER]
        self._queue.put(piece)
        self.judged.text.feed(piece.text)
        if self._is_guarded:
            self._tail += piece.text
        if piece.finish_reason is not None:
            self.judged.text.finish()
            self._is_finished = True
        return self._released()

    def window(self) -> GuardWindow | None:
        """The next window for the guard, once; None if there is none yet. Its verdict is told by `judge_window`."""
        if self._is_asked or self.is_over or not self._is_guarded:
            return None
        self._clear_windows()
        if not self._needs_guard() or not self._is_window_full():
            return None
        self._is_asked = True
        end = min(self._guarded_to + WINDOW_LENGTH, self._decided_to)
        return GuardWindow(self._tail[: end - self._tail_from], end)

    def judge_window(self, window: GuardWindow, is_blocked: bool) -> list[Piece]:
        """The pieces that leave with the verdict of the guard."""
        self._is_asked = False
        if self.is_over:
            return []
        if is_blocked:
            return self._cut(self._guarded_to)
        self._move_to(window.end)
        return self._released()

    @property
    def text_sha256(self) -> bytes:
        """Of the text up to the piece that it was cut in."""
        return self._digest.digest()

    @property
    def kept_text(self) -> str | None:
        """The text up to the piece that it was cut in, if the policy keeps it."""
        return None if self._kept is None else "".join(self._kept)

    def _released(self) -> list[Piece]:
        text = self.judged.text
        self._clear_windows()
        is_waiting = self._is_guarded and self._needs_guard()
        if text.cut is not None and (self._is_live or not is_waiting):
            return self._cut(text.cut.begin)
        up_to = min(self._decided_to, self._guarded_to) if is_waiting and not self._is_live else self._decided_to
        released = self._queue.release(up_to, text.masks, holds_end=is_waiting)
        if released and released[-1].finish_reason is not None:
            self.is_over = True
            released[-1] = self._with_disclaimers(released[-1])
        self.has_left = self.has_left or bool(released)
        return released

    def _with_disclaimers(self, last: Piece) -> Piece:
        """The last piece of an answer, with the disclaimers of what the answer is about."""
        topics = [topic for topic in self.judged.judge.topics if topic in self._disclaimers]
        has_ended_itself = last.finish_reason == ENDED and last.stop_reason is None
        if not topics or not has_ended_itself or self._opening.startswith(_OF_PROGRAMS):
            return last
        text = "".join(f"\n\n{self._disclaimers[topic]}" for topic in topics)
        added, end = self._encode(text), len(last.token_ids) - 1  # its last token is the one that has ended it
        logprobs = last.logprobs
        if logprobs is not None:
            logprobs = [*logprobs[:end], *[None] * len(added), *logprobs[end:]]
        token_ids = [*last.token_ids[:end], *added, *last.token_ids[end:]]
        return last._replace(text=last.text + text, token_ids=token_ids, logprobs=logprobs)

    def _cut(self, at: int) -> list[Piece]:
        self.is_over = self.is_cut = self.has_left = True
        return self._queue.cut(at, self.judged.text.masks)

    @property
    def _decided_to(self) -> int:
        return self.judged.text.decided_to

    @property
    def _is_whole(self) -> bool:
        """Whether no character will be decided any more."""
        return self._is_finished or self.judged.text.cut is not None

    def _needs_guard(self) -> bool:
        """Whether the guard has to judge the window that begins at `_guarded_to`."""
        if self._guarded_to >= self._decided_to and self._is_whole:
            return False
        doubts = self.judged.judge.doubts
        return self._is_always or bool(doubts and doubts[0] <= self._guarded_to + WINDOW_LENGTH)

    def _is_window_full(self) -> bool:
        return self._decided_to >= self._guarded_to + WINDOW_LENGTH or (
            self._is_whole and self._decided_to > self._guarded_to
        )

    def _clear_windows(self) -> None:
        """Clear the full windows that need no guard."""
        while self._is_guarded and self._is_window_full() and not self._needs_guard():
            self._move_to(min(self._guarded_to + WINDOW_LENGTH, self._decided_to))

    def _move_to(self, guarded_to: int) -> None:
        self._guarded_to = guarded_to
        doubts = self.judged.judge.doubts
        while doubts and doubts[0] <= guarded_to:
            doubts.popleft()
        begin = max(self._tail_from, guarded_to - CONTEXT_LENGTH)
        self._tail, self._tail_from = self._tail[begin - self._tail_from :], begin
