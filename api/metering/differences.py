"""Compares what the ledger has with what others have counted: engines, and the counters of budgets. Pure.

The counter of an engine has every token that it generated since its start. The ledger has, for each attempt, the tokens
that reached its session. An attempt that ended before its engine did lacks the tokens of the steps that the engine made
until it heard of the end. The ingress counts these as unread when they arrive. So once nothing runs, the counter is the
sum of both, unless a connection broke with tokens on it.
"""

from collections.abc import Iterable, Mapping
from enum import StrEnum
from typing import NamedTuple

OVERRUN_TOKENS = 2048
"""Tokens that an engine may have generated beyond those that reached the ingress, for each attempt that ended before
it: those that its client had not read, and those of the last steps. More explains larger differences away; fewer
reports clients that read slowly.
"""


class Finding(StrEnum):
    EQUAL = "equal"
    EXPLAINED = "explained"
    """The engine has counted more, by no more than running requests and attempts that ended early can explain."""
    MISSING = "missing"
    """The engine has counted tokens that the ledger should have."""
    SURPLUS = "surplus"
    """The ledger has tokens that the engine has not counted: the counter was read too early, or is of another start."""


class EngineCount(NamedTuple):
    """The counter of a worker's engine, `vllm:generation_tokens_total`."""

    worker: str
    tokens: int
    since: float
    """Unix time of a moment before the engine's start."""
    unread: int = 0
    """Tokens of the worker that are in no ledger: those that came too late for their sessions, counted by all ingress
    processes (cluster/step_stream/unread.py), and those of probes.
    """


class WorkerDifference(NamedTuple):
    worker: str
    counted: int
    in_ledger: int
    unread: int
    open_ended: int
    """Attempts that ended before their engine did."""
    finding: Finding


def worker_difference(count: EngineCount, in_ledger: int, open_ended: int, running: int) -> WorkerDifference:
    """`running`: requests that run now, on any worker."""
    beyond = count.tokens - in_ledger - count.unread
    if beyond == 0:
        finding = Finding.EQUAL
    elif beyond < 0:
        finding = Finding.SURPLUS
    elif running or beyond <= open_ended * OVERRUN_TOKENS:
        finding = Finding.EXPLAINED
    else:
        finding = Finding.MISSING
    return WorkerDifference(count.worker, count.tokens, in_ledger, count.unread, open_ended, finding)


class BudgetScope(NamedTuple):
    """Whose budget, and for which time."""

    kind: str
    """tenant, project, key, end_user or model."""
    tenant: str
    scope_id: str
    """As the counters have it (`BudgetCounters.scope_id`)."""
    counter: str
    """Which budget of the scope, as the counters name it."""
    is_cost: bool
    """Whether it is a budget of millionths of the currency. Otherwise it is one of tokens."""
    start: float
    """Unix time. Usage belongs to the time of the request's arrival."""
    end: float


def budget_difference(counted: int, in_ledger: int, open_part: int) -> int:
    """What the ledger has beyond a counter. `open_part`: of `in_ledger`, what requests have used that are still open.
    A counter has nothing of these until they end, and all of it when they have ended. Both are right.
    """
    if counted > in_ledger:
        return in_ledger - counted
    return max(0, in_ledger - open_part - counted)


def corrections(differences: Mapping[BudgetScope, int], before: Mapping[BudgetScope, int]) -> dict[BudgetScope, int]:
    """What is added to each counter so that the ledger wins. `differences`: of the ledger from the counters;
    `before`: those of the look before. A request that has just ended may be in one of them and not yet in the other, so
    only what both looks have found is corrected.
    """
    steady = {scope: _common(difference, before.get(scope, 0)) for scope, difference in differences.items()}
    return {scope: amount for scope, amount in steady.items() if amount}


def groups(scopes: Iterable[BudgetScope]) -> dict[tuple[str, float, float], list[BudgetScope]]:
    """The scopes by kind and time: one query of the ledger serves a group."""
    found: dict[tuple[str, float, float], list[BudgetScope]] = {}
    for scope in scopes:
        found.setdefault((scope.kind, scope.start, scope.end), []).append(scope)
    return found


def _common(one: int, other: int) -> int:
    """The smaller of two numbers of the same sign, and 0 for numbers of different signs."""
    if one > 0 < other:
        return min(one, other)
    return max(one, other) if one < 0 > other else 0
