"""What tokens cost: prices by model and kind of token, each valid from a day on. Pure.

All amounts are whole numbers: a price is in millionths of the currency per million tokens, and a cost in millionths of
the currency. The exact cost of a row is computed first and rounded once, to the nearest millionth, halves up. So the
cost of a row is at most half a millionth away from the exact one.

A version of the prices is never changed once it was valid: rows name the version that they were computed with. A change
is a new version with a later day.
"""

from datetime import UTC, date, datetime
from typing import Annotated

import msgspec
from msgspec import Meta

from cluster.errors import InvalidRequest

PER_TOKENS = 1_000_000
"""Tokens that a price is for."""
EVERY_MODEL = "*"
"""The name of the prices for models that a version does not name."""

Price = Annotated[int, Meta(ge=0, le=10**12)]
"""Millionths of the currency per million tokens. The bound is a currency unit per token."""


class TokenPrices(
    msgspec.Struct,
    frozen=True,
    kw_only=True,
    forbid_unknown_fields=True,
    rename={"of_input": "input", "of_cached": "cached_input", "of_output": "output", "of_reasoning": "reasoning"},
):
    """The prices of a model. The file has the shorter names."""

    of_input: Price
    of_cached: Price | None = None
    """For tokens of the prompt that came from caches. As `input` if it is missing."""
    of_output: Price
    of_reasoning: Price | None = None
    """For tokens of the reasoning. As `output` if it is missing."""

    def cost_micros(self, prompt: int, cached: int, generated: int, reasoning: int) -> int:
        """The cost of tokens, in millionths of the currency. `cached` is a part of `prompt`, and `reasoning` of
        `generated`.
        """
        of_cached = self.of_input if self.of_cached is None else self.of_cached
        of_reasoning = self.of_output if self.of_reasoning is None else self.of_reasoning
        exact = (
            (prompt - cached) * self.of_input
            + cached * of_cached
            + (generated - reasoning) * self.of_output
            + reasoning * of_reasoning
        )
        return (2 * exact + PER_TOKENS) // (2 * PER_TOKENS)

    def most_micros(self, prompt: int, generated: int) -> int:
        """The cost of tokens whose kinds are not known yet, at most."""
        of_input = max(self.of_input, self.of_cached or 0)
        of_output = max(self.of_output, self.of_reasoning or 0)
        return -(-(prompt * of_input + generated * of_output) // PER_TOKENS)


class PriceVersion(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    version: Annotated[str, Meta(min_length=1, max_length=64)]
    valid_from: date
    """The first day, by UTC."""
    models: dict[str, TokenPrices]
    """The prices by model, and under EVERY_MODEL those of all other models."""

    @property
    def valid_from_ms(self) -> int:
        """In milliseconds of Unix time."""
        day = self.valid_from
        return int(datetime(day.year, day.month, day.day, tzinfo=UTC).timestamp()) * 1000


class PricedTokens(msgspec.Struct, frozen=True):
    """The prices of a request, with where they are from."""

    version: str
    currency: str
    prices: TokenPrices


class PriceList(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The price file (conf/prices.yaml)."""

    currency: Annotated[str, Meta(pattern="^[a-z]{3}\\Z")]
    """ISO 4217, in small letters."""
    versions: list[PriceVersion]
    """In the order of their days."""

    def __post_init__(self) -> None:
        names = [one.version for one in self.versions]
        if len({*names}) < len(names):
            raise ValueError("two versions have the same name")
        days = [one.valid_from for one in self.versions]
        if sorted({*days}) != days:
            raise ValueError("versions must be in the order of valid_from, and each day may have one")

    def of(self, model: str, at_ms: int) -> PricedTokens | None:
        """The prices of a model for a request that arrives at this time, in milliseconds of Unix time. None if there
        are none: such a request costs nothing.
        """
        valid = [one for one in self.versions if one.valid_from_ms <= at_ms]
        if not valid:
            return None
        prices = valid[-1].models.get(model) or valid[-1].models.get(EVERY_MODEL)
        return None if prices is None else PricedTokens(valid[-1].version, self.currency, prices)

    def refusal(self, model: str, at_ms: int) -> str | None:
        """Why requests for a model would cost nothing at this time, in milliseconds of Unix time, or later. None if
        they never do.
        """
        names = [one.version for one in self.versions if one.valid_from_ms <= at_ms]
        if not names:
            return "no version of the prices is valid yet: requests would cost nothing"
        for one in self.versions[len(names) - 1 :]:
            if model not in one.models and EVERY_MODEL not in one.models:
                return (
                    f"version {one.version} has no prices for the served model {model!r}: add them, or prices of all "
                    f"models as {EVERY_MODEL!r}; a price may be 0"
                )
        return None


def price_list(text: bytes) -> PriceList:
    """The content of a price file. Raises InvalidRequest, with what is wrong and where."""
    try:
        return msgspec.yaml.decode(text, type=PriceList)
    except (msgspec.ValidationError, msgspec.DecodeError, ValueError) as error:
        raise InvalidRequest(f"the prices cannot be read: {error}", None, "invalid_prices") from error
