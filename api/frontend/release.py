"""What of a generation leaves for its client. No other module reads the deltas of a session, so that no route and no
encoder can show what the policy of the tenant has not let pass.
"""

import asyncio
from collections.abc import AsyncGenerator, Callable, Iterable
from contextlib import aclosing, suppress
from typing import NamedTuple

from api.safety.answer_screen import GuardWindow
from api.safety.pieces import Piece
from api.safety.screening import Screening
from cluster.errors import ServingError, StateUnavailable
from cluster.messages.generation import TokenDelta
from router.session.session import Session


class SequencePiece(NamedTuple):
    """A piece of one sequence of a generation."""

    sequence: int
    piece: Piece


PiecesOf = Callable[[TokenDelta], Iterable[SequencePiece]]
"""The text of a delta."""


class Release:
    """One generation on its way out."""

    def __init__(self, screening: Screening | None, num_sequences: int, context: str) -> None:
        """`context`: the end of the prompt, if the text continues it."""
        self._screening = screening
        self.num_sequences = num_sequences
        self._answers = [screening.answer(context) for _ in range(num_sequences)] if screening is not None else []
        self._asked: dict[asyncio.Task[bool], tuple[int, GuardWindow]] = {}
        """Windows that the guard judges now."""
        self._held: list[SequencePiece] | None = None
        """What waits for the verdict on the input; None once it is there."""

    async def deltas(self, session: Session) -> AsyncGenerator[TokenDelta, None]:
        """The deltas as the session has them, of a generation that nothing screens. Raises ServingError."""
        if self._screening is not None:
            raise AssertionError("the generation is screened: only its pieces leave")
        async with aclosing(session.run()) as deltas:
            async for delta in deltas:
                yield delta

    async def pieces(self, session: Session, pieces_of: PiecesOf) -> AsyncGenerator[SequencePiece, None]:
        """What leaves, in order per sequence, each of which ends with a finish reason. The session is closed as soon as
        all sequences are over. Raises ServingError (ContentFiltered for an input that the policy does not allow).
        """
        if self._screening is None:
            async with aclosing(self.deltas(session)) as deltas:
                async for delta in deltas:
                    for piece in pieces_of(delta):
                        yield piece
            return
        try:
            async with aclosing(self._screened(session, self._screening, pieces_of)) as pieces:
                async for piece in pieces:
                    yield piece
        finally:
            self._screening.abandon()
            for task in self._asked:
                task.cancel()
            await asyncio.gather(*self._asked, return_exceptions=True)
            for answer in self._answers:
                if answer.screen.has_left and self._held is None:
                    with suppress(StateUnavailable):  # nothing leaves any more
                        await self._screening.finish(answer)

    async def _screened(
        self, session: Session, screening: Screening, pieces_of: PiecesOf
    ) -> AsyncGenerator[SequencePiece, None]:
        verdict = screening.input_verdict
        if verdict is not None:
            self._held = []
        async with aclosing(session.run()) as deltas:
            async for delta in deltas:
                released = [piece for one in pieces_of(delta) for piece in self._put(one)]
                released += self._judged([task for task in self._asked if task.done()])
                self._ask(screening)
                if self._held is not None:
                    assert verdict is not None
                    self._held += released
                    if not verdict.done():
                        continue
                    released = await self._allowed(verdict)
                for piece in released:
                    await self._recorded(screening, piece)
                    yield piece
                if self._is_cut_off:
                    break  # closes the session: its engines abort, and free its KV blocks
        if self._held is not None:
            assert verdict is not None
            for piece in await self._allowed(verdict):
                await self._recorded(screening, piece)
                yield piece
        while self._asked:
            done, _ = await asyncio.wait(self._asked, return_when=asyncio.FIRST_COMPLETED)
            for piece in self._judged(done):
                await self._recorded(screening, piece)
                yield piece
            self._ask(screening)

    async def _recorded(self, screening: Screening, piece: SequencePiece) -> None:
        """Before the end of a sequence leaves, it is on record. Raises StateUnavailable."""
        if piece.piece.finish_reason is not None:
            await screening.finish(self._answers[piece.sequence])

    @property
    def _is_cut_off(self) -> bool:
        """Whether nothing more can leave, and engines may still generate."""
        answers = [answer.screen for answer in self._answers]
        return any(screen.is_cut for screen in answers) and all(screen.is_over for screen in answers)

    async def _allowed(self, verdict: "asyncio.Task[ServingError | None]") -> list[SequencePiece]:
        """What was held for the verdict on the input. Raises ServingError."""
        if (error := await asyncio.shield(verdict)) is not None:
            raise error
        held, self._held = self._held or [], None
        return held

    def _put(self, one: SequencePiece) -> list[SequencePiece]:
        return [SequencePiece(one.sequence, piece) for piece in self._answers[one.sequence].screen.put(one.piece)]

    def _judged(self, tasks: Iterable["asyncio.Task[bool]"]) -> list[SequencePiece]:
        """What leaves with the verdicts of the guard that are there."""
        released: list[SequencePiece] = []
        for task in tasks:
            sequence, window = self._asked.pop(task)
            screen = self._answers[sequence].screen
            released += [SequencePiece(sequence, piece) for piece in screen.judge_window(window, task.result())]
        return released

    def _ask(self, screening: Screening) -> None:
        """Ask the guard about the windows that are full."""
        for sequence, answer in enumerate(self._answers):
            if (window := answer.screen.window()) is not None:
                self._asked[asyncio.create_task(screening.is_blocked(answer, window))] = (sequence, window)
