"""Linear queries over a finite universe, and the histograms that answer them."""

from __future__ import annotations

import functools
import hashlib
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxdp import _check
from jaxdp._float64 import float64, read

__all__ = ["Workload", "answer", "binary_universe", "histogram", "max_error"]

GRID = 2**24
"""Denominator of queries that are not rational with a small denominator."""

_MAX_DENOMINATOR = 100
_CHUNK = 2**20


@jax.tree_util.register_static
class Workload:
    """Linear queries over a finite universe: query q of a database is its average of q over the records.

    Queries are public. A workload is a static part of a program (a pytree without leaves, compared by its content),
    since the number of its distinct columns, the profiles, is the shape of what mechanisms compute.

    Args:
        queries: (|Q|, |X|) in [0, 1], booleans for predicates; row q has the value of query q on every element.

    Raises:
        ValueError: If queries is traced, not a matrix, or has entries outside [0, 1].

    Floating point:
        Mechanisms compute with integers: queries count as multiples of 1/d, d the smallest of 1, .., 100 for which all
        entries are multiples to within 1e-12, and else rounded to multiples of 2^-24. Guarantees hold for these.

    Example:
        >>> workload = jaxdp.Workload([[0, 1, 0, 1], [0, 0, 1, 1]])
        >>> workload.num_queries, workload.universe_size, workload.num_profiles
        (2, 4, 4)
    """

    def __init__(self, queries: Any):
        if _check.is_traced(queries):
            raise ValueError("queries must be concrete: their number of distinct columns is a shape; got a tracer")
        queries = _matrix(queries)
        if queries.dtype != np.bool_:
            _check.real_dtype("queries", queries)
        if queries.ndim != 2 or queries.size == 0:
            raise ValueError(f"queries must have shape (|Q|, |X|) and not be empty, got {queries.shape}")
        if queries.dtype != np.bool_ and not np.all((queries >= 0) & (queries <= 1)):
            raise ValueError(f"queries must be in [0, 1], got values from {np.min(queries)!r} to {np.max(queries)!r}")
        self.queries = queries.copy()
        self.queries.flags.writeable = False

    @classmethod
    def from_functions(cls, functions: Any, universe: Any) -> Workload:
        """Queries as functions of one element, vmapped over the universe.

        Args:
            functions: One function (element -> (|Q|,)), or a list of functions (element -> scalar), into [0, 1].
            universe: (|X|, ...) all elements.

        Example:
            >>> both = jaxdp.Workload.from_functions([lambda bits: bits.all()], jaxdp.binary_universe(2))
            >>> both.queries.tolist()
            [[False, False, False, True]]
        """
        each = [functions] if callable(functions) else functions
        if not isinstance(each, (list, tuple)) or not each or not all(map(callable, each)):
            raise ValueError(f"functions must be one function or a list of functions, got {functions!r}")
        universe = jnp.asarray(universe)
        if universe.ndim == 0:
            raise ValueError("universe must have shape (|X|, ...), got a scalar")
        if callable(functions):
            columns = np.asarray(jax.vmap(functions)(universe))
            return cls(np.ascontiguousarray(columns.reshape(len(universe), -1).T))
        return cls(np.stack([np.asarray(jax.vmap(function)(universe)) for function in functions]))

    @property
    def num_queries(self) -> int:
        """|Q|."""
        return self.queries.shape[0]

    @property
    def universe_size(self) -> int:
        """|X|."""
        return self.queries.shape[1]

    @property
    def num_profiles(self) -> int:
        """Number of distinct columns: elements that no query tells apart share one."""
        return len(self.multiplicities)

    @functools.cached_property
    def denominator(self) -> int:
        """What the queries are multiples of, as 1 / denominator."""
        if self.queries.dtype.kind in "bui":
            return 1
        distinct = np.unique(self.queries).astype(np.float64)
        for denominator in range(1, _MAX_DENOMINATOR + 1):
            if np.all(np.abs(distinct - np.rint(distinct * denominator) / denominator) <= 1e-12):
                return denominator
        return GRID

    @functools.cached_property
    def numerators(self) -> np.ndarray:
        """(|Q|, |X|) the queries times the denominator; integers (booleans for predicates)."""
        if self.queries.dtype == np.bool_:
            return self.queries
        if self.denominator == 1:
            return np.rint(self.queries).astype(np.bool_)
        return np.rint(self.queries.astype(np.float64) * self.denominator).astype(np.int32)

    @functools.cached_property
    def profiles(self) -> np.ndarray:
        """(|X|,) int32, the profile of each element; profiles are numbered from 0."""
        ids, number = np.zeros(self.universe_size, np.int64), 1
        for row in self.numerators:
            ids = ids * (self.denominator + 1) + row
            if number * (self.denominator + 1) <= max(4 * self.universe_size, 2**16):
                present = np.bincount(ids) > 0  # several times faster than sorting
                ids = (np.cumsum(present) - 1)[ids]
            else:
                ids = np.unique(ids, return_inverse=True)[1]
            number = int(np.max(ids)) + 1
            if number == self.universe_size:
                break
        return ids.astype(np.int32)

    @functools.cached_property
    def multiplicities(self) -> np.ndarray:
        """(k,) how many elements each profile has."""
        return np.bincount(self.profiles)

    @functools.cached_property
    def elements(self) -> np.ndarray:
        """(|X|,) int32, the elements sorted by profile."""
        return np.argsort(self.profiles, kind="stable").astype(np.int32)

    @functools.cached_property
    def profile_numerators(self) -> np.ndarray:
        """(|Q|, k) the numerators of each profile."""
        first = np.cumsum(self.multiplicities) - self.multiplicities
        return self.numerators[:, self.elements[first]]

    @functools.cached_property
    def _digest(self) -> str:
        return hashlib.sha256(self.queries.tobytes()).hexdigest()

    def __eq__(self, other: Any) -> bool:
        """Whether both have the same queries."""
        same = isinstance(other, Workload) and self.queries.shape == other.queries.shape
        return same and self.queries.dtype == other.queries.dtype and self._digest == other._digest

    def __hash__(self) -> int:
        """Hash of the content."""
        return hash((self.queries.shape, self._digest))

    def __repr__(self) -> str:
        """Sizes, not content."""
        return f"Workload(num_queries={self.num_queries}, universe_size={self.universe_size})"


