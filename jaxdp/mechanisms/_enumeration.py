"""The enumeration behind SmallDB: all multisets over profiles as pairs of halves, in tiles, in float64."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from scipy.special import gammaln

from jaxdp import _check, random
from jaxdp._float64 import float64, read
from jaxdp._pickles import Pickles
from jaxdp._progress import Progress
from jaxdp.mechanisms import _multisets
from jaxdp.mechanisms._draw import draw
from jaxdp.workload import Workload, clean_counts

_UNROLL = 8
_STEPS = 50
_LONG = 2**32
"""Candidates times queries from which a terminal shows a bar: some seconds."""


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True, eq=False)
class Enumeration(Pickles):
    """The law of SmallDB's release on one data set, for any number of candidates that can be enumerated.

    Attributes:
        log_p: (segments,) log-probability of each segment: some pairs of a prefix and a suffix.
        log_normalizer: log of the mean weight exp(-epsilon n error / 2) over all tuples in X^m.
        target: (|Q|,) m times the sums of the queries' numerators over the data.
        num_records: n.
        prefixes: (N, |Q|) target less n times the sums over each prefix.
        suffixes: (|Q|, N') n times the sums over each suffix.
        factor: Weights are exp(-factor max_q |prefix - suffix|).
        workload: The queries.
        size: Records of a release.

    Example:
        >>> summary = np.array([10, 30, 60], np.int32), jaxdp.Workload([[0, 0, 1], [0, 1, 1]])
        >>> enumeration = jaxdp.SmallDB(1.0, size=5).enumerate(summary)
        >>> jax.vmap(enumeration.sample)(jax.random.split(jax.random.key(0), 1000)).shape
        (1000, 3)
    """

    log_p: Any
    log_normalizer: Any
    target: Any
    num_records: Any
    prefixes: Any
    suffixes: Any
    factor: Any
    workload: Workload = dataclasses.field(metadata={"static": True})
    size: int = dataclasses.field(metadata={"static": True})

    def sample(self, key: jax.Array) -> jax.Array:
        """One release, (|X|,) int32 counts: a segment, a pair in it, and an element of each member's profile."""
        key = _check.key(key)
        plan, parts = _multisets.plan(self.workload.num_profiles, self.size), halves(self.workload, self.size)
        return draw(
            (random.words(key, 0), random.words(key, 1), random.words(key, 2, (self.size,))),
            (self.log_p, self.prefixes, self.suffixes, self.factor),
            tuple(half.log_base for half in parts),
            tuple(group.tiles for group in plan.groups),
            tuple(half.table for half in parts),
            self.workload.elements,
            self.workload.multiplicities,
            shapes=tuple((group.rows, group.columns, group.swapped) for group in plan.groups),
            block=plan.block,
            counted=tuple(half.counted for half in parts),
            split=plan.split,
            size=self.size,
        )

    def log_prob(self, histogram: Any) -> Any:
        """Log-probability of a released histogram, (|X|,); -inf for what does not have `size` records."""
        histogram = _check.vector("histogram", histogram)
        if np.shape(histogram)[0] != self.workload.universe_size:
            raise ValueError(f"histogram must have shape ({self.workload.universe_size},), got {np.shape(histogram)}")
        log_factorial = gammaln(np.arange(self.size + 1.0) + 1.0)
        sums = self.target, self.num_records, self.workload.profiles, self.workload.profile_numerators
        return read(_log_prob(histogram, *sums, self.factor, self.log_normalizer, log_factorial))

    def expected_error(self) -> Any:
        """Mean of the largest error of all queries, by a second enumeration. Not private."""
        plan = _multisets.plan(self.workload.num_profiles, self.size)
        law = _orient(self.prefixes, self.suffixes, plan), self.factor, _bases(self.workload, self.size)
        scores = [_weigh_group(*law, group, group.tiles, block=plan.block, mean=True) for group in plan.groups]
        scale = self.size * float(self.workload.denominator)
        return read(_mean_error(scores, self.log_normalizer, self.num_records, scale))


def enumerate_candidates(
    counts: Any, workload: Workload, epsilon: Any, size: int, progress: Callable[[float], Any] | None
) -> Enumeration:
    """Sums up the weights of all candidates, segment by segment."""
    if progress is not None and not callable(progress):
        raise ValueError(f"progress must be a function of one number, got {progress!r}")
    k = workload.num_profiles
    _multisets.check_number(k, size, workload.num_queries)
    plan, largest = _multisets.plan(k, size), largest_sum(counts, workload, size)
    target, num_records, prefixes, suffixes, factor = _sums(
        counts,
        workload.profiles,
        workload.profile_numerators,
        _tables(workload, size),
        epsilon,
        size=size,
        denominator=workload.denominator,
        dtype=np.dtype(np.int16 if largest < 2.0**15 else np.int32 if largest < 2.0**31 else np.float64),
    )
    run = functools.partial(
        _weigh_group, _orient(prefixes, suffixes, plan), factor, _bases(workload, size), block=plan.block
    )
    if any(map(_check.is_traced, (prefixes, factor))):
        progress = None
    elif progress is None and _multisets.number(k, size) * workload.num_queries >= _LONG:
        progress = _bar()
    if progress is None:
        weights = [run(group, group.tiles) for group in plan.groups]
    else:
        weights, total, finished = [], sum(len(group.tiles) for group in plan.groups), 0
        for group in plan.groups:
            each = -(-len(group.tiles) // _STEPS)
            # Tiles of no rows at the end, so that one program does for all steps.
            tiles = np.pad(group.tiles, ((0, -len(group.tiles) % each), (0, 0))).reshape(-1, each, 4)
            steps = []
            for part in tiles:
                steps.append(np.asarray(run(group, part)))
                finished += each
                progress(min(1.0, finished / total))
            weights.append(np.concatenate(steps)[: len(group.tiles)])
    log_p, log_normalizer = _normalize(weights)
    return Enumeration(
        log_p, log_normalizer, target, num_records, prefixes, suffixes, factor, workload=workload, size=size
    )


def _bar() -> Callable[[float], Any]:
    bar = Progress(1, 0)

    def show(share: float) -> None:
        bar.show("", share)
        if share == 1.0:
            bar.clear()

    return show


def halves(workload: Workload, size: int) -> tuple[_multisets.Half, _multisets.Half]:
    """The multisets over the first profiles of a workload, and over the others."""
    split, many = _multisets.plan(workload.num_profiles, size).split, tuple(workload.multiplicities.tolist())
    return _multisets.half(many[:split], size), _multisets.half(many[split:], size)


def _bases(workload: Workload, size: int) -> tuple[np.ndarray, np.ndarray]:
    """Base measures: of a tuple |X|^-m, so of a multiset m! |X|^-m prod multiplicity^count / count!."""
    constant = float(gammaln(size + 1.0) - size * np.log(workload.universe_size))
    first, second = halves(workload, size)
    return first.log_base + constant, second.log_base


def _orient(prefixes: Any, suffixes: Any, plan: _multisets.Plan) -> dict[bool, tuple[Any, Any]]:
    """Both tables as rows and columns, as they are and swapped."""
    swapped = any(group.swapped for group in plan.groups)
    return {False: (prefixes, suffixes)} | ({True: (suffixes.T, prefixes.T)} if swapped else {})


def _weigh_group(
    sides: Any,
    factor: Any,
    bases: Any,
    group: _multisets.Group,
    tiles: Any,
    *,
    block: tuple[int, int],
    mean: bool = False,
) -> jax.Array:
    shape = group.rows, group.columns
    bases = bases[::-1] if group.swapped else bases
    return _weigh(*sides[group.swapped], factor, *bases, tiles, shape=shape, block=block, mean=mean)


@functools.lru_cache(maxsize=4)
def _tables(workload: Workload, size: int) -> tuple[np.ndarray, np.ndarray]:
    """Sums of the queries' numerators over all prefixes (N, |Q|) and suffixes (|Q|, N'); public."""
    split = _multisets.plan(workload.num_profiles, size).split
    numerators, (first, second) = workload.profile_numerators, halves(workload, size)
    dtype = np.int32 if size * workload.denominator < 2**31 else np.float64
    sums = first.sums(numerators[:, :split]), second.sums(numerators[:, split:]).T
    return tuple(np.ascontiguousarray(part, dtype) for part in sums)


def largest_sum(counts: Any, workload: Workload, size: int) -> float:
    """Bounds all integers that occur, by m n denominator; inf where the counts are traced."""
    if _check.is_traced(counts):
        return np.inf
    with np.errstate(invalid="ignore"):
        counts = np.nan_to_num(np.clip(np.asarray(counts, np.float64), 0.0, None))
    limit = float(np.sum(counts)) * size * workload.denominator
    if not limit < 2.0**53:
        raise ValueError(
            f"counts must have fewer than 2^53 / (size denominator) = {2.0**53 / (size * workload.denominator):.4g} "
            f"records in all, got {np.sum(counts):.4g}"
        )
    return limit


def factor(epsilon: Any, scale: float, n: jax.Array) -> jax.Array:
    """Weight per unit of the integer scores; NaN for a bad epsilon, and for so many records that they are inexact."""
    valid = (epsilon > 0.0) & (epsilon < jnp.inf) & (n * scale < 2.0**53)
    return jnp.where(valid, epsilon, jnp.nan) / (2.0 * scale)


def _profile_counts(counts: Any, profiles: Any, k: int) -> jax.Array:
    return jnp.zeros_like(counts, shape=k).at[profiles].add(counts)


@float64(static_argnames=("size", "denominator", "dtype"))
def _sums(
    counts: Any,
    profiles: Any,
    numerators: Any,
    tables: Any,
    epsilon: Any,
    *,
    size: int,
    denominator: int,
    dtype: np.dtype,
) -> tuple[jax.Array, ...]:
    numerators, counts = numerators.astype(jnp.float64), clean_counts(counts)
    n, target = jnp.sum(counts), numerators @ _profile_counts(counts, profiles, numerators.shape[1]) * float(size)
    first, second = (table.astype(dtype) for table in tables)
    prefixes, suffixes = target.astype(dtype)[None] - n.astype(dtype) * first, n.astype(dtype) * second
    return target, n, prefixes, suffixes, factor(epsilon, float(size * denominator), n)


@float64(static_argnames=("shape", "block", "mean"))
def _weigh(
    prefixes: Any,
    suffixes: Any,
    factor: Any,
    base: Any,
    other_base: Any,
    tiles: Any,
    *,
    shape: tuple[int, int],
    block: tuple[int, int],
    mean: bool = False,
) -> jax.Array:
    """Log of the total weight of each segment, (T, rows of segments, columns of segments).

    A segment has adjacent rows and, where it has several columns, every so many-th column. With `mean`, weights are
    multiplied by their scores.
    """
    (rows, columns), (high, wide) = shape, block
    queries = prefixes.shape[1]
    padded = -(-queries // _UNROLL) * _UNROLL
    prefixes = jnp.pad(prefixes, ((0, rows), (0, padded - queries)))
    suffixes = jnp.pad(suffixes, ((0, padded - queries), (0, columns)))
    base, other_base = jnp.pad(base, (0, rows)), jnp.pad(other_base, (0, columns))

    def tile(place: jax.Array) -> jax.Array:
        row, height, column, length = place
        zero = jnp.int32(0)
        one = jax.lax.dynamic_slice(prefixes, (row, zero), (rows, padded))
        other = jax.lax.dynamic_slice(suffixes, (zero, column), (padded, columns))

        def some(i: jax.Array, worst: jax.Array) -> jax.Array:
            for j in range(_UNROLL):
                q = i.astype(jnp.int32) * _UNROLL + j
                a = jax.lax.dynamic_slice(one, (zero, q), (rows, 1))
                b = jax.lax.dynamic_slice(other, (q, zero), (1, columns))
                worst = jnp.maximum(worst, jnp.abs(a - b))
            return worst

        start = jnp.abs(one[:, :1] - other[:1])
        worst = jax.lax.fori_loop(0, padded // _UNROLL, some, start).astype(jnp.float64)
        first, second = (
            jnp.where(jax.lax.iota(jnp.int32, size) < end, jax.lax.dynamic_slice(part, (start,), (size,)), -jnp.inf)
            for part, start, size, end in ((base, row, rows, height), (other_base, column, columns, length))
        )
        log_weight = first[:, None] + second[None] - factor * worst
        # One shift a tile: what is lost to underflow is e^-700 of the tile's largest weight.
        largest = jnp.max(log_weight)
        largest = jnp.where(largest == -jnp.inf, 0.0, largest)
        weight = jnp.exp(log_weight - largest)
        weight = weight * worst if mean else weight
        total = jnp.sum(weight.reshape(rows // high, high, wide, columns // wide), axis=(1, 2))
        return jnp.log(total) + largest

    return jax.lax.map(tile, tiles)


@float64
def _normalize(weights: Any) -> tuple[jax.Array, jax.Array]:
    weights = jnp.concatenate([part.reshape(-1) for part in weights])
    log_normalizer = jax.nn.logsumexp(weights)
    return weights - log_normalizer, log_normalizer


@float64
def _mean_error(scores: Any, log_normalizer: Any, num_records: Any, scale: Any) -> jax.Array:
    score = jax.nn.logsumexp(jnp.concatenate([part.reshape(-1) for part in scores]))
    return jnp.exp(score - log_normalizer) / (jnp.maximum(num_records, 1.0) * scale)


@float64
def _log_prob(
    histogram: Any,
    target: Any,
    num_records: Any,
    profiles: Any,
    numerators: Any,
    factor: Any,
    log_normalizer: Any,
    log_factorial: Any,
) -> jax.Array:
    counts, size = histogram.astype(jnp.float64), len(log_factorial) - 1
    whole = jnp.all((counts >= 0.0) & (jnp.floor(counts) == counts)) & (jnp.sum(counts) == float(size))
    sums = numerators.astype(jnp.float64) @ _profile_counts(counts, profiles, numerators.shape[1])
    worst = jnp.max(jnp.abs(target - num_records * sums))
    place = jnp.clip(counts, 0.0, float(size)).astype(jnp.int32)
    log_base = log_factorial[-1] - jnp.sum(log_factorial[place]) - float(size) * jnp.log(float(len(counts)))
    return jnp.where(whole, log_base - factor * worst - log_normalizer, jnp.where(jnp.isnan(factor), factor, -jnp.inf))
