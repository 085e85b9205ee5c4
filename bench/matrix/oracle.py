"""An upper bound on what any policy can attain: a linear program that knows all arrivals, lengths and prefixes.

A worker spends its time in one of two modes:

- **Prefill alone.** Steps without end, which read the weights only once.
- **Decode.** The mean step is at most as long as the TPOT objective, because the TPOT of a request is the mean of its
  steps. (The prompt tokens of longer steps, which shorter ones make up for, count as prefill alone.) Each step reads
  the weights. What that leaves of the time is spent on the context of decoding requests and on
  prompt tokens. Prompt tokens up to the knee of the step model are free in each step. The requests that decode in a
  step have their KV blocks in the worker's memory; a prefix that several have is there once.

The program chooses which share of each request is served, and for each time bin how the workers' time is divided
between the modes. The program is a relaxation: every schedule that serves a set of requests within their SLO, on such
workers, is one of its solutions. So no policy attains more, and the best policy may attain less:

- A prefix that any earlier request has had is cached on every worker, and moving KV blocks takes no time.
- A request may be served in part, by any number of workers, and may decode before its prompt is computed.
- Memory limits only what decodes, by the new tokens of prompts and the answers so far. No step is rounded.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import linprog
from scipy.sparse import coo_array

from cluster.simulation.results.summary import WARM_UP
from cluster.simulation.traffic.workload import BLOCK_TOKENS, SimRequest
from router.prediction.step_model import StepModel, prompt_attention

BIN_S = 0.5
"""Width of a time bin, in seconds. Narrower is a tighter bound and takes longer; wider lets work move within a bin to
times before the arrival of its request, or after its deadline.
"""

NUM_LIMITS = 5
"""Kinds of limits: the workers' time, the work of decode mode, its free prompt tokens, its memory, and its steps."""


class Bound(NamedTuple):
    attainment: float
    """No policy has a larger share of the measured requests within their SLO."""
    token_attainment: float
    """No policy has a larger share of the tokens, of prompts and answers, in measured requests within their SLO."""


class Demand(NamedTuple):
    """What a request needs at least."""

    num_new: int
    """Prompt tokens that no earlier request has had."""
    attention_s: float
    """Time for the attention of the new prompt tokens."""
    context_s: float
    """Time for reading the context of all tokens of the answer but the first."""
    held_tokens: float
    """KV tokens that are in memory for this request alone, summed over the steps of its answer."""
    from_s: float
    first_by_s: float
    """Latest time of the first token."""
    last_by_s: float
    """Latest time of the last token."""


def bound(workload: Sequence[SimRequest], model: StepModel, num_workers: int, kv_capacity_tokens: int) -> Bound:
    """The bound of a workload whose requests all have the same TPOT objective. As in every figure of a run
    (cluster/simulation/results/summary.py), the first tenth of the requests is not measured.
    """
    worker = _Worker(model, workload[0].slo.tpot_s, kv_capacity_tokens)
    program = _Program(demands(workload, model), worker, num_workers)
    counts = np.ones(len(workload))
    counts[: round(WARM_UP * len(workload))] = 0.0
    tokens = counts * [request.num_prompt + request.num_output for request in workload]
    return Bound(program.most(counts / counts.sum()), program.most(tokens / tokens.sum()))


def demands(workload: Sequence[SimRequest], model: StepModel) -> list[Demand]:
    known: set[bytes] = set()
    found = []
    for request in workload:
        num_known = 0
        for block in request.block_hashes:
            if block not in known:
                break
            num_known += 1
        known.update(request.block_hashes)
        hit = min(num_known * BLOCK_TOKENS, request.num_prompt - 1)
        num_new, num_gaps = request.num_prompt - hit, request.num_output - 1
        first_by_s = request.arrival_s + request.slo.ttft_s
        found.append(
            Demand(
                num_new=num_new,
                attention_s=model.attended_s * prompt_attention(num_new, hit),
                context_s=num_gaps * (model.request_s + model.context_s * (request.num_prompt + (num_gaps + 1) / 2)),
                held_tokens=num_gaps * (num_new + (num_gaps + 1) / 2),
                from_s=request.arrival_s,
                first_by_s=first_by_s,
                last_by_s=first_by_s + num_gaps * request.slo.tpot_s,
            )
        )
    return found


class _Worker:
    """What a worker's time gives in each mode."""

    def __init__(self, model: StepModel, tpot_s: float, kv_capacity_tokens: int) -> None:
        self.token_s = model.token_s + model.beyond_knee_s
        """Seconds of a prompt token that is not free."""
        self.free_tokens = model.knee_tokens
        """Prompt tokens of a step in decode mode that are free."""
        self.fixed_s = model.fixed_s
        """Seconds of a step in decode mode for reading the weights."""
        self.longest_step_s = tpot_s
        self.kv_capacity_tokens = kv_capacity_tokens


