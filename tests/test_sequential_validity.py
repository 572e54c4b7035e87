"""Sequential audits at claims equal to the exact loss: seldom refuted; invalid variants are found out."""

import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from audit_mechanisms import BITS, LOG3, OTHER_SCORES, SCORES, exponential, exponential_loss, mask, uniform
from scipy import special, stats

from jaxdp.audit import _betting, _binomial, _predictor
from jaxdp.audit.sequential import sequential

# `benchmarks audit_sequential` asks the same with fewer seeds.
pytestmark = pytest.mark.thorough

ALPHA, SEEDS = 0.05, 40


def most_refuted(audits):
    """Refutations among audits at level ALPHA that are exceeded with probability 1e-9."""
    return int(stats.binom.isf(1e-9, audits, ALPHA))


# -- whole audits -------------------------------------------------------------------------------------------


def laplace(key, x):
    one, other = -jnp.log1p(-uniform(key, (2,)))
    return x + one - other


def noisy_max(key, x):
    one, other = -jnp.log1p(-uniform(key, (2, 5)))
    return jnp.argmax(x + np.float32(2.0) * (one - other))


def gaussian(key, x):
    return x + jax.random.normal(key, dtype=jnp.float32)


X, Y = np.ones(5, np.float32), np.float32([2, 0, 0, 0, 0])


def noisy_max_loss():
    grid = np.linspace(-80.0, 80.0, 160_001)

    def law(x):
        below = np.stack([stats.laplace(scale=2.0).cdf(grid - value) for value in x])
        mass = [stats.laplace(scale=2.0).pdf(grid - x[i]) * np.prod(np.delete(below, i, 0), 0) for i in range(5)]
        return np.trapezoid(np.array(mass), grid, axis=1)

    return float(np.max(np.abs(np.log(law(X.astype(float)) / law(Y.astype(float))))))


RIGHT = [
    (laplace, np.float32(0), np.float32(1), dict(epsilon=1.0)),
    (noisy_max, X, Y, dict(epsilon=noisy_max_loss())),
    (exponential, SCORES, OTHER_SCORES, dict(epsilon=exponential_loss(0.5))),
    (mask, BITS, BITS | (np.arange(6) < 2), dict(epsilon=2.0 * LOG3)),
    (gaussian, np.float32(0), np.float32(1), dict(epsilon=0.5, delta=0.5 - math.exp(0.5) * special.ndtr(-1.0))),
]


def refuted(key, seeds=SEEDS):
    count = 0
    for run, summary, neighbour, claim in RIGHT:
        for each in jax.random.split(key, seeds):
            count += sequential(each, run, summary, neighbour, confidence=1 - ALPHA, max_samples=100, **claim).refuted
    return count


def test_right_claims_are_refuted_no_more_often_than_stated(key):
    assert refuted(key) <= most_refuted(SEEDS * len(RIGHT))


def test_predictions_from_the_outputs_they_are_tested_on_are_found_out(key, monkeypatch):
    """Negative control: the event is chosen on the same data that it is tested on."""
    honest = _predictor.Predictor.predict

    def peek(self, start, stop):
        values, outputs = self.values, self.whole
        # Learns from a list in which the block's outputs stand before themselves, several times.
        order = np.concatenate([np.arange(start), *[np.arange(start, stop)] * 7])
        self.values, self.whole = values[:, order], outputs[:, order]
        found = honest(self, len(order) - (stop - start), len(order))
        self.values, self.whole = values, outputs
        return found

    monkeypatch.setattr(_predictor.Predictor, "predict", peek)
    assert refuted(key, 12) > most_refuted(12 * len(RIGHT))


# -- counted events -----------------------------------------------------------------------------------------

EPSILON = 0.2
# The first three cells lose exactly the claim, the last one less in the other direction.
P = np.array([0.2, 0.15, 0.05, 0.6])
Q = np.append(P[:3] * math.exp(-EPSILON), 1.0 - 0.4 * math.exp(-EPSILON))
CALLS = [200, 100, 200, 400, 800, 1600, 3200, 6400]


def largest_wealth(bets_class, seeds, p=P, q=Q):
    rng, epsilons, largest = np.random.default_rng(7), np.array([EPSILON]), np.zeros(seeds)
    for seed in range(seeds):
        bets, wealth = bets_class(1, 4, epsilons, 0.0), 0.0
        for pairs in CALLS:
            counts = np.stack([rng.multinomial(pairs, p), rng.multinomial(pairs, q)])
            wealth += bets.update(counts)[0]
            largest[seed] = max(largest[seed], wealth)
    return largest


class Peeking(_betting.StageBets):
    """Negative control: makes its bets from the counts that they are settled with."""

    def update(self, counts):
        seen, self.seen = self.seen, self.seen + counts
        steps = np.concatenate([self._play(past, new) for past, new in self._games(counts)])
        self.seen = seen + counts
        return steps.max(axis=0)


def test_counted_events_at_the_exact_loss():
    assert np.sum(largest_wealth(_betting.StageBets, 100) >= math.log(1 / ALPHA)) <= most_refuted(100)
    assert np.sum(largest_wealth(Peeking, 60) >= math.log(1 / ALPHA)) > most_refuted(60)
    wrong = largest_wealth(_betting.StageBets, 12, q=np.append(P[:3] * 0.7, 1.0 - 0.4 * 0.7))
    assert np.mean(wrong >= math.log(1 / ALPHA)) > 0.9, "power: a loss of 0.36 is refuted"


def test_looking_at_fixed_limits_after_every_block_is_found_out():
    """Negative control for the bound itself: label limits of one look, taken at many."""
    rng, theta = np.random.default_rng(8), 1.0 / (1.0 + math.exp(EPSILON))
    hits = np.cumsum(rng.random((1000, 2000)) < theta, axis=1)[:, 19::20]
    looks = np.arange(20, 2001, 20)
    upper = _binomial.upper_limit(hits, np.broadcast_to(looks, hits.shape), ALPHA)
    assert np.sum(upper[:, -1] < theta) <= most_refuted(1000), "valid at one look"
    assert np.sum(np.any(upper < theta, axis=1)) > most_refuted(1000)
