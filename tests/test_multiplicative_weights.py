"""Private multiplicative weights: the law of its transcripts, exact sensitivities, what it fits, its arguments."""

import copy
import dataclasses
import itertools
import pickle

import jax
import numpy as np
import oracles
import pytest
from jax.sharding import Mesh, PartitionSpec
from oracles import ALPHA, quick_jit

import jaxdp
from jaxdp import MultiplicativeWeights, Workload, answer, binary_universe, histogram, max_error
from jaxdp.mechanisms import multiplicative_weights as steps

TINY = np.array([[1, 0, 0], [1, 1, 0]], bool)
RNG = np.random.default_rng(69)
COUNTS, NEIGHBOURS = np.array([3, 0, 1]), (np.array([2, 1, 1]), np.array([2, 0, 2]), np.array([3, 1, 0]))


def assert_same(one, other):
    jax.tree.map(np.testing.assert_array_equal, one, other)


@quick_jit
def sample(record, key, summary):
    return record.sample(key, summary)


@quick_jit
def sample_many(record, keys, summary):
    return jax.vmap(record.sample, (0, None))(keys, summary)


def conjunctions(d, width, number=None):
    """Conjunctions of `width` of d yes/no attributes, on all rows."""
    universe = binary_universe(d)
    chosen = list(itertools.combinations(range(d), width))
    if number is not None:
        chosen = [chosen[i] for i in np.random.default_rng(70).permutation(len(chosen))[:number]]
    return np.stack([universe[:, list(attributes)].all(axis=1) for attributes in chosen])


def correlated(d, n, seed=71):
    """Yes/no attributes that share three normal factors, as a histogram."""
    rng = np.random.default_rng(seed)
    factors = rng.normal(size=(n, 3)) @ rng.normal(size=(3, d))
    return histogram(factors + rng.normal(size=(n, d)) + 0.7 * rng.normal(size=d) > 0, binary_universe(d))


# The law of transcripts: T = 2, all of them.


@quick_jit
def second_selections(record, summary, z):
    """Log-probabilities of the second selection after (i1, z1); shape (2, z, 2)."""

    def after(i, z):
        return record.selection_law(summary, i[None], z[None] / 4).log_p

    return jax.vmap(jax.vmap(after, (None, 0)), (0, None))(np.arange(2, dtype=np.int32), z)


def transcripts(record, counts, queries, low, high):
    """Probabilities (i1, z1, i2, z2) of two rounds on four records, z on the integers low..high-1."""
    z = np.arange(low, high)
    measured = [np.asarray(jax.vmap(record.measurement_law((counts, queries), i).log_prob)(z)) for i in range(2)]
    first = np.asarray(record.selection_law((counts, queries)).log_p)

    second = np.asarray(second_selections(record, (counts, queries), z.astype(np.float32)))
    return (first[:, None] + np.stack(measured))[:, :, None, None] + (
        second[:, :, :, None] + np.stack(measured)[None, None]
    )


@pytest.mark.parametrize(("epsilon", "queries"), [(1.0, TINY), (4.0, TINY[::-1, ::-1])])
def test_loss_over_all_transcripts_is_at_most_epsilon(epsilon, queries):
    record = MultiplicativeWeights(epsilon, rounds=2, replays=3)
    size = int(np.ceil(30.0 / (epsilon / 4.0)))  # beyond: e^-30 = 1e-13
    law, losses = transcripts(record, COUNTS, queries, -size, size), []
    assert np.exp(law).sum() == pytest.approx(1.0, abs=1e-9)
    for neighbour in NEIGHBOURS:
        other = transcripts(record, neighbour, queries, -size, size)
        losses.append(np.max(np.abs(law - other)))
    assert max(losses) <= epsilon * (1.0 + 1e-9)
    assert max(losses) >= 0.5 * epsilon
    assert record.privacy().epsilon == epsilon and 0.0 < record.privacy().delta < 1e-15
    # All of epsilon in each round, not in both together, is more than that.
    greedy = dataclasses.replace(record, epsilon=2.0 * epsilon)
    one, other = (transcripts(greedy, counts, queries, -size, size) for counts in (COUNTS, NEIGHBOURS[1]))
    assert np.max(np.abs(one - other)) > epsilon


