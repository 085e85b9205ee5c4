"""Step times of a published measurement, as the truth of simulated engines: Splitwise's profile of Llama 2 70B.

    python -m bench.matrix.measured_steps table.json && baton simulate --truth table.json

The profile (Patel et al. 2024, https://github.com/Mutinifni/splitwise-sim, MIT) has whole steps of vLLM without CUDA
graphs on H100s, by prompt length and batch size. The table keeps its shape: attention is separated by differences of
measured times, and every point is the median of the measurements. One factor scales all times, so that a prompt of
REFERENCE_TOKENS alone takes what the roofline of the simulated worker says.
"""

import csv
import gzip
import sys
from collections import defaultdict
from itertools import accumulate
from pathlib import Path
from statistics import fmean, median

import msgspec

from bench.data.shared_data import shared_file
from cluster.simulation.engine.truth.step_table import Points, StepTable
from cluster.simulation.experiment import Cluster
from router.prediction.step_model import prompt_attention

PROFILE = "traces/calibration/splitwise_perf_model.csv.gz"
ENGINE = ("llama2-70b", "h100-80gb", "2")
"""Model, device, and devices per engine: as many as a simulated worker has."""
MOST_REQUESTS = 32
"""Two devices cannot hold a larger batch: its rows are no measurements."""
REFERENCE_TOKENS = 2048
"""Prompt tokens of the step that the scaled table shares with the roofline. Another number moves the level of all
times, because the shapes differ.
"""

Work = tuple[int, int]
"""(requests, tokens of each prompt)."""


def measured_steps(cluster: Cluster) -> tuple[StepTable, float]:
    """The table for the workers of a cluster, and the factor by which the measured times were multiplied."""
    table = splitwise_table()
    attended = prompt_attention(REFERENCE_TOKENS, 0)
    expected_s = cluster.step_model.step_s(REFERENCE_TOKENS, attended, 0, 0)
    factor = expected_s / table.step_s(REFERENCE_TOKENS, attended, 0, 0)
    return table.scaled(factor), factor


def splitwise_table() -> StepTable:
    """The measured times."""
    prompts, decodes = _medians("prompt_time"), _medians("token_time")
    attended_s = _attended_s(prompts)
    context_s = _context_s(decodes)
    return StepTable(
        prompt_s=_points({(n * p, s - n * prompt_attention(p, 0) * attended_s) for (n, p), s in prompts.items()}),
        decode_s=_points({(n, s - n * p * context_s) for (n, p), s in decodes.items()}),
        attended_s=attended_s,
        context_s=context_s,
        source=" ".join(ENGINE),
    )


def _medians(column: str) -> dict[Work, float]:
    """Seconds by work. Rows with other numbers of output tokens repeat the same step."""
    seconds: dict[Work, list[float]] = defaultdict(list)
    with gzip.open(shared_file(PROFILE), "rt") as file:
        for row in csv.DictReader(file):
            number = int(row["batch_size"])
            if (row["model"], row["hardware"], row["tensor_parallel"]) == ENGINE and number <= MOST_REQUESTS:
                seconds[number, int(row["prompt_size"])].append(float(row[column]) / 1e3)
    return {work: median(values) for work, values in seconds.items()}


def _attended_s(prompts: dict[Work, float]) -> float:
    """Seconds per pair of tokens: what the longest prompt takes longer than as many tokens in short prompts."""
    longest = max(num_prompt for _, num_prompt in prompts)
    number, short = next(w for w in prompts if w[0] > 1 and w[0] * w[1] == longest)
    pairs = prompt_attention(longest, 0) - number * prompt_attention(short, 0)
    return (prompts[1, longest] - prompts[number, short]) / pairs


def _context_s(decodes: dict[Work, float]) -> float:
    """Seconds per token of context: the slope of a least-squares line through the decode steps of one request."""
    line = [(num_prompt, seconds) for (number, num_prompt), seconds in decodes.items() if number == 1]
    mean_context, mean_s = fmean(c for c, _ in line), fmean(s for _, s in line)
    covariance = sum((c - mean_context) * (s - mean_s) for c, s in line)
    return covariance / sum((c - mean_context) ** 2 for c, _ in line)


def _points(measured: set[tuple[int, float]]) -> Points:
    """The mean for each work. Where less work took longer, more work takes at least as long."""
    seconds: dict[int, list[float]] = defaultdict(list)
    for work, value in measured:
        seconds[work].append(value)
    works = sorted(seconds)
    return tuple(zip(works, accumulate((fmean(seconds[work]) for work in works), max), strict=True))


if __name__ == "__main__":
    scaled, times = measured_steps(Cluster())
    Path(sys.argv[1]).write_bytes(msgspec.json.format(msgspec.json.encode(scaled)))
    print(f"{sys.argv[1]}: {scaled.source}, times {times:.3f}")
