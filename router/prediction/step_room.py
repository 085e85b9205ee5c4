"""What a step has left for the prompts that take their parts of it in turn. Pure."""

from math import inf
from typing import final

from router.prediction.step_chunk import LEAST_CHUNK
from router.prediction.step_model import StepModel


@final
class StepRoom:
    """What a step has left for prompts, which take their chunks of it in turn: tokens, and time beside decodes. A
    prompt with a long context takes more time for each token, so one number of tokens for all of them would not bound
    a step.
    """

    __slots__ = ("_least", "_num_tokens", "_seconds", "_times", "num_left", "saves_time")

    def __init__(
        self,
        times: StepModel,
        num_left: int,
        num_decoding: int = 0,
        seconds: float = inf,
        least: int = LEAST_CHUNK,
        *,
        saves_time: bool = False,
    ) -> None:
        """`num_left`: most prompt tokens, of all prompts together; `seconds`: by which prompts may lengthen the step;
        `least`: tokens of prompts that the step may compute in any case; `saves_time`: for a longer step, though
        prompts wait, so that this one has no room for any.
        """
        self._times = times
        self._num_tokens = float(num_decoding)
        self._seconds = seconds
        self._least = least
        self.saves_time = saves_time
        self.num_left = num_left

    @property
    def is_bounded(self) -> bool:
        """Whether the time of the step is bounded."""
        return self._seconds < inf

    def tokens(self, context_tokens: float) -> int:
        """Most tokens for the next prompt. `context_tokens`: tokens of this prompt that come before them."""
        if not self.is_bounded:
            return self.num_left
        most = max(self._least, int(self._times.tokens_within(self._seconds, self._num_tokens, context_tokens)))
        return min(most, self.num_left)

    def take(self, num_new: int, context_tokens: float) -> None:
        """The next prompt has `num_new` tokens of the step."""
        self._seconds -= self._times.added_s(num_new, self._num_tokens, context_tokens)
        self._num_tokens += num_new
        self.num_left -= num_new
        self._least = max(0, self._least - num_new)
        if self.is_bounded and not self._least and self.tokens(0) < LEAST_CHUNK:
            self.num_left = 0  # too little for another prompt to begin, which would hold its KV blocks from then on
