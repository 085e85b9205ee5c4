"""Which nodes a Ray has, asked by a process of its own: Ray's client may wait for long, and logs."""

import os
import sys

import msgspec

from cluster.doctor.facts.programs import ProgramFailed, output_of
from cluster.doctor.judgement.nodes import NodeFacts, RayFacts
from cluster.repository import REPO_ROOT

RAY_TIMEOUT_S = 40.0
"""Time that Ray has to tell its nodes and their clocks, in seconds. It starts a process on each node. Longer waits
longer for a Ray that is away; shorter fails in large clusters.
"""
_MARK = "baton-doctor:"


def ray_facts(address: str) -> RayFacts:
    """`address`: empty if none is known."""
    if not address:
        return RayFacts(address="")
    command = [sys.executable, "-m", "cluster.doctor.facts.ray_probe", address]
    try:
        output = output_of(command, RAY_TIMEOUT_S, {"PYTHONPATH": str(REPO_ROOT), "RAY_BACKEND_LOG_LEVEL": "fatal"})
        answer = next(line for line in reversed(output.splitlines()) if line.startswith(_MARK))
        nodes = msgspec.json.decode(answer.removeprefix(_MARK), type=list[NodeFacts])
    except (ProgramFailed, StopIteration, msgspec.MsgspecError) as error:
        return RayFacts(address=address, error=str(error) or "it has given no answer")
    return RayFacts(address=address, nodes=nodes)


def ray_address() -> str:
    """The Ray that the service would join. Empty if it starts its own."""
    given = os.environ.get("RAY_ADDRESS", "")
    return "" if given in ("", "local") else given