def test_sampled_transcripts_have_the_law():
    record, size, draws = MultiplicativeWeights(4.0, rounds=2, replays=3), 32, 200_000
    keys = jax.random.split(jax.random.key(72), draws)
    release = sample_many(record, keys, (COUNTS, TINY))
    z = np.rint(np.asarray(release.answers) * 4.0)
    np.testing.assert_array_equal(z / 4.0, release.answers)
    cells = tuple(np.clip(np.stack([*release.queries.T], 1), 0, 1).T), tuple((z.T + size).astype(int))
    assert (np.abs(z) < size).all()
    counts = np.zeros((2, 2 * size, 2, 2 * size))
    np.add.at(counts, (cells[0][0], cells[1][0], cells[0][1], cells[1][1]), 1)

    def p_value(epsilon):
        law = np.exp(transcripts(dataclasses.replace(record, epsilon=epsilon), COUNTS, TINY, -size, size)).ravel()
        return oracles.p_value(counts.ravel(), law / law.sum())

    assert p_value(4.0) > ALPHA
    assert p_value(4.8) < ALPHA and p_value(3.2) < ALPHA


# Sensitivities, at tolerance zero.


FLOATS = RNG.random((20, 50)).astype(np.float32)
QUERIES = {
    "predicates": RNG.random((20, 50)) < 0.3,
    "thirds": Workload(RNG.integers(0, 4, (20, 50)) / 3),
    "hundredths": Workload(RNG.integers(0, 101, (20, 50)) / 100),
    "irrational": Workload(FLOATS),
    "float matrix": FLOATS,
}


@pytest.mark.parametrize("n", [7, 10_000, 2**29])
@pytest.mark.parametrize("kind", QUERIES)
def test_scores_of_neighbours_differ_by_the_sensitivity_at_most(kind, n):
    record, rng = MultiplicativeWeights(100.0, rounds=3), np.random.default_rng(73)
    worst = 0.0
    for _ in range(5):
        counts = rng.multinomial(n, rng.dirichlet(np.full(50, 0.1)))
        other = counts.copy()
        other[np.argmax(counts)] -= 1
        other[rng.integers(50)] += 1
        one, two = (record._problem((x, QUERIES[kind])) for x in (counts, other))
        exact = [
            [sum(map(int.__mul__, row, x.tolist())) for row in one.matrix.astype(int).tolist()] for x in (counts, other)
        ]
        np.testing.assert_array_equal(np.asarray(one.truth), np.array(exact[0], np.float64))
        np.testing.assert_array_equal(np.asarray(two.truth), np.array(exact[1], np.float64))
        fine = 1 if one.denominator == 2**24 else 1024
        log_weights = rng.normal(size=50).astype(np.float32)
        scores = [np.asarray(steps._scores(p.matrix, p.truth, p.n, log_weights, fine=fine)) for p in (one, two)]
        assert all((np.rint(s) == s).all() and s.max() <= 2**53 for s in scores)
        # Differences of whole numbers up to 2^53 are exact.
        assert np.max(np.abs(scores[0] - scores[1])) <= one.denominator * fine
        worst = max(worst, np.max(np.abs(scores[0] - scores[1])) / (one.denominator * fine))
        law, neighbour = (
            MultiplicativeWeights(3.0, rounds=3).selection_law((x, QUERIES[kind])) for x in (counts, other)
        )
        assert float(law.max_divergence(neighbour)) <= 0.5 * (1.0 + 1e-12)
    assert worst > 0.6


def test_scores_that_are_not_rounded_exceed_the_sensitivity():
    rng = np.random.default_rng(74)
    truth, model = rng.integers(0, 10_000, 10_000).astype(np.float64), rng.uniform(0.0, 10_000.0, 10_000)

    def excess(model):
        return np.max(np.abs(np.abs(truth + 1.0 - model) - np.abs(truth - model))) - 1.0

    assert excess(model) > 0.0
    assert excess(np.rint(model * 1024.0) / 1024.0) == 0.0


