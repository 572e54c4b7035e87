"""Distances to instability against brute force over all data sets, and the contract of neighbours at tolerance zero."""

import itertools
import sys
from fractions import Fraction

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from oracles import quick_jit

import jaxdp
from jaxdp import ProposeTestRelease, Stability

# Brute force: all data sets of n records on a small grid, up to their order.


class Domain:
    def __init__(self, grid, n, f):
        self.grid, self.n = grid, n
        self.points = list(itertools.combinations_with_replacement(grid, n))
        place = {x: i for i, x in enumerate(self.points)}
        counts = np.array([[x.count(v) for v in grid] for x in self.points])
        self.away = n - np.minimum(counts[:, None], counts[None]).sum(axis=2)
        values = [f(x) for x in self.points]
        self.local = [
            max(abs(values[place[tuple(sorted((*x[:i], v, *x[i + 1 :])))]] - values[k]) for i in range(n) for v in grid)
            for k, x in enumerate(self.points)
        ]

    def distances(self, bound, *, strict=True):
        """Distance of each data set from one with a larger local sensitivity (or as large); n + 1 if there is none."""
        unstable = [s > bound or (not strict and s == bound) for s in self.local]
        return np.where(unstable, self.away, self.n + 1).min(axis=1)


def quantile(rank):
    return lambda x: x[rank - 1]


def trimmed(cut):
    return lambda x: Fraction(sum(x[cut : len(x) - cut]), len(x) - 2 * cut)


GRID = (0, 1, 3, 4, 8)
BOUNDS = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 4.5, 7.0, 8.0)


def distances_of(function, points):
    """Of many data sets, for many proposals; (proposals, data sets)."""
    each = jax.vmap(lambda b: jax.vmap(lambda x: function(x, b).distance)(jnp.array(points, jnp.float32)))
    return np.asarray(quick_jit(each)(jnp.array(BOUNDS, jnp.float32)))


@pytest.mark.parametrize(("n", "rank"), [(1, 1), (2, 1), (3, 2), (5, 3), (5, 1), (5, 5), (6, 2)])
def test_order_statistics_are_exact(n, rank):
    domain = Domain(GRID, n, quantile(rank))
    got = distances_of(lambda x, b: jaxdp.quantile_stability(x, rank / n, 0.0, 8.0, b), domain.points)
    for row, bound in zip(got, BOUNDS, strict=True):
        np.testing.assert_array_equal(row, domain.distances(bound))
    # The oracle can tell: the strictness of "more than b" matters.
    assert any(np.any(domain.distances(bound) != domain.distances(bound, strict=False)) for bound in BOUNDS)
    if 2 * rank in (n, n + 1):
        np.testing.assert_array_equal(
            got, distances_of(lambda x, b: jaxdp.median_stability(x, 0.0, 8.0, b), domain.points)
        )


@pytest.mark.parametrize(("n", "cut"), [(3, 1), (4, 1), (5, 1), (6, 2), (4, 0)])
def test_trimmed_means_are_exact_up_to_rounding(n, cut):
    domain = Domain(GRID, n, trimmed(cut))
    got = distances_of(lambda x, b: jaxdp.trimmed_mean_stability(x, cut / n, 0.0, 8.0, b), domain.points)
    ties = 0
    for row, bound in zip(got, BOUNDS, strict=True):
        # A change of exactly b > 0 counts as more than b: the rounding of the value is paid for.
        expected = domain.distances(bound, strict=bound == 0.0)
        np.testing.assert_array_equal(row, expected)
        assert np.all(expected <= domain.distances(bound))
        ties += np.sum(expected != domain.distances(bound))
    assert ties > 0
    step = 1e-5  # just above the ties it is exact
    got = distances_of(lambda x, b: jaxdp.trimmed_mean_stability(x, cut / n, 0.0, 8.0, b + step), domain.points)
    for row, bound in zip(got, BOUNDS, strict=True):
        np.testing.assert_array_equal(row, domain.distances(bound))