def _matrix(queries: Any) -> np.ndarray:
    try:
        return np.asarray(queries)
    except ValueError as error:  # rows of different lengths
        raise ValueError(f"queries must be a matrix: {error}") from None


def as_workload(queries: Any) -> Workload:
    """A workload as it is, or one made of a matrix."""
    return queries if isinstance(queries, Workload) else Workload(queries)


def binary_universe(num_attributes: int) -> np.ndarray:
    """All rows of yes/no attributes, (2^d, d) bool; row x has the binary digits of x, most significant first.

    Example:
        >>> jaxdp.binary_universe(2).astype(int).tolist()
        [[0, 0], [0, 1], [1, 0], [1, 1]]
    """
    _check.count("num_attributes", num_attributes)
    if num_attributes > 24:
        raise ValueError(f"num_attributes must be at most 24, got {num_attributes}")
    rows = np.arange(2**num_attributes, dtype=np.int64)
    return (rows[:, None] >> np.arange(num_attributes)[::-1]) & 1 == 1


def histogram(records: Any, universe: Any) -> np.ndarray:
    """(|X|,) int32, how often each element of a finite universe occurs among the records. On the host.

    Args:
        records: (n, ...) records, or (n,) integers that number elements, where universe is a number.
        universe: (|X|, ...) distinct elements, or |X| itself.

    Returns:
        Counts that sum to n: a record that is not an element (or has a NaN) counts as element 0, since no error may
        tell it. Integers and floats are compared as floats.

    Raises:
        ValueError: For shapes and dtypes that do not fit, and traced arguments.

    Example:
        >>> jaxdp.histogram(np.array([[True, False], [True, True]]), jaxdp.binary_universe(2)).tolist()
        [0, 0, 1, 1]
    """
    if _check.is_traced(records) or _check.is_traced(universe):
        raise ValueError("records must be concrete: they are counted on the host")
    records = np.asarray(_check.array("records", records))
    if records.size == 0 and not isinstance(universe, np.ndarray):
        records = records.astype(np.int64)
    if np.ndim(universe) == 0:
        _check.count("universe", universe)
        if universe > 2**31:
            raise ValueError(f"universe must have at most 2^31 elements, got {universe}")
        if records.ndim != 1 or records.dtype.kind not in "iu":
            raise ValueError(f"records must be integers (n,), got {records.dtype} of shape {records.shape}")
        size, place = int(universe), records.astype(np.int64)
        place = np.where((place >= 0) & (place < size), place, 0)
    else:
        universe = np.asarray(universe)
        if records.ndim == 0 or universe.ndim == 0 or universe.shape[1:] != records.shape[1:] or len(universe) == 0:
            raise ValueError(f"records must be like universe, got shapes {records.shape} and {universe.shape}")
        numbers = [part.dtype.kind in "biuf" for part in (records, universe)]
        if not all(numbers) and (any(numbers) or "O" in records.dtype.kind + universe.dtype.kind):
            raise ValueError(f"records must be like universe, got dtypes {records.dtype} and {universe.dtype}")
        size, n = len(universe), len(records)
        kind = np.result_type(universe, records)
        rows = np.concatenate([universe.astype(kind), records.astype(kind)]).reshape(size + n, -1)
        _, first, ids = np.unique(rows, axis=0, return_index=True, return_inverse=True)
        place = first[ids.reshape(-1)[size:]]
        place = np.where(place < size, place, 0)
    return np.bincount(place, minlength=size).astype(np.int32)