def test_predicates_are_measured_on_the_integers_without_slack():
    counts = np.arange(50)
    record = MultiplicativeWeights(2.0, rounds=4, measure_share=0.25)
    for i, row in enumerate(QUERIES["predicates"][:3]):
        for queries in (QUERIES["predicates"], Workload(QUERIES["predicates"]), QUERIES["predicates"].astype(np.int8)):
            law = record.measurement_law((counts, queries), i)
            assert (float(law.location), float(law.granularity), float(law.rate)) == (counts @ row, 1.0, 0.125)
    law = record.measurement_law((counts, QUERIES["thirds"]), 0)
    assert abs(float(law.location * law.granularity) - counts @ QUERIES["thirds"].queries[0]) <= float(law.granularity)
    assert 0.125 * (1 - 2.0**-11) < float(law.rate) / float(law.granularity) < 0.125


# What is fitted.


def reweighted(matrix, queries, answers, replays):
    """The weights of the textbook, one after the other."""
    weights = np.ones(matrix.shape[1]) / matrix.shape[1]
    for t in range(len(queries)):
        for s in [t, *(list(range(t + 1)) * replays)]:
            row = matrix[queries[s]].astype(float)
            weights *= np.exp(row * (np.clip(answers[s], 0.0, 1.0) - row @ weights) / 2.0)
            weights /= weights.sum()
    return weights


@pytest.mark.parametrize(
    ("kind", "replays"), [("predicates", 0), *((kind, 5) for kind in QUERIES if kind != "hundredths")]
)
def test_weights_are_those_of_the_transcript(kind, replays, key):
    counts, queries = np.random.default_rng(75).integers(0, 30, 50).astype(np.int32), QUERIES[kind]
    record = MultiplicativeWeights(20.0, rounds=3, replays=replays)
    release = sample(record, key, (counts, queries))
    matrix = queries.queries if isinstance(queries, Workload) else queries
    expected = reweighted(matrix, np.asarray(release.queries), np.asarray(release.answers, float), replays)
    np.testing.assert_allclose(release.weights, expected * counts.sum(), rtol=1e-4)
    assert float(release.weights.sum()) == pytest.approx(counts.sum(), rel=1e-5)
    shapes = [(leaf.shape, leaf.dtype) for leaf in release]
    assert shapes == [((50,), np.float32), ((3,), np.int32), ((3,), np.float32)]
    # Noise of scale 0.3 counts.
    truth = np.asarray(answer(counts, queries))[np.asarray(release.queries)]
    assert 0.0 < np.max(np.abs(np.asarray(release.answers) - truth)) < 12.0 / counts.sum()


def errors(record, counts, queries, seeds=4):
    releases = [record.sample(key, (counts, queries)) for key in jax.random.split(jax.random.key(76), seeds)]
    return np.array([float(max_error(release.weights, counts, queries)) for release in releases])


def test_it_beats_independent_laplace_answers():
    counts, queries = correlated(12, 5_000), conjunctions(12, 3)
    noise = np.random.default_rng(77).laplace(scale=len(queries), size=(4, len(queries)))
    independent = np.max(np.abs(noise), axis=1) / counts.sum()
    assert errors(MultiplicativeWeights(1.0, rounds=30), counts, queries).max() < 0.6 * independent.min()


@pytest.mark.thorough
def test_error_falls_with_epsilon_and_rounds_and_vanishes():
    counts, queries = correlated(8, 2_000), conjunctions(8, 2)

    def error(epsilon, rounds):
        return errors(MultiplicativeWeights(epsilon, rounds=rounds), counts, queries).mean()

    by_epsilon = [error(epsilon, 12) for epsilon in (0.1, 1.0, 10.0)]
    assert by_epsilon[0] > 1.3 * by_epsilon[1] > 1.3**2 * by_epsilon[2]
    assert error(20.0, 12) > 5.0 * error(20.0, 100)
    assert error(2000.0, 100) < 1e-3


def test_rounds_for_minimises_the_bound():
    for n, size, number, epsilon in ((10_000, 2**16, 500, 1.0), (1_000_000, 2**20, 1000, 0.1), (100, 8, 3, 1.0)):
        rounds = MultiplicativeWeights.rounds_for(n, size, number, epsilon)
        t = np.arange(1, 10_000)
        bound = 2.0 * np.sqrt(np.log(size) / t) + 10.0 * t * np.log(number) / (n * epsilon)
        assert abs(rounds - t[np.argmin(bound)]) <= 1
    for bad in ({"n": 0}, {"universe_size": 0}, {"num_queries": 1.5}, {"epsilon": 0.0}):
        with pytest.raises(ValueError, match=f"^{next(iter(bad))} must"):
            MultiplicativeWeights.rounds_for(**({"n": 9, "universe_size": 8, "num_queries": 7, "epsilon": 1.0} | bad))


