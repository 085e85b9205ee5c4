"""Predicts which replicas of a deployment Serve stops first when its target falls. Pure.

The order is that of `_get_replicas_to_stop` of Ray 2.60 (ray/serve/_private/deployment_scheduler.py): replicas that do
not run yet, then node after node, and on each node the newest replica first. Nodes come in this order: the head node
last; before it nodes whose labels do not match the deployment's selector; then nodes with fewer running replicas of all
deployments. Between equal nodes, the one that Serve listed first is first.
"""

from collections import Counter
from collections.abc import Sequence

import msgspec

from cluster.messages.ids import WorkerId


class Replica(msgspec.Struct, frozen=True, kw_only=True):
    """A replica of the application, as Serve knows it. In the order in which Serve has started them."""

    worker: WorkerId
    deployment: str
    node: str | None
    """None for a replica that has no node yet."""
    is_running: bool


def victims(
    replicas: Sequence[Replica], deployment: str, *, head: str | None, mismatching: frozenset[str] = frozenset()
) -> list[WorkerId]:
    """The running replicas of a deployment, in the order in which Serve would stop them. `replicas`: all replicas of
    all deployments, each deployment's from the oldest to the newest. `head`: the head node. `mismatching`: nodes whose
    labels do not match the deployment's selector.
    """
    running = [replica for replica in replicas if replica.is_running and replica.node is not None]
    num_on = Counter(replica.node for replica in running)

    def rank(node: str | None) -> tuple[bool, bool, int]:
        return node == head, node not in mismatching, num_on[node]

    nodes = sorted(num_on, key=rank)  # a Counter keeps the order of first occurrence, and sorting is stable
    newest_first = [replica for replica in reversed(running) if replica.deployment == deployment]
    return [replica.worker for node in nodes for replica in newest_first if replica.node == node]
