"""Quantiles are those of another implementation."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from cluster.load.report.distributions import beta_quantile, most_below, t_quantile


@settings(max_examples=40)
@given(st.floats(0.5, 3000), st.floats(0.5, 3000), st.sampled_from([0.001, 0.025, 0.5, 0.975]))
def test_quantile_of_beta(a: float, b: float, probability: float) -> None:
    assert beta_quantile(a, b, probability) == pytest.approx(stats.beta.ppf(probability, a, b), abs=1e-9)


@pytest.mark.parametrize("degrees", [1, 2, 9, 19, 5000])
def test_quantile_of_t(degrees: int) -> None:
    assert t_quantile(degrees, 0.975) == pytest.approx(stats.t.ppf(0.975, degrees), rel=1e-6)


@settings(max_examples=40)
@given(st.integers(1, 5000), st.sampled_from([0.1, 0.5, 0.9, 0.99]), st.sampled_from([0.025, 0.975]))
def test_largest_count_below_a_probability(number: int, share: float, probability: float) -> None:
    count = most_below(number, share, probability)
    assert stats.binom.cdf(count, number, share) <= probability + 1e-9
    if count + 1 < number:
        assert stats.binom.cdf(count + 1, number, share) > probability - 1e-9
