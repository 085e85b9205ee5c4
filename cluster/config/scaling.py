"""The config section `scaling:`: how many workers the pools may have, and when (docs/autoscaling.md)."""

import re
from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from cluster.config.units import Count
from cluster.messages.ids import Pool

Day = Literal["mon", "tue", "wed", "thu", "fri", "sat", "sun"]
DAYS: tuple[Day, ...] = ("mon", "tue", "wed", "thu", "fri", "sat", "sun")
_CLOCK = re.compile(r"([01]\d|2[0-3]):([0-5]\d)|24:00")


class PoolBounds(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The workers that one pool may have."""

    max: Count
    """Most workers. More meets higher peaks; each takes `cpus`, `gpus` and an engine's memory."""
    min: Annotated[int, Meta(ge=0, le=1 << 20)] = 1
    """Fewest workers. With 0 the pool may be empty while the other pool does its work: decode workers compute prompts,
    and prefill workers generate. More are ready for a burst, and cost their machines while nobody asks.
    """

    def __post_init__(self) -> None:
        if self.min > self.max:
            raise ValueError(f"min is {self.min} and max is {self.max}")


class Peak(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A known peak: a time of each week at which the pools have at least some workers. Times are UTC."""

    start: str
    """When the workers must be ready, as HH:MM."""
    end: str
    """When the peak is over, as HH:MM. Before `start`, it is on the next day. 24:00 is the end of the day."""
    days: tuple[Day, ...] = DAYS
    """The days on which the peak starts."""
    prefill: Annotated[int, Meta(ge=0, le=1 << 20)] = 0
    """Fewest prefill workers."""
    decode: Annotated[int, Meta(ge=0, le=1 << 20)] = 0
    """Fewest decode workers."""

    def __post_init__(self) -> None:
        for name in ("start", "end"):
            if not _CLOCK.fullmatch(getattr(self, name)):
                raise ValueError(f'{name} is {getattr(self, name)!r}: give a time of day as HH:MM, such as "08:30"')
        if self.start == self.end:
            raise ValueError(f"start and end are both {self.start}: a peak of a whole day ends at 24:00")


class ScalingConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Both pools are sized together, for the requests that are expected when a worker that starts now is ready."""

    prefill: PoolBounds
    decode: PoolBounds
    target: Annotated[float, Meta(ge=0.5, le=0.999)] = 0.95
    """Share of the requests that should meet both objectives. Higher keeps more workers; lower misses more."""
    start_s: Annotated[float, Meta(ge=1, le=3600)] = 60.0
    """Time from the order of a worker to its first request, in seconds, until such times have been seen. Longer looks
    further ahead; shorter orders workers too late.
    """
    down_after_s: Annotated[float, Meta(ge=10, le=86400)] = 300.0
    """Time for which fewer workers must have been enough before any is stopped, in seconds. Longer keeps workers that
    are not needed; shorter stops workers that are needed again soon, and loses what they cache.
    """
    empty_s: Annotated[float, Meta(ge=0, le=3600)] = 120.0
    """Time for which a worker that will be stopped gets no new requests before it is stopped although some still run,
    in seconds. Those then have `drain_s` of their pool, and go on elsewhere after that. Longer keeps workers that are
    not needed; shorter moves more requests.
    """
    standby: Annotated[int, Meta(ge=0, le=1 << 20)] = 0
    """Workers beyond those that are needed. They run and take requests. More meets bursts that come faster than a
    worker starts; each costs its machine.
    """
    peaks: tuple[Peak, ...] = ()
    """Known peaks of the week."""

    @property
    def most_workers(self) -> int:
        """Of both pools together."""
        return self.prefill.max + self.decode.max

    @property
    def may_be_empty(self) -> Pool | None:
        """The pool that may be empty, if one may."""
        return Pool.PREFILL if not self.prefill.min else Pool.DECODE if not self.decode.min else None

    def __post_init__(self) -> None:
        if self.prefill.min + self.decode.min == 0:
            raise ValueError("prefill.min and decode.min are both 0: one pool must keep a worker to serve requests")
        for number, peak in enumerate(self.peaks):
            for name, bounds in (("prefill", self.prefill), ("decode", self.decode)):
                if getattr(peak, name) > bounds.max:
                    raise ValueError(
                        f"peaks[{number}].{name} is {getattr(peak, name)}, and {name}.max is {bounds.max}: raise max"
                    )
