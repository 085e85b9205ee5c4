"""Estimates the tokens of items: the tokens of an item's text, which are counted once, and those of the template
around it.
"""

import logging
from collections import OrderedDict
from collections.abc import Sequence

from api.context.prompt_notes import IMAGE_TOKENS, MESSAGE_TOKENS, SEAM_TOKENS, num_images, text_of
from api.context.turn_boundaries import Item
from api.frontend.frontend import Frontend
from cluster.errors import ServingError

logger = logging.getLogger("baton.context")

MAX_BYTES_PER_CHAR = 4
"""The most bytes of a character in UTF-8."""
KEPT_COUNTS = 200_000
"""Counts of items that a replica keeps. More takes memory; fewer counts the items of long conversations again."""

_WORD = "Hello"
_ROLES = ("user", "assistant", "user")


class TokenCounter:
    def __init__(self, frontend: Frontend) -> None:
        self._frontend = frontend
        self._kept: OrderedDict[str, int] = OrderedDict()
        """The tokens of items by id, the oldest first. Items do not change."""
        self._around_message: int | None = None
        """The tokens that the chat template puts around a message. None until they are measured."""

    async def items(self, items: Sequence[Item]) -> list[int]:
        kept = {item["id"]: self._kept[item["id"]] for item in items if item["id"] in self._kept}
        others = [item for item in items if item["id"] not in kept]
        counted = await self.texts([text_of(item) for item in others])
        found = {
            item["id"]: tokens + num_images(item) * IMAGE_TOKENS for item, tokens in zip(others, counted, strict=True)
        }
        counts = kept | found
        self._kept |= found
        while len(self._kept) > KEPT_COUNTS:
            self._kept.popitem(last=False)
        return [counts[item["id"]] for item in items]

    async def in_prompt(self, items: Sequence[Item]) -> list[int]:
        """The tokens of items, with those that the served chat template puts around a message."""
        if self._around_message is None:
            self._around_message = await self._measured()
        less = MESSAGE_TOKENS - self._around_message
        counts = await self.items(items)
        return [
            tokens - less if item["type"] == "message" else tokens for item, tokens in zip(items, counts, strict=True)
        ]

    async def _measured(self) -> int:
        """The tokens that the chat template puts around a message. All served models have the same template."""
        messages = [{"role": role, "content": _WORD} for role in _ROLES]
        (model, *_), (word,) = await self._frontend.models(), await self._frontend.count_texts([_WORD])
        try:
            one, two, three = [
                await self._frontend.count_tokens({"model": model["id"], "messages": messages[:number]})
                for number in (1, 2, 3)
            ]
        except ServingError as error:
            logger.warning("the tokens of the chat template around a message cannot be measured: %s", error)
            return MESSAGE_TOKENS
        return max(two - one, three - two) - word + SEAM_TOKENS

    async def texts(self, texts: Sequence[str]) -> list[int]:
        """The tokens of each text as a message of its own."""
        return [MESSAGE_TOKENS + tokens for tokens in await self._frontend.count_texts(texts)] if texts else []


def most_tokens(item: Item) -> int:
    """The most tokens that an item can have with any tokenizer: a token has at least one byte."""
    return MESSAGE_TOKENS + most_tokens_of_text(text_of(item)) + num_images(item) * IMAGE_TOKENS


def most_tokens_of_text(text: str) -> int:
    return len(text) if text.isascii() else MAX_BYTES_PER_CHAR * len(text)
