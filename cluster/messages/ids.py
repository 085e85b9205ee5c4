"""The ids and the closed sets that messages are made of."""

from enum import StrEnum
from typing import NewType

import msgspec

RequestId = NewType("RequestId", str)
IngressId = NewType("IngressId", str)
"""Of one ingress process, made by it when it starts: a restarted ingress is another one."""
WorkerId = NewType("WorkerId", str)
"""Serve's unique id of a replica: never reused, so a restarted worker is another worker."""


class Pool(StrEnum):
    PREFILL = "prefill"
    DECODE = "decode"


class Path(StrEnum):
    """Where a request runs."""

    PREFILL_DECODE = "P->D"
    """Prefill on a prefill worker, KV blocks handed over, decode on a decode worker."""
    DECODE = "D"
    """The whole request on a decode worker."""
    PREFILL = "P"
    """The whole request on a prefill worker."""


class SloClass(StrEnum):
    """How long a request may take, and who waits for whom (cluster/slo.py). The class that is served first comes first:
    another class needs a line here, an objective in cluster/slo.py, and a service tier in api/wire/slo.py.
    """

    INTERACTIVE = "interactive"
    STANDARD = "standard"
    BATCH = "batch"

    @property
    def rank(self) -> int:
        """The place of the class in the order of service. 0 is served first."""
        return _RANKS[self]


_RANKS = {slo_class: rank for rank, slo_class in enumerate(SloClass)}


class Outcome(StrEnum):
    """How a request was closed."""

    FINISHED = "finished"
    ABORTED = "aborted"
    """The client left, or read too slowly."""
    REJECTED = "rejected"
    """No worker could take it."""
    FAILED = "failed"


class Address(msgspec.Struct, frozen=True):
    """Where a process of the cluster listens for the others (cluster/rpc/connection.py)."""

    host: str
    port: int
    process: str
    """The random id of the process, in hexadecimal and public: another process that has taken the port since is refused
    by it.
    """
