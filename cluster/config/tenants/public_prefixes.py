"""The config section `public_prefixes:`."""

import msgspec

MAX_PREFIXES = 64
"""Public prefixes that a service may have, in number. Each prompt of a tenant that shares them is compared with each,
which takes 20 us if 10,000 tokens are alike, and less than 1 us if the first KV block differs. More delays the event
loop of the ingress; fewer refuses an operator with many applications.
"""


class PublicPrefixConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A system prompt of the operator, which tenants may share the KV blocks of (docs/tenants.md). It has a text or a
    file.
    """

    text: str | None = None
    """The system prompt, exactly as clients send it."""
    file: str | None = None
    """A UTF-8 file with the system prompt. The line break at its end does not count. A relative path is inside the
    repository.
    """

    def __post_init__(self) -> None:
        if (self.text is None) == (self.file is None):
            raise ValueError("a public prefix has either `text` or `file`")
