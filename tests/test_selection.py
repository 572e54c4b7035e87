"""The exponential mechanism and permute-and-flip: laws against exact integers, definitions and edge cases."""

import jax
import jax.numpy as jnp
import numpy as np
import oracles
import pytest
from oracles import ALPHA, quick_jit

from jaxdp import ExponentialMechanism, PermuteAndFlip, audit, random

BOTH = [ExponentialMechanism, PermuteAndFlip]


def probabilities(record, scores):
    return np.exp(np.asarray(record.law(scores).log_p))


def weights(scores, epsilon, factor=0.5):
    return np.exp(factor * epsilon * (np.asarray(scores) - np.max(scores)))


def random_scores(n, seed=21):
    rng = np.random.default_rng(seed)
    scores = rng.normal(scale=3.0, size=n).round(1)
    scores[: n // 4] = scores[0]
    return scores


# The exponential mechanism.


@pytest.mark.parametrize("gap", [1.0, 14.0, 18.0, 25.0])
def test_realised_log_ratio_of_the_exponential_mechanism(gap):
    # jax.random.categorical in its default mode is off by 0.07 at 14 and by 5.8 at 18.
    law = ExponentialMechanism(1.0, 1.0).law(np.array([0.0, 2.0 * gap]))
    rare, likely = (int(count) for count in np.asarray(random.counts(law.log_p)))
    assert rare + likely == 2**63
    assert abs(np.log(likely / rare) - gap) <= (1e-9 if gap <= 18.0 else 1e-8)


@pytest.mark.parametrize(("monotonic", "factor"), [(False, 0.5), (True, 1.0)])
def test_law_of_the_exponential_mechanism(monotonic, factor):
    scores, rng = random_scores(40), np.random.default_rng(22)
    record = ExponentialMechanism(2.0, 3.0, monotonic=monotonic)
    truth = weights(scores, 1.5, factor)
    np.testing.assert_allclose(probabilities(record, scores), truth / truth.sum(), rtol=1e-12)
    counts = np.bincount(oracles.noisy_max(rng, np.log(truth), 100_000, "gumbel"), minlength=40)
    assert oracles.p_value(counts, probabilities(record, scores)) > ALPHA
    other = ExponentialMechanism(2.0, 3.3, monotonic=monotonic)
    assert oracles.p_value(counts, probabilities(other, scores)) < ALPHA


@pytest.mark.parametrize("shift", [0.0, 700.0])
def test_base_measure(shift, key):
    scores, base = np.array([0.0, 1.0, 5.0, -2.0]), np.array([0.5, 0.125, 0.0, 0.375])
    with np.errstate(divide="ignore"):
        log_base = np.log(base) + shift
    record = ExponentialMechanism(1.0, 2.0)
    truth = base * np.exp(scores)
    np.testing.assert_allclose(probabilities(record, (scores, log_base)), truth / truth.sum(), rtol=1e-12)
    # An excluded candidate never comes, though its score is the largest.
    drawn = quick_jit(jax.vmap(record.law((scores, log_base)).sample))(jax.random.split(key, 10_000))
    assert set(np.asarray(drawn).tolist()) == {0, 1, 3}


def test_base_measure_leaves_the_guarantee():
    rng = np.random.default_rng(23)
    scores, other = rng.integers(-3, 4, (2, 200, 5)).astype(np.float32)
    other = scores + np.clip(other, -1.0, 1.0)
    log_base = rng.normal(scale=5.0, size=(200, 5)).astype(np.float32)
    record = ExponentialMechanism(1.0, 2.0)
    log_p, log_q = (jax.vmap(lambda s, b: record.law((s, b)).log_p)(s, log_base) for s in (scores, other))
    assert 1.5 < np.max(np.abs(np.asarray(log_p) - np.asarray(log_q))) <= 2.0 + 1e-12


@pytest.mark.parametrize(
    ("log_base", "message"),
    [
        ([0.0, np.nan], "log_base must not be NaN"),
        ([0.0, np.inf], "log_base must not be NaN"),
        ([-np.inf, -np.inf], "log_base must not be NaN"),
        ([0.0, 0.0, 0.0], "log_base must have the shape of scores"),
        ([], "log_base must have shape"),
        ([0j, 0j], "log_base must be real"),
    ],
)
def test_bad_base_measures_are_rejected_and_fail_closed_when_traced(log_base, message, key):
    record, scores = ExponentialMechanism(1.0, 1.0), np.array([0.0, 1.0])
    with pytest.raises(ValueError, match=message):
        record.law((scores, np.array(log_base)))
    if np.shape(log_base) == (2,) and np.isrealobj(log_base):
        traced = jax.jit(lambda base: record.sample(key, (scores, base)))
        assert int(traced(np.array(log_base, np.float32))) == -1


def test_integer_base_measure_and_scores():
    record = ExponentialMechanism(1, 2)
    law = record.law((np.array([3, 4], np.int32), np.array([1, 0], np.int32)))
    np.testing.assert_allclose(law.log_p, np.log([0.5, 0.5]), rtol=1e-12)


@pytest.mark.parametrize("monotonic", [False, True])
def test_zero_concentrated_guarantee_of_the_exponential_mechanism(monotonic):
    record = ExponentialMechanism(1.0, 3.0, monotonic=monotonic)
    p, q = (probabilities(record, scores) for scores in record.worst_case())
    rho = record.privacy().rho
    assert rho == 9.0 / 8.0
    for alpha in (1.01, 1.5, 2.0, 4.0):
        for a, b in ((p, q), (q, p)):
            assert np.log(np.sum(a**alpha * b ** (1.0 - alpha))) / (alpha - 1.0) <= rho * alpha


# Permute-and-flip.


@pytest.mark.parametrize("n", [1, 2, 5, 24, 48, 60, 200])
def test_law_of_permute_and_flip_is_the_integral(n):
    scores = np.clip(random_scores(n), -8.0, 8.0)
    truth = oracles.permute_and_flip_law(weights(scores, 1.0))
    np.testing.assert_allclose(probabilities(PermuteAndFlip(1.0, 1.0), scores), truth, rtol=1e-12)
    assert abs(truth.sum() - 1.0) < 1e-13


def test_law_of_permute_and_flip_keeps_rare_outcomes():
    scores = np.array([0.0, -40.0, -80.0, -600.0, 0.0])
    truth = oracles.permute_and_flip_law(weights(scores, 1.0))
    assert truth[3] < 1e-130
    np.testing.assert_allclose(probabilities(PermuteAndFlip(1.0, 1.0), scores), truth, rtol=1e-12)


@pytest.mark.parametrize(("monotonic", "factor"), [(False, 0.5), (True, 1.0)])
def test_law_of_permute_and_flip_is_its_definition(monotonic, factor):
    scores, rng = np.array([0.0, 1.0, 1.0, -2.0, 2.5]), np.random.default_rng(24)
    record = PermuteAndFlip(2.0, 2.0, monotonic=monotonic)
    a = weights(scores, 1.0, factor)
    law = probabilities(record, scores)
    np.testing.assert_allclose(law, oracles.permute_and_flip_definition(a), rtol=1e-12)
    flipped = np.bincount(oracles.permute_and_flip(rng, a, 200_000), minlength=5)
    noisy = np.bincount(oracles.noisy_max(rng, np.log(a), 200_000, "exponential"), minlength=5)
    other = probabilities(PermuteAndFlip(2.0, 2.2, monotonic=monotonic), scores)
    for counts in (flipped, noisy):
        assert oracles.p_value(counts, law) > ALPHA
        assert oracles.p_value(counts, other) < ALPHA


def test_permute_and_flip_expects_at_least_the_score_of_the_exponential_mechanism():
    scores = np.random.default_rng(25).normal(scale=4.0, size=(300, 6)).astype(np.float32)
    scores[:30] = scores[:30].round(0)
    laws = [jax.vmap(record.law)(scores) for record in (PermuteAndFlip(1.0, 1.0), ExponentialMechanism(1.0, 1.0))]
    flip, exponential = (np.exp(np.asarray(law.log_p)) for law in laws)
    gain = np.sum((flip - exponential) * scores, axis=1)
    assert np.min(gain) >= -1e-12 and np.max(gain) > 0.1


@pytest.mark.parametrize("n", [300, 1000])
def test_permute_and_flip_of_many_candidates(n):
    # n candidates of equal score, and n - 1 of them 10 below: a_i = e^-5.
    record = PermuteAndFlip(1.0, 1.0)
    np.testing.assert_allclose(probabilities(record, np.zeros(n)), 1.0 / n, rtol=1e-11)
    law = probabilities(record, np.where(np.arange(n) == 7, 0.0, -10.0))
    a = np.exp(-5.0)
    np.testing.assert_allclose(law[7], -np.expm1(n * np.log1p(-a)) / (n * a), rtol=1e-11)
    np.testing.assert_allclose(np.delete(law, 7), (1.0 - law[7]) / (n - 1), rtol=1e-10)


# Both.


@pytest.mark.parametrize("make", BOTH)
def test_ties_are_uniform_and_one_candidate_is_certain(make, key):
    record = make(1.0, 1.0)
    np.testing.assert_allclose(probabilities(record, np.full(4, 7.0)), 0.25, rtol=1e-12)
    tied = probabilities(record, np.array([3.0, 1.0, 3.0, 1.0]))
    assert tied[0] == tied[2] > tied[1] == tied[3]
    assert abs(probabilities(record, np.array([-5.0]))[0] - 1.0) <= 1e-15
    assert int(record.sample(key, np.array([-5.0]))) == 0


@pytest.mark.parametrize("make", BOTH)
def test_huge_and_tiny_epsilon(make, key):
    scores = np.array([0.0, 1.0, 2.0, 2.0])
    np.testing.assert_allclose(probabilities(make(1.0, 1e6), scores), [0.0, 0.0, 0.5, 0.5], atol=1e-300)
    drawn = {int(make(1.0, 1e6).sample(jax.random.fold_in(key, i), scores)) for i in range(20)}
    assert drawn == {2, 3}
    for epsilon in (1e-30, 1e-39):
        np.testing.assert_allclose(probabilities(make(1.0, epsilon), scores), 0.25, rtol=1e-12)
        assert 0 <= int(make(1.0, epsilon).sample(key, scores)) < 4


LOWEST, TOP = -np.inf, np.inf


@pytest.mark.parametrize("make", BOTH)
@pytest.mark.parametrize(
    ("scores", "truth"),
    [
        ([np.nan, 0.0, 0.0], [0.0, 0.5, 0.5]),
        ([LOWEST, 0.0, np.nan], [0.0, 1.0, 0.0]),
        ([TOP, 0.0, TOP], [0.5, 0.0, 0.5]),
        ([TOP, LOWEST, np.nan], [1.0, 0.0, 0.0]),
        ([np.nan, np.nan, np.nan], [1 / 3, 1 / 3, 1 / 3]),
        ([LOWEST, np.nan, LOWEST], [1 / 3, 1 / 3, 1 / 3]),
        ([1e308, -1e308, 1e301], [0.5, 0.0, 0.5]),
    ],
)
def test_scores_that_are_not_finite(make, scores, truth, key):
    record, scores = make(1.0, 1.0), np.array(scores)
    np.testing.assert_allclose(probabilities(record, scores), truth, atol=1e-300)
    drawn = {int(record.sample(jax.random.fold_in(key, i), scores)) for i in range(30)}
    assert drawn == set(np.flatnonzero(truth).tolist())


@pytest.mark.parametrize("make", BOTH)
def test_scores_in_double_precision_and_their_unit(make):
    # In float32 the three scores are the same number.
    record = make(1.0, 2.0)
    near = probabilities(record, np.array([0.0, 1.0, 3.0]))
    np.testing.assert_allclose(probabilities(record, np.array([0.0, 1.0, 3.0]) + 1e9), near, rtol=1e-12)
    np.testing.assert_allclose(
        probabilities(make(2.0**-40, 2.0), np.array([0.0, 1.0, 3.0]) * 2.0**-40), near, rtol=1e-12
    )


@pytest.mark.parametrize("make", BOTH)
def test_monotonic_budget_is_broken_by_scores_that_move_apart(make):
    record = make(1.0, 1.0, monotonic=True)
    pair = make(1.0, 1.0).worst_case()
    assert audit.exact(record, *pair) > 1.9
    assert audit.exact(make(1.0, 1.0), *pair) <= 1.0 + 1e-12


@pytest.mark.parametrize("make", BOTH)
def test_integer_parameters_may_be_traced(make):
    scores = np.array([0, 2, 3], np.int32)
    traced = jax.jit(lambda sensitivity, epsilon: make(sensitivity, epsilon).law(scores).log_p)(*map(jnp.int32, (2, 1)))
    np.testing.assert_allclose(traced, make(2.0, 1.0).law(scores).log_p, rtol=1e-12)
