"""Any symmetric statistic of records from a small finite domain, by exhaustive search."""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxdp import _check
from jaxdp.bounds._losses import check_radius, entry_dtype
from jaxdp.bounds._order import difference
from jaxdp.bounds._output_bounds import OutputBounds
from jaxdp.bounds._statistic import statistic

MAX_NUMBERS = 20_000_000
"""Records in all data sets together."""


def _draw(rng: np.random.Generator, n: int) -> tuple[np.ndarray]:
    return (rng.choice(_candidates(n), n, p=rng.dirichlet(np.ones(len(_candidates(n))))),)


def _candidates(n: int) -> np.ndarray:
    """For the contract tests: few, so that any n is feasible."""
    return np.array([0.1, 1.0, 7.0]) if n <= 20 else np.array([0.1, 7.0])


def _call(records: tuple, radius: int) -> OutputBounds:
    return from_candidates(jnp.std, *records, _candidates(len(records[0])), radius=radius)


@statistic(draw=_draw, call=_call)
def from_candidates(fn: Callable, records: Any, candidates: Any, *, radius: int) -> OutputBounds:
    """Exact bounds of a statistic by evaluating it on every data set over a finite domain.

    There are C(n+c-1, n) data sets of n records from c candidates, up to their order. For odd statistics on small
    domains, and to check others.

    Args:
        fn: data set (n, ...) -> real scalar, traceable by JAX (jnp, not numpy). It must not depend on the order of
            the records: it is only evaluated on data sets whose records are in the order of `candidates`.
        records: (n, ...) with every record among the candidates; one that is not (NaN too) counts as the first one.
        candidates: (c, ...) public domain of a record. Records are cast to its dtype, but floats of either kind to
            the records' one.
        radius: Static number of replaced records up to which bounds are known. The last entries are the extremes
            over the domain.

    Returns:
        OutputBounds, not monotonic; entries in the dtype of fn's result, float32 at least; sensitivity over the domain.

    Raises:
        ValueError: For shapes that do not match and for too many data sets: use fewer records or candidates.

    Guarantee:
        The contract of OutputBounds for data sets over the candidates of which one record is replaced, by
        construction: one table of values serves all data sets of n records, and l replacements lead from one to another
        if and only if their counts have n - l records in common.

    Floating point:
        The table is computed in the dtypes that fn uses; no other arithmetic. A NaN in it makes entries NaN.

    Example:
        >>> def least_gap(x):
        ...     return jnp.min(jnp.diff(jnp.sort(x)))
        >>> grid = np.array([0.0, 25.0, 50.0, 75.0, 100.0])
        >>> b = jaxdp.bounds.from_candidates(least_gap, np.array([0.0, 0.0, 100.0]), grid, radius=1)
        >>> b.lower.tolist(), b.upper.tolist(), float(b.sensitivity)
        ([0.0, 0.0, 0.0], [0.0, 50.0, 50.0], 50.0)
    """
    check_radius(radius)
    return OutputBounds(*_bounds(*table(fn, records, candidates), radius=radius))


def table(fn: Callable, records: Any, candidates: Any) -> tuple[jax.Array, jax.Array, jax.Array, Any, Any]:
    """Values on all data sets, records and candidates in one dtype, counts and groups of neighbours (`_enumerate`)."""
    records, candidates = _array("records", records), _array("candidates", candidates)
    if records.shape[1:] != candidates.shape[1:]:
        raise ValueError(f"records must be like candidates, got shapes {records.shape} and {candidates.shape}")
    n, c = len(records), len(candidates)
    count = math.comb(n + c - 1, n)
    if count * max(n, c) > MAX_NUMBERS:
        raise ValueError(
            f"records and candidates must make at most {MAX_NUMBERS} numbers in all data sets together, got {count} "
            f"data sets (evaluations of fn) of {n} records from {c} candidates: use fewer of them"
        )
    datasets, counts, neighbours = _enumerate(n, c)
    candidates, records = jnp.asarray(candidates), jnp.asarray(records)
    both_floating = all(jnp.issubdtype(part.dtype, jnp.floating) for part in (candidates, records))
    dtype = records.dtype if both_floating else candidates.dtype
    candidates, records = candidates.astype(dtype), records.astype(dtype)
    values = jax.vmap(fn)(candidates[datasets])
    if values.shape != (count,):
        raise ValueError(f"fn must return a scalar, got shape {values.shape[1:]}")
    return values.astype(entry_dtype(values)), records, candidates, counts, neighbours


