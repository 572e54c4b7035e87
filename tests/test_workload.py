"""Workloads of linear queries, histograms, answers: against brute force in NumPy."""

import pickle
import time

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxdp
from jaxdp import Workload, answer, binary_universe, histogram, max_error, workload

RNG = np.random.default_rng(60)
MATRICES = {
    "bool": RNG.random((5, 40)) < 0.4,
    "int": RNG.integers(0, 2, (5, 40)),
    "thirds": RNG.integers(0, 4, (3, 40)) / 3.0,
    "float": RNG.random((4, 40)),
    "float32": RNG.random((4, 40), np.float32),
    "few columns": np.repeat(RNG.random((4, 5)), 8, axis=1)[:, RNG.permutation(40)],
    "one column": np.ones((2, 40)),
    "one element": np.ones((3, 1), bool),
    "many rows": np.repeat(RNG.random((30, 10)) < 0.5, 4, axis=1),
}
each_matrix = pytest.mark.parametrize("name", MATRICES)


# Workloads.


@each_matrix
def test_profiles_are_the_distinct_columns(name):
    made = Workload(MATRICES[name])
    columns = [tuple(column) for column in made.numerators.T.tolist()]
    distinct = sorted(set(columns))
    # Numbered in the order of the columns, the first query first.
    np.testing.assert_array_equal(made.profiles, [distinct.index(column) for column in columns])
    assert made.num_profiles == len(distinct) and made.profiles.dtype == np.int32
    np.testing.assert_array_equal(made.multiplicities, [columns.count(column) for column in distinct])
    np.testing.assert_array_equal(made.profile_numerators, np.array(distinct).T)
    assert sorted(made.elements) == list(range(made.universe_size))
    assert (np.diff(made.profiles[made.elements]) >= 0).all()
    assert (made.num_queries, made.universe_size) == MATRICES[name].shape


@pytest.mark.parametrize(
    ("values", "denominator"),
    [
        ([0, 1], 1),
        ([False, True], 1),
        ([0.0, 1.0], 1),
        ([0.0, 1 / 3, 2 / 3], 3),
        ([1 / 3, 1 / 2], 6),
        ([0.1, 0.7, 1.0], 10),
        ([0.25, 0.5], 4),
        ([0.37, 0.01], 100),
        ([1 / 101, 1.0], workload.GRID),
        ([0.5, np.sqrt(0.5)], workload.GRID),
        (np.float32([0.25, 0.5]), 4),
        (np.float32([1 / 3, 1.0]), workload.GRID),  # off by 1e-8
    ],
)
def test_denominators(values, denominator):
    made = Workload([values, values])
    assert made.denominator == denominator
    assert made.numerators.dtype == (np.bool_ if denominator == 1 else np.int32)
    exact = np.array([values, values], np.float64)
    np.testing.assert_allclose(made.numerators / denominator, exact, rtol=0, atol=2.0**-25 + 1e-12)


def test_equal_workloads_share_a_program():
    traces = []

    @jax.jit
    def total(made, database):
        traces.append(made)
        return answer(database, made).astype(jnp.float32).sum()

    matrix, database = MATRICES["bool"], np.arange(40, dtype=np.float32)
    one, twin = Workload(matrix), Workload(matrix.tolist())
    assert one == twin and hash(one) == hash(twin) and one == pickle.loads(pickle.dumps(one))
    assert float(total(one, database)) == float(total(twin, database)) and len(traces) == 1
    others = [Workload(~matrix), Workload(matrix.astype(int)), Workload(matrix[:, :-1]), Workload(matrix[::-1])]
    assert all(one != other for other in others) and one != matrix.shape
    assert jax.tree.leaves(one) == [] and "queries=5" in repr(one)


def test_a_workload_keeps_its_queries_when_the_matrix_changes():
    matrix = MATRICES["bool"].copy()
    made = Workload(matrix)
    matrix[:] = False
    np.testing.assert_array_equal(made.queries, MATRICES["bool"])
    with pytest.raises(ValueError, match="read-only"):
        made.queries[0, 0] = True


