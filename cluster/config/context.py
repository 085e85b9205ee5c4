"""The config section `context:`."""

from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from cluster.config.units import Share


class ContextConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How a conversation is fitted into the model's window when `truncation` is "auto". See docs/state.md."""

    default_truncation: Literal["disabled", "auto"] = "disabled"
    """The `truncation` of requests that set none. "disabled" is OpenAI's default: a conversation that does not fit is
    refused.
    """
    answer_share: Share = 0.25
    """Share of the model's window that is kept free for the answer. If `max_output_tokens` is more than this share, as
    much as that is kept free, up to half of the window. A larger share leaves room for longer answers; a smaller share
    leaves more room for the conversation. The rest of the window is the prompt's part, and the shares below are shares
    of the prompt's part.
    """
    system_share: Share = 0.5
    """Largest share for instructions, leading system messages and tools together, of the window without the answer
    (without `max_output_tokens` if that is less than `answer_share`). A request with more of them is refused. A larger
    share accepts longer instructions; a smaller share leaves more room for the conversation.
    """
    summary_share: Annotated[float, Meta(ge=0, le=0.4)] = 0.1
    """Share of the prompt's part for the summary of turns that are too old to be sent unchanged. A larger share keeps
    more detail; a smaller share leaves more room for turns. 0 makes no summaries.
    """
    memory_share: Annotated[float, Meta(ge=0, le=0.4)] = 0.1
    """Share of the prompt's part for older messages that are relevant to a turn's question. A larger share sends more
    of these memories, which stay in the prompt as long as their turn does; a smaller share leaves more room for turns.
    0 sends none.
    """
    history_share: Annotated[float, Meta(gt=0, le=1)] = 1.0
    """Largest share of the prompt's part for turns that are sent unchanged, if the other parts leave as much. A smaller
    share makes prompts shorter and prefills faster; a larger share leaves less to the summary.
    """
    low_water: Share = 0.5
    """Share of the turns' part that is left after the oldest turns are dropped. Turns are dropped when they no longer
    fit into their part. After that, many turns find the same KV prefix until the part is full again. A smaller share
    drops turns less often, and more of them each time.
    """
    summary_step: Share = 0.2
    """Share of the turns' part that must be missing from the summary before the summary is extended. A smaller share
    keeps the summary more up to date; a larger share costs fewer requests.
    """
    summary_model: str | None = None
    """The served model that writes summaries. If it is missing, the model that answers writes them."""

    def __post_init__(self) -> None:
        if self.low_water + self.summary_step >= 1:
            raise ValueError(
                "low_water + summary_step must be less than 1: the first turn that is sent would move again at once"
            )
