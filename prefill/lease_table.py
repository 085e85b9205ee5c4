"""All leases of one prefill worker: its promises to keep the KV blocks of the prompts that it has computed.
Pure.

A lease is *offered* to the ingress that asked for the prefill. It is *redeemed* once, by the decode worker that will
pull the blocks. A redeemed lease is a promise of a few seconds, which its holder extends while it waits for its pull.
The blocks stay as they are until the promise ends, whatever else fails, and no pull counts that ends later. So a decode
engine cannot read blocks that already hold another prompt, which vLLM itself would not notice.

The holder of a lease may end it. While the lease is offered, its holder is the connection on which the prefill was
asked for. Then its holder is the decode worker that has redeemed it, by name, so that this worker may lose its
connection and come back.

`now` is monotonic seconds of the prefill worker. The methods that end leases return the leases whose blocks the
engine must free; `ended` is called when the engine has freed them. A lease is open until then.

Invariants: a lease is redeemed at most once; it is ended exactly once, with one cause; while a promise runs, only its
holder and the engine can end its lease.
"""

from collections.abc import Hashable, Iterable
from enum import StrEnum

from cluster.messages.ids import RequestId
from kvtransfer.lease_terms import LeaseEnd, LeaseId, Promise, Refusal


class LeaseState(StrEnum):
    OFFERED = "offered"
    REDEEMED = "redeemed"
    ENDING = "ending"
    """The engine was asked to free the blocks."""


class _Lease:
    __slots__ = ("cause", "digest", "expires_at", "holder", "request_id", "state")

    def __init__(self, request_id: RequestId, digest: bytes, holder: Hashable, expires_at: float) -> None:
        self.request_id = request_id
        self.digest = digest
        self.holder = holder
        self.expires_at = expires_at
        self.state = LeaseState.OFFERED
        self.cause = LeaseEnd.READ


class Leases:
    """All leases of one prefill worker."""

    def __init__(self, offer_s: float, promise_s: float) -> None:
        """`offer_s`: seconds that a lease waits to be redeemed (`kv_lease_s` in cluster/config/pools.py). `promise_s`:
        seconds that each promise runs (`PROMISE_S` in kvtransfer/lease_terms.py).
        """
        self._offer_s = offer_s
        self._promise_s = promise_s
        self._open: dict[LeaseId, _Lease] = {}

    def __len__(self) -> int:
        return len(self._open)

    def count(self, state: LeaseState) -> int:
        return sum(lease.state is state for lease in self._open.values())

    def grant(self, lease: LeaseId, request_id: RequestId, digest: bytes, holder: Hashable, now: float) -> None:
        """`digest`: the digest of the prompt (kvtransfer/handoff.py)."""
        self._open[lease] = _Lease(request_id, digest, holder, now + self._offer_s)

    def redeem(self, lease: LeaseId, digest: bytes, holder: Hashable, now: float) -> Promise | Refusal:
        known = self._open.get(lease)
        match known and known.state:
            case None:
                return Refusal("the lease is over, or another worker's")
            case LeaseState.REDEEMED:
                return Refusal("the handoff has been used")
            case LeaseState.ENDING:
                return Refusal("the lease has been released")
        assert known is not None
        if now >= known.expires_at:
            return Refusal("the lease has expired")
        if digest != known.digest:
            return Refusal("the handoff is of another prompt")
        known.state, known.holder = LeaseState.REDEEMED, holder
        return self._promise(known, now)

    def extend(self, lease: LeaseId, holder: Hashable, now: float) -> Promise | Refusal:
        known = self._open.get(lease)
        if known is None or known.state is not LeaseState.REDEEMED or known.holder != holder:
            return Refusal("the lease is over, or another worker's")
        if now >= known.expires_at:
            return Refusal("the promise has ended")
        return self._promise(known, now)

    def withdraw(self, request_id: RequestId, holder: Hashable) -> list[LeaseId]:
        """End the offered leases of a prefill that its holder no longer wants. Only the decode worker ends redeemed
        ones.
        """
        return self._end(
            (
                lease
                for lease, known in self._open.items()
                if known.state is LeaseState.OFFERED and known.request_id == request_id and known.holder == holder
            ),
            LeaseEnd.RELEASED,
        )

    def give_back(self, lease: LeaseId, holder: Hashable) -> list[LeaseId]:
        """End a lease whose blocks the decode worker will not pull. Offered leases end, too: messages of the decode
        worker may overtake each other.
        """
        known = self._open.get(lease)
        if known is None or known.state is LeaseState.ENDING:
            return []
        if known.state is LeaseState.REDEEMED and known.holder != holder:
            return []
        return self._end([lease], LeaseEnd.RELEASED)

    def redeemed(self) -> list[LeaseId]:
        """Leases with a running promise, which the engine's own lease must outlast."""
        return [lease for lease, known in self._open.items() if known.state is LeaseState.REDEEMED]

    def holder_gone(self, holder: Hashable) -> list[LeaseId]:
        """End the offered leases of a closed connection. Promises still run, and their holders may read on."""
        return self._end(
            (
                lease
                for lease, known in self._open.items()
                if known.state is LeaseState.OFFERED and known.holder == holder
            ),
            LeaseEnd.RELEASED,
        )

    def expire(self, now: float) -> list[LeaseId]:
        """End the leases whose time has run out."""
        return self._end(
            (
                lease
                for lease, known in self._open.items()
                if known.state is not LeaseState.ENDING and now >= known.expires_at
            ),
            LeaseEnd.EXPIRED,
        )

    def ended(self, lease: LeaseId, how: LeaseEnd) -> LeaseEnd | None:
        """The engine has freed the blocks. Returns the cause to count, None if the lease is not open."""
        known = self._open.pop(lease, None)
        if known is None:
            return None
        return known.cause if how is LeaseEnd.RELEASED else how

    def validate(self, now: float) -> None:
        """Assert every invariant. Tests call it after each event, once `expire(now)` has been called."""
        for known in self._open.values():
            assert known.state is LeaseState.ENDING or known.expires_at > now
            assert (known.state is LeaseState.ENDING) == (known.cause is not LeaseEnd.READ)

    def _promise(self, known: _Lease, now: float) -> Promise:
        known.expires_at = now + self._promise_s
        return Promise(self._promise_s)

    def _end(self, leases: Iterable[LeaseId], cause: LeaseEnd) -> list[LeaseId]:
        ending = list(leases)
        for lease in ending:
            self._open[lease].state = LeaseState.ENDING
            self._open[lease].cause = cause
        return ending
