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
from jaxdp.mechanisms import _multisets
from jaxdp.workload import Workload

_UNROLL = 8
_STEPS = 50


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True, eq=False)
class Enumeration:
    """The law of SmallDB's release on one data set, for any number of candidates that can be enumerated.

    Attributes:
        log_p: (segments,) log-probability of each segment: a prefix with some consecutive suffixes.
        log_normalizer: log of the mean weight exp(-epsilon n error / 2) over all tuples in X^m.
        expected_error: Mean of the largest error of all queries. Not private.
        target: (|Q|,) m times the sums of the queries' numerators over the data.
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
    expected_error: Any
    target: Any
    num_records: Any
    prefixes: Any
    suffixes: Any
    factor: Any
    workload: Workload = dataclasses.field(metadata={"static": True})
    size: int = dataclasses.field(metadata={"static": True})

    def sample(self, key: jax.Array) -> jax.Array:
        """One release, (|X|,) int32 counts: a segment, a suffix in it, and an element of each member's profile."""
        key = _check.key(key)
        plan, parts = _multisets.plan(self.workload.num_profiles, self.size), halves(self.workload, self.size)
        return _draw(
            (random.words(key, 0), random.words(key, 1), random.words(key, 2, (self.size,))),
            (self.log_p, self.prefixes, self.suffixes, self.factor, parts[1].log_base, plan.tiles),
            tuple(half.table for half in parts),
            self.workload.elements,
            self.workload.multiplicities,
            shape=plan.shape,
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


def enumerate_candidates(
    counts: Any, workload: Workload, epsilon: Any, size: int, progress: Callable[[float], Any] | None
) -> Enumeration:
    """Sums up the weights of all candidates, segment by segment."""
    k = workload.num_profiles
    _multisets.check_number(k, size, workload.num_queries)
    plan, parts = _multisets.plan(k, size), halves(workload, size)
    limit = _largest_sum(counts, workload, size)
    target, num_records, prefixes, suffixes, factor = _sums(
        counts,
        workload.profiles,
        workload.profile_numerators,
        tuple(half.table for half in parts),
        epsilon,
        counted=tuple(half.counted for half in parts),
        split=plan.split,
        size=size,
        denominator=workload.denominator,
        dtype=np.dtype(np.int32 if limit < 2.0**31 else np.float64),
    )
    # Of a tuple the base measure is |X|^-m, of a multiset m! |X|^-m prod multiplicity^count / count!.
    constant = float(gammaln(size + 1.0) - size * np.log(workload.universe_size))
    run = functools.partial(_weigh, prefixes, suffixes, factor, parts[0].log_base + constant, parts[1].log_base)
    if progress is None or any(map(_check.is_traced, (prefixes, factor))):
        weights, scores = run(plan.tiles, shape=plan.shape)
    else:
        done, each = [], -(-len(plan.tiles) // _STEPS)
        for start in range(0, len(plan.tiles), each):
            tiles = plan.tiles[start : start + each]
            # Tiles of no rows at the end, so that one program does.
            done.append(jax.block_until_ready(run(np.pad(tiles, ((0, each - len(tiles)), (0, 0))), shape=plan.shape)))
            progress(min(1.0, (start + each) / len(plan.tiles)))
        weights, scores = (np.concatenate([np.asarray(part) for part in column]) for column in zip(*done, strict=True))
    log_p, log_normalizer, mean = _normalize(weights, scores)
    error = read(_quotient(mean, num_records, size * float(workload.denominator)))
    return Enumeration(
        log_p, log_normalizer, error, target, num_records, prefixes, suffixes, factor, workload=workload, size=size
    )


def halves(workload: Workload, size: int) -> tuple[_multisets.Half, _multisets.Half]:
    """The multisets over the first profiles of a workload, and over the others."""
    split, many = _multisets.plan(workload.num_profiles, size).split, tuple(workload.multiplicities.tolist())
    return _multisets.half(many[:split], size), _multisets.half(many[split:], size)


def _largest_sum(counts: Any, workload: Workload, size: int) -> float:
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


def clean(counts: Any) -> jax.Array:
    """Whole numbers in float64; NaN and negative ones count as 0."""
    counts = jnp.floor(counts.astype(jnp.float64))
    return jnp.where(counts > 0.0, counts, 0.0)


def factor(epsilon: Any, scale: Any) -> jax.Array:
    """Weight per unit of the integer scores; NaN for a bad epsilon."""
    valid = (epsilon > 0.0) & (epsilon < jnp.inf)
    return jnp.where(valid, epsilon, jnp.nan) / (2.0 * scale)


def _profile_counts(counts: Any, profiles: Any, k: int) -> jax.Array:
    return jnp.zeros_like(counts, shape=k).at[profiles].add(counts)


@float64(static_argnames=("counted", "split", "size", "denominator", "dtype"))
def _sums(
    counts: Any,
    profiles: Any,
    numerators: Any,
    tables: Any,
    epsilon: Any,
    *,
    counted: tuple[bool, bool],
    split: int,
    size: int,
    denominator: int,
    dtype: np.dtype,
) -> tuple[jax.Array, ...]:
    numerators = numerators.astype(jnp.float64)
    counts = clean(counts)
    n, target = jnp.sum(counts), numerators @ _profile_counts(counts, profiles, numerators.shape[1]) * float(size)
    each = [
        _table_sums(table, part.T, is_counts)
        for table, part, is_counts in zip(tables, (numerators[:, :split], numerators[:, split:]), counted, strict=True)
    ]
    prefixes, suffixes = target[None] - n * each[0], n * each[1].T
    return target, n, prefixes.astype(dtype), suffixes.astype(dtype), factor(epsilon, float(size * denominator))


def _table_sums(table: Any, numerators: jax.Array, counted: bool) -> jax.Array:
    """(N, |Q|) sums of the queries over each multiset; exact."""
    if counted:
        return table.astype(jnp.float64) @ numerators
    padded = jnp.pad(numerators, ((0, 1), (0, 0)))
    none = jnp.zeros_like(padded, shape=(table.shape[0], padded.shape[1]))
    return jax.lax.fori_loop(0, table.shape[1], lambda i, total: total + padded[table[:, i]], none)


@float64(static_argnames=("shape",))
def _weigh(
    prefixes: Any, suffixes: Any, factor: Any, base: Any, other_base: Any, tiles: Any, *, shape: tuple[int, int, int]
) -> tuple[jax.Array, jax.Array]:
    """Log of the total weight of each segment, and the mean score in it; (T, rows, segments)."""
    rows, columns, width = shape
    queries = prefixes.shape[1]
    padded = -(-queries // _UNROLL) * _UNROLL
    prefixes = jnp.pad(prefixes, ((0, rows), (0, padded - queries)))
    suffixes = jnp.pad(suffixes, ((0, padded - queries), (0, columns)))
    base, other_base = jnp.pad(base, (0, rows)), jnp.pad(other_base, (0, columns))

    def tile(place: jax.Array) -> tuple[jax.Array, jax.Array]:
        row, height, column, length = place
        zero = jnp.int32(0)
        one = jax.lax.dynamic_slice(prefixes, (row, zero), (rows, padded))
        other = jax.lax.dynamic_slice(suffixes, (zero, column), (padded, columns))

        def queries(i: jax.Array, worst: jax.Array) -> jax.Array:
            for j in range(_UNROLL):
                q = i.astype(jnp.int32) * _UNROLL + j
                a = jax.lax.dynamic_slice(one, (zero, q), (rows, 1))
                b = jax.lax.dynamic_slice(other, (q, zero), (1, columns))
                worst = jnp.maximum(worst, jnp.abs(a - b))
            return worst

        start = jnp.abs(one[:, :1] - other[:1])
        worst = jax.lax.fori_loop(0, padded // _UNROLL, queries, start).astype(jnp.float64)
        log_weight = -factor * worst + jax.lax.dynamic_slice(other_base, (column,), (columns,))[None]
        valid = (jax.lax.iota(jnp.int32, rows) < height)[:, None] & (jax.lax.iota(jnp.int32, columns) < length)[None]
        log_weight = jnp.where(valid, log_weight, -jnp.inf).reshape(rows, columns // width, width)
        largest = jnp.max(log_weight, axis=-1)
        finite = jnp.where(largest == -jnp.inf, 0.0, largest)
        weight = jnp.exp(log_weight - finite[..., None])
        total = jnp.sum(weight, axis=-1)
        mean = jnp.sum(weight * worst.reshape(weight.shape), axis=-1) / jnp.where(total > 0.0, total, 1.0)
        first = jax.lax.dynamic_slice(base, (row,), (rows,))[:, None]
        return jnp.where(total > 0.0, jnp.log(total) + finite + first, total - jnp.inf), mean

    return jax.lax.map(tile, tiles)


@float64
def _normalize(weights: Any, scores: Any) -> tuple[jax.Array, jax.Array, jax.Array]:
    log_normalizer = jax.nn.logsumexp(weights)
    log_p = weights.reshape(-1) - log_normalizer
    return log_p, log_normalizer, jnp.sum(jnp.exp(log_p) * scores.reshape(-1))


@float64
def _quotient(mean: Any, num_records: Any, scale: Any) -> jax.Array:
    return mean / (jnp.maximum(num_records, 1.0) * scale)


@float64(static_argnames=("shape", "counted", "split", "size"))
def _draw(
    words: Any,
    law: Any,
    tables: Any,
    elements: Any,
    multiplicities: Any,
    *,
    shape: tuple[int, int, int],
    counted: tuple[bool, bool],
    split: int,
    size: int,
) -> jax.Array:
    log_p, prefixes, suffixes, factor, other_base, tiles = law
    rows, columns, width = shape
    segment = random.invert(words[0], random.counts(log_p))
    # All tables are flat: gathering rows is slow under vmap.
    tile, rest = jnp.divmod(jnp.maximum(segment, 0), jnp.int32(rows * (columns // width)))
    row, skipped = jnp.divmod(rest, jnp.int32(columns // width))
    first, _, column, length = (tiles.reshape(-1)[tile * 4 + i] for i in range(4))
    row, skipped = first + row, skipped * width
    lanes = skipped + jax.lax.iota(jnp.int32, width)
    queries, many = suffixes.shape
    places = jnp.minimum(column + lanes, many - 1)

    def query(q: jax.Array, worst: jax.Array) -> jax.Array:
        prefix = prefixes.reshape(-1)[row * queries + q.astype(jnp.int32)]
        return jnp.maximum(worst, jnp.abs(prefix - suffixes.reshape(-1)[q.astype(jnp.int32) * many + places]))

    start = jnp.abs(prefixes.reshape(-1)[row * queries] - suffixes.reshape(-1)[places])
    worst = jax.lax.fori_loop(1, queries, query, start)
    log_weight = jnp.where(lanes < length, other_base[places] - factor * worst.astype(jnp.float64), -jnp.inf)
    lane = random.invert(words[1], random.counts(jax.nn.log_softmax(log_weight)))
    members, number = _members(tables[0], row, split, counted[0], size)
    others, _ = _members(tables[1], column + skipped + lane, len(multiplicities) - split, counted[1], size)
    slots = jax.lax.iota(jnp.int32, size)
    profile = jnp.where(slots < number, members, split + others[jnp.maximum(slots - number, 0)])
    # A uniform element of the profile: the high word of 64 random bits times the multiplicity.
    many = multiplicities.astype(jnp.uint64)[profile]
    low = (words[2][1].astype(jnp.uint64) * many) >> jnp.uint64(32)
    rank = (words[2][0].astype(jnp.uint64) * many + low) >> jnp.uint64(32)
    start = jnp.cumsum(multiplicities) - multiplicities
    chosen = elements[start[profile] + rank.astype(start.dtype)]
    histogram = jnp.zeros_like(elements).at[chosen].add(jnp.int32(1))
    return jnp.where((segment >= 0) & (lane >= 0), histogram, jnp.int32(-1))


def _members(table: Any, row: jax.Array, k: int, counted: bool, size: int) -> tuple[jax.Array, jax.Array]:
    """(size,) profiles of the members of one multiset, the first `number` of which count."""
    slots = jax.lax.iota(jnp.int32, size)
    if table.shape[1] == 0:
        return jnp.zeros_like(slots), jnp.zeros_like(row)
    entries = table.reshape(-1)[row * table.shape[1] + jax.lax.iota(jnp.int32, table.shape[1])]
    if not counted:
        return entries, jnp.sum(entries < k, dtype=jnp.int32)
    cumulative = jnp.cumsum(entries, dtype=jnp.int32)
    members = jnp.searchsorted(cumulative, slots, side="right").astype(jnp.int32)
    return jnp.minimum(members, k - 1), cumulative[-1]


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
