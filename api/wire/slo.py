"""What a client says of how fast it is to be served: `service_tier` of its body, and two headers. Pure."""

import math
from collections.abc import Mapping
from typing import Any

from cluster.errors import InvalidRequest
from cluster.messages.ids import SloClass

TTFT_HEADER = "x-baton-ttft-slo-ms"
TPOT_HEADER = "x-baton-tpot-slo-ms"
"""Tighter objectives than the class's, for one request."""

LEAST_MS = 1e-3
"""Less is no time, and not much less divides by zero somewhere."""

_CLASSES = {
    "auto": SloClass.STANDARD,
    "default": SloClass.STANDARD,
    "scale": SloClass.STANDARD,  # capacity that somebody has bought: nobody has here
    "priority": SloClass.INTERACTIVE,
    "fast": SloClass.INTERACTIVE,  # OpenAI's other name for it
    "flex": SloClass.BATCH,
}
_TIERS = {SloClass.STANDARD: "default", SloClass.INTERACTIVE: "priority", SloClass.BATCH: "flex"}


def slo_class_of(body: Any) -> SloClass:
    """Raises InvalidRequest for a tier that does not exist. Absent and null are the same."""
    tier = body.get("service_tier") if isinstance(body, dict) else None
    if tier is None:
        return SloClass.STANDARD
    if not isinstance(tier, str) or tier not in _CLASSES:
        raise InvalidRequest(f"service_tier must be one of {', '.join(_CLASSES)}", "service_tier", "invalid_value")
    return _CLASSES[tier]


def tier_of(slo_class: SloClass) -> str:
    """OpenAI's word for how a request was served."""
    return _TIERS[slo_class]


def seconds_of(headers: Mapping[str, str], name: str) -> float | None:
    """Of an objective in milliseconds. Raises InvalidRequest for what is none."""
    text = headers.get(name)
    if text is None:
        return None
    try:
        milliseconds = float(text)
    except ValueError:
        milliseconds = math.nan
    if not LEAST_MS <= milliseconds < math.inf:
        raise InvalidRequest(f"{name} must be a number of milliseconds, {LEAST_MS:g} at least", name, "invalid_value")
    return milliseconds / 1000
