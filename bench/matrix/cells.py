"""The cells of the matrix: traffic x objectives. No policy was tuned on the `held-out` traffic.

Traffic that is read comes from the traces beside the repository; traffic that is generated imitates traces that are not
there (cluster/simulation/traffic/named_mixes.py).
"""

from collections.abc import Callable
from fnmatch import fnmatch
from functools import cache
from pathlib import Path

import msgspec

from bench.data.shared_data import shared_file
from cluster.simulation.engine.truth.truth import Truth
from cluster.simulation.experiment import Cluster, Experiment
from cluster.simulation.traffic.mixes import generate
from cluster.simulation.traffic.named_mixes import MIXES
from cluster.simulation.traffic.slos import OBJECTIVES, parse_slos
from cluster.simulation.traffic.traces import read_lengths, read_trace
from cluster.simulation.traffic.workload import Arrival

REPO_ROOT = Path(__file__).resolve().parents[2]
CONVERSATION = "traces/mooncake_conversation_trace.jsonl.gz"
AZURE_CONVERSATION = "traces/AzureLLMInferenceTrace_conv.csv.gz"
ARXIV_LENGTHS = "traces/vidur_arxiv_summarization_stats_llama2_tokenizer_filtered_v2.csv.gz"

ROOFLINE = Truth()
HOST_TOKENS = 1_000_000
HELD_OUT_SEED = 1000
CODE_REQUESTS = 8819
"""All requests of the trace. Fewer could leave out its largest bursts."""
LAST_TUNING_ROW, LAST_AZURE_TUNING_ROW = 7000, 12_000
"""Later rows are held out. The azure traces are served at some hundred requests per second: fewer rows per seed than a
third of them would be half a minute.
"""
CONVERSATION_ROWS, AZURE_ROWS = 12_031, 19_366
"""All rows of the traces."""
HELD_OUT = " held-out"


class Traffic(msgspec.Struct, frozen=True, kw_only=True):
    rows: Callable[[int, int], list[Arrival]]
    """Makes arrivals from a seed and a number of requests. A trace may have fewer."""
    host_tokens: int = 0
    num_requests: int = 5000
    """Unless another number is asked for."""
    guess_per_s: float
    """Where the search begins."""


def _trace(name: str, first: int, last: int) -> Callable[[int, int], list[Arrival]]:
    """Each seed takes the next rows, while there are any, and then the first ones again."""

    def rows(seed: int, number: int) -> list[Arrival]:
        start = first + seed % max(1, (last - first) // number) * number
        return read_trace(shared_file(name), start, min(start + number, last), seed)

    return rows


def _mix(name: str, shift: int = 0) -> Callable[[int, int], list[Arrival]]:
    return lambda seed, number: generate(MIXES[name], number, seed + shift)


def _arxiv(first: int, shift: int = 0) -> Callable[[int, int], list[Arrival]]:
    def rows(seed: int, number: int) -> list[Arrival]:
        lengths = read_lengths(shared_file(ARXIV_LENGTHS), first, first + LAST_TUNING_ROW)
        return generate(MIXES["poisson"], number, seed + shift, lengths)

    return rows


_TUNING = {
    "conversation": Traffic(rows=_trace(CONVERSATION, 0, LAST_TUNING_ROW), host_tokens=HOST_TOKENS, guess_per_s=2.0),
    "documents": Traffic(rows=_mix("documents"), host_tokens=HOST_TOKENS, guess_per_s=2.0),
    "azure-conv": Traffic(rows=_trace(AZURE_CONVERSATION, 0, LAST_AZURE_TUNING_ROW), guess_per_s=70.0),
    "code-bursts": Traffic(rows=_mix("code-bursts"), num_requests=CODE_REQUESTS, guess_per_s=6.0),
    "arxiv": Traffic(rows=_arxiv(0), guess_per_s=25.0),
}
_HELD_OUT_ROWS = {
    "conversation": _trace(CONVERSATION, LAST_TUNING_ROW, CONVERSATION_ROWS),
    "documents": _mix("documents", HELD_OUT_SEED),
    "azure-conv": _trace(AZURE_CONVERSATION, LAST_AZURE_TUNING_ROW, AZURE_ROWS),
    "code-bursts": _mix("code-bursts", HELD_OUT_SEED),
    "arxiv": _arxiv(LAST_TUNING_ROW, HELD_OUT_SEED),
}
TRAFFIC = _TUNING | {
    name + HELD_OUT: msgspec.structs.replace(traffic, rows=_HELD_OUT_ROWS[name]) for name, traffic in _TUNING.items()
}
CELLS = [f"{traffic}/{slo}" for traffic in TRAFFIC for slo in OBJECTIVES]


def matching(patterns: list[str]) -> list[str]:
    """Cells by name, with wildcards.

    Raises:
        ValueError: a pattern has no cell.
    """
    for pattern in patterns:
        if not any(fnmatch(cell, pattern) for cell in CELLS):
            raise ValueError(f"no cell is called {pattern}: {', '.join(CELLS)}")
    return [cell for cell in CELLS if any(fnmatch(cell, pattern) for pattern in patterns)]


def cluster_of(cell: str, step_tokens: int, truth: Truth = ROOFLINE) -> Cluster:
    """Eight workers of two H100 with Qwen3-32B. `truth`: what their steps really take."""
    host_tokens = TRAFFIC[cell.partition("/")[0]].host_tokens
    return Cluster(host_tokens=host_tokens, decode_step_tokens=step_tokens, truth=truth)


@cache
def experiment(cell: str, seed: int, num_requests: int, cluster: Cluster) -> Experiment:
    traffic, _, slo = cell.partition("/")
    return Experiment(_rows(traffic, seed, num_requests), cluster, parse_slos(slo))


@cache
def _rows(traffic: str, seed: int, num_requests: int) -> list[Arrival]:
    return TRAFFIC[traffic].rows(seed, num_requests)
