"""Mechanisms with known losses for the tests of the Monte-Carlo audits."""

import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

RUNS = 20_000


def uniform(key, shape=()):
    return jax.random.uniform(key, shape, dtype=jnp.float32)


def respond(key, bit):
    """Randomised response: loses log 3."""
    return bit ^ (uniform(key) < 0.25)


def geometric(epsilon):
    """Two-sided geometric noise on an integer: loses epsilon."""

    def sample(key, value):
        one, other = jnp.floor(jnp.log1p(-uniform(key, (2,))) / np.float32(-epsilon)).astype(jnp.int32)
        return value + one - other

    return sample


geometric_half = geometric(0.5)

SCORES = np.array([0, 3, 1, 2, 2, 0], np.float32)
OTHER_SCORES = np.array([1, 2, 2, 2, 1, 1], np.float32)


def exponential(key, scores):
    """Exponential mechanism at epsilon 1 and sensitivity 1, by inversion."""
    weights = jnp.exp(scores / np.float32(2.0))
    return jnp.sum(jnp.cumsum(weights) < uniform(key) * jnp.sum(weights)).astype(jnp.int32)


def exponential_loss(factor):
    laws = [np.exp(factor * s.astype(np.float64)) for s in (SCORES, OTHER_SCORES)]
    return float(np.max(np.abs(np.log(laws[0] / laws[0].sum()) - np.log(laws[1] / laws[1].sum()))))


def mask(key, bits):
    """Randomised response on every bit of a mask; inputs that differ in one bit lose log 3."""
    return bits ^ (uniform(key, bits.shape) < 0.25)


def masked(key, bit):
    """Gives NaN instead of a number with probability 1/4 or 3/4: loses log 3."""
    coin, noise = jax.random.split(key)
    return jnp.where(respond(coin, bit), jnp.nan, uniform(noise))


LOG3 = math.log(3.0)
BITS = np.zeros(6, bool)
CORRECT = [
    pytest.param(respond, False, True, LOG3, id="respond"),
    pytest.param(geometric_half, 0, 1, 0.5, id="geometric"),
    pytest.param(exponential, SCORES, OTHER_SCORES, exponential_loss(0.5), id="exponential"),
    pytest.param(mask, BITS, BITS | (np.arange(6) == 2), LOG3, id="mask"),
    pytest.param(masked, False, True, LOG3, id="masked"),
]


def counts(report):
    return (report.direction, report.nested_hits, report.nested_other_hits, *report.counts.values())
