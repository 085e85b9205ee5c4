"""The stored part of a POST /v1/chat/completions with `store`."""

from datetime import datetime
from typing import Any

import msgspec

from api.state.postgres.stores.chat_completions import ChatCompletion
from api.state.postgres.stores.items import too_large
from api.wire.pages import metadata_of, user_of
from cluster.errors import InvalidRequest

Body = dict[str, Any]

_SHOWN = (
    "frequency_penalty",
    "presence_penalty",
    "response_format",
    "seed",
    "temperature",
    "tool_choice",
    "tools",
    "top_p",
)
"""Fields of the request that are copied into the stored chat completion."""


def wants_store(body: Any) -> bool:
    """Raises InvalidRequest."""
    wanted = body.get("store") if isinstance(body, dict) else None
    if wanted is not None and not isinstance(wanted, bool):
        raise InvalidRequest("store must be true or false", "store", "invalid_type")
    return bool(wanted)


class StoredRequest:
    def __init__(self, body: Body, created_at: datetime, max_bytes: int) -> None:
        """`max_bytes`: the most bytes of the request that may be stored. Raises InvalidRequest for a request that
        cannot be stored. The rest of the request is checked when it is answered.
        """
        self.metadata = metadata_of(body.get("metadata"))
        self.body = body
        self.hides_usage = False
        """The stream has the usage only because Baton asked for it: the client must not see it."""
        self._user = user_of(body.get("user"))
        self._created_at = created_at
        self._messages = msgspec.json.encode(body.get("messages"))  # now, because rendering may change the messages
        self.num_bytes = len(self._messages) + len(msgspec.json.encode([body.get(name) for name in _SHOWN]))
        """The bytes of the request that are stored."""
        if self.num_bytes > max_bytes:
            raise too_large("messages", self.num_bytes, max_bytes)
        if body.get("stream") is True:
            self._ask_for_usage()

    def completed(self, completion: Body) -> ChatCompletion:
        """The chat completion to store. `completion`: as the client gets it, without its metadata."""
        shown = {**{name: self.body.get(name) for name in _SHOWN}, "input_user": self._user, **completion}
        return ChatCompletion(
            id=completion["id"],
            created_at=self._created_at,
            model=completion["model"],
            end_user=self._user,
            metadata=self.metadata,
            body=msgspec.json.encode(shown),
            messages=self._messages,
        )

    def _ask_for_usage(self) -> None:
        options = self.body.get("stream_options") or {}
        if isinstance(options, dict) and not options.get("include_usage"):
            self.hides_usage = True
            options = {**options, "include_usage": True, "continuous_usage_stats": False}
            self.body = {**self.body, "stream_options": options}
