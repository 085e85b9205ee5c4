"""The goals of bench/goodput_parts.py. Pure."""

from collections.abc import Mapping

from bench.goals.verdict import above, below

LEAST_WORTH = 0.96
"""Least ratio of the highest rate with everything to that without one part, as the mean of the seeds. Below it, the
part costs more than it is worth. Higher fails for the noise of three seeds; lower keeps parts that do harm.
"""

MOST_LEFT: Mapping[str, float] = {
    "no admission": 0.7,
    "no choice by cost": 0.99,
    "no steps by objective": 0.98,
    "no KV events": 0.95,
    "no DRAM tier": 0.98,
}
"""Most that is left of the rate without a part that is claimed to be worth something, by the beginning of its name.
Measured are 0.53, 0.97, 0.95, 0.88 and 0.93 at most. Above it, the part is not worth what docs claim. Higher keeps
parts that are worth nothing; lower fails for the noise of three seeds.
"""
CLAIMED = ("conversation/tight", "documents/mid")
"""The cells of these claims."""


def missed(rates: Mapping[tuple[str, str], float], everything: str) -> list[str]:
    """`rates`: in requests per second, by what is left out and by cell. `everything`: where nothing is left out."""
    found = []
    for (part, cell), rate in rates.items():
        if part != everything and rate:
            found += below(f"{cell}, with everything relative to {part}", rates[everything, cell] / rate, LEAST_WORTH)
            most = min((most for begin, most in MOST_LEFT.items() if part.startswith(begin)), default=None)
            if most is not None and cell in CLAIMED:
                found += above(f"{cell}, {part}, relative to everything", rate / rates[everything, cell], most)
    return found