def test_from_functions():
    universe = binary_universe(3)
    brute = np.array([[row[0] and row[2], row.mean()] for row in universe.astype(float)]).T
    functions = [lambda bits: bits[0] & bits[2], lambda bits: bits.astype(jnp.float32).mean()]
    np.testing.assert_allclose(Workload.from_functions(functions, universe).queries, brute, rtol=1e-6)
    both = Workload.from_functions(lambda bits: jnp.stack([bits[0] & bits[2], bits[1]]), universe)
    np.testing.assert_array_equal(both.queries, [universe[:, 0] & universe[:, 2], universe[:, 1]])
    assert both.denominator == 1
    one = Workload.from_functions(lambda number: number > 1, np.arange(4))
    np.testing.assert_array_equal(one.queries, [[False, False, True, True]])


def test_profiles_of_a_large_universe_are_fast():
    universe = binary_universe(20)
    # Overlapping conjunctions of its attributes, then averages of ten.
    rows = np.stack([universe[:, 0], universe[:, 0] & universe[:, 5], universe[:, 3] & universe[:, 4]])
    for queries, profiles in ((rows, 6), (RNG.integers(0, 11, (3, 2**20)) / 10, 11**3)):
        made = Workload(queries)
        start = time.process_time()
        made.profiles  # noqa: B018
        assert time.process_time() - start < 2.0
        assert made.num_profiles == profiles


def test_bad_workloads():
    for bad in (
        np.zeros(3),
        np.zeros((0, 3)),
        np.zeros((3, 0)),
        [[0.0, 1.1]],
        [[-1, 0]],
        [[np.nan, 0.0]],
        [[1j, 0.0]],
        [["a", "b"]],
    ):
        with pytest.raises(ValueError, match=r"^queries must (be|have)"):
            Workload(bad)
    with pytest.raises(ValueError, match=r"^queries must be concrete"):
        jax.jit(Workload)(np.zeros((2, 2)))


# Databases.


def test_binary_universe():
    for d in (1, 4):
        rows = binary_universe(d)
        assert rows.dtype == np.bool_
        assert ["".join("01"[bit] for bit in row) for row in rows.astype(int)] == [f"{x:0{d}b}" for x in range(2**d)]
    for bad in (0, -1, 1.5, True, 25):
        with pytest.raises(ValueError, match=r"^num_attributes must be"):
            binary_universe(bad)


@pytest.mark.parametrize("shape", [(), (3,), (2, 2)])
@pytest.mark.parametrize("dtype", [np.bool_, np.int8, np.float32, np.float64])
def test_histogram_of_records(shape, dtype):
    rng = np.random.default_rng(61)
    universe = np.unique(rng.integers(0, 4, (30, *shape)) / (1 if dtype == np.int8 else 3), axis=0).astype(dtype)
    universe = np.unique(universe, axis=0)
    universe = universe[rng.permutation(len(universe))]
    records = universe[rng.integers(0, len(universe), 500)]
    brute = [sum(bool((record == element).all()) for record in records) for element in universe]
    counts = histogram(records, universe)
    np.testing.assert_array_equal(counts, brute)
    assert counts.dtype == np.int32 and counts.sum() == 500


def test_records_outside_of_the_universe_count_as_its_first_element():
    assert histogram(np.array([0.5, 7.0, np.nan, 1.5]), np.array([1.5, 0.5])).tolist() == [3, 1]
    assert histogram(np.array([3, 1, -1, 5, 2**40, 1]), 4).tolist() == [3, 2, 0, 1]
    assert histogram(np.array([2**64 - 1, 1], np.uint64), 2).tolist() == [1, 1]
    assert histogram(np.array([300]), np.array([44, 1], np.int8)).tolist() == [1, 0]
    assert histogram(np.zeros((0, 2)), binary_universe(2)).tolist() == [0, 0, 0, 0]


def test_bad_histograms():
    for records, universe, name in (
        (np.array([0.5]), 3, "records"),
        (np.zeros((2, 2), int), 3, "records"),
        (np.array([1]), 0, "universe"),
        (np.array([1]), 2.0, "universe"),
        (np.zeros((4, 3)), binary_universe(2), "records"),
        (np.zeros(4), binary_universe(2), "records"),
    ):
        with pytest.raises(ValueError, match=f"^{name} must be"):
            histogram(records, universe)


# Answers.


