"""How a benchmark with goals ends: it has printed all of its figures, and says which goals they miss."""

import sys
from collections.abc import Sequence

MISSED_STATUS = 1
"""Exit status of a run that has measured everything and missed a goal."""


def conclude(missed: Sequence[str]) -> None:
    """The last thing that a benchmark does. Ends the process if a goal is missed."""
    if not missed:
        print("\nAll goals are reached.")
        return
    print("\n".join(["\nGoals that are missed:", *(f"  {line}" for line in missed)]), flush=True)
    sys.exit(MISSED_STATUS)


def above(what: str, value: float, most: float, unit: str = "") -> list[str]:
    """A message if the value is more than the goal allows."""
    return [] if value <= most else [f"{what}: {value:.3g}{unit}; the goal is {most:g}{unit} at most"]


def below(what: str, value: float, least: float, unit: str = "") -> list[str]:
    """A message if the value is less than the goal wants."""
    return [] if value >= least else [f"{what}: {value:.3g}{unit}; the goal is {least:g}{unit} at least"]
