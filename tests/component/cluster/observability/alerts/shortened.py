"""Rules and settings on a faster clock."""

import re

DURATION = re.compile(r"\b(\d+)([smh])\b")
"""As in `[5m]`, `for: 30s` and `offset 10m`. In a name such as `increase5m` a letter stands before the number."""
UNIT_S = {"s": 1, "m": 60, "h": 3600}
LONGEST_MS = 15_000
"""Durations that would be longer are this long, so that no test waits for them, in milliseconds. Longer makes tests
longer; shorter, on a clock that is 60 times as fast, makes those of a quarter of an hour shorter than they are.
"""


def shortened(text: str, factor: float) -> str:
    """The text with all durations divided by the factor, in milliseconds."""

    def faster(found: re.Match[str]) -> str:
        whole_ms = round(int(found[1]) * UNIT_S[found[2]] * 1000 / factor)
        return f"{min(max(whole_ms, 1), LONGEST_MS)}ms"

    return DURATION.sub(faster, text)