@pytest.mark.parametrize(
    ("name", "dtype"), [("bool", np.int32), ("thirds", np.float32), *((name, np.float64) for name in MATRICES)]
)
def test_answers_are_numpys(name, dtype):
    matrix, rng = MATRICES[name], np.random.default_rng(62)
    one, other = rng.integers(0, 9, (2, matrix.shape[1])).astype(dtype) + dtype(1)
    truth = [matrix.astype(np.float64) @ x.astype(np.float64) / x.sum(dtype=np.float64) for x in (one, other)]
    error = np.abs(truth[0] - truth[1]).max()
    for queries in (matrix, Workload(matrix)):
        got = answer(one, queries)
        assert got.dtype == np.float64 and isinstance(got, np.ndarray)
        np.testing.assert_allclose(got, truth[0], rtol=1e-13, atol=1e-15)
        assert float(max_error(one, other, queries)) == pytest.approx(error, rel=1e-12, abs=1e-15)
    narrow = jnp.asarray(matrix)
    traced = jax.jit(lambda matrix: (answer(one, matrix), max_error(one, other, matrix)))(narrow)
    np.testing.assert_allclose(np.asarray(traced[0]), truth[0], rtol=1e-6)
    assert float(traced[1]) == pytest.approx(error, rel=1e-5, abs=1e-6)
    batch = jax.vmap(lambda database: answer(database, narrow))(jnp.stack([one, other]))
    np.testing.assert_allclose(np.asarray(batch), truth, rtol=1e-6)


def test_answers_of_counts_are_exact_beyond_single_precision():
    counts = np.array([2**30, 1, 2**30 - 1], np.int32)
    assert (np.asarray(answer(counts, [[1, 1, 0]])) * 2.0**31).tolist() == [2**30 + 1]


def test_a_database_without_records_answers_nan():
    assert np.isnan(answer(np.zeros(3), np.ones((2, 3)))).all()


def test_bad_answers():
    for database, queries, name in (
        (np.zeros(3), np.zeros((2, 4)), "queries"),
        (np.zeros(3), np.zeros(3), "queries"),
        (np.zeros((3, 3)), np.zeros((2, 3)), "database"),
        (np.array(["a"]), np.zeros((2, 1)), "database"),
    ):
        with pytest.raises(ValueError, match=f"^{name} must have|^{name} must be"):
            answer(database, queries)


@pytest.mark.parametrize("rows", [1, 2, 7, 8, 9, 50])
@pytest.mark.parametrize("chunk", [1, 30, 70, 10_000])
def test_rows_in_blocks_that_do_not_divide(rows, chunk, monkeypatch):
    monkeypatch.setattr(workload, "_CHUNK", chunk)
    matrix = RNG.integers(0, 2, (rows, 30)).astype(bool)
    weights = RNG.integers(0, 100, (4, 30)).astype(np.float32)
    exact = weights @ matrix.T.astype(np.float32)
    # New functions, so that no program of another block size is used.
    one = jax.jit(lambda matrix, weights: workload.apply(matrix, weights))(matrix, weights[0])
    many = jax.jit(jax.vmap(lambda weights: workload.apply(jnp.asarray(matrix), weights)))(weights)
    assert one.dtype == np.float32
    np.testing.assert_array_equal(one, exact[0])
    np.testing.assert_array_equal(many, exact)


def test_public_names():
    names = ("Workload", "answer", "binary_universe", "histogram", "max_error")
    assert all(getattr(jaxdp, name) is getattr(workload, name) for name in names)


def test_entries_near_zero_and_one_are_rounded_not_cast():
    assert jaxdp.Workload([[1e-13, 1.0 - 1e-13, 0.0]]).numerators.tolist() == [[False, True, False]]


@pytest.mark.parametrize(
    ("records", "universe"),
    [([["1", "0"]], np.zeros((2, 2), bool)), ([1, 1], np.zeros(0)), ([0.5], 3), ([1], 10**12), ([[1]], np.arange(3))],
)
def test_histograms_of_unlike_things_are_refused(records, universe):
    with pytest.raises(ValueError, match=r"^records must|^universe must"):
        jaxdp.histogram(records, universe)


def test_histograms_never_tell_what_is_no_element():
    assert jaxdp.histogram([10**30, -5, 1], 2).tolist() == [2, 1]
    assert jaxdp.histogram([], 3).tolist() == [0, 0, 0]
    with pytest.raises(ValueError, match=r"^records must be concrete"):
        jax.jit(lambda records: jaxdp.histogram(records, 3))(np.zeros(2, np.int32))


@pytest.mark.parametrize("functions", [3, [], [3]])
def test_queries_must_be_functions(functions):
    with pytest.raises(ValueError, match=r"^functions must be"):
        jaxdp.Workload.from_functions(functions, np.zeros((2, 1)))
