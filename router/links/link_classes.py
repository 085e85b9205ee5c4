"""LinkClasses: links of one class are equally fast, and one of them is measured for all. Pure.

The class of a link consists of the classes of its two nodes, and of whether both workers are on one node. Workers of
one kind (`EngineShape.kind`) whose engines have the same transport settings are on nodes of one class. A measurement
disturbs both workers, so there is one at a time for each class. It is repeated a few times if it fails, and again after
a long time, because cables and switches change.
"""

from math import inf
from typing import Final, final

from cluster.messages.reports import WorkerReport
from cluster.messages.transport import LinkSpeed
from router.prediction.transfer import LinkClass, has_meaning

NUM_TRIES: Final = 3
"""Attempts in a row to measure a class. More disturbs workers whose telemetry tells nothing; fewer leaves more classes
with the speed that their handoffs teach alone.
"""
TRY_AGAIN_S: Final = 10.0
"""Time from an attempt that failed to the next one, in seconds. Lower measures beside the same disturbance; higher
leaves the speed unknown for longer.
"""
LONGEST_S: Final = 60.0
"""Time after which an attempt without an outcome counts as failed, in seconds: its decode worker is gone. A decode
worker gives up a proof and a measurement after 30 s (decode/proven_links.py). Lower measures twice at a time; higher
leaves the speed unknown for longer.
"""
SETTLE_S: Final = 1.0
"""Time from the first link of a class that is reported to its measurement, in seconds. Meanwhile a worker reports that
has measured a link of the class for an earlier Scheduler process. Lower measures anew after a restart; higher leaves
the speed unknown for longer.
"""
MEASURE_AGAIN_S: Final = 3600.0
"""Age of a measurement after which its class is measured again, in seconds. Lower disturbs workers more often; higher
notices later that a network has changed. Meanwhile the handoffs themselves teach the Scheduler.
"""


@final
class _Class:
    __slots__ = ("due_at", "num_failed", "speed")

    def __init__(self, due_at: float) -> None:
        self.speed: LinkSpeed | None = None
        self.num_failed = 0
        self.due_at = due_at
        """When the class is to be measured next."""


@final
class LinkClasses:
    __slots__ = ("_classes", "_due_at", "_node_classes")

    def __init__(self) -> None:
        self._node_classes: dict[tuple[object, ...], int] = {}
        self._classes: dict[LinkClass, _Class] = {}
        """The classes of which a link is or was proved."""
        self._due_at = inf
        """When the first of them is to be measured."""

    def node_class(self, report: WorkerReport) -> int:
        transport = report.transport
        settings = tuple([(setting.name, setting.value) for setting in transport.settings])
        key = (report.shape.kind, transport.transports, settings)
        return self._node_classes.setdefault(key, len(self._node_classes))

    def speed(self, link_class: LinkClass) -> LinkSpeed | None:
        """The measured speed of the links of a class. None if none was measured."""
        known = self._classes.get(link_class)
        return known.speed if known is not None else None

    def add(self, link_class: LinkClass, speed: LinkSpeed | None, now: float) -> bool:
        """A link of this class is proved, and has this measured speed or none. Returns True if that is the first
        speed of its class.
        """
        known = self._classes.get(link_class)
        if known is None:
            known = self._classes[link_class] = _Class(now + SETTLE_S)
            self._update()
        if known.speed is not None or speed is None or not has_meaning(speed):
            return False
        self._take(known, speed, now)
        return True

    def is_any_due(self, now: float) -> bool:
        """Whether some class is to be measured."""
        return now >= self._due_at

    def is_due(self, link_class: LinkClass, now: float) -> bool:
        """Whether a link of this class is to be measured. A class without a proved link is: the next one is its
        first.
        """
        known = self._classes.get(link_class)
        return known is None or now >= known.due_at

    def begin(self, link_class: LinkClass, now: float) -> None:
        """A decode worker was asked to measure a link of this class."""
        known = self._classes.setdefault(link_class, _Class(now))
        known.due_at = now + LONGEST_S
        self._update()

    def end(self, link_class: LinkClass, speed: LinkSpeed | None, now: float) -> bool:
        """The measurement is over. `speed`: None if it failed. Returns True if the class has a new speed."""
        known = self._classes.setdefault(link_class, _Class(now))
        if speed is not None and has_meaning(speed):
            self._take(known, speed, now)
            return True
        known.num_failed += 1
        is_last = known.num_failed >= NUM_TRIES
        known.due_at = now + (MEASURE_AGAIN_S if is_last else TRY_AGAIN_S)
        if is_last:
            known.num_failed = 0
        self._update()
        return False

    def _take(self, known: _Class, speed: LinkSpeed, now: float) -> None:
        known.speed, known.num_failed, known.due_at = speed, 0, now + MEASURE_AGAIN_S
        self._update()

    def _update(self) -> None:
        self._due_at = min([one.due_at for one in self._classes.values()])
