"""The search for the worst pair of neighbours: it finds wrong sensitivities and known worst cases."""

import functools
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from audit_mechanisms import geometric

import jaxdp
from jaxdp.audit import pairs
from jaxdp.audit.adjacency import AddRemove, ChangeEvery, ChangeOne, ReplaceOne, patterns
from jaxdp.audit.pairs import certificate, exact_loss, renyi, search

pytestmark = pytest.mark.slow

SELECT = jaxdp.ExponentialMechanism(1.0, 1.0)


def values(evaluate, adjacency, budget, seeds=3, **options):
    """Best value of a search for a few seeds; the pairs found are neighbours."""
    found = []
    for seed in range(seeds):
        best = search(evaluate, adjacency, key=jax.random.key(seed), budget=budget, **options)[0]
        assert adjacency.holds(best.summary, best.neighbour) and best.evaluations <= budget
        assert best.value == evaluate(best.summary, best.neighbour)
        found.append(best.value)
    return np.array(found)


# -- relations ----------------------------------------------------------------------------------------------

RELATIONS = [
    (ReplaceOne(4, -1.0, 3.0), lambda d: np.count_nonzero(d) <= 1),
    (ReplaceOne(6, 0.0, 1.0, True, width=2), lambda d: np.count_nonzero(d.reshape(3, 2).any(axis=1)) <= 1),
    (ChangeOne(4, -2.0, 2.0), lambda d: np.count_nonzero(d) <= 1 and np.abs(d).max() <= 1),
    (ChangeEvery(4, -2.0, 2.0), lambda d: np.abs(d).max() <= 1),
    (AddRemove(4, 3), lambda d: np.abs(d).sum() <= 1),
]


@pytest.mark.parametrize("adjacency, related", RELATIONS, ids=lambda each: type(each).__name__)
def test_pairs_are_neighbours_within_the_domain(adjacency, related):
    rng = np.random.default_rng(0)
    different, pair = 0, adjacency.random(rng)
    for _ in range(300):
        for one, other in (pair, adjacency.random(rng)):
            assert related(other.astype(float) - one) and adjacency.holds(one, other)
            assert min(one.min(), other.min()) >= adjacency.lower and max(one.max(), other.max()) <= adjacency.upper
            assert one.dtype == other.dtype == (np.int32 if adjacency.integer else np.float64)
            assert np.array_equal(one.astype(np.float32), one)
            different += not np.array_equal(one, other)
        pair = adjacency.vary(*pair, rng)
    assert different > 200
    far = np.full(adjacency.size, adjacency.lower), np.full(adjacency.size, adjacency.upper)
    assert not adjacency.holds(*far)


def test_every_pair_of_a_small_relation_is_reached():
    adjacency, rng = ChangeEvery(2, 0.0, 2.0, True), np.random.default_rng(1)
    pair, seen = adjacency.random(rng), set()
    for _ in range(6000):
        pair = adjacency.vary(*pair, rng)
        seen.add((*pair[0].tolist(), *pair[1].tolist()))
    assert len(seen) == 49  # 7 pairs of neighbouring values in each entry


def test_patterns_are_those_of_the_published_audits():
    four = patterns(5)
    assert [(a.tolist(), b.tolist()) for a, b in four[::2]] == [
        ([1] * 5, [0, 1, 1, 1, 1]),
        ([1] * 5, [2, 1, 1, 1, 1]),
    ]
    assert len(four) == 4 and all(np.array_equal(four[j][0], four[j ^ 1][1]) for j in range(4))
    every = patterns(5, neighbours="every entry")
    others = [b.tolist() for _, b in every[::2]]
    assert len(every) == 16 and [2, 0, 0, 0, 0] in others and [0, 2, 2, 2, 2] in others and [2, 2, 0, 0, 0] in others
    assert (every[14][0].tolist(), every[14][1].tolist()) == ([1, 1, 0, 0, 0], [0, 0, 1, 1, 1])
    assert all(ChangeOne(5, 0.0, 2.0, True).holds(*pair) for pair in four)
    assert all(ChangeEvery(5, 0.0, 2.0, True).holds(*pair) for pair in every)
    # Clipped to bits: what becomes equal is no pair.
    clipped = patterns(2, neighbours="every entry", lower=0, upper=1)
    assert len(clipped) == 8 and all(pair[0].max() <= 1 and not np.array_equal(*pair) for pair in clipped)


