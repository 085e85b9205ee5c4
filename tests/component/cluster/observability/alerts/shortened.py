"""Rules and settings on a faster clock."""

import re

DURATION = re.compile(r"\b(\d+)([smh])\b")
"""As in `[5m]`, `for: 30s` and `offset 10m`. In a name such as `increase5m` a letter stands before the number."""
UNIT_S = {"s": 1, "m": 60, "h": 3600}


def shortened(text: str, factor: float) -> str:
    """The text with all durations divided by the factor, in milliseconds."""
    return DURATION.sub(lambda found: f"{max(round(int(found[1]) * UNIT_S[found[2]] * 1000 / factor), 1)}ms", text)
