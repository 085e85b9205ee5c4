"""The tolerance of a path: the largest distance of log-probabilities that counts as rounding, in nats. Pure.

It is learned once, with the reference, and is kept with it. Later answers do not change it: a worker that drifts slowly
would teach the probe to accept the drift.

Each worker gives one sample for each path, so that a worker with many answers counts as any other. The sample is the
QUANTILE of the distances of its steps: between its first answer to a prompt and its second one, and between its answer
and the reference. The tolerance is MARGIN times the lower median of the samples (both as in kvtransfer/tolerance.py).
Fewer than half of the workers cannot move a median beyond the samples of the others.
"""

from collections.abc import Collection, Sequence
from math import ceil
from statistics import median_low

from kvtransfer.tolerance import MARGIN, MIN_TOLERANCE, QUANTILE

MAX_LEARNED = 1.0
"""Largest tolerance that is learned, in nats. Higher hides faults of a model that rounds coarsely; lower finds
faults in honest workers of such a model.
"""
DEFAULT_TOLERANCE = 1.0
"""Tolerance of a reference that names none, in nats. Higher hides faults; lower finds faults in honest workers of
models that round coarsely.
"""
MIN_AGREEMENT = 0.5
"""Distance up to which two workers always agree while a reference is learned, in nats. Higher makes a reference of two
workers of which one is a little wrong; lower finds no majority among workers on different GPUs.
"""


def sample_of(distances: Sequence[float]) -> float:
    """What a worker says of rounding: a high quantile of its distances. 0 without a distance."""
    return sorted(distances)[ceil(QUANTILE * len(distances)) - 1] if distances else 0.0


def tolerance_of(samples: Collection[float]) -> float:
    """`samples`: one of each worker, at least one."""
    return min(MAX_LEARNED, max(MIN_TOLERANCE, MARGIN * median_low(samples)))
