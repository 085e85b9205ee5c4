"""AttemptTally: the tokens of one attempt, counted as they reach the session."""

from cluster.messages.generation import PromptTokenSources, TokenDelta
from cluster.messages.ids import Outcome
from cluster.messages.placement import Placement
from router.session.receipt import AttemptEnd, AttemptReceipt
from router.session.timeline import AttemptTimeline


class AttemptTally:
    """Counts what the engines of one attempt have given, and what of it the client has. Times are seconds since the
    request reached the ingress.
    """

    __slots__ = (
        "_began_s",
        "_end",
        "_num_open",
        "_num_prompt_tokens",
        "_placement",
        "_prefill_sources",
        "_shown_sources",
        "_sources",
        "ended_s",
        "num_delivered",
        "num_generated",
        "num_prefill_generated",
        "timeline",
    )

    def __init__(self, placement: Placement, num_prompt_tokens: int, began_s: float, timeline: AttemptTimeline) -> None:
        self.timeline = timeline
        self._placement = placement
        self._num_prompt_tokens = num_prompt_tokens
        self._began_s = began_s
        self.ended_s = began_s
        self._end: AttemptEnd | None = None
        self._num_open = 0
        """Sequences that an engine was asked for and has not ended, as far as the session knows."""
        self._prefill_sources: PromptTokenSources | None = None
        self._sources: PromptTokenSources | None = None
        self._shown_sources: PromptTokenSources | None = None
        self.num_delivered = 0
        self.num_generated = 0
        """Tokens from the worker that generates."""
        self.num_prefill_generated = 0
        """Tokens from the prefill worker of path P->D."""

    def asked(self, num_sequences: int) -> None:
        """An engine was asked for sequences."""
        self._num_open += num_sequences

    def prefilled(self, first: TokenDelta) -> None:
        """The prefill worker has ended the one sequence that it was asked for."""
        self.num_prefill_generated += len(first.token_ids)
        self._num_open -= 1

    def checked(self, first: TokenDelta) -> None:
        """The prefill worker has given a token for the check of a handoff."""
        self.num_prefill_generated += len(first.token_ids)
        self._num_open -= first.finish_reason is not None

    def generated(self, delta: TokenDelta) -> None:
        """The worker that generates has given a delta."""
        self.num_generated += len(delta.token_ids)
        if delta.finish_reason is not None:
            self._num_open -= 1
            self.timeline.num_steps = max(self.timeline.num_steps, delta.num_steps)

    def delivered(self, delta: TokenDelta) -> None:
        """The client is given a delta."""
        self.num_delivered += len(delta.token_ids)
        if self._shown_sources is None:
            self._shown_sources = delta.prompt_sources

    def over(
        self,
        now_s: float,
        end: AttemptEnd | None,
        prefill_sources: PromptTokenSources | None,
        sources: PromptTokenSources | None,
    ) -> None:
        """The attempt is over. `end`: None for the last attempt, which ends as its request does."""
        self.ended_s, self._end = now_s, end
        self._prefill_sources, self._sources = prefill_sources, sources

    @property
    def has_computed(self) -> bool:
        """Whether an engine has computed the prompt, as far as the session knows."""
        return self.num_prefill_generated > 0 or self.num_generated > 0

    def receipt(self, number: int, outcome: Outcome) -> AttemptReceipt:
        """`outcome`: that of the request."""
        end = self._end or AttemptEnd(outcome)
        return AttemptReceipt(
            number=number,
            path=self._placement.path,
            worker=self._placement.generating,
            prefill_worker=self._placement.prefill if self._placement.decode is not None else None,
            end=end,
            num_prompt_tokens=self._num_prompt_tokens,
            num_delivered=self.num_delivered,
            num_generated=self.num_generated,
            num_prefill_generated=self.num_prefill_generated,
            is_complete=self._num_open == 0,
            prefill_sources=self._prefill_sources,
            sources=self._sources,
            shown_sources=self._shown_sources,
            began_s=self._began_s,
            ended_s=self.ended_s,
            timeline=self.timeline.stages(self.ended_s, end, self.num_generated),
        )
