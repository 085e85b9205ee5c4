"""What can happen to nodes and to the network between them, as data."""

import time
from collections.abc import Callable
from dataclasses import dataclass
from itertools import count

from tests.drills.client import ANSWERED, CONNECTION_LOST, NOT_REACHED
from tests.drills.participants import MODEL
from tests.drills.processes import GENERATED_TOKENS, SCHEDULER, LiveProcesses
from tests.drills.struck import replicas
from tests.nodes.ray_up import DECODE, HEAD, INGRESS, PREFILL, RayUp
from tests.nodes.wire import CUT, Quality, wire
from tests.real_cluster.service import CONTROLLER_PROCESS, wait_for

LASTS_S = 20.0
"""How long the network is bad, and the head away: longer than a pull may take."""
BACK_WITHIN_S = 120.0
NEW_INGRESS_WITHIN_S = 240.0
"""For a node, and then for an ingress replica and a Scheduler on it, to which the workers come back."""
NEW_WORKER_WITHIN_S = 240.0
"""For a node, and the start of an engine on it, beside what serves on the same two cores."""
USED_WITHIN_S = 15.0
"""From when the Scheduler knows a worker until it has generated PROBE_TOKENS for clients."""
PROBE_TOKENS = 100
"""More than the handoffs with which links are proved and measured generate on a worker, one token each."""
UPDATED_WITHIN_S = 600.0
"""For two nodes, three engines, an ingress replica and a Scheduler, and for the end of those of before."""
SLOW = Quality(delay_s=0.05, bytes_per_s=10e6 / 8)
"""10 Mbit/s in each direction, and 100 ms there and back."""
HANDED_OVER = "P->D"
LOSSY = Quality(loss=0.1)
"""A frame of the relay is up to 64 KiB, so that a large message loses much more often than one in ten."""


@dataclass(frozen=True)
class NodeFault:
    strike: Callable[[RayUp], None]
    """Returns when the fault is over. The autoscaler replaces nodes that are gone by itself."""
    silence_s: float
    """Longest time without a token for any stream."""
    num_lost: int = 0
    """Replicas that end with it."""
    path: str | None = None
    """The only one that the streams may take. Else the Scheduler stops handing over where that takes longer."""
    outcomes: frozenset[str] = frozenset({ANSWERED})
    """What streams may end with. Some must be answered in any case."""


def _gone(node_type: str) -> Callable[[RayUp], None]:
    def strike(cluster: RayUp) -> None:
        name = cluster.names(node_type)[0]
        cluster.cloud.stop_node(name)

    return strike


def _ingress_gone(cluster: RayUp) -> None:
    """The load balancer of a cloud would give new requests to other ingress nodes. Here is only one."""
    _gone(INGRESS)(cluster)
    wait_for(cluster.is_ready, NEW_INGRESS_WITHIN_S, interval_s=0.5)
    body = {"model": MODEL, "prompt": "1 2 3", "max_tokens": 2}
    cluster.post("/v1/completions", body, {}).raise_for_status()


def _head_away(cluster: RayUp) -> None:
    (head,) = cluster.names(HEAD)
    cluster.cloud.restart_node(head)
    _pass(LASTS_S)
    cluster.up()
    wait_for(lambda: cluster.processes(CONTROLLER_PROCESS), BACK_WITHIN_S)


def _joins_and_leaves(cluster: RayUp) -> None:
    """The nodes of the pool are full, so that the autoscaler starts one. Then Serve ends a worker: an older one."""
    cluster.deploy(resized={DECODE: cluster.num_replicas[DECODE] + 1})
    live = LiveProcesses(cluster)

    def workers() -> dict[str, float]:
        return live.snapshot().by("replica", GENERATED_TOKENS, deployment=DECODE)

    old = set(workers())
    wait_for(lambda: _num_workers(cluster) > cluster.num_replicas[DECODE], NEW_WORKER_WITHIN_S, interval_s=0.2)
    wait_for(lambda: sum(workers()[new] for new in workers().keys() - old) > PROBE_TOKENS, USED_WITHIN_S)
    cluster.deploy()


def _num_workers(cluster: RayUp) -> float:
    """Decode workers that the Scheduler knows."""
    return LiveProcesses(cluster).snapshot().total("baton_workers", deployment=SCHEDULER, pool=DECODE)


def _updated(cluster: RayUp) -> None:
    old = replicas(cluster)
    cluster.deploy({"decode": {"max_ongoing_requests": 300}})
    wait_for(lambda: not old & replicas(cluster), UPDATED_WITHIN_S, interval_s=0.5)


def _between_pools(quality: Quality) -> Callable[[RayUp], None]:
    def strike(cluster: RayUp) -> None:
        (prefill,) = cluster.names(PREFILL)
        decodes = [cluster.cloud.address(name) for name in cluster.names(DECODE)]
        with wire(cluster.cloud.node(prefill), decodes, quality):
            _pass(LASTS_S / 2)
            num_before = _num_pulled(cluster)
            _pass(LASTS_S / 2)
            num_pulled = _num_pulled(cluster) - num_before
        assert num_pulled == 0 if quality is CUT else num_pulled > 0
        numbers = count()
        wait_for(lambda: _is_handed_over(cluster, next(numbers)), BACK_WITHIN_S, interval_s=0.5)

    return strike


def _is_handed_over(cluster: RayUp, number: int) -> bool:
    """Whether a new prompt reaches a decode worker. `number`: another one for each prompt."""
    num_before = _num_pulled(cluster)
    prompt = " ".join(f"{number} {word}" for word in range(100))
    body = {"model": MODEL, "prompt": prompt, "max_tokens": 2}
    has_answer = cluster.post("/v1/completions", body, {"x-baton-path": HANDED_OVER}).is_success
    return has_answer and _num_pulled(cluster) > num_before


def _num_pulled(cluster: RayUp) -> float:
    """Prompt tokens whose KV blocks decode workers have pulled so far."""
    return LiveProcesses(cluster).snapshot().total("baton_prompt_tokens_total", pool="decode", source="pulled")


def _pass(seconds: float) -> None:
    time.sleep(seconds)  # noqa: TID251  # the fault lasts so long


NODE_FAULTS = {
    "a decode node is gone": NodeFault(_gone(DECODE), silence_s=15.0, num_lost=1),
    "the prefill node is gone": NodeFault(_gone(PREFILL), silence_s=15.0, num_lost=1),
    "head node off for 20 s": NodeFault(_head_away, silence_s=5.0),
    "between the pools: cut for 20 s": NodeFault(_between_pools(CUT), silence_s=15.0),
    "between the pools: 10 Mbit/s, 100 ms, for 20 s": NodeFault(_between_pools(SLOW), silence_s=15.0, path=HANDED_OVER),
    "between the pools: a tenth lost, for 20 s": NodeFault(_between_pools(LOSSY), silence_s=15.0, path=HANDED_OVER),
    "the ingress node is gone": NodeFault(
        _ingress_gone, silence_s=15.0, num_lost=2, outcomes=frozenset({ANSWERED, CONNECTION_LOST, NOT_REACHED})
    ),
    "a decode node joins, a worker leaves": NodeFault(_joins_and_leaves, silence_s=5.0, num_lost=1),
    "update of all processes": NodeFault(_updated, silence_s=15.0, num_lost=5),
}
"""A new one goes to the end: its place chooses the prompts of its streams, which no other drill may have. Those after
the head's show that the controller that came back replaces what dies.
"""
