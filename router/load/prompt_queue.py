"""PromptQueue: the prompts that one worker computes or will compute, and when each of them will be done.

An engine computes prompts one after another, first come first served or by deadline (`EngineShape.by_deadline`). By
deadline, an urgent prompt overtakes prompts that are due later. On most engines it also overtakes one that is partly
computed (`EngineShape.overtakes`), and that one goes on where it was. So a new prompt waits for the prompts that are
due earlier, and delays those that are due later.
"""

from math import inf
from typing import Final, final

from cluster.messages.ids import RequestId
from router.load.charge import Charge

_NO_PROMPTS: Final[list[Charge]] = []


@final
class PromptQueue:
    __slots__ = ("_behind_s", "_in_order", "_left_s", "_num_fixed", "_since", "by_deadline", "charges")

    def __init__(self, now: float, *, by_deadline: bool, overtakes: bool) -> None:
        self.by_deadline = by_deadline
        self._num_fixed = 0 if overtakes else 1
        """Prompts at the head of the queue, which have begun, that no other prompt overtakes."""
        self.charges: dict[RequestId, Charge] = {}
        """By request id, oldest first."""
        self._in_order: list[Charge] = []
        """In the order in which the engine computes them."""
        self._left_s: dict[RequestId, float] = {}
        """Engine time, in seconds, that each prompt still takes, as of `_since`. Negative for a prompt that is late: it
        is expected to take as long again as it is late.
        """
        self._since = now
        """When the progress of the first prompt was last noted."""
        self._behind_s = 0.0
        """Engine time, in seconds, of all prompts but the first."""

    def __len__(self) -> int:
        return len(self._in_order)

    def seconds(self, now: float) -> float:
        """Time until all prompts are computed. A first prompt that should be computed by now is expected to be late for
        as long again as it is late already.
        """
        if not self._in_order:
            return 0.0
        first_s = self._left_s[self._in_order[0].request_id] - (now - self._since)
        return self._behind_s + (first_s if first_s > 0.0 else -first_s)

    def seconds_before(self, due_at: float, now: float) -> float:
        """Time until the prompts are computed that come before a new one whose first token is due at `due_at`."""
        seconds = self.seconds(now)
        if self.by_deadline:
            for charge in reversed(self._in_order[self._num_fixed :]):
                if charge.due_at <= due_at:
                    break
                seconds -= self.left_s(charge)
            else:
                if not self._num_fixed:
                    return 0.0
        return seconds if seconds > 0.0 else 0.0

    def after(self, due_at: float) -> list[Charge]:
        """The prompts that a new one overtakes whose first token is due at `due_at`, in order."""
        if not self.by_deadline or not self._in_order or self._in_order[-1].due_at <= due_at:
            return _NO_PROMPTS
        return [charge for charge in self._in_order[self._num_fixed :] if charge.due_at > due_at]

    def left_s(self, charge: Charge) -> float:
        """Engine time that a prompt of the queue still takes, without the progress since the last change."""
        return abs(self._left_s[charge.request_id])

    def uncomputed_s(self, request_id: RequestId, now: float) -> float:
        """Engine time that a prompt still takes, as predicted. 0 for a prompt that is not in the queue."""
        if request_id not in self.charges:
            return 0.0
        self._note_progress(now)
        return max(0.0, self._left_s[request_id])

    def add(self, charge: Charge, now: float) -> None:
        self._note_progress(now)
        self.charges[charge.request_id] = charge
        self._left_s[charge.request_id] = charge.prefill_s
        due_at, place = self._due_at(charge), len(self._in_order)
        while place > self._num_fixed and self._due_at(self._in_order[place - 1]) > due_at:
            place -= 1
        self._in_order.insert(place, charge)
        self._sum_up()

    def remove(self, request_id: RequestId, now: float) -> None:
        """The prompt is computed, or no longer wanted. No-op for a prompt that is not in the queue."""
        charge = self.charges.pop(request_id, None)
        if charge is None:
            return
        self._note_progress(now)
        self._in_order.remove(charge)
        del self._left_s[request_id]
        self._sum_up()

    def validate(self) -> None:
        """Assert every invariant."""
        assert len(self._in_order) == len(self.charges) == len(self._left_s)
        assert all(self.charges[charge.request_id] is charge for charge in self._in_order)
        due = [self._due_at(charge) for charge in self._in_order[self._num_fixed :]]
        assert due == sorted(due)

    def _due_at(self, charge: Charge) -> float:
        return charge.due_at if self.by_deadline else inf

    def _sum_up(self) -> None:
        self._behind_s = 0.0
        if self._in_order:
            self._behind_s = sum([abs(left_s) for left_s in self._left_s.values()]) - self.left_s(self._in_order[0])

    def _note_progress(self, now: float) -> None:
        """The engine has computed the first prompt since the progress was last noted."""
        if self._in_order:
            first = self._in_order[0].request_id
            self._left_s[first] -= now - self._since
        self._since = now
