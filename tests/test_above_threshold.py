"""AboveThreshold: tight loss, its law against enumeration, the realised law of `sample`, runs, lattices."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import oracles
import pytest
from oracles import ALPHA, quick_jit

import jaxdp
from jaxdp import AboveThreshold, Runs, audit, random
from jaxdp.mechanisms import _sparse

NOISES = ("exponential", "laplace")
HUGE = 2**30


def probabilities(law):
    return np.exp(np.asarray(law.log_p))


def rates(record):
    """Budgets per step of integer scores."""
    return np.array(oracles.budgets(record.epsilon, monotonic=record.monotonic)) / record.sensitivity


def int32(*values):
    return np.array(values, np.int32)


# The guarantee, on the laws.


@pytest.mark.parametrize("monotonic", [False, True])
def test_loss_of_the_tight_pair_is_epsilon(monotonic):
    sensitivity, epsilon = (x.ravel() for x in np.meshgrid(range(1, 8), [0.1, 0.5, 1.0, 4.0, 8.0]))
    others = np.zeros_like(sensitivity) if monotonic else -sensitivity
    change = np.stack([sensitivity, others], axis=1).astype(np.int32)

    def losses(sensitivity, epsilon, change):
        record = AboveThreshold(5, sensitivity, epsilon, monotonic=monotonic)
        law, other = (record.law(scores, rows=2**14) for scores in (int32(5, 5), int32(5, 5) + change))
        return law.loss_at(other), other.loss_at(law)

    epsilon = epsilon.astype(np.float32)
    largest = np.max(quick_jit(jax.vmap(losses))(sensitivity.astype(np.int32), epsilon, change), axis=0)
    np.testing.assert_allclose(largest, epsilon.astype(np.float64), rtol=0, atol=1e-9)
    record = AboveThreshold(5, 3, 1.0, monotonic=monotonic)
    np.testing.assert_array_equal(record.worst_case(), [(5, 5), (8, 5 if monotonic else 2)])
    assert abs(audit.exact(record, *record.worst_case()) - 1.0) <= 1e-9


def test_general_pair_breaks_the_monotonic_budget():
    record = AboveThreshold(0, 1, 1.0, monotonic=True)
    assert abs(audit.exact(record, int32(0, 0), int32(1, -1)) - 1.5) <= 1e-9


def random_pairs(size, monotonic, seed, n=4):
    """Neighbouring integer streams (ties, extremes, shorter streams padded), sensitivities 1..7, epsilons."""
    rng = np.random.default_rng(seed)
    sensitivity = 1 + np.arange(size) % 7
    epsilon = np.where(sensitivity < 4, 2.0 ** rng.integers(0, 3, size), 2.0 ** rng.integers(1, 3, size))
    reach = rng.choice([1, 4, 20], (size, 1)) * sensitivity[:, None]
    scores = rng.integers(-reach, reach + 1, (size, n))
    scores = np.where(rng.random((size, 1)) < 0.3, scores[:, :1], scores)
    change = rng.choice([-1, 0, 1], (size, n), p=[0.45, 0.1, 0.45]) * sensitivity[:, None]
    change = np.where(
        rng.random((size, n)) < 0.3, rng.integers(-sensitivity[:, None], sensitivity[:, None] + 1), change
    )
    change = np.abs(change) * rng.choice([-1, 1], (size, 1)) if monotonic else change
    extreme = rng.choice([0, -HUGE, HUGE], (size, n), p=[0.9, 0.09, 0.01])
    scores = np.where(extreme == 0, scores, extreme)
    scores = np.where(np.arange(n) < rng.integers(1, n + 1, (size, 1)), scores, -HUGE)
    return scores.astype(np.int32), (scores + change).astype(np.int32), sensitivity, epsilon


@pytest.mark.parametrize("monotonic", [False, True])
@pytest.mark.parametrize("noise", NOISES)
def test_random_pairs_never_lose_more_than_epsilon(noise, monotonic):
    def compare(first, second, sensitivity, epsilon):
        record = AboveThreshold(jnp.float32(0.0), sensitivity, epsilon, monotonic=monotonic, noise=noise)
        return [record.law(scores, rows=512).log_p for scores in (first, second)]

    first, second, sensitivity, epsilon = random_pairs(3000, monotonic, 7)
    arguments = first, second, sensitivity.astype(np.int32), epsilon.astype(np.float32)
    log_p, log_q = map(np.asarray, quick_jit(jax.vmap(compare))(*arguments))
    assert log_p.dtype == np.float64
    # The largest loss over events of more than delta is that of single outcomes here, but for the far tail.
    delta = np.expm1(epsilon)[:, None] * np.exp(-46.0)
    both = np.stack([log_p, log_q])
    with np.errstate(invalid="ignore", divide="ignore"):
        excess = np.log(np.maximum(np.exp(both) - delta, 0.0)) - both[::-1]
    excess = np.where(np.exp(both) > delta, excess, -np.inf)
    assert np.max(excess / epsilon[:, None]) <= 1.0 + 1e-12
    assert np.max(excess - epsilon[:, None]) <= 1e-12
    tightest = {"exponential": 0.99, "laplace": 0.5}[noise]
    assert np.max(excess / epsilon[:, None]) >= tightest
    # "Never" costs the threshold's budget only; other outcomes cost more.
    first_budget = np.array([oracles.budgets(e, monotonic=monotonic)[0] for e in epsilon])
    assert np.max(excess[:, :, -1] - first_budget) <= 1e-12
    assert np.max(excess[:, :, :-1] - first_budget[:, None]) > 0.05


# The law, against enumeration.

STREAMS = [
    ((0, -3, 2, 0), 1, 1, 1.0),
    ((-20, 3, -4, 4), 9, 3, 4.0),
    ((-(2**31), 0, -50, 2**31 - 1), -2, 1, 1.0),
]


@pytest.mark.parametrize("noise", NOISES)
@pytest.mark.parametrize(("scores", "threshold", "sensitivity", "epsilon"), STREAMS)
def test_law_is_that_of_enumeration(scores, threshold, sensitivity, epsilon, noise):
    record = AboveThreshold(threshold, sensitivity, epsilon, noise=noise)
    law = record.law(int32(*scores))
    truth = oracles.above_threshold_law(scores, threshold, rates(record), noise)
    np.testing.assert_allclose(probabilities(law), truth, rtol=1e-11, atol=1e-19)
    np.testing.assert_array_equal(law.outcomes.index, np.arange(len(scores) + 1))
    np.testing.assert_array_equal(law.outcomes.halted, np.arange(len(scores) + 1) < len(scores))


@pytest.mark.parametrize("noise", NOISES)
def test_reaching_the_threshold_is_enough(noise):
    # `>` instead of `>=` is another law: that of a threshold one step higher.
    scores, record = (0, 1, -1, -2), AboveThreshold(0, 1, 1.0, noise=noise)
    strict = oracles.above_threshold_law(scores, 0, rates(record), noise, strict=True)
    higher = dataclasses.replace(record, threshold=1)
    np.testing.assert_allclose(probabilities(higher.law(int32(*scores))), strict, rtol=1e-11)
    assert np.max(np.abs(probabilities(record.law(int32(*scores))) - strict)) > 0.05


@pytest.mark.parametrize("noise", NOISES)
def test_sampler_of_numpy_has_the_law(noise):
    rng = np.random.default_rng(3)
    scores, record = (0, -2, 1, -1), AboveThreshold(0, 1, 1.0, noise=noise)
    index = oracles.above_threshold(rng, scores, 0, rates(record), 300_000, noise)
    counts = np.bincount(index, minlength=5)
    assert oracles.p_value(counts, probabilities(record.law(int32(*scores)))) > ALPHA
    other = dataclasses.replace(record, epsilon=1.15)
    assert oracles.p_value(counts, probabilities(other.law(int32(*scores)))) < ALPHA


@pytest.mark.parametrize("noise", NOISES)
def test_rare_misses_keep_their_precision(noise):
    record = AboveThreshold(0, 1, 2.0, noise=noise)
    other = jaxdp.SparseVector(0, 1, 2.0, cutoff=1, noise=noise)
    for score in (1, 20, 45, 60):
        rare = other.log_prob(int32(score), np.array([False]))
        for stream in (int32(score), Runs(int32(score), int32(1), 1)):
            never = np.asarray(record.law(stream).log_p)[-1]
            assert never == rare == -np.inf or abs(never - rare) < 1e-5, score
    assert noise == "exponential" or rare > -40.0  # e^-37, which 1 - h would have 12% off


# The realised law of `sample`: integers counted, not sampled.


def realised(scores, record, distort=1.0):
    noise = oracles.realised_geometric(rates(record)[0])
    distance = np.arange(len(noise))[:, None] - np.array(scores)
    crossing = oracles.words_that_happen(*chances(distance.astype(float), rates(record)[1] * distort))
    law = np.zeros(len(scores) + 1)
    for weight, counts in zip(noise, crossing, strict=True):
        for i, count in enumerate(counts):
            law[i] += weight * (count / 2**64)
            weight *= (2**64 - count) / 2**64
        law[-1] += weight
    return law


chances = jaxdp._float64.float64(lambda u, rate: _sparse.chances(u, rate, "exponential"))


@pytest.mark.parametrize("epsilon", [0.25, 1.0, 4.0])
@pytest.mark.parametrize("scores", [(0, 0, -16), (1, 1, -17)])
def test_realised_law_of_likely_then_rare_scores(scores, epsilon):
    record = AboveThreshold(0, 1, epsilon)
    truth = oracles.above_threshold_law(scores, 0, rates(record))
    assert truth.min() >= 2.0**-40
    error = np.abs(realised(scores, record) / truth - 1.0)
    assert error.max() <= 1e-5
    # The check has power: query noise off by one part in a thousand.
    assert np.max(np.abs(realised(scores, record, distort=1.001) / truth - 1.0)) > 1e-5


def test_sample_halts_at_the_first_crossing():
    # What `realised` assumes: one fresh word pair per query, which crosses where it happens.
    record = AboveThreshold(0, 1, 1.0)
    scores = int32(0, -1, -1, -2)
    keys = jax.random.split(jax.random.key(5), 2000)
    index = quick_jit(jax.vmap(record.sample, (0, None)))(keys, scores).index

    def parts(key):
        table = random.thresholds(rates(record)[0])
        return _sparse.draw(key, table, noise="exponential", shape=(4,))

    noise, pair = quick_jit(jax.vmap(parts))(keys)
    crossing = chances(np.asarray(noise)[:, None] - scores.astype(float), rates(record)[1])
    crosses = random.happens(np.moveaxis(np.asarray(pair), 1, 0), *crossing)
    hits = np.append(crosses, np.ones((2000, 1), bool), axis=1)
    np.testing.assert_array_equal(index, hits.argmax(axis=1))
    assert len(set(np.asarray(index).tolist())) == 5


# Runs.


def test_law_of_runs_is_that_of_the_expanded_stream():
    stream = int32(0, 0, 0, -5, -5, 1, 0, 0)
    record = AboveThreshold(2, 1, 1.0)
    runs = Runs(int32(9, 0, -5, 9, 1, 0), int32(0, 3, 2, 0, 1, 2), 8)
    expanded = record.law(stream).log_p
    np.testing.assert_allclose(record.law(runs).log_p, expanded, rtol=1e-12)
    found = Runs.of(stream)
    assert (found.scores.tolist(), found.repeats.tolist(), found.length) == ([0, -5, 1, 0], [3, 2, 1, 2], 8)
    # As many runs as queries, and one of them empty.
    two = record.law(Runs(int32(0, -50), int32(2, 0), 2)).log_p
    np.testing.assert_allclose(two, record.law(int32(0, 0)).log_p, rtol=1e-12)


@pytest.mark.parametrize("noise", NOISES)
def test_sample_of_runs_has_the_law(noise):
    record = AboveThreshold(2, 1, 1.0, noise=noise)
    runs = Runs(int32(9, 0, -5, 9, 1, 0), int32(0, 3, 2, 0, 1, 2), 8)
    keys = jax.random.split(jax.random.key(6), 100_000)
    counts = np.bincount(quick_jit(jax.vmap(record.sample, (0, None)))(keys, runs).index, minlength=9)
    assert oracles.p_value(counts, probabilities(record.law(runs))) > ALPHA
    assert oracles.p_value(counts, probabilities(dataclasses.replace(record, epsilon=1.3).law(runs))) < ALPHA


def test_position_in_a_long_run_of_rare_crossings():
    n, record = 20_000, AboveThreshold(0, 1, 1.0)
    runs = Runs(int32(-25), int32(n), n)
    first, second = rates(record)
    k, weights = oracles.pmf(first, "exponential")
    h = np.exp(-second * (25 + k))[:, None]
    truth = np.append(np.sum(weights[:, None] * h * (1.0 - h) ** np.arange(n), axis=0), weights @ (1.0 - h[:, 0]) ** n)
    law = probabilities(record.law(runs))
    np.testing.assert_allclose(law, truth, rtol=1e-9)
    keys = jax.random.split(jax.random.key(7), 200_000)
    index = np.asarray(quick_jit(jax.vmap(record.sample, (0, None)))(keys, runs).index)
    edges = np.unique(np.round(np.geomspace(1, n, 60)).astype(int)) - 1
    starts = np.append(edges[:-1], n)
    binned = np.bincount(np.searchsorted(starts, index, side="right") - 1, minlength=len(starts))
    assert oracles.p_value(binned, np.add.reduceat(law, starts)) > ALPHA
    other = probabilities(dataclasses.replace(record, epsilon=1.05).law(runs))
    assert oracles.p_value(binned, np.add.reduceat(other, starts)) < ALPHA


@pytest.mark.parametrize("repeats", [(4, 3), (4, 5), (9, -1), (0, 0)])
def test_wrong_repeats_fail_closed(repeats, key):
    record = AboveThreshold(0, 1, 1.0)
    runs = Runs(int32(90, 90), int32(*repeats), 8)
    halt = record.sample(key, runs)
    assert (int(halt.index), bool(halt.halted)) == (-1, False)
    assert np.isnan(record.law(runs).log_p).all()
    assert int(record.sample(key, dataclasses.replace(runs, repeats=int32(0, 8))).index) == 0


def test_wrong_shapes_and_dtypes_of_runs_are_rejected(key):
    record = AboveThreshold(0, 1, 1.0)
    for runs in (
        Runs(int32(1, 2), int32(1), 1),
        Runs(int32(1, 2), np.array([1.0, 1.0], np.float32), 2),
        Runs(int32(1, 2), np.array([True, True]), 2),
    ):
        with pytest.raises(ValueError, match="repeats must"):
            record.sample(key, runs)
    with pytest.raises(ValueError, match="length must be a positive integer"):
        record.sample(key, Runs(int32(1, 2), int32(1, 1), 2.0))


# Streaming.


def stream(record, key, scores):
    """Where a stream in lax.scan halts: halted is False before and True from there on."""
    _, halted = jax.lax.scan(record.step, record.init(key, scores.dtype), scores)
    return len(scores) - jnp.sum(halted)


@pytest.mark.parametrize(("noise", "impl"), [*((noise, "threefry2x32") for noise in NOISES), ("exponential", "rbg")])
def test_stream_has_the_law(noise, impl):
    record, scores = AboveThreshold(0, 1, 1.0, noise=noise), int32(-1, 0, -3, 1)
    keys = jax.random.split(jax.random.key(10, impl=impl), 200_000)
    index = quick_jit(jax.vmap(lambda key: stream(record, key, scores)))(keys)
    counts = np.bincount(index, minlength=5)
    assert oracles.p_value(counts, probabilities(record.law(scores))) > ALPHA
    assert oracles.p_value(counts, probabilities(dataclasses.replace(record, epsilon=1.2).law(scores))) < ALPHA


@pytest.mark.parametrize("make_key", [lambda: jax.random.key(11, impl="rbg"), jaxdp.secure_key], ids=["rbg", "secure"])
def test_adaptive_stream_in_a_while_loop_is_that_of_a_python_loop(make_key):
    record = AboveThreshold(10.0, 1.0, 1.0)
    keys = jax.random.split(make_key(), 3)

    def following(score, halted):
        return score + jnp.where(halted, 100.0, 1.25).astype(score.dtype)

    def body(carry):
        state, score, _ = carry
        state, halted = record.step(state, score)
        return state, following(score, halted), halted

    def run(key):
        start = record.init(key), jnp.float32(0.0), jnp.bool_(False)
        return jax.lax.while_loop(lambda carry: ~carry[2], body, start)

    ends, scores, _ = quick_jit(jax.vmap(run))(keys)
    for i, key in enumerate(keys):
        state, score, halted, steps = record.init(key), jnp.float32(0.0), False, 0
        while not halted:
            state, halted = record.step(state, score)
            score, steps = following(score, halted), steps + 1
        assert (int(ends.step[i]), float(scores[i])) == (steps, float(score))


def test_stream_never_halts_on_nan_always_on_infinity_and_stays_halted(key):
    record = AboveThreshold(-1e6, 1.0, 32.0)
    scores = np.array([np.nan] * 50 + [-np.inf, np.inf, -np.inf, np.nan], np.float32)
    assert int(stream(record, key, scores)) == 51
    assert int(stream(record, key, scores[:51])) == 51
    state, halted = record.step(record.init(key), 1e9)
    assert bool(halted) and bool(record.step(state, -1e9)[1])


@pytest.mark.parametrize(("dtype", "score"), [(jnp.float32, 1), (jnp.int32, 1.0), (jnp.float32, np.zeros(2))])
def test_stream_rejects_scores_of_another_kind(dtype, score, key):
    record = AboveThreshold(0, 1, 1.0)
    state = record.init(key, dtype)
    with pytest.raises(ValueError, match="score must be"):
        record.step(state, score)


def test_stream_with_bad_traced_parameters_halts_at_once(key):
    @quick_jit
    def run(*parameters):
        record = AboveThreshold(*parameters)
        state = record.init(key)
        return state.halted, record.step(state, -1e9)[1]

    assert [bool(x) for x in run(0.0, 1.0, 1.0)] == [False, False]
    for bad in ((np.nan, 1.0, 1.0), (0.0, 0.0, 1.0), (0.0, 1.0, np.nan), (0.0, 1.0, -1.0), (0.0, 1.0, 1e6)):
        assert [bool(x) for x in run(*bad)] == [True, True]


def test_state_of_a_stream_has_no_floats(key):
    state, halted = AboveThreshold(0.0, 1.0, 1.0).step(AboveThreshold(0.0, 1.0, 1.0).init(key), 0.5)
    dtypes = [leaf.dtype for leaf in (state.noise, state.key_data, state.step, state.halted, halted)]
    assert dtypes == [np.int32, np.uint32, np.int32, np.bool_, np.bool_]
    assert len(jax.tree.leaves(state)) == 4
