"""The public prefixes of the service, and how much of a prompt is of one.

A public prefix is a system prompt that the operator has registered. Its tokens are those with which the chat template
begins each prompt of exactly this system message, up to what the user says: two chats that differ in what the user says
are rendered, and their common start is the prefix. The renderer is that of requests.

A prompt must begin with all tokens of a prefix. Of these, the whole KV blocks are public, and the tokens after the last
whole block are not.
"""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from cluster.config.tenants.public_prefixes import PublicPrefixConfig
from cluster.errors import ServingError
from cluster.repository import REPO_ROOT

Render = Callable[[list[dict[str, Any]]], Awaitable[list[int]]]
"""The prompt of a chat's messages, in tokens. Raises ServingError."""

USERS_SAY = ("1", "a")
"""What the user says in the two chats. No tokenizer makes the same token of both."""


class PublicPrefixes:
    def __init__(self, prefixes: Sequence[list[int]], block_size: int) -> None:
        """`prefixes`: in tokens, at least one KV block each."""
        self._prefixes = sorted(prefixes, key=len, reverse=True)
        self._block_size = block_size

    @classmethod
    async def registered(
        cls, config: Mapping[str, PublicPrefixConfig], block_size: int, render: Render
    ) -> "PublicPrefixes":
        """The prefixes of the config. Raises ValueError for a prefix that cannot be read, rendered or shared."""
        prefixes = []
        for name, prefix in config.items():
            try:
                tokens = await _tokens(_text(prefix), render)
            except (OSError, UnicodeDecodeError, ServingError) as error:
                raise ValueError(f"public_prefixes.{name}: {error}") from error
            if len(tokens) < block_size:
                raise ValueError(
                    f"public_prefixes.{name}: the prefix has {len(tokens)} tokens, and a KV block has {block_size}: "
                    "only whole blocks can be shared, so give it a longer text or leave it out"
                )
            prefixes.append(tokens)
        return cls(prefixes, block_size)

    def num_public(self, token_ids: list[int]) -> int:
        """The number of tokens at the start of a prompt that are public, by the longest prefix. A whole number of KV
        blocks.
        """
        first_block = token_ids[: self._block_size]
        for prefix in self._prefixes:
            # Most prefixes differ in the first block: comparing it alone saves a copy of the prompt.
            if prefix[: self._block_size] == first_block and token_ids[: len(prefix)] == prefix:
                return len(prefix) // self._block_size * self._block_size
        return 0


def _text(prefix: PublicPrefixConfig) -> str:
    """Raises OSError, and UnicodeDecodeError for a file that is not UTF-8."""
    if prefix.file is None:
        return prefix.text or ""
    return Path(REPO_ROOT / prefix.file).read_text(encoding="utf-8").removesuffix("\n")


async def _tokens(text: str, render: Render) -> list[int]:
    """Raises ServingError."""
    system = {"role": "system", "content": text}
    one, other = [await render([system, {"role": "user", "content": says}]) for says in USERS_SAY]
    num_common = next((i for i, (a, b) in enumerate(zip(one, other, strict=False)) if a != b), len(one))
    return one[:num_common]
