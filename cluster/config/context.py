"""The section `context:`."""

from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from cluster.config.units import Share


class ContextConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How a conversation is fitted into the model's window when `truncation` is "auto". See docs/state.md."""

    default_truncation: Literal["disabled", "auto"] = "disabled"
    """For requests that do not say. "disabled", as OpenAI has it, refuses what does not fit."""
    answer_share: Share = 0.25
    """Of the window, kept free for the answer; for a longer `max_output_tokens` more is, up to half. More makes room
    for long answers, less for the conversation. What is left is the prompt's, and the shares below are of that.
    """
    system_share: Share = 0.5
    """The most that instructions, leading system messages and tools may take; more of them is refused, so that there is
    room for a conversation.
    """
    summary_share: Annotated[float, Meta(ge=0, le=0.4)] = 0.1
    """For the summary of what is too old to be sent as it is. More keeps more detail; 0 makes no summaries."""
    memory_share: Annotated[float, Meta(ge=0, le=0.4)] = 0.1
    """For what a turn is reminded of: older messages that have to do with its question. More finds more, and stays with
    its turn for as long as that is sent; 0 looks for nothing.
    """
    history_share: Annotated[float, Meta(gt=0, le=1)] = 1.0
    """The most that the turns which are sent as they are may take, where the others leave as much. Less makes prompts
    short and prefills fast, and leaves more to the summary.
    """
    low_water: Share = 0.5
    """When the turns have outgrown their part, the oldest are left out until this share of it is left, and then none
    for many turns, which find the same KV prefix. Less moves the beginning more seldom, and leaves more out each time.
    """
    summary_step: Share = 0.2
    """The summary is extended when so much has been said, as a share of the turns' part, that it does not cover. Less
    is more often and more up to date, more is cheaper.
    """
    summary_model: str | None = None
    """A served model that writes the summaries. None: the one that answers."""

    def __post_init__(self) -> None:
        if self.low_water + self.summary_step >= 1:
            raise ValueError(
                "low_water and summary_step must be less than 1 together: the beginning would move at once"
            )
