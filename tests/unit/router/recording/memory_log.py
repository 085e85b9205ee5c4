"""A stimulus log in memory, and replays of it."""

from collections import Counter

import msgspec

from cluster.slo import SloConfig
from router.placement.candidates import Policy
from router.placement.goodput import goodput
from router.recording.log_files import KEPT
from router.recording.records import Stimulus
from router.recording.snapshot import SnapshotPart, capture, encodable, restore
from router.replay.log_reader import class_of
from router.replay.stepper import Decision, DecisionKind, Stepper
from router.state import RouterState

_stimuli = msgspec.msgpack.Decoder(list[Stimulus])
_parts = msgspec.msgpack.Decoder(list[SnapshotPart])


class MemoryLog:
    """A StimulusSink. A snapshot is taken before every `snapshot_every`-th record."""

    def __init__(self, snapshot_every: int | None = None) -> None:
        self.records: list[Stimulus] = []
        self.snapshots: list[tuple[int, bytes]] = []
        """Each with the number of records before it, as it would be in a file."""
        self._every = snapshot_every

    def add(self, record: Stimulus, num_bytes: int) -> None:
        assert num_bytes > 0
        self.records.append(record)

    @property
    def is_due(self) -> bool:
        last = self.snapshots[-1][0] if self.snapshots else 0
        return self._every is not None and len(self.records) - last >= self._every

    def begin_file(self, state: RouterState) -> None:
        parts = [encodable(part) for part in capture(state, KEPT)]
        self.snapshots.append((len(self.records), msgspec.msgpack.encode(parts)))

    def as_read(self) -> list[Stimulus]:
        """The records as a reader gets them from a file."""
        return _stimuli.decode(msgspec.msgpack.encode(self.records))


def replayed(
    records: list[Stimulus], slo: SloConfig, snapshot: bytes | None = None, policy: Policy = goodput
) -> list[Decision]:
    decisions: list[Decision] = []
    state = RouterState(slo, policy)
    if snapshot is not None:
        restore(_parts.decode(snapshot), state, class_of)
    stepper = Stepper(state, decisions.append)
    for record in records:
        stepper.apply(record)
    stepper.end_pauses()
    assert not stepper.num_failed
    return decisions


def different(decisions: list[Decision]) -> list[Decision]:
    return [decision for decision in decisions if not decision.is_equal]


def kinds(decisions: list[Decision]) -> Counter[DecisionKind]:
    return Counter(decision.kind for decision in decisions)
