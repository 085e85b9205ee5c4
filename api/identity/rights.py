"""What an API key may do: rights, and how they are read from text. Pure."""

from collections.abc import Iterable
from enum import StrEnum

from cluster.errors import InvalidRequest


class Right(StrEnum):
    INFERENCE = "inference"
    """Generate answers, count tokens, see the models, and have texts screened."""
    STATE_READ = "state:read"
    """Read conversations, responses, stored chat completions and feedback."""
    STATE_WRITE = "state:write"
    """Store, change and delete them."""
    SAFETY_REVIEW = "safety:review"
    """Read safety events and appeals."""
    USAGE_READ = "usage:read"
    """Read what the tenant has used."""


ALL_RIGHTS = frozenset(Right)
DEFAULT_RIGHTS = frozenset({Right.INFERENCE, Right.STATE_READ, Right.STATE_WRITE})
"""The rights of a key for which none are named. A right that is new is not among them by itself."""


def rights_in(names: Iterable[str]) -> frozenset[Right]:
    """Rights by name. Raises InvalidRequest for a name that is no right, and if there are none."""
    found = set()
    for name in names:
        try:
            found.add(Right(name.strip()))
        except ValueError:
            raise _invalid(f"{name.strip()!r} is no right") from None
    if not found:
        raise _invalid("a key without a right can do nothing")
    return frozenset(found)


def rights_of_text(text: str) -> frozenset[Right]:
    """Rights that commas part, as in `inference,state:read`. Raises InvalidRequest."""
    return rights_in(text.split(",") if text.strip() else ())


def _invalid(why: str) -> InvalidRequest:
    return InvalidRequest(f"{why}: the rights are {', '.join(Right)}", "rights", "invalid_value")