# -- search -------------------------------------------------------------------------------------------------


def test_half_the_sensitivity_of_a_sum_is_found_through_the_data():
    loss = exact_loss(jaxdp.Laplace(0.5, 1.0), np.sum)
    assert np.all(values(loss, ReplaceOne(5, 0.0, 1.0), 150) > 1.99)
    # The right sensitivity loses what it claims, and no more.
    assert np.all(values(exact_loss(jaxdp.Laplace(1.0, 1.0), np.sum), ReplaceOne(5, 0.0, 1.0), 100) <= 1.0)
    # A negative control: one evaluation is no search.
    assert np.median(values(loss, ReplaceOne(5, 0.0, 1.0), 1, seeds=5)) < 1.0


def test_the_worst_case_of_above_threshold_is_found():
    mechanism = jaxdp.AboveThreshold(0.0, 1.0, 1.0)
    worst = jaxdp.audit.exact(mechanism, *mechanism.worst_case())
    adjacency = ChangeEvery(3, -3.0, 3.0, True)
    assert np.all(values(exact_loss(mechanism), adjacency, 200) >= 0.95 * worst)
    assert np.median(values(exact_loss(mechanism), adjacency, 1, seeds=5)) < 0.8 * worst


def test_a_histogram_under_two_relations():
    """Counts with noise of scale 1 / epsilon: a record added costs epsilon, a record replaced twice that."""
    mechanism = jaxdp.Laplace(1.0, 0.5)

    def histogram(data):
        return np.bincount(data, minlength=4).astype(np.int32)

    added = values(exact_loss(mechanism), AddRemove(4), 30)
    replaced = values(exact_loss(mechanism, histogram), ReplaceOne(6, 0.0, 3.0, True), 60)
    np.testing.assert_allclose(added, 0.5, rtol=1e-6)
    np.testing.assert_allclose(replaced, 1.0, rtol=1e-6)


def test_gradients_climb_to_the_worst_scores():
    adjacency, rng = ChangeEvery(5, -10.0, 10.0), np.random.default_rng(3)
    loss, before, after = exact_loss(SELECT), [], []
    state = pairs._Search(loss, renyi(SELECT), adjacency, rng, 1000)
    for _ in range(6):
        pair = adjacency.random(rng)
        climbed = state.climb(pair, 40)
        assert adjacency.holds(*climbed) and np.array_equal(state.climb(pair, 0)[0], pair[0])
        before.append(loss(*pair))
        after.append(loss(*climbed))
    assert np.median(before) < 0.7 and np.median(after) >= 0.9 and min(after) > 0.75
    assert np.all(values(loss, adjacency, 60, seeds=2, divergence=renyi(SELECT)) >= 0.9)
    # Without steps a random pair it stays.
    assert np.median(values(loss, adjacency, 1, seeds=5, divergence=renyi(SELECT))) < 0.8


def test_the_renyi_divergence_is_that_of_the_law_and_below_the_loss():
    one, other = np.array([0.0, 1.0, 2.0]), np.array([1.0, 0.5, 2.0])
    p, q = (np.exp(SELECT.law(scores).log_p) for scores in (one, other))
    for order in (2.0, 64.0):
        with jax.enable_x64(True):
            found = float(renyi(SELECT, order=order)(one, other))
        assert found == pytest.approx(math.log(np.sum(p**order * q ** (1 - order))) / (order - 1), rel=1e-9)
        assert found <= jaxdp.audit.exact(SELECT, one, other)


