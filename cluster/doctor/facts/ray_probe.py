"""Joins a Ray, and prints its nodes with their resources, labels and clocks: `python -m
cluster.doctor.facts.ray_probe HOST:PORT`.
"""

import json
import sys
import time
from typing import Any

import ray
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

CLOCK_TIMEOUT_S = 20.0
"""Time that all nodes have to tell their clocks, in seconds. Each starts a process for it. Longer waits longer for a
node that hangs; shorter lacks nodes that are busy.
"""
MOST_ASKED = 64
"""Nodes whose clocks are asked, in number. More starts more processes; fewer misses wrong clocks in a large cluster.
"""


@ray.remote(num_cpus=0, max_retries=0)  # type: ignore[untyped-decorator]  # Ray's own
def clock() -> float:
    return time.time()


def skews(nodes: list[dict[str, Any]]) -> dict[str, float]:
    """Seconds by which the clock of each node is ahead, by its id. Each is asked a second time, when its process runs
    already, so that the answer takes milliseconds.
    """
    pinned = {
        node["NodeID"]: clock.options(scheduling_strategy=NodeAffinitySchedulingStrategy(node["NodeID"], soft=False))
        for node in nodes[:MOST_ASKED]
    }
    warm = [one.remote() for one in pinned.values()]
    ray.wait(warm, num_returns=len(warm), timeout=CLOCK_TIMEOUT_S)
    found = {}
    for node, one in pinned.items():
        asked_at = time.time()
        try:
            at = ray.get(one.remote(), timeout=1.0)
        except Exception:  # the node cannot be asked: its clock is not known
            continue
        found[node] = at - (asked_at + time.time()) / 2
    return found


if __name__ == "__main__":
    ray.init(address=sys.argv[1], log_to_driver=False, logging_level="ERROR", namespace="baton-doctor")
    alive = [node for node in ray.nodes() if node["Alive"]]
    ahead = skews(alive) if len(alive) > 1 else {}
    print(
        "baton-doctor:"
        + json.dumps(
            [
                {
                    "host": node["NodeManagerAddress"],
                    "resources": node["Resources"],
                    "labels": node.get("Labels") or {},
                    "skew_s": ahead.get(node["NodeID"]),
                }
                for node in alive
            ]
        )
    )