# Transformations.


SUMMARY = np.arange(50, dtype=np.int32), QUERIES["predicates"]


def test_the_same_queries_in_other_forms_give_the_same_release(key):
    counts, matrix = SUMMARY
    record = MultiplicativeWeights(1.0, rounds=3)
    release = record.sample(key, SUMMARY)
    assert_same(release, record.sample(key, (counts.astype(np.float64), Workload(matrix))))
    assert_same(release, record.sample(key, (counts.astype(np.float32) + 0.5 * (counts > 0), matrix.astype(np.uint8))))
    broken = counts.astype(np.float32)
    broken[0] = np.nan
    assert_same(release, record.sample(key, (broken, matrix)))
    broken[0] = -5.0
    assert_same(release, record.sample(key, (broken, matrix)))
    other = record.sample(jax.random.key(1), SUMMARY)
    assert not np.array_equal(other.answers, release.answers)


def test_jit_vmap_scan_and_shard_map_are_the_loop():
    record, keys = MultiplicativeWeights(1.0, rounds=3), jax.random.split(jax.random.key(78), 2)
    loop = [record.sample(key, SUMMARY) for key in keys]
    mapped = sample_many(record, keys, SUMMARY)
    scanned = quick_jit(lambda keys: jax.lax.scan(lambda c, key: (c, record.sample(key, SUMMARY)), 0, keys)[1])(keys)
    mesh, spec = Mesh(np.array(jax.devices()[:2]), ("devices",)), PartitionSpec("devices")
    body = jax.vmap(lambda key: record.sample(key, SUMMARY))
    sharded = quick_jit(jax.shard_map(body, mesh=mesh, in_specs=spec, out_specs=spec))(keys)
    for i, one in enumerate(loop):
        for many in (mapped, scanned, sharded):
            np.testing.assert_array_equal(many.queries[i], one.queries)
            np.testing.assert_array_equal(many.answers[i], one.answers)
            np.testing.assert_allclose(many.weights[i], one.weights, rtol=1e-5)


def test_vmap_over_epsilons_is_one_program():
    epsilons, key, traces = (0.5, 1.0, 8.0), jax.random.key(79), []

    @quick_jit
    @jax.vmap
    def run(epsilon):
        traces.append(1)
        record = MultiplicativeWeights(epsilon, rounds=3)
        return record.sample(key, SUMMARY), record.privacy()

    many, privacy = run(np.array(epsilons, np.float32))
    for i, epsilon in enumerate(epsilons):
        one = MultiplicativeWeights(epsilon, rounds=3)
        np.testing.assert_array_equal(many.queries[i], one.sample(key, SUMMARY).queries)
        np.testing.assert_array_equal(many.answers[i], one.sample(key, SUMMARY).answers)
        assert float(privacy.rho[i]) == pytest.approx(one.privacy().rho, rel=1e-5)
    run(np.array([0.1, 0.2, 0.3], np.float32))
    assert len(traces) == 1


def test_keys_are_used_once():
    with jax.debug_key_reuse(True):
        run = quick_jit(lambda key: MultiplicativeWeights(1.0, rounds=3).sample(key, SUMMARY))
        jax.block_until_ready(run(jax.random.key(80)))


# Arguments.


def test_bad_traced_arguments_fail_closed(key):
    def run(epsilon, counts, matrix):
        return sample(MultiplicativeWeights(epsilon, rounds=3), key, (counts, matrix))

    counts, matrix = SUMMARY[0], SUMMARY[1].astype(np.int32)
    bad = [(epsilon, counts, matrix) for epsilon in (0.0, -1.0, np.nan, np.inf, 1e3, 1e-9)]
    bad += [(1.0, 0 * counts, matrix), (1.0, counts + 2**25, matrix), (1.0, counts, matrix + 1), (1.0, counts, -matrix)]
    for epsilon, counts, matrix in bad:
        release = run(float(epsilon), counts, matrix)
        assert np.isnan(release.weights).all() and np.isnan(release.answers).all() and (release.queries == -1).all()
    assert (run(1.0, *SUMMARY).queries >= 0).all()
    floats = FLOATS.copy()
    assert_same(run(1.0, SUMMARY[0], floats), run(1.0, SUMMARY[0], QUERIES["irrational"]))
    for value in (np.nan, 1.001, -0.001):
        floats[3, 4] = value
        assert np.isnan(run(1.0, SUMMARY[0], floats).weights).all()


