"""Ranges of values that several config sections share."""

from typing import Annotated

from msgspec import Meta

Count = Annotated[int, Meta(ge=1)]
Share = Annotated[float, Meta(gt=0, lt=1)]
Days = Annotated[float, Meta(gt=0, le=36500)]
