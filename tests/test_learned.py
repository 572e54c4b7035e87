"""Scores learned from runs: how near they come to the log ratio, and what they are worth if they learned nothing."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxdp.audit import Batched, Claim, Foreign, examine, monte_carlo
from jaxdp.audit.learned import learned_score

pytestmark = pytest.mark.slow

RUNS = 2**15
ONE, OTHER = np.float32([1, 0, 1, 0]), np.float32([0, 1, 0, 1])


def prefix_sums(key, queries):
    """Four queries with noise for epsilon 1/2 each; only differences of neighbouring sums tell."""
    return jnp.cumsum(queries + 2 * jax.random.laplace(key, queries.shape, jnp.float32))


def exact_ratio(output):
    noisy = output - jnp.concatenate([jnp.zeros(1, jnp.float32), output[:-1]])
    return jnp.sum(jnp.abs(noisy - OTHER) - jnp.abs(noisy - ONE)) / 2


def tagged(key, shift):
    """A tag that tells nothing, and a value with Laplace noise of scale 1, shifted where the tag is 1."""
    one, other = jax.random.split(key)
    tag = jax.random.bernoulli(one).astype(jnp.int32)
    value = jax.random.laplace(other, (), jnp.float32) + shift
    return {"tag": tag, "value": jnp.where(tag == 1, value, 0)}


def broken_floats(key, bit):
    """Sometimes NaN or infinite, more often for one input, and of several types."""
    one, other = jax.random.split(key)
    share = jax.random.uniform(one, (), jnp.float32)
    rare = jnp.where(bit > 0, jnp.float32(0.1), jnp.float32(0.3))
    value = jnp.where(share < rare, jnp.float32(np.nan), jax.random.normal(other, (), jnp.float32))
    return jnp.stack([value, jnp.where(share > 0.9, jnp.float32(-np.inf), value)]), share < 0.5


def outputs(key, mechanism, summary, runs=2**12):
    return jax.jit(jax.vmap(mechanism, (0, None)))(jax.random.split(key, runs), summary)


@pytest.fixture(scope="module")
def prefix_score():
    return learned_score(jax.random.key(7), prefix_sums, ONE, OTHER, num_samples=RUNS)


def test_the_log_ratio_of_sums_is_found(key, prefix_score):
    many = outputs(key, prefix_sums, ONE)
    score, exact = (np.asarray(jax.jit(jax.vmap(each))(many)) for each in (prefix_score, exact_ratio))
    assert score.dtype == np.float32
    assert np.corrcoef(score, exact)[0, 1] > 0.99
    # Its meaning too: most of the time it is within a tenth of the log ratio, which goes from -2 to 2.
    assert np.quantile(np.abs(score - exact), 0.8) < 0.1


def test_it_certifies_nothing_where_labels_are_shuffled(key):
    """The negative control: either input's runs are those of a random one of the two."""

    def shuffled(key, bit):
        one, other = jax.random.split(key)
        return prefix_sums(one, jnp.where(jax.random.bernoulli(other), ONE, OTHER))

    score = learned_score(jax.random.key(3), shuffled, 0, 1, num_samples=RUNS)
    many = jax.jit(jax.vmap(score))(outputs(key, shuffled, 0))
    # The regression has dozens of weights and nothing to learn.
    assert np.std(np.asarray(many)) < 0.05
    report = monte_carlo(key, shuffled, 0, 1, epsilon=0.1, num_samples=200_000, score=score)
    assert not report.refuted and report.epsilon_lower < 0.02


@pytest.mark.thorough
def test_values_that_only_some_tags_have(key):
    sides = np.float32(1), np.float32(0)
    score = learned_score(jax.random.key(1), tagged, *sides, num_samples=RUNS)
    found = jax.vmap(score)({"tag": np.int32([0, 1, 1, 1]), "value": np.float32([0, -2, 0.5, 3])})
    np.testing.assert_allclose(found, [0, -1, 0, 1], atol=0.15)


@pytest.mark.thorough
def test_outputs_that_are_not_finite(key):
    sides = np.float32(0), np.float32(1)
    score = learned_score(jax.random.key(1), broken_floats, *sides, num_samples=RUNS)
    nan, inf = np.float32(np.nan), np.float32(np.inf)
    values = np.array([[nan, nan], [0.0, 0.0], [0.0, -inf], [inf, inf], [-inf, nan], [3e38, -3e38]], np.float32)
    found = np.asarray(jax.vmap(score)((values, np.array([True, False, False, True, True, False]))))
    assert np.all(np.isfinite(found)) and np.all(np.abs(found) < 60.0)
    # NaN: 0.3 against 0.1. The second kind of output is as likely on both sides.
    np.testing.assert_allclose(found[:2], [np.log(3.0), 0.0], atol=0.15)


@pytest.mark.thorough
def test_the_same_noise_in_two_numbers(key):
    """Each number alone is private; their difference has no noise."""

    def shared(key, pair):
        return pair + 3 * jax.random.laplace(key, (), jnp.float32)

    sides = np.float32([1, 1]), np.float32([1, 0])
    score = learned_score(jax.random.key(1), shared, *sides, num_samples=RUNS)
    found = [np.asarray(jax.jit(jax.vmap(score))(outputs(key, shared, side))) for side in sides]
    assert np.min(found[0]) > 3.0 and np.max(found[1]) < -3.0 and np.max(np.abs(found)) < 60.0


def test_the_same_from_the_same_key_and_from_a_batched_sampler(key, prefix_score):
    batched = Batched(lambda key, queries, n: jax.vmap(prefix_sums, (0, None))(jax.random.split(key, n), queries))
    scores = prefix_score, learned_score(jax.random.key(7), batched, ONE, OTHER, num_samples=RUNS)
    many = outputs(key, prefix_sums, OTHER)
    np.testing.assert_allclose(*(jax.jit(jax.vmap(score))(many) for score in scores), atol=1e-4)


@pytest.mark.thorough
def test_examine_takes_it_where_it_predicts_more(key):
    claim = Claim.pure(1.0, neighbours="one query changes")
    found = examine(key, prefix_sums, claim, [(ONE, OTHER)], num_samples=200_000)
    assert found.learned and found.report.refuted and "score" in found.report.event
    without = examine(key, prefix_sums, claim, [(ONE, OTHER)], num_samples=200_000, learn=False)
    assert not without.learned and "score" not in without.report.event
    assert without.report.epsilon_lower < 1.5 and 1.75 < found.report.epsilon_lower < 2.0


@pytest.mark.parametrize(
    "arguments, message",
    [
        ((prefix_sums, ONE, OTHER, 10), "num_samples must be .*got 10"),
        ((Foreign(float), 0.0, 1.0, 1000), "mechanism must be a JAX function .*Foreign"),
        ((3, 0.0, 1.0, 1000), "mechanism must have a method sample .*got 3"),
        ((lambda key, x: jnp.zeros(x.shape, jnp.float32), ONE, ONE[:2], 1000), "outputs of one structure"),
    ],
)
def test_bad_arguments(key, arguments, message):
    *inputs, runs = arguments
    with pytest.raises(ValueError, match=message):
        learned_score(key, *inputs, num_samples=runs)
