"""Ids and enumerations that the messages use."""

from enum import StrEnum
from typing import NewType

import msgspec

RequestId = NewType("RequestId", str)
CellName = NewType("CellName", str)
"""Name of a cell: a Scheduler with its workers, one of several that stand behind the ingresses (router/cells/)."""
IngressId = NewType("IngressId", str)
"""Id of one ingress process, which the process makes at its start. A restarted ingress has another id."""
WorkerId = NewType("WorkerId", str)
"""Serve's unique id of a replica. It is never used again: a restarted worker has another id."""


class Pool(StrEnum):
    PREFILL = "prefill"
    DECODE = "decode"


class Path(StrEnum):
    """Where a request runs."""

    PREFILL_DECODE = "P->D"
    """The prefill runs on a prefill worker, the KV blocks are handed over, and the decode runs on a decode worker."""
    DECODE = "D"
    """The whole request runs on a decode worker."""
    PREFILL = "P"
    """The whole request runs on a prefill worker."""


class SloClass(StrEnum):
    """The SLO class of a request: its objectives, and its place in the order of service (cluster/slo.py). The members
    are in this order: the first one is served first. A new class needs a line here, an objective in cluster/slo.py, and
    a service tier in api/wire/slo.py.
    """

    INTERACTIVE = "interactive"
    STANDARD = "standard"
    BATCH = "batch"

    @property
    def rank(self) -> int:
        """The place of the class in the order of service. Rank 0 is served first."""
        return _RANKS[self]


_RANKS = {slo_class: rank for rank, slo_class in enumerate(SloClass)}


class Outcome(StrEnum):
    """How a request was closed."""

    FINISHED = "finished"
    ABORTED = "aborted"
    """The client left, or read too slowly."""
    REJECTED = "rejected"
    """No worker could take the request."""
    FAILED = "failed"


class Address(msgspec.Struct, frozen=True):
    """Where a process of the cluster listens for other processes (cluster/rpc/connection.py)."""

    host: str
    port: int
    process: str
    """The random id of the process, in hexadecimal. It is public. A connection to another process that has taken the
    port since is refused by this id.
    """
