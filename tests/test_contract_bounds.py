"""The contract of output bounds, at tolerance zero, for every statistic in jaxdp.bounds.

U^l(x') <= U^(l+1)(x) and L^(l+1)(x) <= L^l(x') for neighbours, level 0 being one number: all privacy arguments of the
mechanisms on bounds rest on this. New statistics are found by their decorator.
"""

import functools
import itertools

import jax
import jax.numpy as jnp
import numpy as np
import oracles_bounds as oracles
import pytest

import jaxdp
from jaxdp.bounds._statistic import STATISTICS

NAMES = sorted(STATISTICS)
X64 = {"float32": False, "float64": True}

# (n, radius, pairs): 2,000 pairs a dtype. A program is compiled once for each n.
SIZES = {
    "float32": [(4, 4, 1500), (2000, 25, 500)],
    "float64": [(1, 2, 300), (40, 8, 1700)],
}
CHUNK = 200


@functools.cache
def _program(name, radius, x64):
    return jax.jit(jax.vmap(lambda records: STATISTICS[name].call(records, radius)))


def _evaluate(name, records, radius):
    """Bounds of data sets (rows, n, ..), in calls of CHUNK rows so that one program serves them all."""
    rows = len(records[0])
    made = []
    for start in range(0, rows, CHUNK):
        index = np.minimum(np.arange(start, start + CHUNK), rows - 1)
        made.append(
            _program(name, radius, jax.config.jax_enable_x64)(tuple(jnp.asarray(part[index]) for part in records))
        )
    lower, upper, sensitivity = (
        np.concatenate([np.asarray(getattr(part, field)) for part in made])[:rows]
        for field in ("lower", "upper", "sensitivity")
    )
    return lower, upper, sensitivity


def _seed(*key):
    return np.random.default_rng([ord(c) for c in "".join(map(str, key))])


@functools.cache
def _pairs(name, dtype, n, radius, pairs):
    """Bounds of neighbours, their sensitivity, and the direction in which a monotonic statistic moves."""
    statistic = STATISTICS[name]
    x, y, index = oracles.neighbours(statistic.draw, _seed(name, dtype, n), n, pairs)
    x, y = oracles.cast(x, dtype), oracles.cast(y, dtype)
    with jax.enable_x64(X64[dtype]):
        *one, sensitivity = _evaluate(name, x, radius)
        *two, _ = _evaluate(name, y, radius)
    return one, two, sensitivity, oracles.raised_by(statistic.contribution, x, y, index)


@pytest.mark.parametrize("dtype", X64)
@pytest.mark.parametrize("name", NAMES)
def test_contract(name, dtype):
    for n, radius, pairs in SIZES[dtype]:
        one, two, sensitivity, raised = _pairs(name, dtype, n, radius, pairs)
        assert one[0].shape == one[1].shape == (pairs, radius + 2)
        assert one[0].dtype == one[1].dtype == dtype
        assert not any(oracles.violations(one, two, raised).values()), (n, oracles.violations(one, two, raised))
        # One sensitivity for all data sets, and a true one for the rounded numbers too.
        change = np.abs(one[0][:, 0].astype(float) - two[0][:, 0].astype(float))
        assert np.all(sensitivity == sensitivity[0]) and np.all(change <= sensitivity[0])
        if n > 1:
            assert np.mean(one[0][:, 0] != two[0][:, 0]) > 0.02, "neighbours that hardly differ test nothing"


@pytest.mark.parametrize("name", NAMES)
def test_monotonic_flag_and_its_contribution_go_together(name):
    statistic = STATISTICS[name]
    records = oracles.cast(statistic.draw(np.random.default_rng(0), 4), "float32")
    assert statistic.call(records, 4).monotonic == (statistic.contribution is not None)
    if statistic.contribution is not None:
        raised = np.concatenate([_pairs(name, dtype, *size)[3] for dtype in X64 for size in SIZES[dtype]])
        assert np.sum(raised > 0) > 500 and np.sum(raised < 0) > 500


@pytest.mark.parametrize("name", NAMES)
def test_brute_force(name):
    """All data sets of four records over three candidates: entries bound every reachable value."""
    n, candidates = 4, 3
    rng = _seed(name)
    everything = np.array(list(itertools.product(range(candidates), repeat=n)))
    for _ in range(3):
        domain = oracles.cast(STATISTICS[name].draw(rng, candidates), "float32")
        lower, upper, _ = _evaluate(name, tuple(part[everything] for part in domain), n)
        value = dict(zip(map(tuple, everything.tolist()), lower[:, 0].astype(float), strict=True))
        for row in rng.choice(len(everything), 12, replace=False):
            least, most = oracles.extremes(value, tuple(everything[row].tolist()), candidates)
            # Both sides are rounded monotonically, from bounds that hold before: no tolerance here either.
            assert np.all(lower[row, : n + 1] <= least) and np.all(most <= upper[row, : n + 1])


