"""Parsing of the body of POST /v1/feedback. The route is api/routes/stored/feedback.py, and the table
api/state/postgres/stores/feedback.py.
"""

from typing import Any, NamedTuple

from api.wire.pages import user_of
from cluster.errors import InvalidRequest

KNOWN = frozenset({"comment", "item_id", "labels", "rating", "response_id", "user"})

MAX_LABELS, MAX_LABEL, MAX_COMMENT = 16, 64, 10_000
"""Labels of one opinion, characters of one label, and characters of the comment. Lower values refuse longer feedback;
higher values store more for each request.
"""

RATINGS = {"1": 1, "-1": -1, "up": 1, "down": -1}


class Opinion(NamedTuple):
    """What one end user thinks of one answer."""

    subject: str
    """The id of a stored response, or of a stored chat completion."""
    rating: int
    """1 for a good answer, -1 for a bad one."""
    labels: list[str]
    comment: str | None
    item: str | None
    """The id of the item of the response that the opinion is about. None if it is about the whole answer."""
    end_user: str | None


def opinion_of(body: dict[str, Any]) -> Opinion:
    """The opinion in a request body. Raises InvalidRequest for a field that is missing or wrong."""
    return Opinion(
        subject=_text(body, "response_id", is_required=True) or "",
        rating=rating_of(body.get("rating")),
        labels=_labels(body.get("labels")),
        comment=_text(body, "comment", MAX_COMMENT),
        item=_text(body, "item_id"),
        end_user=user_of(body.get("user")),
    )


def rating_of(value: Any) -> int:
    """The rating as 1 or -1. Raises InvalidRequest for a value that is not in `RATINGS`."""
    is_one = isinstance(value, int | str) and not isinstance(value, bool) and str(value) in RATINGS
    if not is_one:
        raise InvalidRequest("rating must be 1 or -1, 'up' or 'down'", "rating", "invalid_value")
    return RATINGS[str(value)]


def _labels(value: Any) -> list[str]:
    """The labels in their order, without repetitions. Raises InvalidRequest."""
    labels = [] if value is None else value
    if not isinstance(labels, list) or not all(isinstance(label, str) for label in labels):
        raise InvalidRequest("labels must be a list of strings", "labels", "invalid_type")
    if len(labels) > MAX_LABELS:
        raise InvalidRequest(f"labels may have at most {MAX_LABELS} entries", "labels", "array_above_max_length")
    if any(not 0 < len(label) <= MAX_LABEL for label in labels):
        raise InvalidRequest(f"each label must have 1 to {MAX_LABEL} characters", "labels", "invalid_value")
    return list(dict.fromkeys(labels))


def _text(body: dict[str, Any], name: str, most: int | None = None, *, is_required: bool = False) -> str | None:
    value = body.get(name)
    if value is None and is_required:
        raise InvalidRequest(f"{name} is missing", name, "missing_required_parameter")
    if value is not None and not isinstance(value, str):
        raise InvalidRequest(f"{name} must be a string", name, "invalid_type")
    if value is not None and most is not None and len(value) > most:
        raise InvalidRequest(f"{name} may have at most {most:,} characters", name, "string_above_max_length")
    return value
