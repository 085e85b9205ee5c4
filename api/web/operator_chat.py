"""What the page asks of the model, and what it is told of an answer when the answer has ended. Pure."""

from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

from api.identity.principal import Principal
from api.identity.rights import Right
from api.web.recent_requests import RequestLine
from cluster.messages.ids import Path, SloClass

OPERATOR = Principal(tenant="operator", project="", key="", rights=frozenset({Right.INFERENCE}))
"""For whom the page's requests run. The ledger, the limits and the screening know them by the name of this tenant; it
has no account, no key and no stored data.
"""
MOST_MESSAGES = 200
"""Messages of one request. More lets a page that was left open send ever longer prompts; fewer ends long talks."""
MOST_TOKENS = 4096
"""Tokens that an answer may have at most. More lets one answer hold an engine for longer; fewer cuts long answers."""
MOST_TOKENS_UNASKED = 512
"""Tokens of an answer if the page does not say."""


class ChatMessage(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    role: Literal["system", "user", "assistant"]
    content: str


class ChatBody(msgspec.Struct, frozen=True, kw_only=True):
    messages: Annotated[list[ChatMessage], Meta(min_length=1, max_length=MOST_MESSAGES)]
    slo_class: SloClass = SloClass.STANDARD
    max_tokens: Annotated[int, Meta(ge=1, le=MOST_TOKENS)] = MOST_TOKENS_UNASKED
    path: Path | None = None
    """None lets the Scheduler choose. Only where `ingress.allow_path_header` is true."""

    def for_frontend(self, model: str) -> dict[str, Any]:
        """As a chat completion of the public API that streams."""
        return {
            "model": model,
            "messages": [{"role": message.role, "content": message.content} for message in self.messages],
            "max_completion_tokens": self.max_tokens,
            "stream": True,
            "stream_options": {"include_usage": True},
        }


class AnswerReport(msgspec.Struct, frozen=True, kw_only=True):
    """The last event of the stream of an answer."""

    request: RequestLine | None
    """None if this replica keeps no receipts."""
    request_id: str
    http_request: str
    path: Path | None
    predicted_ttft_s: float | None
    predicted_tpot_s: float | None
