"""StepPacer: what an engine's next step has for prompts beside decodes, by its objectives and its steps so far. Pure.

A step that is bounded by the objective alone may compute prompts too slowly: a mixture of experts reads all experts for
a single token of a prompt. There the engine lets some steps only decode, and spends the time that these save on a step
that is long enough (router/prediction/long_steps.py). A TPOT is a mean, so answers keep it.
"""

from collections.abc import Iterable
from typing import NamedTuple, final

from router.prediction.learned_latency import LatencyModel
from router.prediction.long_steps import LONG_OF_TPOT, MOST_SAVING, long_steps
from router.prediction.step_chunk import LEAST_CHUNK
from router.prediction.step_room import StepRoom


class Wanted(NamedTuple):
    """What the prompts that wait want of a step."""

    num_tokens: int
    """Of all of them together."""
    num_computed: int
    """Tokens of the first one that come before, to which its next ones attend."""


@final
class StepPacer:
    __slots__ = ("_at", "_num_closed", "_num_steps", "_saved_s")

    def __init__(self) -> None:
        self._saved_s = 0.0
        """By how much the steps up to `_at` were shorter than their objective lets them be on average. Below zero if an
        asynchronous engine planned a second long step before it knew that the first one has spent the time.
        """
        self._at = 0.0
        self._num_steps = 0
        """Steps since then."""
        self._num_closed = 0
        """Steps in a row that only decode though prompts wait."""

    def forget(self, now: float) -> None:
        """Nothing decodes that has an objective, so nothing has saved time."""
        self._saved_s, self._at, self._num_steps, self._num_closed = 0.0, now, 0, 0

    def ran(self, num_steps: int = 1) -> None:
        """So many steps were planned, or have run."""
        self._num_steps += num_steps

    def room(
        self,
        model: LatencyModel,
        num_decoding: int,
        context_tokens: float,
        objectives: Iterable[float],
        wanted: Wanted,
        most: int,
        now: float,
        least: int = LEAST_CHUNK,
    ) -> StepRoom:
        """What the next step has for prompts. It is asked for while prompts wait.

        `most`: tokens that the decodes leave of the step; `now`: in seconds, by a clock that never goes back; `least`:
        prompt tokens that a step with prompts may compute in any case.
        """
        times, bound = model.times, model.bound
        decode_s = times.decode_s(num_decoding, context_tokens)
        tpot_s = bound.binding_tpot_s(objectives, decode_s)
        longest_s = mean_s = bound.longest_step_s(decode_s, tpot_s)
        steps = long_steps(times, bound, num_decoding, decode_s, tpot_s, most, wanted.num_computed)
        if steps is None:
            self.forget(now)
        else:
            may_take_s = mean_s + self._settle(mean_s, max(LONG_OF_TPOT * tpot_s, steps.seconds) - mean_s, now)
            num_new = min(wanted.num_tokens, most)
            wanted_s = min(steps.seconds, decode_s + times.added_s(num_new, num_decoding, wanted.num_computed))
            # Steps that take longer than predicted save nothing, and prompts must not wait for them for ever.
            if may_take_s < wanted_s and self._num_closed < MOST_SAVING:
                self._num_closed += 1
                return StepRoom(times, 0, num_decoding, 0.0, 0, saves_time=True)
            self._num_closed = 0
            longest_s = max(mean_s, may_take_s, wanted_s)
        return StepRoom(times, most, num_decoding, longest_s - decode_s, least)

    def _settle(self, mean_s: float, most_s: float, now: float) -> float:
        """Count the steps up to now, whose mean may be `mean_s`. Returns what they have saved, `most_s` at most."""
        saved_s = self._saved_s + self._num_steps * mean_s - (now - self._at)
        self._saved_s, self._at, self._num_steps = min(max(saved_s, -most_s), most_s), now, 0
        return self._saved_s