class _Matrix:
    """A sparse matrix that grows entry by entry."""

    def __init__(self) -> None:
        self._rows, self._columns, self._values = list[int](), list[int](), list[float]()

    def put(self, row: int, column: int, value: float) -> None:
        self._rows.append(row)
        self._columns.append(column)
        self._values.append(value)

    def of_shape(self, num_rows: int, num_columns: int) -> "coo_array":
        return coo_array((self._values, (self._rows, self._columns)), shape=(num_rows, num_columns)).tocsr()


class _Program:
    """The linear program. Its variables are, in this order:

    1. the served share of each request;
    2. the workers' seconds in decode mode in each bin, and the number of their steps in decode mode;
    3. for each request and bin, the shares of its prompt that are computed in prefill mode, free in decode mode, and at
       cost in decode mode, and the share of its answer that is decoded.
    """

    def __init__(self, several: Sequence[Demand], worker: _Worker, num_workers: int) -> None:
        self._num_requests = len(several)
        self._num_bins = int(max(demand.last_by_s for demand in several) / BIN_S) + 1
        self._seconds = num_workers * BIN_S
        self._limits, self._equal = _Matrix(), _Matrix()
        self._of_time, self._of_work, self._of_free_tokens, self._of_memory, self._of_length = (
            number * self._num_bins for number in range(NUM_LIMITS)
        )
        """The first row of each kind of limit, of which each bin has one."""
        self._num_variables = self._num_requests + 2 * self._num_bins
        for number, demand in enumerate(several):
            self._add(number, demand, worker)
        for at in range(self._num_bins):
            seconds, steps = self._num_requests + at, self._num_requests + self._num_bins + at
            self._limits.put(self._of_time + at, seconds, 1.0)
            self._limits.put(self._of_work + at, seconds, -1.0)
            self._limits.put(self._of_work + at, steps, worker.fixed_s)
            self._limits.put(self._of_free_tokens + at, steps, -float(worker.free_tokens))
            self._limits.put(self._of_memory + at, steps, -float(worker.kv_capacity_tokens))
            self._limits.put(self._of_length + at, seconds, 1.0)
            self._limits.put(self._of_length + at, steps, -worker.longest_step_s)

    def most(self, worth: NDArray[np.float64]) -> float:
        """The largest sum of the worth of the served requests."""
        costs = np.zeros(self._num_variables)
        costs[: self._num_requests] = -worth
        limits = np.zeros(NUM_LIMITS * self._num_bins)
        limits[: self._num_bins] = self._seconds
        upper = np.full(self._num_variables, np.inf)
        upper[: self._num_requests] = 1.0
        upper[self._num_requests : self._num_requests + self._num_bins] = self._seconds
        found = linprog(
            costs,
            A_ub=self._limits.of_shape(len(limits), self._num_variables),
            b_ub=limits,
            A_eq=self._equal.of_shape(2 * self._num_requests, self._num_variables),
            b_eq=np.zeros(2 * self._num_requests),
            bounds=np.column_stack([np.zeros(self._num_variables), upper]),
            method="highs",
        )
        if found.status != 0:
            raise RuntimeError(f"the linear program has no solution: {found.message}")
        return -float(found.fun)

    def _add(self, number: int, demand: Demand, worker: _Worker) -> None:
        computing_s = demand.num_new * worker.token_s + demand.attention_s
        self._equal.put(number, number, -1.0)
        for at in range(int(demand.from_s / BIN_S), int(demand.first_by_s / BIN_S) + 1):
            alone, free, beside = (self._variable(number) for _ in range(3))
            self._limits.put(self._of_time + at, alone, computing_s)
            self._limits.put(self._of_work + at, free, demand.attention_s)
            self._limits.put(self._of_free_tokens + at, free, float(demand.num_new))
            self._limits.put(self._of_work + at, beside, computing_s)
        if not demand.context_s:
            return
        self._equal.put(self._num_requests + number, number, -1.0)
        for at in range(int(demand.from_s / BIN_S), int(demand.last_by_s / BIN_S) + 1):
            decoding = self._variable(self._num_requests + number)
            self._limits.put(self._of_work + at, decoding, demand.context_s)
            self._limits.put(self._of_memory + at, decoding, demand.held_tokens)

    def _variable(self, part: int) -> int:
        """A new variable: a share of a prompt (`part` is the number of the request) or of an answer (after these)."""
        variable = self._num_variables
        self._num_variables += 1
        self._equal.put(part, variable, 1.0)
        return variable
