"""The nodes of Ray, against what the sections of the config want. Pure."""

from collections.abc import Iterator

import msgspec

from cluster.doctor.finding import CheckFinding, failed, listed, ok, warning
from cluster.doctor.wanted import WantedMachine, WantedReplicas


class NodeFacts(msgspec.Struct, frozen=True, kw_only=True):
    host: str
    resources: dict[str, float]
    labels: dict[str, str] = {}
    skew_s: float | None = None
    """Seconds by which its clock is ahead. None if it was not asked."""


class RayFacts(msgspec.Struct, frozen=True, kw_only=True):
    address: str
    """Empty if no Ray is known: `baton serve` then starts one."""
    nodes: list[NodeFacts] = []
    error: str = ""


def judge_ray(facts: RayFacts, wanted: WantedMachine | None) -> Iterator[CheckFinding]:
    if not facts.address:
        yield ok("Ray", "none runs here, and RAY_ADDRESS is not set: `baton serve` starts one")
        return
    if facts.error:
        yield failed("Ray", f"{facts.address}: {facts.error}", "correct RAY_ADDRESS, or start Ray there")
        return
    yield ok("Ray", f"{facts.address}: {len(facts.nodes)} nodes: {listed([_told(node) for node in facts.nodes], 4)}")
    for one in wanted.replicas if wanted is not None else []:
        room = sum(fits_on(one, node, one.num) for node in facts.nodes)
        if room < one.num:
            yield _lacks(one, room)


def fits_on(wanted: WantedReplicas, node: NodeFacts, most: int) -> int:
    """How many of the replicas fit on an empty node, at most `most`."""
    if any(node.labels.get(name) != value for name, value in wanted.labels.items()):
        return 0
    room = most
    for name, needed in {"CPU": wanted.cpus, "GPU": wanted.gpus, **wanted.resources}.items():
        if needed > 0:
            room = min(room, int(node.resources.get(name, 0.0) / needed + 1e-9))
    return room


def _lacks(one: WantedReplicas, room: int) -> CheckFinding:
    needs = {"CPU": one.cpus, "GPU": one.gpus, **one.resources}
    each = ", ".join(f"{name} {needed:g}" for name, needed in needs.items() if needed)
    labels = "".join(f", label {name}={value}" for name, value in one.labels.items())
    found = f"{room} of {one.num} replicas of {one.section} fit on the nodes, each with {each or 'nothing'}{labels}"
    todo = "add nodes with that, or correct the section (docs/clusters.md). A cluster with an autoscaler may add them"
    return failed("nodes", found, todo) if room == 0 else warning("nodes", found, todo)


def _told(node: NodeFacts) -> str:
    shown = [f"{name} {amount:g}" for name, amount in sorted(node.resources.items()) if _matters(name)]
    return f"{node.host} ({', '.join(shown)})"


def _matters(resource: str) -> bool:
    return not resource.startswith(("node:", "memory", "object_store_memory", "accelerator_type:"))
