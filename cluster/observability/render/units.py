"""How values of a unit are written: with a unit that makes their numbers short. Pure."""

import msgspec

from cluster.observability.panels.panel import Unit


class UnitScale(msgspec.Struct, frozen=True):
    """A unit that values are shown in."""

    size: float
    """The value of one of it."""
    suffix: str


_SCALES = {
    Unit.SHARE: ((0.01, " %"),),
    Unit.SECONDS: ((1e-6, " us"), (1e-3, " ms"), (1.0, " s"), (60.0, " min"), (3600.0, " h"), (86400.0, " d")),
    Unit.PER_SECOND: ((1.0, "/s"), (1e3, " k/s"), (1e6, " M/s")),
    Unit.TOKENS_PER_SECOND: ((1.0, "/s"), (1e3, " k/s"), (1e6, " M/s")),
    Unit.BYTES_PER_SECOND: ((1.0, " B/s"), (1e3, " kB/s"), (1e6, " MB/s"), (1e9, " GB/s"), (1e12, " TB/s")),
    Unit.COUNT: ((1.0, ""), (1e3, " k"), (1e6, " M"), (1e9, " G")),
    Unit.RATIO: ((1.0, ""),),
}
"""The units of values, from small to large."""


def scale_of(unit: Unit, value: float) -> UnitScale:
    """The largest unit that the value has one of. Zero has the plain one."""
    scales = [UnitScale(size, suffix) for size, suffix in _SCALES[unit]]
    reached = [scale for scale in scales if scale.size <= abs(value or 1.0)]
    return reached[-1] if reached else scales[0]


def shown(unit: Unit, value: float) -> str:
    """The value with its unit, in three digits."""
    scale = scale_of(unit, value)
    number = value / scale.size
    return f"{number:,.0f}{scale.suffix}" if abs(number) >= 999.5 else f"{number:.3g}{scale.suffix}"
