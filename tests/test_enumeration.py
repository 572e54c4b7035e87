"""The enumeration behind SmallDB: tiles, types of integers, large sizes, many data sets, limits."""

import math
import pickle

import jax
import jax.numpy as jnp
import numpy as np
import oracles
import pytest
from oracles import ALPHA
from test_small_db import brute_force, random_summary

import jaxdp
from jaxdp.mechanisms import _enumeration, _multisets

pytestmark = pytest.mark.slow


@pytest.mark.parametrize(("profiles", "size"), [(1, 5), (2, 7), (3, 40), (6, 5), (9, 9), (16, 3), (40, 2), (300, 1)])
def test_tiles_cover_every_multiset_once(profiles, size):
    plan = _multisets.plan(profiles, size)
    first, second = (_multisets.half((1,) * k, size, plan.block[0]) for k in (plan.split, profiles - plan.split))

    def sizes(half, k):
        return half.table.sum(axis=1) if half.counted else (half.table < k).sum(axis=1)

    sizes = np.concatenate([sizes(first, plan.split), sizes(second, profiles - plan.split)])
    assert plan.prefixes == len(first.table)
    seen = np.zeros((len(sizes), len(sizes)), int)
    for part, tile in [(group, tile) for group in plan.groups for tile in group.tiles.tolist()]:
        row, height, column, length = tile
        assert height <= part.rows and length <= part.columns
        assert part.columns % plan.block[1] == 0 == part.rows % plan.block[0]
        block = slice(row, row + height), slice(column, column + length)
        seen[block] += 1
        assert np.all(sizes[block[0], None] + sizes[None, block[1]] == size)
    # A tile has prefixes and suffixes, in either order.
    assert not seen[: plan.prefixes, : plan.prefixes].any() and not seen[plan.prefixes :, plan.prefixes :].any()
    seen = seen[: plan.prefixes, plan.prefixes :] + seen[plan.prefixes :, : plan.prefixes].T
    assert seen.max() == 1 and seen.sum() == math.comb(size + profiles - 1, size)
    # Their base measure is that of tuples: it sums to k^m.
    total = np.sum(np.exp(first.log_base[:, None] + other_base(second))[seen == 1]) * math.factorial(size)
    assert total == pytest.approx(float(profiles) ** size, rel=1e-9)


def other_base(half):
    return half.log_base[None]


@pytest.mark.parametrize(("n", "dtype"), [(40, jnp.int16), (40_000, jnp.int32)])
def test_integers_and_doubles_give_the_same_law(n, dtype):
    counts, workload = random_summary(8, 5, n=n, levels=7)
    mechanism = jaxdp.SmallDB(0.7, size=4)
    concrete, traced = mechanism.enumerate((counts, workload)), jax.jit(mechanism.enumerate)((counts, workload))
    assert concrete.dtype == dtype and traced.dtype == jnp.float64
    integers, doubles = (np.asarray(each.weights).astype(float) for each in (concrete, traced))
    np.testing.assert_allclose(integers, doubles, rtol=1e-12)
    assert np.asarray(concrete.weights).sum() == 2**63 == np.asarray(concrete.cumulative)[-1]
    key = jax.random.key(5)
    np.testing.assert_array_equal(concrete.sample(key), traced.sample(key))
    law = mechanism.law((counts, workload))
    errors = np.max(np.abs(law.outcomes @ workload.queries.T / 4 - workload.queries @ counts / n), axis=1)
    assert concrete.expected_error() == pytest.approx(np.exp(law.log_p) @ errors, rel=1e-12)


def log_law_of_sum(values, size):
    """Log-probability that `size` uniform elements have a sum of v, for all v."""
    total = np.array([0.0])
    for _ in range(size):
        longer = np.full(len(total) + max(values), -np.inf)
        for value, times in zip(*np.unique(values, return_counts=True), strict=True):
            here = longer[value : value + len(total)]
            np.logaddexp(here, total + math.log(times / len(values)), out=here)
        total = longer
    return total


