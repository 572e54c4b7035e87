"""From counts to a certified epsilon: exact error rates by enumeration, exact power, predictions."""

import math

import numpy as np
import pytest
from scipy import stats

from jaxdp.audit import _certificates
from jaxdp.audit._certificates import CLOPPER_PEARSON, LABEL, certified, detectable, predicted


def miss_rate_label(trials, epsilon, alpha):
    """Probability of a certificate above a true epsilon, given the number of hits."""
    other = np.arange(trials + 1)
    above = [certified(LABEL, trials - y, 0, y, 0, alpha=alpha, delta=0.0) > epsilon for y in other.tolist()]
    return float(np.sum(stats.binom.pmf(other, trials, 1.0 / (1.0 + math.exp(epsilon)))[above]))


def miss_rate_limits(n, p, q, alpha, delta):
    hits = np.arange(n + 1)
    truth = math.log((p - delta) / q)
    above = np.array(
        [[certified(CLOPPER_PEARSON, x, n, y, n, alpha=alpha, delta=delta) > truth for y in hits] for x in hits]
    )
    joint = stats.binom.pmf(hits, n, p)[:, None] * stats.binom.pmf(hits, n, q)[None, :]
    return float(np.sum(joint[above]))


@pytest.mark.parametrize("epsilon", [0.0, 0.1, 1.0, 3.0])
def test_the_label_test_misses_at_most_alpha_of_the_time(epsilon):
    rates = [miss_rate_label(trials, epsilon, 0.1) for trials in range(1, 200, 6)]
    assert max(rates) <= 0.1
    # Exact, not merely safe; and the check can fail: at twice the level the rate exceeds alpha.
    assert max(rates) > 0.08 and max(miss_rate_label(trials, epsilon, 0.2) for trials in range(1, 200, 6)) > 0.1


@pytest.mark.parametrize("p, q, delta", [(0.5, 0.45, 0.0), (0.3, 0.02, 0.0), (0.6, 0.2, 0.05)])
def test_the_pair_of_limits_misses_at_most_alpha_of_the_time(p, q, delta):
    assert miss_rate_limits(30, p, q, 0.1, delta) <= 0.1
    # Both limits seldom fail together: only limits that mostly fail alone show.
    assert miss_rate_limits(30, p, q, 1.6, delta) > 0.1


def test_the_label_test_needs_fewer_runs():
    """The figures of a true epsilon of 0.1 and 95 %: 1.5 times fewer runs at mass 1/2, 2.8 times at mass 1/100."""
    for p, ratio in ((0.5, 1.4), (0.01, 2.6)):
        q = p * math.exp(-0.1)

        def runs(test, p=p, q=q):
            grid = np.unique(np.geomspace(1e5, 1e10, 4001).astype(np.int64))
            reached = [
                certified(test, round(n * p), n, round(n * q), n, alpha=0.05, delta=0.0) > 0.099 for n in grid.tolist()
            ]
            return grid[np.argmax(reached)]

        assert runs(CLOPPER_PEARSON) / runs(LABEL) > ratio


@pytest.mark.parametrize("test", [LABEL, CLOPPER_PEARSON])
def test_detectable_losses_are_refuted_with_the_stated_power(test):
    x, n, y, m, alpha, epsilon = 4000, 10_000, 2500, 10_000, 0.05, 0.5
    loss = detectable(test, x, n, y, m, alpha=alpha, delta=0.0, epsilon=epsilon)
    other = np.arange((x + y if test == LABEL else m) + 1)
    share = 1.0 / (1.0 + math.exp(loss)) if test == LABEL else x / n * math.exp(-loss)
    mass = stats.binom.pmf(other, len(other) - 1, share)
    near = np.flatnonzero(mass > 1e-12)
    refuted = [
        certified(test, x + y - k if test == LABEL else x, n, k, m, alpha=alpha, delta=0.0) > epsilon
        for k in near.tolist()
    ]
    assert np.sum(mass[near][refuted]) == pytest.approx(0.9, abs=1e-6)
    assert detectable(test, 3, n, 2, m, alpha=1e-9, delta=0.0, epsilon=30.0) == math.inf


@pytest.mark.parametrize("test", [LABEL, CLOPPER_PEARSON])
def test_predictions_are_the_certificates_at_the_expected_counts(test):
    p, q, runs = np.array([0.5, 0.02, 1e-4, 0.0]), np.array([0.4, 0.001, 0.0, 0.5]), 10**7
    found = predicted(test, p, q, runs, alpha=0.05, delta=0.0)
    for j in range(3):
        counts = (round(runs * p[j]), runs, round(runs * q[j]), runs)
        assert found[j] == pytest.approx(certified(test, *counts, alpha=0.05, delta=0.0), rel=0.08)
    assert found[3] < -1e5


def test_no_hits_certify_nothing():
    for test in _certificates.TESTS:
        assert certified(test, 0, 100, 5, 100, alpha=0.05, delta=0.0) == 0.0
    assert certified(CLOPPER_PEARSON, 10, 100, 0, 100, alpha=0.05, delta=0.2) == 0.0
