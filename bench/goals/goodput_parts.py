"""The goals of bench/goodput_parts.py. Pure."""

from collections.abc import Mapping

from bench.goals.verdict import below

LEAST_WORTH = 0.96
"""Least ratio of the highest rate with everything to that without one part, as the mean of the seeds. Below it, the
part costs more than it is worth. Higher fails for the noise of three seeds; lower keeps parts that do harm.
"""


def missed(rates: Mapping[tuple[str, str], float], everything: str) -> list[str]:
    """`rates`: in requests per second, by what is left out and by cell. `everything`: where nothing is left out."""
    found = []
    for (part, cell), rate in rates.items():
        if part != everything and rate:
            found += below(f"{cell}, with everything relative to {part}", rates[everything, cell] / rate, LEAST_WORTH)
    return found