@pytest.mark.parametrize(("n", "c", "name"), [(3, 5, "gap"), (4, 3, "std"), (1, 3, "sum"), (2, 2, "sum")])
def test_candidates_are_exact(n, c, name):
    grid = (0, 1, 3, 7, 8)[:c]
    functions = {"gap": lambda x: jnp.min(jnp.diff(jnp.sort(x))), "std": jnp.std, "sum": lambda x: jnp.sum(x * x)}
    slow = {"gap": lambda x: min(np.diff(x)), "std": lambda x: float(np.float32(np.std(x))), "sum": lambda x: x @ x}
    domain = Domain(grid, n, lambda x: slow[name](np.array(x)))
    candidates = np.array(grid, np.float32)
    for bound in (0.0, 0.9, 1.6, 3.1, 1000.0):
        expected = domain.distances(bound)
        for x, d in list(zip(domain.points, expected, strict=True))[:: max(1, len(expected) // 9)]:
            made = jaxdp.candidates_stability(functions[name], np.float32(x), candidates, bound)
            assert int(made.distance) == d
            bounds = jaxdp.bounds.from_candidates(functions[name], np.float32(x), candidates, radius=n)
            assert made.value == bounds.value and made.value.dtype == bounds.value.dtype == np.float32
            assert int(jaxdp.stability(bounds, bound).distance) <= d


# The mode.


def histograms(k, n):
    return [h for h in itertools.product(range(n + 1), repeat=k) if sum(h) == n]


def moves(h):
    for i, j in itertools.permutations(range(len(h)), 2):
        if h[i] > 0:
            yield tuple(c - (a == i) + (a == j) for a, c in enumerate(h))


def breadth_first(h):
    """Replacements until one more can change the mode."""
    mode, reached, steps = np.argmax(h), {h}, -1
    while all(np.argmax(x) == mode for x in reached):
        reached |= {y for x in reached for y in moves(x)}
        steps += 1
    return steps


@pytest.mark.parametrize(("k", "n"), [(2, 9), (3, 1), (3, 7), (4, 5), (5, 4)])
def test_the_mode_is_exact(k, n):
    points = histograms(k, n)
    made = quick_jit(jax.vmap(jaxdp.mode_stability))(jnp.array(points, jnp.int32))
    assert made.value.dtype == made.distance.dtype == np.int32 and not np.any(made.proposal)
    np.testing.assert_array_equal(made.value, np.argmax(points, axis=1))
    np.testing.assert_array_equal(made.distance, [breadth_first(h) for h in points])
    summaries = dict(zip(points, zip(made.value.tolist(), made.distance.tolist(), strict=True), strict=True))
    gaps = {h: sorted(h)[-1] - sorted(h)[-2] for h in points}
    worst_gap = 0
    for x in points:
        for y in moves(x):
            (value, d), (other, e) = summaries[x], summaries[y]
            assert abs(d - e) <= 1 and (value == other or d == e == 0)
            worst_gap = max(worst_gap, abs(gaps[x] - gaps[y]))
    assert worst_gap == 2 or n == 1  # the raw gap would not do


def test_the_mode_of_odd_counts():
    assert jaxdp.mode_stability(np.array([5])).distance == 2**31 - 1
    assert jaxdp.mode_stability(np.array([-7, 4])).distance == jaxdp.mode_stability(np.array([0, 4])).distance == 1
    for dtype in (np.int8, np.uint8, np.int16, np.uint32, np.int64, np.uint64):
        top = np.iinfo(dtype).max
        made = jaxdp.mode_stability(np.array([0, top, 0], dtype))
        assert made.value == 1 and made.distance == min(min(top, 2**62) // 2 + (0 if top % 2 else -1), 2**31 - 1)
    for bad in (np.array([1.0]), np.zeros(0, int), np.zeros((2, 2), int), np.array([True])):
        with pytest.raises(ValueError, match=r"^counts must"):
            jaxdp.mode_stability(bad)


# Neighbours.

LOWER, UPPER = -1.7, 50.3
N = 12


def draw(rng, dtype):
    kind = rng.integers(4)
    x = rng.uniform(LOWER, UPPER, N)
    if kind == 1:  # ties
        x = rng.choice(x[:3], N)
    elif kind == 2:  # extremes
        x = rng.choice([LOWER, UPPER, x[0], np.nan, -np.inf, 60.0], N)
    elif kind == 3:  # close together
        x = x[0] + rng.integers(-3, 4, N) * 10.0 ** -rng.integers(1, 8)
    y = x.copy()
    y[rng.integers(N)] = rng.choice([LOWER, UPPER, rng.uniform(LOWER, UPPER), x[1], -np.inf])
    return x.astype(dtype), y.astype(dtype)


MADE = {
    "generic median": lambda x: jaxdp.bounds.median(x, LOWER, UPPER, radius=8),
    "generic mean": lambda x: jaxdp.bounds.mean(x, LOWER, UPPER, radius=8),
    "generic variance": lambda x: jaxdp.bounds.variance(x, LOWER, UPPER, radius=8),
    "generic trimmed mean": lambda x: jaxdp.bounds.trimmed_mean(x, 0.2, LOWER, UPPER, radius=8),
}
STABILITIES = {name: lambda x, b, make=make: jaxdp.stability(make(x), b) for name, make in MADE.items()} | {
    "median": lambda x, b: jaxdp.median_stability(x, LOWER, UPPER, b),
    "quantile": lambda x, b: jaxdp.quantile_stability(x, 0.3, LOWER, UPPER, b),
    "trimmed mean": lambda x, b: jaxdp.trimmed_mean_stability(x, 0.2, LOWER, UPPER, b),
}


def proposal(rng, x, y, name):
    """Mostly a bound at which the distance of one of the two data sets changes."""
    if rng.random() < 0.2:
        return 10.0 ** rng.uniform(-8.0, 2.0)
    if name in MADE:
        return float(rng.choice(MADE[name](x if rng.random() < 0.5 else y).local_sensitivity()))
    x = np.clip(np.nan_to_num(np.append(x, y).astype(np.float64), nan=LOWER), LOWER, UPPER)
    return float(abs(np.subtract(*rng.choice(x, 2)))) / (8.0 if name == "trimmed mean" else 1.0)


@pytest.mark.parametrize("name", STABILITIES)
def test_neighbours_obey_the_contract_with_no_tolerance(name):
    rng, seen = np.random.default_rng(7), []
    for i in range(300):  # 2,100 pairs
        x, y = draw(rng, (np.float32, np.float64)[i % 2])
        bound = proposal(rng, x, y, name)
        one, other = (STABILITIES[name](data, bound) for data in (x, y))
        d, e = int(one.distance), int(other.distance)
        change = abs(np.float64(one.value) - np.float64(other.value))
        assert abs(d - e) <= 1 and one.proposal == other.proposal == bound
        assert change <= bound or d == e == 0
        seen.append((d != e, d > 0, change > bound))
    assert np.all(np.mean(seen, axis=0) > (0.02, 0.05, 0.005))


def test_generic_distances_of_the_median_are_below_the_exact_ones():
    rng, seen = np.random.default_rng(8), []
    for n in (1, 2, 5, 12, 31):
        x = np.where(rng.random((100, 1)) < 0.5, rng.uniform(0, 9, (100, n)), rng.integers(0, 9, (100, n)))
        b = rng.uniform(0.0, 9.0, 100) ** 2 / 9.0

        def both(x, b, n=n):
            made = jaxdp.bounds.median(x, 0.0, 9.0, radius=n)
            return jaxdp.stability(made, b).distance, jaxdp.median_stability(x, 0.0, 9.0, b).distance

        below, exact = map(np.asarray, quick_jit(jax.vmap(both))(x.astype(np.float32), b.astype(np.float32)))
        # B^l spans the 2 l + 2 order statistics r - l, .., r + l + 1 (or one less), A^l any l + 2 in a row of those
        # around r: A^l <= B^l <= A^(2 l).
        assert np.all(below <= exact) and np.all(exact <= 2 * below)
        assert np.all((below == 0) == (exact == 0))
        seen += list(zip(below, exact, strict=True))
    assert any(one < other for one, other in seen) and any(one == other > 0 for one, other in seen)


# Values, arguments, transformations.


def test_the_value_is_the_number_that_the_bounds_have():
    rng = np.random.default_rng(9)
    for _ in range(100):
        x, _ = draw(rng, np.float64 if rng.random() < 0.5 else np.float32)
        pairs = [
            (jaxdp.median_stability(x, LOWER, UPPER, 1.0), jaxdp.bounds.median(x, LOWER, UPPER, radius=1)),
            (
                jaxdp.quantile_stability(x, 0.3, LOWER, UPPER, 1.0),
                jaxdp.bounds.quantile(x, 0.3, LOWER, UPPER, radius=1),
            ),
            (
                jaxdp.trimmed_mean_stability(x, 0.2, LOWER, UPPER, 1.0),
                jaxdp.bounds.trimmed_mean(x, 0.2, LOWER, UPPER, radius=1),
            ),
        ]
        for made, bounds in pairs:
            assert made.value == bounds.value and made.value.dtype == bounds.value.dtype


def test_infinite_ends_and_values():
    x = np.array([1.0, 2.0, 3.0, np.inf, np.inf])
    d = [int(jaxdp.median_stability(x, -np.inf, np.inf, b).distance) for b in (0.5, 1.0, 1e300)]
    assert d == [0, 0, 0]
    for x, expected in ((np.array([1.0, 2.0, 3.0, 4.0, 5.0]), 2), (np.full(5, np.inf), 2), (np.full(7, -np.inf), 3)):
        made = jaxdp.bounds.median(x, -np.inf, np.inf, radius=5)
        # All distances are finite, whatever the bound: a record may move to the ends.
        assert int(jaxdp.median_stability(x, -np.inf, np.inf, 1e9).distance) == expected
        assert 0 <= int(jaxdp.stability(made, 1e9).distance) <= expected


@pytest.mark.parametrize("bad", [-1.0, np.nan, np.inf, 1e-310, True, 1j, "a", np.zeros(2)])
def test_bad_proposals_are_rejected(bad):
    x = np.arange(5.0)
    for call in (
        lambda: jaxdp.stability(jaxdp.bounds.median(x, 0.0, 9.0, radius=2), bad),
        lambda: jaxdp.median_stability(x, 0.0, 9.0, bad),
        lambda: jaxdp.quantile_stability(x, 0.3, 0.0, 9.0, bad),
        lambda: jaxdp.trimmed_mean_stability(x, 0.3, 0.0, 9.0, bad),
        lambda: jaxdp.candidates_stability(jnp.sum, x, x, bad),
    ):
        with pytest.raises(ValueError, match=r"^proposal must be"):
            call()


def test_bad_arguments_are_rejected():
    x = np.arange(5.0)
    for call, name in (
        (lambda: jaxdp.stability(x, 1.0), "bounds"),
        (lambda: jaxdp.quantile_stability(x, 1.5, 0.0, 9.0, 1.0), "prob"),
        (lambda: jaxdp.quantile_stability(x, 0.5, 9.0, 0.0, 1.0), "upper"),
        (lambda: jaxdp.median_stability(np.zeros((2, 2)), 0.0, 9.0, 1.0), "x"),
        (lambda: jaxdp.median_stability(x, np.nan, 9.0, 1.0), "lower"),
        (lambda: jaxdp.trimmed_mean_stability(x, 0.5, 0.0, 9.0, 1.0), "trim"),
        (lambda: jaxdp.trimmed_mean_stability(x, 0.1, 0.0, np.inf, 1.0), "upper"),
        (lambda: jaxdp.candidates_stability(jnp.sum, np.zeros(0), x, 1.0), "records"),
    ):
        with pytest.raises(ValueError, match=rf"^{name} must"):
            call()


def test_bad_traced_arguments_give_a_bad_proposal():
    x = np.arange(5, dtype=np.float32)
    calls = {
        "quantile": lambda p, hi, b: jaxdp.quantile_stability(x, p, 0.0, hi, b),
        "trimmed": lambda p, hi, b: jaxdp.trimmed_mean_stability(x, p, 0.0, hi, b),
        "generic": lambda p, hi, b: jaxdp.stability(jaxdp.bounds.quantile(x, p, 0.0, hi, radius=3), b),
        "candidates": lambda p, hi, b: jaxdp.candidates_stability(jnp.sum, x[:2], x, b),
    }
    for name, call in calls.items():
        program = quick_jit(lambda *numbers, call=call: call(*numbers).proposal)
        assert program(*np.float32([0.3, 9.0, 2.0])) == 2.0, name
        bad = [(0.3, 9.0, b) for b in (-1.0, np.nan, np.inf)]
        if name != "candidates":
            bad += [(np.nan, 9.0, 1.0), (0.3, -9.0, 1.0), (1.5, 9.0, 1.0), (0.3, np.nan, 1.0)]
        for numbers in bad:
            assert np.isnan(program(*np.float32(numbers))), (name, numbers)
    bounds = jaxdp.OutputBounds(np.float32([2.0, 1.0, 0.0]), np.float32([2.0, 1.5, 1.0]))  # not nested
    assert np.isnan(jaxdp.stability(bounds, 1.0).proposal)


def test_bounds_without_levels_and_constant_data():
    x = np.full(6, 3.0)
    assert int(jaxdp.stability(jaxdp.bounds.median(x, 0.0, 9.0, radius=0), 1.0).distance) == 0
    assert int(jaxdp.stability(jaxdp.bounds.median(x, 0.0, 9.0, radius=6), 0.0).distance) == 2
    assert int(jaxdp.median_stability(x, 0.0, 9.0, 0.0).distance) == 2
    # No data set moves by more than the range.
    assert int(jaxdp.median_stability(x, 0.0, 9.0, 9.0).distance) == 7
    assert int(jaxdp.stability(jaxdp.bounds.median(x, 0.0, 9.0, radius=4), 9.0).distance) == 4


@pytest.mark.leaks
def test_vmap_jit_scan_and_dtypes():
    data = np.random.default_rng(10).uniform(0, 9, (8, 15)).astype(np.float32)
    for run in (
        lambda x: jaxdp.median_stability(x, 0.0, 9.0, 3.0),
        lambda x: jaxdp.trimmed_mean_stability(x, 0.2, 0.0, 9.0, 0.5),
        lambda x: jaxdp.stability(jaxdp.bounds.median(x, 0.0, 9.0, radius=3), 3.0),
    ):
        scan = quick_jit(lambda data, run=run: jax.lax.scan(lambda total, x: (total, run(x)), 0, data)[1])
        made = quick_jit(jax.vmap(run))(data)
        jax.tree.map(np.testing.assert_array_equal, scan(data), made)
        for i in range(3):
            jax.tree.map(np.testing.assert_array_equal, run(data[i]), jax.tree.map(lambda leaf, i=i: leaf[i], made))
        assert isinstance(made, Stability) and made.distance.dtype == np.int32 and len(set(made.distance.tolist())) > 1
    for dtype in (np.int32, jnp.bfloat16, np.float16):
        assert jaxdp.median_stability(np.arange(5).astype(dtype), 0.0, 9.0, 1.0).value == 2.0


# Tables of proposals.


def test_a_table_of_proposals(tmp_path, monkeypatch):
    x = np.random.default_rng(11).normal(50.0, 5.0, 301)
    mechanism = ProposeTestRelease(2.0, 1e-4)
    proposals = [0.25, 1.0, 4.0]
    bounds = jaxdp.bounds.median(x, 0.0, 100.0, radius=50)
    for source in (bounds, lambda b: jaxdp.median_stability(x, 0.0, 100.0, b)):
        table = jaxdp.proposal_table(mechanism, source, proposals)
        assert table.proposal.tolist() == proposals and np.all(np.diff(table.distance) > 0)
        assert np.all(np.diff(table.acceptance) >= 0) and table.acceptance[-1] > 0.999
        np.testing.assert_allclose(table.expected_error, proposals, rtol=1e-3)  # scale b / e, e = 1
        lines = str(table).splitlines()
        assert len(lines) == 4 and [float(line.split()[0]) for line in lines[1:]] == proposals
        assert len({len(line) for line in lines}) == 1
    assert np.all(jaxdp.proposal_table(mechanism, bounds, proposals).distance <= table.distance)
    for bad, name in (((None, bounds, [1.0]), "mechanism"), ((mechanism, x, [1.0]), "source")):
        with pytest.raises(ValueError, match=rf"^{name} must"):
            jaxdp.proposal_table(*bad)
    for bad in ([], 1.0, [-1.0], [np.nan]):
        with pytest.raises(ValueError, match=r"^proposals? must"):
            jaxdp.proposal_table(mechanism, bounds, bad)
    pytest.importorskip("matplotlib")
    table.plot(tmp_path / "table.png")
    assert (tmp_path / "table.png").stat().st_size > 5000
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    with pytest.raises(ImportError, match=r"pip install 'jaxdp-privacy\[plot\]'"):
        table.plot(tmp_path / "other.png")
