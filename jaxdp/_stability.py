"""How far a data set is from an unstable one: the summaries of propose-test-release."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxdp import _check
from jaxdp._float64 import argmax, float64, read
from jaxdp.bounds import _output_bounds
from jaxdp.bounds.from_candidates import distances, table
from jaxdp.types import Stability

_NEVER = 2**31 - 1
_MAX_COUNT = 2**62


def stability(bounds: Any, proposal: Any) -> Stability:
    """Stability of any statistic with output bounds: d = the first l < radius with B^l > b, or the radius if none.

    B^l = max(U^(l+1) - L^l, U^l - L^(l+1)), at most `bounds.sensitivity`, bounds the local sensitivity of all data sets
    at distance l. d never exceeds the true distance; `median_stability` and others are exact.

    Args:
        bounds: OutputBounds of one data set.
        proposal: Public bound b on the change of the statistic; a number >= 0 in its units.

    Returns:
        Stability with value f(x), int32 distance, proposal in float64 (traced: JAX's default). The proposal is NaN,
        which ProposeTestRelease refuses, if traced arguments are bad or the bounds are not nested.

    Raises:
        ValueError: For bad concrete arguments.

    Guarantee:
        The contract of Stability, from that of OutputBounds: B^l(x') <= B^(l+1)(x), and |f(x) - f(x')| <= B^0.

    Floating point:
        Differences of entries are rounded once, in float64, which is monotone: distances of neighbours differ by at
        most 1 with no tolerance. Values whose rounded difference is b may be b (1 + 2^-53) apart, which the slack of
        ProposeTestRelease covers.

    Example:
        >>> bounds = jaxdp.bounds.median(np.array([1.0, 4.0, 5.0, 6.0, 9.0]), 0.0, 10.0, radius=4)
        >>> jaxdp.stability(bounds, 3.5).distance.item()
        1
    """
    bounds, proposal = _output_bounds.check(bounds), check_proposal(proposal)
    entries = bounds.lower, bounds.upper, bounds.sensitivity
    distance, proposal = _from_bounds(*entries, proposal, dtype=leaf_dtype(entries, proposal))
    return Stability(bounds.lower[0], read(distance), read(proposal))


def mode_stability(counts: Any) -> Stability:
    """Stability of the most frequent item, ties to the smallest index; exact, for a proposal of 0.

    With the top at i: d + 1 is the smallest of ceil((c_i - c_j) / 2) over j < i and floor((c_i - c_j) / 2) + 1 over
    j > i, since one replacement closes a gap by 2 at most.

    Args:
        counts: (k,) integers, the histogram of the records; negative ones count as 0. Replacing a record moves 1 from
            one count to another.

    Returns:
        Stability with int32 value (the index), int32 distance and proposal 0. One item alone is always the mode: its
        distance is 2^31 - 1.

    Raises:
        ValueError: For counts that are not a non-empty vector of integers.

    Guarantee:
        The contract of Stability. Source: Dwork, Roth (2014), section 7.

    Floating point:
        Integers only.

    Example:
        >>> summary = jaxdp.mode_stability(np.array([3, 40, 7]))
        >>> int(summary.value), int(summary.distance)
        (1, 16)
    """
    counts = _check.vector("counts", counts)
    if not jnp.issubdtype(counts.dtype, jnp.integer):
        raise ValueError(f"counts must be integers, got dtype {counts.dtype}")
    value, distance = _mode(counts)
    return Stability(read(value), read(distance), 0.0)


def candidates_stability(fn: Callable, records: Any, candidates: Any, proposal: Any) -> Stability:
    """Exact stability of a symmetric statistic of records from a small finite domain, by exhaustive search.

    d = the smallest number of replacements that lead to a data set y with a neighbour where f differs from f(y) by more
    than b; n + 1 if there is none. From the table of `bounds.from_candidates`, whose arguments these are.

    Args:
        fn: data set (n, ...) -> real scalar, traceable by JAX; symmetric.
        records: (n, ...) with every record among the candidates.
        candidates: (c, ...) public domain of a record.
        proposal: Public bound b on the change of the statistic; a number >= 0 in its units.

    Returns:
        Stability, as of `stability`.

    Raises:
        ValueError: As `bounds.from_candidates`, and for a bad proposal.

    Guarantee:
        The contract of Stability for data sets over the candidates: d is the distance from a fixed set.

    Floating point:
        Differences of two values are rounded once, in float64. A NaN is apart from everything.

    Example:
        >>> def least_gap(x):
        ...     return jnp.min(jnp.diff(jnp.sort(x)))
        >>> grid = np.array([0.0, 25.0, 50.0, 75.0, 100.0])
        >>> summary = jaxdp.candidates_stability(least_gap, np.array([0.0, 0.0, 0.0]), grid, 25.0)
        >>> float(summary.value), int(summary.distance)
        (0.0, 1)
    """
    proposal = check_proposal(proposal)
    values, records, candidates, counts, neighbours = table(fn, records, candidates)
    away = distances(records, candidates, counts)
    never = np.int32(np.shape(records)[0] + 1)
    dtypes = values.dtype, leaf_dtype(values, proposal)
    value, distance, proposal = _from_table(values, away, neighbours, proposal, never, dtypes=dtypes)
    return Stability(read(value), read(distance), read(proposal))


def check_proposal(value: Any) -> Any:
    """A finite number >= 0; a subnormal one is zero to XLA, so it is none."""
    value = _check.finite("proposal", value)
    if not _check.is_traced(value) and value < 0.0:
        raise ValueError(f"proposal must be at least 0, got {value!r}")
    if not _check.is_traced(value) and value != 0.0:
        _check.positive("proposal", value)
    return value


def leaf_dtype(*parts: Any) -> np.dtype:
    """float64 for concrete arguments, whose results are NumPy's; JAX's default otherwise."""
    traced = any(_check.is_traced(leaf) for leaf in jax.tree.leaves(parts))
    return np.dtype(jax.dtypes.canonicalize_dtype(np.float64) if traced else np.float64)


def settle(proposal: Any, valid: Any, dtype: np.dtype) -> tuple[jax.Array, jax.Array]:
    """The proposal as it is compared, and as it is returned: the same number, NaN if anything is bad."""
    leaf = proposal.astype(jnp.float64).astype(dtype)
    number = leaf.astype(jnp.float64)
    valid &= (number >= 0.0) & (number < jnp.inf)
    return number, jnp.where(valid, leaf, jnp.full_like(leaf, jnp.nan))


@float64(static_argnames=("dtype",))
def _from_bounds(lower: Any, upper: Any, sensitivity: Any, proposal: Any, *, dtype: np.dtype) -> tuple:
    lower, upper, sensitivity = (part.astype(jnp.float64) for part in (lower, upper, sensitivity))
    number, proposal = settle(proposal, _output_bounds.nested(lower, upper) & (sensitivity > 0.0), dtype)
    local = _output_bounds.local_sensitivity(lower, upper, sensitivity)
    # Not >: where f(x) is infinite, inf - inf is no number, and no bound.
    stable = jnp.cumsum((~(local <= number)).astype(jnp.int32)) == 0
    return jnp.sum(stable, dtype=jnp.int32), proposal


@float64
def _mode(counts: Any) -> tuple[jax.Array, jax.Array]:
    counts = jnp.clip(counts, 0, min(_MAX_COUNT, jnp.iinfo(counts.dtype).max)).astype(jnp.int64)
    top = argmax(counts)
    place = jax.lax.iota(jnp.int32, counts.shape[0])
    gap = jnp.max(counts) - counts
    moves = jnp.where(place < top, (gap + 1) // 2, gap // 2 + 1)
    moves = jnp.where(place == top, _MAX_COUNT, moves)
    return top, jnp.minimum(jnp.min(moves) - 1, _NEVER).astype(jnp.int32)


@float64(static_argnames=("dtypes",))
def _from_table(
    values: Any, away: Any, neighbours: Any, proposal: Any, never: Any, *, dtypes: tuple[np.dtype, np.dtype]
) -> tuple[jax.Array, ...]:
    number, proposal = settle(proposal, jnp.bool_(True), dtypes[1])
    value = jnp.min(jnp.where(away == 0, values, jnp.full_like(values, jnp.inf))).astype(dtypes[0])
    # A group is what one data set of n - 1 records becomes with each candidate: all are neighbours of each other.
    groups = values[neighbours]
    highest, lowest = jnp.max(groups, axis=1, keepdims=True), jnp.min(groups, axis=1, keepdims=True)
    stable = jnp.maximum(highest - groups, groups - lowest) <= number
    unstable = jnp.zeros_like(away).at[neighbours].max((~stable).astype(away.dtype))
    away = away.astype(jnp.int32)
    return value, jnp.min(jnp.where(unstable > 0, away, never)), proposal