def test_certificates_guide_the_search_where_no_law_is_known(key):
    """A sum of bits with noise for half of its sensitivity when the first bit is set."""

    def sample(key, bits):
        weight = jnp.where(bits[0] > 0, jnp.int32(2), jnp.int32(1))
        return geometric(0.5)(key, jnp.sum(bits, dtype=jnp.int32) * weight)

    evaluate = certificate(key, sample, epsilon=0.5, num_samples=4000)
    start = patterns(3, lower=0, upper=1)
    best = search(evaluate, ReplaceOne(3, 0.0, 1.0, True), key=key, budget=25, start=start)[0]
    assert best.value > 0.8 and evaluate(np.int32([0, 0, 1]), np.int32([0, 0, 0])) < 0.5


def test_starts_are_looked_at_first_and_the_best_are_kept(key):
    start = [(np.zeros(3), np.array([0.0, 0.0, 1.0])), (np.zeros(3), np.ones(3))]
    seen = []

    def evaluate(one, other):
        seen.append((one.tolist(), other.tolist()))
        return math.nan if len(seen) == 1 else float(np.sum(one))

    found = search(evaluate, ReplaceOne(3, 0.0, 1.0), key=key, budget=20, start=start, keep=3)
    assert seen[0] == ([0.0] * 3, [0.0, 0.0, 1.0]) and seen[1] == (
        [0.0] * 3,
        [1.0, 0.0, 0.0],
    )  # moved into the relation
    assert len(found) == 3 and found[0].value >= found[1].value >= found[2].value > -math.inf
    again = search(evaluate, ReplaceOne(3, 0.0, 1.0), key=key, budget=20, start=start, keep=3)
    assert [pair.value for pair in again] == [pair.value for pair in found]
    assert found[0].evaluations == 20


def test_small_relations_end_the_search(key):
    best = search(lambda one, other: float(one[0]), AddRemove(1, 1), key=key, budget=10_000)[0]
    assert best.value == 1.0 and best.evaluations <= 4


@pytest.mark.parametrize(
    "options, message",
    [
        (dict(key=3), "key must be a typed key"),
        (dict(budget=0), "budget must be a positive integer, got 0"),
        (dict(keep=1.0), "keep must be a positive integer, got 1.0"),
        (dict(evaluate=2), "evaluate must be a function of two inputs, got 2"),
        (dict(divergence=2), "divergence must be a function of two inputs, got 2"),
        (dict(adjacency="replace-one"), "adjacency must be a relation of jaxdp.audit.adjacency, got 'replace-one'"),
    ],
)
def test_bad_arguments_of_the_search_are_named(key, options, message):
    arguments = dict(evaluate=lambda one, other: 0.0, adjacency=AddRemove(2), key=key)
    with pytest.raises(ValueError, match=message):
        search(**{**arguments, **options})


@pytest.mark.parametrize(
    "make, message",
    [
        (lambda: ReplaceOne(0, 0.0, 1.0), "size must be a positive integer, got 0"),
        (lambda: ReplaceOne(3, 1.0, 1.0), "lower < upper, got 1.0 and 1.0"),
        (lambda: ChangeOne(3, 0.0, math.inf), "lower and upper must be finite .*inf"),
        (lambda: ReplaceOne(3, 0.0, 1.0, width=2), "size must be a multiple of width 2, got 3"),
        (lambda: ReplaceOne(3, 0.0, 1.0, width=0), "width must be a positive integer, got 0"),
        (lambda: patterns(0), "n must be a positive integer, got 0"),
        (lambda: patterns(3, neighbours="all"), "neighbours must be 'one entry' or 'every entry', got 'all'"),
        (functools.partial(renyi, SELECT, order=1.0), "order must be finite and more than 1, got 1.0"),
    ],
)
def test_bad_relations_are_named(make, message):
    with pytest.raises(ValueError, match=message):
        make()
