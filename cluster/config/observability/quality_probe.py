"""The config section `quality_probe:`."""

from typing import Annotated, Literal

import msgspec
from msgspec import Meta

MOST_TOKENS = 256
"""Tokens of a probe's answer at most. More costs engines time; fewer notices faults of long answers less."""


class QualityProbeConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Prompts with known answers that every worker answers on every path, at intervals (docs/quality.md)."""

    enabled: bool = True
    """Whether workers are probed."""
    every_s: Annotated[float, Meta(ge=1, le=86400)] = 600.0
    """Time within which each worker is probed on each path, in seconds. Shorter finds a wrong worker sooner and costs
    more; longer leaves clients with wrong answers for longer.
    """
    tokens: Annotated[int, Meta(ge=1, le=MOST_TOKENS)] = 16
    """Tokens of each answer that are compared. More finds rarer faults; fewer costs less."""
    max_share: Annotated[float, Meta(gt=0, le=1)] = 0.01
    """Share of a worker's time during which a probe may run on it, beside the requests of clients. Where it does not
    suffice, probes come less often than `every_s`. Higher delays requests of clients more; lower probes slow workers
    less often.
    """
    quarantine: Literal["off", "on"] | bool = "off"
    """With `on`, a worker that answers two different prompts wrongly gets no requests until its answers are right
    again. YAML reads a bare `on` as true.
    """
    file: str | None = None
    """A file with prompts and their reference answers, as `baton quality --learn FILE` writes it. A relative path is
    inside the repository. Without it, the prompts are Baton's own, and the answers on which most workers agree in the
    first round become the reference.
    """

    @property
    def quarantines(self) -> bool:
        return self.quarantine in ("on", True)
