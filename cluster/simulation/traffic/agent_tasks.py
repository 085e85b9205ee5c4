"""Agents that work on tasks beside chats: each step of a task comes some time after the answer to the step before.

A task begins with a long prompt of system instructions and tools, which all tasks of a kind have in common, and the
question. Each answer but the last calls a tool, and the next prompt has the answer and the tool's result. When a prompt
would be too long, the history is compacted: the next prompt has the instructions and a summary. The figures are those
that are published of coding agents (docs/retention.md). The same arguments give the same workload.
"""

import random
from collections.abc import Callable, Sequence
from hashlib import blake2b
from typing import Final

import msgspec

from cluster.messages.kv_events import KEY_BYTES
from cluster.messages.placement import Slo
from cluster.simulation.traffic.mixes import Spread, log_normal
from cluster.simulation.traffic.workload import Arrival, SimRequest

TENANT: Final = "agents"


class AgentTasks(msgspec.Struct, frozen=True, kw_only=True):
    """One kind of agents."""

    tasks_per_s: float
    num_kinds: int = 4
    """Agent programs. All tasks of one begin with the same instructions and tools."""
    instruction_tokens: int = 8_192
    questions: Spread = log_normal(2_500, 6_000, 16_000)
    """Tokens that a task adds to them."""
    steps: Spread = Spread(((0, 10), (0.5, 22), (0.9, 36), (1, 40)))
    """Requests of a task."""
    results: Spread = log_normal(900, 4_500, 16_000)
    """Tokens of a tool's result."""
    outputs: Spread = log_normal(130, 500, 2_000)
    """Tokens of an answer."""
    gaps_s: Spread = Spread(((0, 0.05), (0.5, 0.3), (0.86, 1.0), (0.95, 10.0), (0.99, 60.0), (1, 300.0)))
    """Seconds from an answer to the next prompt."""
    longest_prompt: int = 60_000
    """Tokens of a prompt before the history is compacted."""
    summary_tokens: int = 3_000
    block_tokens: int = 64
    """Tokens of a block of the engines. In large blocks, a short next step ends with the same block as the step before,
    so that engines cannot tell it from another conversation (router/retention/kept_conversations.py).
    """


SloOf = Callable[[Arrival], Slo]


def with_chats(
    agents: AgentTasks, chats: Sequence[Arrival], duration_s: float, slo_of: SloOf, seed: int = 0
) -> list[SimRequest]:
    """The tasks that begin within `duration_s`, beside chats, as one workload."""
    rng = random.Random(seed)
    groups = [(row.arrival_s, [_request(row, slo_of)]) for row in chats if row.arrival_s <= duration_s]
    now, number = rng.expovariate(agents.tasks_per_s), 0
    while now <= duration_s:
        groups.append((now, _task(agents, now, number, rng, slo_of)))
        now, number = now + rng.expovariate(agents.tasks_per_s), number + 1
    groups.sort(key=lambda group: group[0])
    workload: list[SimRequest] = []
    for _, requests in groups:
        first = len(workload)
        workload += [
            request if request.follows is None else msgspec.structs.replace(request, follows=first + request.follows)
            for request in requests
        ]
    return workload


def _task(agents: AgentTasks, start_s: float, number: int, rng: random.Random, slo_of: SloOf) -> list[SimRequest]:
    kind = f"instructions {rng.randrange(agents.num_kinds)}"
    history = _History(agents, kind, f"task {number}")
    history.add(round(agents.questions.draw(rng)))
    requests: list[SimRequest] = []
    num_steps = round(agents.steps.draw(rng))
    for step in range(num_steps):
        num_output = max(1, round(agents.outputs.draw(rng)))
        row = Arrival(
            arrival_s=start_s,
            num_prompt=history.num_tokens,
            num_output=num_output,
            block_hashes=history.hashes(),
            tenant=TENANT,
        )
        is_last = step == num_steps - 1
        request = _request(row, slo_of)
        if step:
            request = msgspec.structs.replace(request, follows=step - 1, gap_s=agents.gaps_s.draw(rng))
        requests.append(msgspec.structs.replace(request, calls_tool=not is_last))
        num_new = num_output + max(1, round(agents.results.draw(rng)))
        if history.num_tokens + num_new > agents.longest_prompt:
            history = _History(agents, kind, f"task {number} from step {step}")
            history.add(agents.summary_tokens)
        else:
            history.add(num_new)
    return requests


class _History:
    """The prompt of a task's next step."""

    def __init__(self, agents: AgentTasks, kind: str, name: str) -> None:
        self._name = name
        self._block_tokens = agents.block_tokens
        self._hashes = [_hash(kind, block) for block in range(agents.instruction_tokens // agents.block_tokens)]
        self.num_tokens = agents.instruction_tokens

    def add(self, num_tokens: int) -> None:
        self.num_tokens += num_tokens

    def hashes(self) -> list[bytes]:
        num_blocks = self.num_tokens // self._block_tokens
        self._hashes.extend(_hash(self._name, block) for block in range(len(self._hashes), num_blocks))
        return self._hashes[:num_blocks]


def _request(row: Arrival, slo_of: SloOf) -> SimRequest:
    return SimRequest(
        arrival_s=row.arrival_s,
        num_prompt=row.num_prompt,
        num_output=row.num_output,
        block_hashes=row.block_hashes,
        tenant=row.tenant,
        slo_class=row.slo_class,
        slo=slo_of(row),
    )


def _hash(name: str, block: int) -> bytes:
    return blake2b(f"{name} {block}".encode(), digest_size=KEY_BYTES).digest()