def test_bad_arguments_are_rejected_by_name(key):
    counts, matrix = SUMMARY
    bad = {
        "epsilon": (0.0, -1.0, np.nan, np.inf, True, "1", 1j, 1e3, 1e-8, np.zeros(2)),
        "rounds": (0, -1, 1.5, True, None),
        "measure_share": (0.0, 1.0, -0.5, np.nan, 2.0, True, "1"),
        "replays": (-1, 1.5, True, None),
    }
    for name, values in bad.items():
        for value in values:
            record = MultiplicativeWeights(**({"epsilon": 1.0, "rounds": 3} | {name: value}))
            with pytest.raises(ValueError, match=f"^{name} must"):
                record.sample(key, SUMMARY)
            if not (name == "epsilon" and np.all(value == 1e-8)):  # too small for the noise, not for the claim
                with pytest.raises(ValueError, match=f"^{name} must"):
                    record.privacy()
    record = MultiplicativeWeights(4e-7, rounds=3)
    assert (record.sample(key, SUMMARY).queries >= 0).all()
    with pytest.raises(ValueError, match=r"^epsilon must be larger for 3 rounds, got 4e-07"):
        MultiplicativeWeights(4e-7, rounds=3).sample(key, (counts, QUERIES["thirds"]))
    floats = matrix.astype(np.float64)
    for summary, name in (
        (counts, "summary"),
        ((counts,), "summary"),
        ((counts[:-1], matrix), "queries"),
        ((counts, matrix[0]), "queries"),
        ((counts, matrix[:0]), "queries"),
        ((counts, floats * 1.01), "queries"),
        ((counts, floats * np.nan), "queries"),
        ((counts, matrix.astype(np.int64) * 2**32), "queries"),
        ((counts, matrix * 1j), "queries"),
        ((counts, Workload(matrix[:, :-1])), "queries"),
        ((0 * counts, matrix), "counts"),
        ((counts + 2**29, matrix), "counts"),
        ((counts > 3, matrix), "counts"),
        ((matrix * 1, matrix), "counts"),
    ):
        with pytest.raises(ValueError, match=f"^{name} must"):
            record.sample(key, summary)
    with pytest.raises(ValueError, match=r"^key must"):
        record.sample(0, SUMMARY)
    for index in (-1, 20):
        with pytest.raises(ValueError, match=r"^index must"):
            record.measurement_law(SUMMARY, index)
    with pytest.raises(ValueError, match=r"^queries must"):
        record.selection_law(SUMMARY, [0, 1], [0.5])


def test_privacy_is_that_of_the_composed_steps():
    record = MultiplicativeWeights(3.0, rounds=6, measure_share=0.25)
    parts = [jaxdp.ExponentialMechanism(1.0, 0.375).privacy(), jaxdp.Laplace(1.0, 0.125).privacy()] * 6
    composed, claimed = jaxdp.compose(*parts), record.privacy()
    for name in ("epsilon", "delta", "rho"):
        assert getattr(claimed, name) == pytest.approx(getattr(composed, name), rel=1e-12)
    assert claimed.rho < 3.0**2 / 2 and claimed.neighbours == "replace-one"


def test_records_are_frozen_and_can_be_copied_pickled_and_replaced(key):
    record = MultiplicativeWeights(1.0, rounds=3)
    release = record.sample(key, SUMMARY)
    for twin in (pickle.loads(pickle.dumps(record)), copy.deepcopy(record)):
        assert_same(twin.sample(key, SUMMARY), release)
        assert (
            repr(twin) == repr(record) == "MultiplicativeWeights(epsilon=1.0, rounds=3, measure_share=0.5, replays=5)"
        )
    assert jax.tree.leaves(record) == [1.0]
    with pytest.raises(dataclasses.FrozenInstanceError):
        record.epsilon = 2.0