def answer(database: Any, queries: Any) -> Any:
    """What a database answers: (|Q|,) averages of the queries over it.

    Args:
        database: (|X|,) nonnegative counts or weights (not checked); a histogram of the data, or what SmallDB or
            MultiplicativeWeights released.
        queries: Workload or matrix (|Q|, |X|); a matrix may be traced.

    Returns:
        (|Q|,) float64 numbers; NaN for a database without records.

    Example:
        >>> jaxdp.answer(np.array([1, 0, 0, 3]), jaxdp.Workload([[0, 1, 0, 1], [0, 0, 1, 1]])).tolist()
        [0.75, 0.75]
    """
    if isinstance(queries, Workload):
        matrix = queries.queries
    else:
        matrix = queries if _check.is_traced(queries) else _matrix(queries)
        if matrix.dtype != np.bool_:
            _check.real_dtype("queries", matrix)
    database = _check.vector("database", database)
    if np.ndim(matrix) != 2 or np.shape(matrix)[1] != np.shape(database)[0] or np.size(matrix) == 0:
        raise ValueError(f"queries must have shape (|Q|, {np.shape(database)[0]}), got {np.shape(matrix)}")
    return read(_answer(database, matrix))


def max_error(database: Any, truth: Any, queries: Any) -> Any:
    """The largest difference of two databases' answers. Not private, if one of them is the data.

    Args:
        database: (|X|,) a released database.
        truth: (|X|,) the histogram of the data.
        queries: Workload or matrix (|Q|, |X|).

    Example:
        >>> jaxdp.max_error(np.array([1, 1]), np.array([3, 7]), [[0, 1]]).round(3).item()
        0.2
    """
    one, other = answer(database, queries), answer(truth, queries)
    return read(_largest_difference(one, other))


def clean_counts(counts: Any) -> jax.Array:
    """Whole numbers in float64; NaN and negative ones count as 0. For use in a float64 core."""
    counts = jnp.floor(counts.astype(jnp.float64))
    return jnp.where(counts > 0.0, counts, 0.0)


@float64
def _largest_difference(one: Any, other: Any) -> jax.Array:
    return jnp.max(jnp.abs(one - other))


@float64
def _answer(database: Any, matrix: Any) -> jax.Array:
    return apply(matrix, database.astype(jnp.float64)) / jnp.sum(database.astype(jnp.float64))


def apply(matrix: Any, weights: jax.Array) -> jax.Array:
    """The product in the dtype of weights, some rows at a time: no wide copy of a large matrix of booleans."""
    rows, size = matrix.shape
    at_once = min(rows, max(1, _CHUNK // size))
    starts = np.minimum(np.arange(0, rows, at_once, dtype=np.int32), rows - at_once)

    def block(start: jax.Array) -> jax.Array:
        part = jax.lax.dynamic_slice_in_dim(matrix, start, at_once)
        return jnp.matmul(part.astype(weights.dtype), weights, precision="highest")

    parts = jax.lax.map(block, jnp.asarray(starts)).reshape(-1)
    # The last block starts earlier and overlaps the one before it.
    return jnp.concatenate([parts[: starts[-1]], parts[len(parts) - at_once :]])
