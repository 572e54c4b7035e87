"""Clopper-Pearson limits against exact rationals, an independent tail for large numbers, and negative controls."""

import math
from fractions import Fraction

import numpy as np
import pytest

from jaxdp.audit import _binomial
from jaxdp.audit._binomial import is_lower_limit, is_upper_limit, lower_limit, upper_limit

LARGE = [10_000, 66_000_000, 10**9, 10**12]


def exact_upper_tail(hits, runs, p):
    """P(Binomial(runs, p) >= hits) as a rational number."""
    p = Fraction(p)
    return sum(math.comb(runs, k) * p**k * (1 - p) ** (runs - k) for k in range(hits, runs + 1))


def log_pmf(x, n, p):
    """Loader's saddle-point form of the binomial probability, accurate for any n."""

    def stirling(m):
        return 1 / (12 * m) - 1 / (360 * m**3) + 1 / (1260 * m**5)

    def deviance(x, mean):
        ratio = (x - mean) / mean
        return mean * ((1 + ratio) * math.log1p(ratio) - ratio)

    y = n - x
    return (
        stirling(n) - stirling(x) - stirling(y) - deviance(x, n * p) - deviance(y, n * (1 - p))
        + 0.5 * math.log(n / (2 * math.pi * x * y))
    )  # fmt: skip


def summed_upper_tail(x, n, p):
    """P(Binomial(n, p) >= x) for x above the mean, as the probability of x times a sum of ratios of neighbours."""
    terms = int(60 * math.sqrt(n * p * (1 - p)) / max((x - n * p) / math.sqrt(n * p * (1 - p)), 1.0)) + 200
    k = np.arange(x, min(x + terms, n), dtype=np.float64)
    ratios = (n - k) / (k + 1.0) * (p / (1.0 - p))
    return math.exp(log_pmf(x, n, p)) * (1.0 + np.sum(np.cumprod(ratios)))


@pytest.mark.parametrize("alpha", [0.5, 0.025, 1e-3, 1e-12])
@pytest.mark.parametrize("runs", [1, 2, 7, 30])
def test_limits_invert_the_exact_tail(runs, alpha):
    hits = np.arange(runs + 1)
    lower, upper = lower_limit(hits, runs, alpha), upper_limit(hits, runs, alpha)
    assert lower[0] == 0.0 and upper[-1] == 1.0
    for x in range(1, runs + 1):
        assert exact_upper_tail(x, runs, lower[x]) <= Fraction(alpha)
        assert exact_upper_tail(x, runs, min(lower[x] * (1 + 1e-10), 1.0)) >= Fraction(alpha)
    for x in range(runs):
        assert 1 - exact_upper_tail(x + 1, runs, upper[x]) <= Fraction(alpha)
        assert 1 - exact_upper_tail(x + 1, runs, upper[x] * (1 - 1e-10)) >= Fraction(alpha)


@pytest.mark.parametrize("alpha", [0.025, 1e-6, 1e-12])
@pytest.mark.parametrize("runs", LARGE)
def test_large_limits_against_an_independent_tail(runs, alpha):
    shares = [1e-9, 1e-6, 1e-3, 0.3] if runs == 10**12 else [1e-6, 1e-3, 0.5, 0.99]
    for hits in [20, *(int(runs * share) for share in shares if runs * share >= 20)]:
        lower = float(lower_limit(hits, runs, alpha))
        tail = summed_upper_tail(hits, runs, lower)
        assert alpha * (1 - 1e-4) <= tail <= alpha * (1 + 1e-6), (hits, tail)
        # The upper limit for x hits is one minus the lower limit for the misses.
        upper = float(upper_limit(runs - hits, runs, alpha))
        np.testing.assert_allclose(1.0 - upper, lower, rtol=1e-9, atol=1e-10)


@pytest.mark.parametrize("alpha", [0.025, 1e-12])
@pytest.mark.parametrize("runs", LARGE[1:])
def test_few_hits_in_many_runs_against_the_poisson_law(runs, alpha):
    mean = runs * float(upper_limit(20, runs, alpha))
    below = sum(math.exp(k * math.log(mean) - mean - math.lgamma(k + 1)) for k in range(21))
    # The binomial law differs by about (hits + mean)^2 / runs.
    assert below == pytest.approx(alpha, rel=1e-3)


