"""Quantiles of the distributions that intervals need: Beta and Student's t, and counts of a binomial one. Pure.

All three follow from the regularized incomplete Beta function, whose continued fraction is evaluated by Lentz's method.
"""

from math import exp, lgamma, log, log1p, sqrt

STEPS = 60
"""Halvings of the range in which a quantile lies. More change nothing: a float has 53 bits."""
MOST_TERMS = 100_000
"""Terms of the continued fraction. It needs about the square root of the larger parameter."""
PRECISION, LEAST = 1e-12, 1e-300
"""Relative change at which the continued fraction ends, and what stands for 0 in its denominators."""


def beta_quantile(a: float, b: float, probability: float) -> float:
    low, high = 0.0, 1.0
    for _ in range(STEPS):
        middle = (low + high) / 2
        if incomplete_beta(a, b, middle) < probability:
            low = middle
        else:
            high = middle
    return (low + high) / 2


def t_quantile(degrees: float, probability: float) -> float:
    """`probability` is above one half. With x = degrees / (degrees + t * t), both tails have I(degrees/2, 1/2, x)."""
    x = beta_quantile(degrees / 2, 0.5, 2 * (1 - probability))
    return sqrt(degrees * (1 - x) / x)


def most_below(number: int, share: float, probability: float) -> int:
    """The largest count whose binomial distribution function is not above `probability`. -1 if none is.

    `number`: draws. `share`: chance of each.
    """
    low, high = -1, number
    while high - low > 1:
        middle = (low + high) // 2
        if incomplete_beta(number - middle, middle + 1, 1 - share) <= probability:
            low = middle
        else:
            high = middle
    return low


def incomplete_beta(a: float, b: float, x: float) -> float:
    """I(a, b, x), the distribution function of Beta(a, b)."""
    if not 0 < x < 1:
        return float(x >= 1)
    if x > (a + 1) / (a + b + 2):
        return 1 - incomplete_beta(b, a, 1 - x)  # the fraction converges fast on the other side
    front = exp(lgamma(a + b) - lgamma(a) - lgamma(b) + a * log(x) + b * log1p(-x)) / a
    return front / _fraction(a, b, x)


def _fraction(a: float, b: float, x: float) -> float:
    value = upper = 1.0
    lower = 0.0
    for term in range(1, MOST_TERMS):
        half = term // 2
        if term % 2:
            factor = -(a + half) * (a + b + half) * x / ((a + 2 * half) * (a + 2 * half + 1))
        else:
            factor = half * (b - half) * x / ((a + 2 * half - 1) * (a + 2 * half))
        lower = 1 / ((1 + factor * lower) or LEAST)
        upper = (1 + factor / upper) or LEAST
        change = upper * lower
        value *= change
        if abs(change - 1) < PRECISION:
            break
    return value
