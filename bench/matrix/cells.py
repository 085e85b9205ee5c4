"""The cells of the matrix: traffic x objectives. No policy was tuned on the `held-out` traffic.

Traffic that is read comes from the traces beside the repository; traffic that is generated imitates traces that are not
there (cluster/simulate/catalogue.py).
"""

from collections.abc import Callable
from fnmatch import fnmatch
from functools import cache
from pathlib import Path

import msgspec

from cluster.simulate.catalogue import MIXES
from cluster.simulate.experiment import Cluster, Experiment
from cluster.simulate.mixes import generate
from cluster.simulate.slos import OBJECTIVES, parse_slos
from cluster.simulate.traces import read_lengths, read_trace
from cluster.simulate.workload import Arrival

REPO_ROOT = Path(__file__).resolve().parents[2]
TRACES = REPO_ROOT.parent / "shared" / "traces"
CONVERSATION = TRACES / "mooncake_conversation_trace.jsonl.gz"
AZURE_CONVERSATION = TRACES / "AzureLLMInferenceTrace_conv.csv.gz"
ARXIV_LENGTHS = TRACES / "vidur_arxiv_summarization_stats_llama2_tokenizer_filtered_v2.csv.gz"

HOST_TOKENS = 1_000_000
HELD_OUT_SEED = 1000
LAST_TUNING_ROW = 7000
"""Later rows are held out."""
HELD_OUT = " held-out"


class Traffic(msgspec.Struct, frozen=True, kw_only=True):
    rows: Callable[[int, int], list[Arrival]]
    """From a seed and the most requests that are wanted."""
    host_tokens: int = 0
    guess_per_s: float
    """Where the search begins."""


def _trace(file: Path, first: int, last: int | None) -> Callable[[int, int], list[Arrival]]:
    return lambda seed, most: read_trace(file, first, min(first + most, last or first + most), seed)


def _mix(name: str, most: int, shift: int = 0) -> Callable[[int, int], list[Arrival]]:
    return lambda seed, limit: generate(MIXES[name], min(limit, most), seed + shift)


def _arxiv(first: int, shift: int = 0) -> Callable[[int, int], list[Arrival]]:
    def rows(seed: int, most: int) -> list[Arrival]:
        return generate(
            MIXES["poisson"], min(most, 7000), seed + shift, read_lengths(ARXIV_LENGTHS, first, first + 7000)
        )

    return rows


TRAFFIC = {
    "conversation": Traffic(rows=_trace(CONVERSATION, 0, LAST_TUNING_ROW), host_tokens=HOST_TOKENS, guess_per_s=2.0),
    "documents": Traffic(rows=_mix("documents", 6000), host_tokens=HOST_TOKENS, guess_per_s=2.0),
    "azure-conv": Traffic(rows=_trace(AZURE_CONVERSATION, 0, LAST_TUNING_ROW), guess_per_s=30.0),
    "code-bursts": Traffic(rows=_mix("code-bursts", 8819), guess_per_s=3.0),
    "arxiv": Traffic(rows=_arxiv(0), guess_per_s=15.0),
    "conversation" + HELD_OUT: Traffic(
        rows=_trace(CONVERSATION, LAST_TUNING_ROW, None), host_tokens=HOST_TOKENS, guess_per_s=2.0
    ),
    "documents" + HELD_OUT: Traffic(
        rows=_mix("documents", 6000, HELD_OUT_SEED), host_tokens=HOST_TOKENS, guess_per_s=2.0
    ),
    "azure-conv" + HELD_OUT: Traffic(
        rows=_trace(AZURE_CONVERSATION, LAST_TUNING_ROW, 2 * LAST_TUNING_ROW), guess_per_s=30.0
    ),
    "code-bursts" + HELD_OUT: Traffic(rows=_mix("code-bursts", 8819, HELD_OUT_SEED), guess_per_s=3.0),
    "arxiv" + HELD_OUT: Traffic(rows=_arxiv(LAST_TUNING_ROW, HELD_OUT_SEED), guess_per_s=15.0),
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


def cluster_of(cell: str, step_tokens: int) -> Cluster:
    """Eight workers of two H100 with Qwen3-32B."""
    return Cluster(host_tokens=TRAFFIC[cell.partition("/")[0]].host_tokens, decode_step_tokens=step_tokens)


@cache
def experiment(cell: str, seed: int, most_requests: int, cluster: Cluster) -> Experiment:
    traffic, _, slo = cell.partition("/")
    return Experiment(_rows(traffic, seed, most_requests), cluster, parse_slos(slo))


@cache
def _rows(traffic: str, seed: int, most_requests: int) -> list[Arrival]:
    return TRAFFIC[traffic].rows(seed, most_requests)
