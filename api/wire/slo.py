"""The SLO that a client asks for: `service_tier` of the request body, and two headers. cluster/slo.py has the
objectives of each class.
"""

import math
from collections.abc import Mapping
from typing import Any

from cluster.errors import InvalidRequest
from cluster.messages.ids import SloClass

TTFT_HEADER = "x-baton-ttft-slo-ms"
TPOT_HEADER = "x-baton-tpot-slo-ms"
"""Headers that set the objectives of one request, in milliseconds. They can only tighten the SLO class."""

LEAST_MS = 1e-3
"""Smallest objective that a header may set, in milliseconds. A value near zero leads to divisions by zero; a higher
bound refuses short objectives.
"""

TIERS = {
    "auto": SloClass.STANDARD,
    "default": SloClass.STANDARD,
    "scale": SloClass.STANDARD,  # OpenAI serves it from capacity that the client has reserved; Baton reserves none
    "priority": SloClass.INTERACTIVE,
    "fast": SloClass.INTERACTIVE,  # OpenAI's second name for "priority"
    "flex": SloClass.BATCH,
}
_NAMES = {SloClass.STANDARD: "default", SloClass.INTERACTIVE: "priority", SloClass.BATCH: "flex"}


def slo_class_of(body: Any) -> SloClass:
    """The SLO class that a request body asks for with `service_tier`. Null counts as absent.

    Raises InvalidRequest for a tier that does not exist.
    """
    tier = body.get("service_tier") if isinstance(body, dict) else None
    if tier is None:
        return SloClass.STANDARD
    if not isinstance(tier, str) or tier not in TIERS:
        raise InvalidRequest(f"service_tier must be one of {', '.join(TIERS)}", "service_tier", "invalid_value")
    return TIERS[tier]


def tier_of(slo_class: SloClass) -> str:
    """OpenAI's name for the service tier of an SLO class."""
    return _NAMES[slo_class]


def seconds_of(headers: Mapping[str, str], name: str) -> float | None:
    """The objective that a header sets, in seconds. None if the header is absent.

    Raises InvalidRequest for a value that is not a number of milliseconds.
    """
    text = headers.get(name)
    if text is None:
        return None
    try:
        milliseconds = float(text)
    except ValueError:
        milliseconds = math.nan
    if not LEAST_MS <= milliseconds < math.inf:
        raise InvalidRequest(f"{name} must be a number of milliseconds, at least {LEAST_MS:g}", name, "invalid_value")
    return milliseconds / 1000