@pytest.mark.parametrize(
    ("values", "multiplicities", "size", "epsilon", "wide"),
    [
        pytest.param((0, 1, 2), (1, 1, 1), 3000, 0.5, True, id="segments of one row and several columns"),
        # One element is never chosen, though nearly all tuples have it: its weights underflow all others of a tile.
        pytest.param((0, 98, 99, 100), (2**10, 1, 1, 1), 400, 120.0, False, id="base measures that spread widely"),
    ],
)
def test_large_sizes_against_convolutions(values, multiplicities, size, epsilon, wide):
    elements, records = np.repeat(values, multiplicities), 100
    counts = np.where(elements == values[-2], records, 0).astype(np.int32)
    mechanism, plan = jaxdp.SmallDB(epsilon, size=size), _multisets.plan(len(values), size)
    assert plan.block == ((1, 2) if wide else (16, 1))
    enumeration = mechanism.enumerate((counts, jaxdp.Workload([elements / values[-1]])))
    error = np.abs(np.arange(values[-1] * size + 1) / size - values[-2]) / values[-1]
    log_weights = log_law_of_sum(elements, size) - epsilon * records * error / 2.0
    log_normalizer = np.logaddexp.reduce(log_weights)
    assert float(enumeration.log_normalizer) == pytest.approx(log_normalizer, rel=1e-11, abs=1e-10)
    draws = np.asarray(jax.vmap(enumeration.sample)(jax.random.split(jax.random.key(14), 20_000)))
    assert np.all(draws.sum(axis=1) == size)
    found, law = np.bincount(draws @ elements, minlength=len(error)), np.exp(log_weights - log_normalizer)
    assert oracles.p_value(found, law) > ALPHA > oracles.p_value(np.roll(found, size // 60), law)


@pytest.mark.parametrize(
    ("levels", "size", "dtype"), [(1, 4, np.int8), (40, 4, np.int16), (2**24, 4, np.int32), (2**24, 130, np.float64)]
)
def test_sums_of_every_type(levels, size, dtype):
    rng = np.random.default_rng(15)
    workload = jaxdp.Workload(rng.integers(0, levels + 1, (11, 2 if size > 100 else 4)) / levels)
    counts = rng.integers(0, 9, workload.universe_size).astype(np.int32)
    mechanism = jaxdp.SmallDB(1.0, size=size)
    law, enumeration = mechanism.law((counts, workload)), mechanism.enumerate((counts, workload))
    assert _enumeration._sums_dtype(workload, size) == dtype
    mine = [enumeration.log_prob(outcome) for outcome in law.outcomes]
    np.testing.assert_allclose(mine, law.log_p, rtol=1e-9, atol=1e-11)
    draws = np.asarray(jax.vmap(enumeration.sample)(jax.random.split(jax.random.key(16), 20_000)))
    found = (draws[:, None] == law.outcomes[None]).all(axis=2).sum(axis=0)
    assert oracles.p_value(found, np.exp(law.log_p)) > ALPHA > oracles.p_value(np.roll(found, 1), np.exp(law.log_p))


def test_enumerations_survive_pickling_and_vmap_over_data_sets():
    counts, workload = random_summary(13, 4)
    mechanism, key = jaxdp.SmallDB(1.0, size=3), jax.random.key(8)
    both = np.stack([counts, counts[::-1]])
    batch = jax.vmap(lambda counts: mechanism.enumerate((counts, workload)).sample(key))(both)
    for i in range(2):
        enumeration = mechanism.enumerate((both[i], workload))
        twin = pickle.loads(pickle.dumps(enumeration))
        np.testing.assert_array_equal(twin.sample(key), batch[i])
        assert twin.log_prob(batch[i]) == enumeration.log_prob(batch[i]) > -10.0
        assert enumeration.log_prob(np.array([1, 1, 1, 1])) == -np.inf  # four records


def test_real_queries_count_as_multiples_of_a_fine_step():
    rng = np.random.default_rng(9)
    matrix, counts = rng.random((2, 3)), np.array([5, 0, 7], np.int32)
    workload = jaxdp.Workload(matrix)
    law = jaxdp.SmallDB(1.0, size=4).law((counts, workload))
    truth = brute_force(counts, np.rint(matrix * 2**24) / 2**24, 1.0, 4)
    np.testing.assert_allclose(np.exp(law.log_p), [truth[tuple(h)] for h in law.outcomes.tolist()], rtol=1e-12)


def test_progress_changes_nothing_and_ends_at_one():
    summary, shares = random_summary(11, 9, queries=5), []
    mechanism = jaxdp.SmallDB(1.0, size=6)
    watched = mechanism.enumerate(summary, progress=shares.append)
    np.testing.assert_array_equal(watched.sample(jax.random.key(6)), mechanism.sample(jax.random.key(6), summary))
    alone = mechanism.enumerate(summary, devices=jax.devices()[-1:])
    np.testing.assert_array_equal(watched.weights, alone.weights)
    assert watched.log_normalizer == alone.log_normalizer
    assert shares == sorted(shares) and shares[-1] == 1.0 and len(shares) > 1


def test_a_large_universe_of_few_profiles():
    rng = np.random.default_rng(12)
    workload = jaxdp.Workload(rng.random((3, 2**20)) < 0.3)
    counts = rng.integers(0, 3, 2**20).astype(np.int32)
    release = jaxdp.SmallDB(1.0, size=20).sample(jax.random.key(7), (counts, workload))
    assert release.shape == (2**20,) and int(release.sum()) == 20 and int(release.min()) == 0
    # A million records and twenty: the error is that of rounding to twentieths.
    assert jaxdp.max_error(release, counts, workload) < 0.1


def test_too_many_candidates_are_refused_at_once(key):
    workload = jaxdp.Workload(np.eye(30))
    summary = np.ones(30, np.int32), workload
    with pytest.raises(ValueError, match=r"^size must leave at most 4,294,967,296 candidates, got 1\.154e\+13"):
        jaxdp.SmallDB(1.0, size=19).sample(key, summary)
    with pytest.raises(ValueError, match=r"^size must leave tables"):
        jaxdp.SmallDB(1.0, size=2).sample(key, (np.ones(2**15, np.int32), np.linspace(0, 1, 2**15)[None]))
    with pytest.raises(ValueError, match=r"^size must leave a law.*use enumerate"):
        jaxdp.SmallDB(1.0, size=8).law(summary)


def test_sizes_that_can_be_enumerated():
    for universe, queries in ((1, 1), (2, 1), (4, 3), (8, 64), (300, 3)):
        workload = jaxdp.Workload(np.random.default_rng(universe).random((queries, universe)))
        size = jaxdp.SmallDB.largest_size(workload)
        _multisets.check_number(workload.num_profiles, size, queries)
        with pytest.raises(ValueError, match=r"^size must"):
            _multisets.check_number(workload.num_profiles, size + 1, queries)
    table = _multisets.counts_up_to(3, 30)
    assert len(np.unique(table, axis=0)) == len(table) == math.comb(33, 3)
    assert np.all(np.diff(table.sum(axis=1)) >= 0) and table.sum(axis=1).max() == 30
