from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from api.metering.prices import PER_TOKENS, TokenPrices, price_list
from cluster.errors import InvalidRequest
from tests.architecture.sources import ROOT
from tests.expected import present

DAY_MS = 86_400_000
NEW_YEAR_MS = 1_767_225_600_000
PRICES = b"""
currency: eur
versions:
  - version: v1
    valid_from: 2026-01-01
    models:
      small: {input: 150_000, cached_input: 75_000, output: 600_000, reasoning: 900_000}
      "*": {input: 1_000_000, output: 2_000_000}
  - version: v2
    valid_from: 2026-01-02
    models:
      small: {input: 1, output: 1}
"""

amounts = st.integers(0, 10**12)
counts = st.tuples(st.integers(0, 10**9), st.integers(0, 10**9), st.integers(0, 10**9), st.integers(0, 10**9)).map(
    lambda four: (four[0] + four[1], four[1], four[2] + four[3], four[3])
)


@given(amounts, amounts, amounts, amounts, counts)
def test_cost_is_the_exact_one_rounded_once_to_the_nearest_millionth(
    of_input: int, of_cached: int, of_output: int, of_reasoning: int, tokens: tuple[int, int, int, int]
) -> None:
    prompt, cached, generated, reasoning = tokens
    prices = TokenPrices(of_input=of_input, of_cached=of_cached, of_output=of_output, of_reasoning=of_reasoning)
    exact = Fraction(
        (prompt - cached) * of_input
        + cached * of_cached
        + (generated - reasoning) * of_output
        + reasoning * of_reasoning,
        PER_TOKENS,
    )
    cost = prices.cost_micros(*tokens)
    assert Fraction(-1, 2) < cost - exact <= Fraction(1, 2)


def test_half_a_millionth_is_rounded_up() -> None:
    assert TokenPrices(of_input=500_000, of_output=0).cost_micros(1, 0, 0, 0) == 1
    assert TokenPrices(of_input=499_999, of_output=0).cost_micros(1, 0, 0, 0) == 0


@given(amounts, amounts, counts)
def test_missing_prices_are_those_of_the_kind_that_has_one(
    of_input: int, of_output: int, tokens: tuple[int, int, int, int]
) -> None:
    short = TokenPrices(of_input=of_input, of_output=of_output)
    long = TokenPrices(of_input=of_input, of_cached=of_input, of_output=of_output, of_reasoning=of_output)
    assert short.cost_micros(*tokens) == long.cost_micros(*tokens)


def test_version_is_valid_from_the_begin_of_its_day() -> None:
    prices = price_list(PRICES)
    assert prices.of("small", NEW_YEAR_MS - 1) is None
    assert present(prices.of("small", NEW_YEAR_MS)).version == "v1"
    assert present(prices.of("small", NEW_YEAR_MS + DAY_MS - 1)).version == "v1"
    assert present(prices.of("small", NEW_YEAR_MS + DAY_MS)).version == "v2"
    assert present(prices.of("small", NEW_YEAR_MS)).currency == "eur"


def test_model_without_a_price_has_that_of_every_model_or_costs_nothing() -> None:
    prices = price_list(PRICES)
    assert present(prices.of("other", NEW_YEAR_MS)).prices.of_input == 1_000_000
    assert prices.of("other", NEW_YEAR_MS + DAY_MS) is None


@pytest.mark.parametrize(
    ("text", "wrong"),
    [
        (b"currency: EUR\nversions: []", "currency"),
        (b"currency: eur\nversions: [{version: a, valid_from: 2026-01-01, models: {m: {input: 0.15}}}]", "input"),
        (b"currency: eur\nversions: [{version: a, valid_from: 2026-01-01, models: {m: {input: -1}}}]", "input"),
        (b"currency: eur\nversions: [{version: a, valid_from: soon, models: {}}]", "valid_from"),
        (b"currency: eur\nversions: [{version: a, valid_from: 2026-01-01, models: {}, price: 1}]", "price"),
        (PRICES.replace(b"v2", b"v1"), "same name"),
        (PRICES.replace(b"2026-01-02", b"2025-01-02"), "order of valid_from"),
        (PRICES.replace(b"2026-01-02", b"2026-01-01"), "order of valid_from"),
        (b"currency: [", "prices cannot be read"),
    ],
)
def test_price_file_that_is_wrong_is_refused_with_the_place(text: bytes, wrong: str) -> None:
    with pytest.raises(InvalidRequest, match=wrong):
        price_list(text)


def test_example_prices_can_be_read() -> None:
    prices = price_list((ROOT / "conf/prices.yaml").read_bytes())
    assert present(prices.of("baton-demo", NEW_YEAR_MS)).version.startswith("example")


@pytest.mark.parametrize(
    ("model", "at_ms", "why"),
    [
        ("small", NEW_YEAR_MS - 1, "no version of the prices is valid yet"),
        ("small", NEW_YEAR_MS, None),
        ("other", NEW_YEAR_MS, "version v2 has no prices for the served model 'other'"),
        ("other", NEW_YEAR_MS + DAY_MS, "version v2 has no prices for the served model 'other'"),
    ],
)
def test_served_model_without_a_price_now_or_later_is_found(model: str, at_ms: int, why: str | None) -> None:
    found = price_list(PRICES).refusal(model, at_ms)
    assert found == why if why is None else why in present(found)


@pytest.mark.parametrize("versions", [b"[]", b"[{version: a, valid_from: 2026-01-01, models: {}}]"])
def test_empty_prices_are_found(versions: bytes) -> None:
    assert price_list(b"currency: eur\nversions: " + versions).refusal("m", NEW_YEAR_MS)
