"""PullTimes: how long each pull of one engine process takes, part by part. Pure.

Times are seconds of `time.monotonic`.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Protocol

from kvtransfer.telemetry import Pull


class Telemetry(Protocol):
    """The fields of NIXL's telemetry of one read that are used here."""

    xferDuration: float  # noqa: N815  # NIXL's own name
    totalBytes: int  # noqa: N815  # NIXL's own name


class _Reading:
    __slots__ = ("began_at", "connect_s", "num_bytes", "post_s", "transfer_s")

    def __init__(self, began_at: float, connect_s: float = 0.0, post_s: float = 0.0) -> None:
        self.began_at = began_at
        self.connect_s = connect_s
        self.post_s = post_s
        self.transfer_s = 0.0
        self.num_bytes = 0


class PullTimes:
    def __init__(self) -> None:
        self._asked_at: dict[str, float] = {}
        """Pulls that connect first, and when they were ordered."""
        self._reading: dict[str, _Reading] = {}

    def connects(self, request_id: str, now: float) -> None:
        """A pull has been ordered whose engine has to be connected to."""
        self._asked_at.setdefault(request_id, now)

    def began(self, request_id: str, began_at: float, now: float) -> None:
        """A pull began at `began_at`, and its reads have been posted."""
        asked_at = self._asked_at.pop(request_id, began_at)
        self._reading[request_id] = _Reading(began_at, began_at - asked_at, now - began_at)

    def reads(self, request_ids: Iterable[str], now: float) -> None:
        """These pulls read, as far as it is known."""
        for request_id in request_ids:
            if request_id not in self._reading:
                self._reading[request_id] = _Reading(now)

    def moved(self, handles: Mapping[str, Sequence[object]], told: Iterable[tuple[object, Telemetry | None]]) -> None:
        """Reads have ended. `handles`: the reads of each pull that were under way; `told`: what NIXL says of reads."""
        for handle, telemetry in told:
            owners = (name for name, of_pull in handles.items() if any(one is handle for one in of_pull))
            reading = self._reading.get(next(owners, ""))
            if reading is not None and telemetry is not None:
                reading.num_bytes += telemetry.totalBytes
                reading.transfer_s = max(reading.transfer_s, telemetry.xferDuration / 1e6)

    def over(self, request_id: str, now: float) -> Pull | None:
        """A pull has ended, well or not. None if it is not known when it began."""
        self._asked_at.pop(request_id, None)
        reading = self._reading.pop(request_id, None)
        if reading is None:
            return None
        return Pull(
            seconds=now - reading.began_at,
            ended_at=now,
            connect_s=reading.connect_s,
            post_s=reading.post_s,
            transfer_s=reading.transfer_s,
            num_bytes=reading.num_bytes,
        )

    def forget(self, is_known: Mapping[str, object]) -> None:
        """Drop pulls that were ordered and are not known any more."""
        self._asked_at = {name: at for name, at in self._asked_at.items() if name in is_known}

    def seconds(self, request_id: str, now: float) -> float:
        """For how long a pull has been reading. 0 if it does not read."""
        reading = self._reading.get(request_id)
        return now - reading.began_at if reading else 0.0
