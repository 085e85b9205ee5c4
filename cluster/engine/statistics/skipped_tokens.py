"""The tokens that took the token pipe past vLLM's output processor, for vLLM's statistics."""

from vllm.v1.engine.output_processor import RequestState
from vllm.v1.metrics.stats import IterationStats

from cluster.engine.statistics.engine_metrics import PIPED_STEPS
from cluster.engine_core.token_pipe import PipedOutput


class SkippedTokens:
    """Tokens that vLLM's part does not see, counted until its next statistics."""

    def __init__(self) -> None:
        self._num_tokens = 0
        """Of the step that is counted now."""
        self._steps: list[int] = []
        """Tokens of each step before it."""
        self._latencies_s: list[float] = []

    def count(self, state: RequestState | None, output: PipedOutput, at: float, *, is_observed: bool) -> None:
        """`state` is vLLM's of the request; None if vLLM has finished it. `at`: time of the output, in seconds."""
        num_tokens = len(output.token_ids)
        self._num_tokens += num_tokens
        if state is None or state.stats is None:
            return
        state.stats.num_generation_tokens += num_tokens
        if output.finish_reason is not None:  # vLLM takes the time of the last output by itself
            return
        if is_observed:
            self._latencies_s.append(at - state.stats.last_token_ts)
        state.stats.last_token_ts = at

    def stepped(self) -> None:
        """All outputs of a step are counted."""
        if self._num_tokens:
            self._steps.append(self._num_tokens)
            self._num_tokens = 0

    def tell(self, statistics: IterationStats) -> None:
        statistics.num_generation_tokens += sum(self._steps)
        statistics.inter_token_latencies_iter += self._latencies_s
        setattr(statistics, PIPED_STEPS, self._steps)
        self._steps, self._latencies_s = [], []
