"""What the options of account commands hold: limits, times and rights."""

import argparse
import math
import re
import time
from datetime import datetime

from msgspec import UNSET

from api.identity.rights import Right, rights_of_text
from api.identity.settings import NO_LIMITS, LimitChange, with_changes
from cluster.errors import InvalidRequest

_DURATION = re.compile(r"(\d{1,9}(?:\.\d{1,9})?)([smhd])")
_SECONDS = {"s": 1, "m": 60, "h": 3600, "d": 86400}
NEVER = math.inf
"""The time `never`."""

_WORDS: dict[str, LimitChange] = {"none": None, "default": UNSET}

Limit = tuple[str, LimitChange]
"""The name of a limit, and its new value."""


def limit(text: str) -> Limit:
    """`requests_per_minute=60`, `requests_per_minute=none` for no limit, or `requests_per_minute=default`.

    Raises argparse.ArgumentTypeError.
    """
    name, equals, value = text.partition("=")
    if not equals or not (value in _WORDS or (value.isascii() and value.isdigit())):
        raise argparse.ArgumentTypeError(f"{text!r} is not of the form NAME=NUMBER, NAME=none or NAME=default")
    try:
        changed = _WORDS[value] if value in _WORDS else int(value)
        with_changes(NO_LIMITS, {name: changed})
    except (InvalidRequest, ValueError) as error:
        raise argparse.ArgumentTypeError(str(error)) from error
    return name, changed


def model_limit(text: str) -> tuple[str, Limit]:
    """`MODEL:tokens_per_day=1000000`. Raises argparse.ArgumentTypeError."""
    model, _, changed = text.rpartition(":")
    if not model:
        raise argparse.ArgumentTypeError(f"{text!r} is not of the form MODEL:NAME=NUMBER")
    return model, limit(changed)


def duration(text: str) -> float:
    """Seconds: `90d`, `24h`, `30m` or `10s`. Raises argparse.ArgumentTypeError."""
    found = _DURATION.fullmatch(text)
    if found is None:
        raise argparse.ArgumentTypeError(f"{text!r} is no duration: give a number with s, m, h or d, such as 24h")
    return float(found[1]) * _SECONDS[found[2]]


def moment(text: str) -> float:
    """The Unix time after a duration, of an ISO 8601 time with its zone, or of `never`.

    Raises argparse.ArgumentTypeError.
    """
    if text == "never":
        return NEVER
    if _DURATION.fullmatch(text):
        return time.time() + duration(text)
    try:
        at = datetime.fromisoformat(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(
            f"{text!r} is no time: give a duration such as 90d, a time such as 2030-01-31T12:00:00Z, or never"
        ) from error
    if at.tzinfo is None:
        raise argparse.ArgumentTypeError(f"{text!r} has no time zone: add Z for UTC, or an offset such as +02:00")
    return at.timestamp()


def rights(text: str) -> frozenset[Right]:
    """Raises argparse.ArgumentTypeError."""
    try:
        return rights_of_text(text)
    except InvalidRequest as error:
        raise argparse.ArgumentTypeError(str(error)) from error