@functools.partial(jax.jit, static_argnames=("radius",))
def _bounds(
    values: jax.Array,
    records: jax.Array,
    candidates: jax.Array,
    counts: jax.Array,
    neighbours: jax.Array,
    *,
    radius: int,
) -> tuple[jax.Array, jax.Array, jax.Array]:
    level = jnp.minimum(distances(records, candidates, counts), radius + 1)
    infinite = jnp.full(radius + 2, jnp.inf, values.dtype)
    lower = jax.lax.cummin(infinite.at[level].min(values))
    upper = jax.lax.cummax((-infinite).at[level].max(values))
    each = values[neighbours]
    return lower, upper, jnp.max(difference(jnp.max(each, axis=1), jnp.min(each, axis=1)))


@jax.jit
def distances(records: jax.Array, candidates: jax.Array, counts: jax.Array) -> jax.Array:
    """How many of the records must be replaced for each data set of the table."""
    same = jax.vmap(lambda record: jax.vmap(lambda other: jnp.all(record == other))(candidates))(records)
    # The first of equal candidates, or of all where there is none.
    own = jnp.sum(jax.nn.one_hot(jnp.argmax(same, axis=1), len(candidates), dtype=jnp.int32), axis=0, dtype=jnp.int32)
    return len(records) - jnp.sum(jnp.minimum(counts, own[None]), axis=1)


@functools.lru_cache(maxsize=32)
def _enumerate(n: int, c: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """All data sets as nondecreasing indices (count, n), their counts (count, c), and the groups of neighbours.

    A group (c,) has what one data set of n - 1 records becomes with each candidate.
    """
    datasets = nondecreasing(n, c)
    counts = np.stack([np.sum(datasets == j, axis=1) for j in range(c)], axis=1).astype(np.int32)
    rest = nondecreasing(n - 1, c)
    groups = np.stack([np.sort(np.insert(rest, 0, j, axis=1), axis=1) for j in range(c)], axis=1)
    return datasets, counts, _place(groups, n, c).astype(np.int32)


def nondecreasing(n: int, c: int) -> np.ndarray:
    """(C(n + c - 1, n), n) int32, all multisets of n of c things, in lexicographic order."""
    rows = itertools.combinations_with_replacement(range(c), n)
    count = math.comb(n + c - 1, n)
    return np.fromiter(itertools.chain.from_iterable(rows), np.int32, count * n).reshape(count, n)


def _place(rows: np.ndarray, n: int, c: int) -> np.ndarray:
    """Places of nondecreasing rows (.., n) in lexicographic order: how many rows come later, from the end."""
    # With later entries at least j, the rest of a row can be chosen in C(rest + c - 1 - j, rest) ways.
    later = np.array([[math.comb(k + c - 1 - j - 1, k) if j < c - 1 else 0 for j in range(c)] for k in range(1, n + 1)])
    return math.comb(n + c - 1, n) - 1 - later[np.arange(n)[::-1], rows].sum(axis=-1)


def _array(name: str, value: Any) -> Any:
    _check.real_dtype(name, value)
    value = value if isinstance(value, (np.ndarray, jax.Array)) else np.asarray(value)
    if np.ndim(value) < 1 or np.size(value) == 0:
        raise ValueError(f"{name} must have shape (n, ...) and not be empty, got shape {np.shape(value)}")
    return value