@pytest.mark.parametrize("name", NAMES)
def test_jit_and_eager_and_vmap_agree(name):
    statistic = STATISTICS[name]
    program = jax.jit(lambda records: STATISTICS[name].call(records, 4))
    rng = _seed(name, "jit")
    for _ in range(5):
        records = oracles.cast(statistic.draw(rng, 4), "float32")
        records = tuple(jnp.asarray(part) for part in records)
        eager = statistic.call(records, 4)
        compiled = program(records)
        batched = _evaluate(name, tuple(np.asarray(part)[None] for part in records), 4)
        for field, batch in zip(("lower", "upper", "sensitivity"), batched, strict=True):
            ours, other = np.asarray(getattr(eager, field)), np.asarray(getattr(compiled, field))
            # Exponentials may be rounded otherwise elsewhere: one step of the 2^-30 grid.
            np.testing.assert_allclose(ours, other, rtol=3e-7, atol=1e-7)
            np.testing.assert_allclose(ours, batch[0], rtol=3e-7, atol=1e-7)


@pytest.mark.parametrize("name", NAMES)
def test_nan_and_infinite_records_leave_ordinary_bounds(name):
    draw = STATISTICS[name].draw
    for value in (np.nan, np.inf, -np.inf):
        records = oracles.cast(draw(np.random.default_rng(1), 4), "float32")
        if not any(part.dtype.kind == "f" for part in records):
            return
        for part in records:
            if part.dtype.kind == "f":
                part[1] = value
        lower, upper, sensitivity = _evaluate(name, tuple(part[None] for part in records), 4)
        assert len(oracles.not_bounds(lower, upper)) == 0 and not np.isnan(sensitivity[0])
        assert np.all(np.isfinite(lower[0, :1]))


@pytest.mark.parametrize("name", NAMES)
def test_scores_of_the_library_have_sensitivity_one(name):
    """The library's own scores on the same neighbours (the other tests score by the definition)."""
    one, two, _, raised = _pairs(name, "float32", *SIZES["float32"][0])
    points = oracles.critical_points(one, two)
    # XLA compares subnormal numbers as zeros.
    points = np.where(np.abs(points) < np.finfo(points.dtype).tiny, 0.0, points).astype(points.dtype)
    for method in ("distance", "signed_distance"):
        first, second = _scores(method, one, points), _scores(method, two, points)
        assert np.abs(second - first).max() <= 1
        if method == "signed_distance":
            assert np.all((second - first) * raised[:, None] <= 0.0)
        np.testing.assert_array_equal(first, getattr(oracles, method)(*one, points))


def _scores(method, bounds, points):
    return np.asarray(_score_program(method)(*map(jnp.asarray, (*bounds, points))))


@functools.cache
def _score_program(method):
    return jax.jit(jax.vmap(lambda lower, upper, t: getattr(jaxdp.OutputBounds(lower, upper), method)(t)))


@pytest.mark.parametrize("n", [4, 40, 2000])
def test_negative_control_float32_mean(n):
    """The checks above must catch textbook code that only rounds wrongly."""
    low, high, radius = -3.0, 7.1, min(n, 25)
    x, y, index = oracles.neighbours(STATISTICS["mean"].draw, np.random.default_rng(n), n, 1000)
    one, two = (oracles.sloppy_mean(np.nan_to_num(part[0], nan=low), low, high, radius) for part in (x, y))
    found = oracles.violations(one, two, oracles.raised_by(STATISTICS["mean"].contribution, x, y, index))
    assert found["contract"] > 5 and found["monotonicity"] > 5 and found["scores"] > 5


def test_negative_control_variance_around_a_fixed_centre():
    """Bounds may be valid, entry by entry, and still be no summary to build on."""
    x, y, _ = oracles.neighbours(STATISTICS["mean"].draw, np.random.default_rng(3), 5, 1000)
    one, two = (oracles.fixed_centre_variance(np.nan_to_num(part[0], nan=0.0), 0.0, 4.0, 3) for part in (x, y))
    found = oracles.violations(one, two, np.zeros(1000, int))
    assert found["contract"] > 5 and found["scores"] > 5