@pytest.mark.parametrize("alpha", [0.05, 1e-9, 1e-12])
def test_no_hits_and_all_hits_have_closed_forms(alpha):
    for runs in LARGE:
        np.testing.assert_allclose(upper_limit(0, runs, alpha), -np.expm1(np.log(alpha) / runs), rtol=1e-10)
        np.testing.assert_allclose(lower_limit(runs, runs, alpha), np.exp(np.log(alpha) / runs), rtol=1e-10)


@pytest.mark.parametrize("alpha", [0.3, 0.05, 1e-3])
def test_coverage_is_at_least_nominal(alpha):
    runs = 25
    hits = np.arange(runs + 1)
    lower, upper = lower_limit(hits, runs, alpha), upper_limit(hits, runs, alpha)
    for p in np.linspace(0.01, 0.99, 37):
        weight = np.array([math.comb(runs, k) * p**k * (1 - p) ** (runs - k) for k in hits])
        assert weight[lower > p].sum() <= alpha
        assert weight[upper < p].sum() <= alpha


@pytest.mark.parametrize("runs", [50, 10**6, 10**12])
@pytest.mark.parametrize("alpha", [0.05, 1e-12])
def test_negative_control_a_limit_for_another_alpha_fails_the_check(runs, alpha):
    hits = np.array([1, runs // 3])
    for limit, check in ((lower_limit, is_lower_limit), (upper_limit, is_upper_limit)):
        assert np.all(check(limit(hits, runs, alpha), hits, runs, alpha))
        assert not np.any(check(limit(hits, runs, alpha * 1.001), hits, runs, alpha))  # invalid
        assert not np.any(check(limit(hits, runs, alpha * 0.999), hits, runs, alpha))  # not tight


def test_a_wrong_quantile_is_repaired(monkeypatch):
    hits = np.array([0, 1, 12, 30_000, 99_999, 100_000])
    limits = [limit(hits, 100_000, alpha) for limit in (lower_limit, upper_limit) for alpha in (0.05, 1e-10)]
    monkeypatch.setattr(_binomial.special, "betaincinv", lambda a, b, y: np.full(np.shape(a), 0.4))
    monkeypatch.setattr(_binomial.special, "betainccinv", lambda a, b, y: np.full(np.shape(a), np.nan))
    again = [limit(hits, 100_000, alpha) for limit in (lower_limit, upper_limit) for alpha in (0.05, 1e-10)]
    np.testing.assert_allclose(again, limits, rtol=1e-10)


def test_a_wrong_tail_raises_instead_of_certifying(monkeypatch):
    monkeypatch.setattr(_binomial.special, "betainc", lambda a, b, x: np.full(np.shape(x), 0.5))
    with pytest.raises(ArithmeticError, match="3 hits in 10 runs"):
        lower_limit(3, 10, 0.05)


def test_counts_broadcast():
    assert lower_limit(np.array([[1], [2]]), np.array([10, 20, 30]), 0.1).shape == (2, 3)
    assert upper_limit(5, 10, 0.1).shape == ()


@pytest.mark.parametrize(
    "hits, runs, alpha, name",
    [
        (1, 10, 0.0, "alpha"),
        (1, 10, 1.0, "alpha"),
        (1, 10, math.nan, "alpha"),
        (-1, 10, 0.1, "hits"),
        (11, 10, 0.1, "hits"),
        (1.5, 10, 0.1, "hits"),
        (math.nan, 10, 0.1, "hits"),
        (0, 0, 0.1, "runs"),
        (0, 10.5, 0.1, "runs"),
        (0, 2.0**60, 0.1, "runs"),
    ],
)
@pytest.mark.parametrize("limit", [lower_limit, upper_limit])
def test_bad_arguments_are_named(limit, hits, runs, alpha, name):
    with pytest.raises(ValueError, match=f"^{name} must"):
        limit(hits, runs, alpha)
