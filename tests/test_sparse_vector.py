"""SparseVector: tight loss, its law against enumeration; and the lattice that it shares with AboveThreshold."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import oracles
import pytest
from oracles import ALPHA, quick_jit

import jaxdp
from jaxdp import AboveThreshold, SparseVector, audit

NOISES = ("exponential", "laplace")
BOTH = [AboveThreshold, functools.partial(SparseVector, cutoff=2)]


def rates(record):
    """Budgets per step of integer scores."""
    budgets = oracles.budgets(record.epsilon, cutoff=record.cutoff, monotonic=record.monotonic)
    return np.array(budgets) / record.sensitivity


def int32(*values):
    return np.array(values, np.int32)


def enumerated(law):
    masks = [tuple(mask) for mask in np.asarray(law.outcomes).tolist()]
    return dict(zip(masks, np.exp(np.asarray(law.log_p)), strict=True))


# The guarantee, on the laws.


@pytest.mark.parametrize("monotonic", [False, True])
@pytest.mark.parametrize("cutoff", [1, 2, 3])
def test_loss_of_the_tight_pair_is_epsilon(cutoff, monotonic):
    sensitivity, epsilon = (x.ravel() for x in np.meshgrid([1, 3, 7], [0.5, 1.0, 8.0]))
    scores, change = np.full(cutoff + 1, 5, np.int32), int32(1, *[0 if monotonic else -1] * cutoff)

    def losses(sensitivity, epsilon):
        record = SparseVector(5, sensitivity, epsilon, cutoff=cutoff, monotonic=monotonic)
        law, other = (record.law(x, rows=2**12) for x in (scores, scores + sensitivity * change))
        return law.loss_at(other), other.loss_at(law)

    arguments = sensitivity.astype(np.int32), epsilon.astype(np.float32)
    largest = np.max(quick_jit(jax.vmap(losses))(*arguments), axis=0)
    np.testing.assert_allclose(largest, epsilon, rtol=0, atol=1e-9)
    record = SparseVector(5, 3, 1.0, cutoff=cutoff, monotonic=monotonic)
    np.testing.assert_array_equal(record.worst_case(), [scores, scores + 3 * change])


@pytest.mark.parametrize(("cutoff", "loss"), [(1, 1.5), (2, None), (3, None)])
def test_general_pair_breaks_the_monotonic_budget(cutoff, loss):
    record = SparseVector(0, 1, 1.0, cutoff=cutoff, monotonic=True)
    pair = dataclasses.replace(record, monotonic=False).worst_case()
    first, query = oracles.budgets(1.0, cutoff=cutoff, monotonic=True)
    assert abs(audit.exact(record, *pair) - (first + 2 * cutoff * query)) <= 1e-9
    assert loss is None or abs(first + 2 * cutoff * query - loss) <= 1e-12


@pytest.mark.parametrize(("noise", "monotonic"), [("exponential", False), ("exponential", True), ("laplace", False)])
def test_random_pairs_never_lose_more_than_epsilon(noise, monotonic):
    rng = np.random.default_rng(11)
    size, n = 500, 4
    sensitivity = (1 + np.arange(size) % 7)[:, None]
    scores = rng.integers(-4 * sensitivity, 4 * sensitivity + 1, (size, n))
    scores = np.where(rng.random((size, 1)) < 0.4, scores[:, :1], scores)
    change = rng.choice([-1, 0, 1], (size, n), p=[0.45, 0.1, 0.45]) * sensitivity
    change = np.abs(change) * rng.choice([-1, 1], (size, 1)) if monotonic else change

    def log_p(scores, sensitivity):
        record = SparseVector(0, sensitivity, 2.0, cutoff=2, monotonic=monotonic, noise=noise)
        return record.law(scores, rows=1024).log_p

    compiled = quick_jit(jax.vmap(log_p))
    both = [np.asarray(compiled(x.astype(np.int32), sensitivity[:, 0])) for x in (scores, scores + change)]
    assert np.isfinite(both).all()
    largest = np.max(np.abs(both[0] - both[1]))
    assert {"exponential": 1.98, "laplace": 0.8}[noise] <= largest <= 2.0 + 1e-12


# The law, against enumeration.


@pytest.mark.parametrize("noise", NOISES)
@pytest.mark.parametrize(
    ("scores", "threshold", "sensitivity", "epsilon", "cutoff"),
    [((0, -1, 3, 0, -6), 1, 1, 1.0, 2), ((4, -9, 0, 2, 2), 0, 2, 4.0, 3), ((3, 3), 3, 1, 8.0, 5)],
)
def test_law_is_that_of_enumeration(scores, threshold, sensitivity, epsilon, cutoff, noise):
    record = SparseVector(threshold, sensitivity, epsilon, cutoff=cutoff, noise=noise)
    law = enumerated(record.law(int32(*scores)))
    truth = oracles.sparse_vector_law(scores, threshold, rates(record), cutoff, noise)
    assert law.keys() == truth.keys() and max(sum(mask) for mask in law) <= cutoff
    for mask, p in truth.items():
        assert abs(law[mask] - p) <= 1e-11 * p + 1e-19, mask


@pytest.mark.parametrize("noise", NOISES)
def test_sampler_of_numpy_has_the_law(noise):
    rng = np.random.default_rng(12)
    scores, record = (0, -1, 1, 0), SparseVector(0, 1, 4.0, cutoff=2, noise=noise)
    law = enumerated(record.law(int32(*scores)))
    other = enumerated(dataclasses.replace(record, epsilon=5.0).law(int32(*scores)))
    masks = oracles.sparse_vector(rng, scores, 0, rates(record), 2, 200_000, noise)
    found, times = np.unique(masks, axis=0, return_counts=True)
    observed = {tuple(mask): count for mask, count in zip(found.tolist(), times, strict=True)}
    counts = [observed.get(mask, 0) for mask in law]
    assert observed.keys() <= law.keys()
    assert oracles.p_value(counts, list(law.values())) > ALPHA
    assert oracles.p_value(counts, list(other.values())) < ALPHA


def test_first_crossing_is_that_of_above_threshold():
    # Same words, same hazards: what test_above_threshold counts of the realised law holds here too.
    scores = int32(0, -2, 1)
    one, stop = SparseVector(0, 1, 2.0, cutoff=1), AboveThreshold(0, 1, 2.0)
    law, halts = enumerated(one.law(scores)), np.exp(np.asarray(stop.law(scores).log_p))
    for i, p in enumerate(halts):
        np.testing.assert_allclose(law[tuple(np.arange(3) == i)], p, rtol=1e-12)
    keys = jax.random.split(jax.random.key(13), 500)
    masks = np.asarray(quick_jit(jax.vmap(one.sample, (0, None)))(keys, scores))
    index = np.asarray(quick_jit(jax.vmap(stop.sample, (0, None)))(keys, scores).index)
    np.testing.assert_array_equal(masks, np.arange(3) == index[:, None])


# log_prob of single masks.


def test_log_prob_is_the_law():
    scores, record = int32(0, -1, 2, 0, -3, 1, 0, -2), SparseVector(0, 1, 1.0, cutoff=2)
    law = record.law(scores)
    masks = np.asarray(law.outcomes)
    each = jax.vmap(lambda mask: record.log_prob(scores, mask))(masks)
    np.testing.assert_allclose(each, law.log_p, rtol=1e-12)
    assert len(masks) == 1 + 8 + 28


def test_log_prob_of_a_long_mask_and_of_impossible_ones():
    rng = np.random.default_rng(14)
    scores = rng.integers(-12, -3, 300).astype(np.int32)
    record = SparseVector(0, 1, 1.0, cutoff=3)
    mask = np.zeros(300, bool)
    mask[[17, 230]] = True
    truth = 0.0
    for weight, crossing in oracles.threshold_rows(scores, 0, rates(record), "exponential", False):
        truth += weight * np.prod(np.where(mask, crossing, 1.0 - np.array(crossing)))
    np.testing.assert_allclose(record.log_prob(scores, mask), np.log(truth), rtol=1e-11)
    for extra, possible in (([250], True), ([250, 251], False), ([0, 1], False)):
        changed = mask.copy()
        changed[extra] = True
        assert np.isfinite(record.log_prob(scores, changed)) == possible


def test_law_and_log_prob_reject_wrong_shapes():
    record = SparseVector(0, 1, 1.0, cutoff=2)
    with pytest.raises(ValueError, match="scores must be at most 16"):
        record.law(np.zeros(17, np.int32))
    with pytest.raises(ValueError, match="mask must have the shape of scores"):
        record.log_prob(np.zeros(4, np.int32), np.zeros(5, bool))


# The lattice and the rows, shared with AboveThreshold.


@pytest.mark.parametrize("make", BOTH)
def test_float_scores_on_the_default_lattice_lose_at_most_epsilon(make):
    rng = np.random.default_rng(15)
    first = rng.normal(scale=2.0, size=(50, 3)).astype(np.float32)
    second = (first + rng.choice([-1.0, 1.0, 0.3, -0.3], first.shape)).astype(np.float32)
    # Neighbours differ by at most 1 exactly: the difference of two floats is exact in float64 here.
    second = np.where(np.abs(second.astype(float) - first) > 1.0, np.nextafter(second, first), second)
    assert 0.999 < np.max(np.abs(second.astype(float) - first)) <= 1.0
    record = make(0.3, 1.0, 2.0)
    log_p, log_q = (np.asarray(jax.vmap(lambda q: record.law(q).log_p)(q)) for q in (first, second))
    assert 0.5 < np.max(np.abs(log_p - log_q)) <= 2.0
    record = make(0.0, 1.0, 2.0)
    assert 0.98 * 2.0 <= audit.exact(record, *(q.astype(np.float32) for q in record.worst_case())) <= 2.0


@pytest.mark.parametrize(
    ("threshold", "whole", "scores"),
    [
        (2.3, 3.0, int32(3, 2, 1)),
        (-2.3, -2.0, int32(-3, -2, -1)),
        (0.3, 0.5, np.array([0.5, 0.25, 0.49], np.float32)),
        (-0.3, -0.25, np.array([0.5, -0.25, -0.49], np.float32)),
    ],
)
@pytest.mark.parametrize("make", BOTH)
def test_real_thresholds_are_rounded_up(make, threshold, whole, scores):
    step = 1 if scores.dtype == np.int32 else 0.25
    laws = [make(t, 1, 1.0, granularity=step).law(scores) for t in (threshold, whole, whole + step)]
    real, on_lattice, next_up = (np.asarray(law.log_p) for law in laws)
    np.testing.assert_array_equal(real, on_lattice)
    assert np.max(np.abs(real - next_up)) > 0.01


@pytest.mark.parametrize("granularity", [1.0, 0.25, 2.0**-30, 2.0**20])
def test_rounding_to_the_lattice_is_monotone(granularity):
    rng = np.random.default_rng(16)
    values = np.sort(np.concatenate([rng.normal(size=500) * s for s in (1e-310, 1e-280, 1e-6, 1.0, 1e6, 1e300)]))
    values = np.concatenate([[-np.inf], values, [np.inf]])
    steps = np.asarray(jaxdp.lattice.to_steps(values, granularity))
    assert np.all(np.diff(steps) >= 0) and np.all(steps == np.floor(steps)) and np.max(np.abs(steps)) == 2.0**52
    normal = (np.abs(values) > 1e-290) & (np.abs(steps) < 2.0**52)
    below, within = steps[normal] * granularity, values[normal]
    assert np.all((below <= within) & (within - below < granularity * (1 + 1e-15)))


@pytest.mark.parametrize("make", BOTH)
def test_rows_must_be_given_for_traced_epsilon_and_suffice(make):
    @functools.partial(jax.jit, static_argnums=1)
    def log_p(epsilon, rows=None):
        return make(0, 1, epsilon).law(int32(0, -1), rows=rows).log_p

    with pytest.raises(ValueError, match="rows must be given"):
        log_p(1.0)
    with pytest.raises(ValueError, match="rows must be a positive integer"):
        log_p(1.0, 0)
    eager = make(0, 1, 1.0).law(int32(0, -1)).log_p
    np.testing.assert_allclose(log_p(1.0, 1024), eager, rtol=1e-12)
    assert np.isnan(log_p(1.0, 64)).all()


@pytest.mark.parametrize("make", BOTH)
def test_epsilon_out_of_reach_is_rejected(make, key):
    with pytest.raises(ValueError, match="epsilon is too small for an exact law"):
        make(0, 1, 1e-5).law(int32(0))
    for epsilon in (1e-30, 1e-39):
        with pytest.raises(ValueError, match="epsilon is too small for noise"):
            make(0, 1, epsilon).sample(key, int32(0))
    for epsilon in (32.1, 1e6):
        with pytest.raises(ValueError, match="epsilon must be at most 32"):
            make(0, 1, epsilon).privacy()


@pytest.mark.parametrize("make", BOTH)
def test_large_integers_are_exact(make):
    # In float32 these scores and thresholds are all the same number.
    near, far = make(0, 1, 1.0), make(2**30 + 1, 1, 1.0)
    small, large = int32(0, -1, 1), int32(0, -1, 1) + np.int32(2**30 + 1)
    np.testing.assert_array_equal(far.law(large).log_p, near.law(small).log_p)
    top = make(2**40, 1, 1.0)
    doubles = small.astype(np.float64)
    np.testing.assert_array_equal(top.law(doubles + 2.0**40).log_p, near.law(doubles).log_p)


def test_integer_parameters_may_be_traced():
    def log_p(threshold, sensitivity, epsilon):
        return SparseVector(threshold, sensitivity, epsilon, cutoff=2).law(int32(3, 2), rows=512).log_p

    eager = SparseVector(3, 2, 1, cutoff=2).law(int32(3, 2)).log_p
    np.testing.assert_allclose(jax.jit(log_p)(*map(jnp.int32, (3, 2, 1))), eager, rtol=1e-12)
