"""The enumeration behind SmallDB: all multisets over profiles as pairs of halves, in float64."""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from scipy.special import gammaln

from jaxdp import _check, random
from jaxdp._float64 import float64, read
from jaxdp._pickles import Pickles
from jaxdp._progress import Progress
from jaxdp.mechanisms import _multisets, _tiles
from jaxdp.mechanisms._draw import FAN, draw
from jaxdp.workload import Workload, clean_counts

_INTEGERS = {2**7: np.dtype(np.int8), 2**15: np.dtype(np.int16), 2**31: np.dtype(np.int32)}
"""Types by what the integers in them have to be less than; float64 holds those below 2^53."""
_LONG = 2**32
"""Candidates times queries from which a terminal shows a bar: some seconds."""


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True, eq=False)
class Enumeration(Pickles):
    """The law of SmallDB's release on one data set, for any number of candidates that can be enumerated.

    Attributes:
        weights: (segments,) uint64 that sum to 2^63: the probability of each segment, some pairs of halves.
        cumulative: Cumulative sums of every 16 of them.
        log_normalizer: log of the mean weight exp(-epsilon n error / 2) over all tuples in X^m.
        target: (|Q|,) m times the sums of the queries' numerators over the data.
        num_records: n.
        words: uint64; sums of the queries' numerators over all halves, several a word, public. Once for rows of a
            segment together (blocks of halves, words, rows), once for columns (halves, words).
        factor: Weights are exp(-factor max_q |target - n (sum over prefix + sum over suffix)|).
        workload: The queries.
        size: Records of a release.
        dtype: Type of the scores: the narrowest one that is exact, but not int8; float64 for traced counts.

    Example:
        >>> summary = np.array([10, 30, 60], np.int32), jaxdp.Workload([[0, 0, 1], [0, 1, 1]])
        >>> enumeration = jaxdp.SmallDB(1.0, size=5).enumerate(summary)
        >>> jax.vmap(enumeration.sample)(jax.random.split(jax.random.key(0), 1000)).shape
        (1000, 3)
    """

    weights: Any
    cumulative: Any
    log_normalizer: Any
    target: Any
    num_records: Any
    words: Any
    factor: Any
    workload: Workload = dataclasses.field(metadata={"static": True})
    size: int = dataclasses.field(metadata={"static": True})
    dtype: np.dtype = dataclasses.field(metadata={"static": True})

    def sample(self, key: jax.Array) -> jax.Array:
        """One release, (|X|,) int32 counts: a segment, a pair in it, and an element of each member's profile."""
        key = _check.key(key)
        plan, parts = _multisets.plan(self.workload.num_profiles, self.size), halves(self.workload, self.size)
        words = random.words(key, 0), random.words(key, 1)
        # Where profiles have one element each, the counts of profiles are the release.
        if not all(half.counted for half in parts) or self.workload.num_profiles < self.workload.universe_size:
            words = *words, random.words(key, 2, (self.size,))
        return draw(
            words,
            (self.weights, self.cumulative),
            (*self.words, self.target, self.num_records, self.factor),
            _base(self.workload, self.size),
            tuple(group.tiles for group in plan.groups),
            tuple(half.table for half in parts),
            self.workload.profiles,
            self.workload.elements,
            self.workload.multiplicities,
            plan=(plan.split, plan.prefixes, plan.block, tuple((group.rows, group.columns) for group in plan.groups)),
            dtypes=(_sums_dtype(self.workload, self.size), self.dtype),
            counted=tuple(half.counted for half in parts),
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
        sides = _sides(self.workload, self.size, self.target, self.num_records, self.factor)
        totals = _tiles.weigh(sides, plan, self.dtype, mean=True)
        scale = self.size * float(self.workload.denominator)
        return read(_mean_error(totals, self.log_normalizer, self.num_records, scale))


def enumerate_candidates(
    counts: Any,
    workload: Workload,
    epsilon: Any,
    size: int,
    progress: Callable[[float], Any] | None,
    devices: Sequence[Any] | None,
) -> Enumeration:
    """Sums up the weights of all candidates, segment by segment."""
    if progress is not None and not callable(progress):
        raise ValueError(f"progress must be a function of one number, got {progress!r}")
    found = _check.devices(devices)
    k = workload.num_profiles
    _multisets.check_number(k, size, workload.num_queries)
    plan, largest = _multisets.plan(k, size), largest_sum(counts, workload, size)
    dtype = np.promote_types(_narrowest(largest), np.int16)
    profiles = workload.profiles, workload.profile_numerators
    # Bound to no device, so that releases go where their keys are.
    data = _data(read(counts), *profiles, read(epsilon), size=size, denominator=workload.denominator)
    sides = _sides(workload, size, *data)
    if any(map(_check.is_traced, data)):
        totals = _tiles.weigh(sides, plan, dtype)
    else:
        if progress is None and _multisets.number(k, size) * workload.num_queries >= _LONG:
            progress = _bar()
        totals = _tiles.weigh_on(found, progress, sides, plan, dtype)
    target, num_records, factor = data
    with jax.enable_x64(True):
        words = jax.device_put((_blocks(workload, size), sides.sums.view(np.uint64)))
    law = *_normalize(totals), target, num_records, words, factor
    return Enumeration(*law, workload=workload, size=size, dtype=dtype)


def _bar() -> Callable[[float], Any]:
    bar = Progress(1, 0)

    def show(share: float) -> None:
        bar.show("", share)
        if share == 1.0:
            bar.clear()

    return show


def halves(workload: Workload, size: int) -> tuple[_multisets.Half, _multisets.Half]:
    """The multisets over the first profiles of a workload, and over the others."""
    plan, many = _multisets.plan(workload.num_profiles, size), tuple(workload.multiplicities.tolist())
    return tuple(_multisets.half(part, size, plan.block[0]) for part in (many[: plan.split], many[plan.split :]))


def _padding(workload: Workload, size: int) -> int:
    """Halves of no effect at the end, so that a tile always fits."""
    return max(group.columns for group in _multisets.plan(workload.num_profiles, size).groups)


@functools.lru_cache(maxsize=8)
def _base(workload: Workload, size: int) -> np.ndarray:
    """Base measures of halves: of a tuple |X|^-m, so of a multiset m! |X|^-m prod multiplicity^count / count!."""
    constant = float(gammaln(size + 1.0) - size * np.log(workload.universe_size))
    first, second = halves(workload, size)
    return _aligned([first.log_base + constant, second.log_base, np.zeros(_padding(workload, size))], np.float64)


@functools.lru_cache(maxsize=4)
def _tables(workload: Workload, size: int) -> tuple[np.ndarray, np.ndarray]:
    """(halves and padding, width) sums of the queries' numerators over all halves, and their transpose; public."""
    split = _multisets.plan(workload.num_profiles, size).split
    numerators, (first, second) = workload.profile_numerators, halves(workload, size)
    # Queries without effect fill the words.
    width = (0, 0), (0, -workload.num_queries % 8)
    parts = (first, numerators[:, :split]), (second, numerators[:, split:])
    sums = [np.pad(half.sums(part), width) for half, part in parts]
    sums.append(np.zeros((_padding(workload, size), sums[0].shape[1])))
    sums = _aligned(sums, _sums_dtype(workload, size))
    return sums, _aligned([sums.T], sums.dtype)


@functools.lru_cache(maxsize=4)
def _blocks(workload: Workload, size: int) -> np.ndarray:
    """(blocks of halves, words, rows) uint64; all queries of one word for all rows of a block lie side by side."""
    sums, high = _tables(workload, size)[0], _multisets.plan(workload.num_profiles, size).block[0]
    blocks = _aligned([sums.reshape(len(sums) // high, high, -1).transpose(0, 2, 1)], sums.dtype)
    return blocks.reshape(len(blocks), -1).view(np.uint64).reshape(len(blocks), -1, high)


def _sums_dtype(workload: Workload, size: int) -> np.dtype:
    """Type of the sums in `_tables`."""
    return _narrowest(size * workload.denominator)


def _narrowest(largest: float) -> np.dtype:
    """Type of integers up to this size."""
    return next((dtype for end, dtype in _INTEGERS.items() if largest < end), np.dtype(np.float64))


def _aligned(parts: list[np.ndarray], dtype: Any) -> np.ndarray:
    """Concatenates arrays, from a multiple of 64 bytes on: a CPU's programs take these from the host as they are."""
    shape = sum(map(len, parts)), *parts[0].shape[1:]
    space = np.empty(math.prod(shape) * np.dtype(dtype).itemsize + 64, np.uint8)
    start = -space.ctypes.data % 64
    whole = space[start : len(space) - 64 + start].view(dtype).reshape(shape)
    np.concatenate(parts, out=whole, casting="unsafe")
    whole.flags.writeable = False
    return whole


def _sides(workload: Workload, size: int, target: Any, num_records: Any, factor: Any) -> _tiles.Sides:
    sums, transposed = _tables(workload, size)
    return _tiles.Sides(sums, transposed, _base(workload, size), target, num_records, factor)


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


@float64(static_argnames=("size", "denominator"))
def _data(
    counts: Any, profiles: Any, numerators: Any, epsilon: Any, *, size: int, denominator: int
) -> tuple[jax.Array, jax.Array, jax.Array]:
    """Target, number of records and factor, as in `Enumeration`."""
    numerators, counts = numerators.astype(jnp.float64), clean_counts(counts)
    n, target = jnp.sum(counts), numerators @ _profile_counts(counts, profiles, numerators.shape[1]) * float(size)
    return target, n, factor(epsilon, float(size * denominator), n)


@float64
def _normalize(totals: Any) -> tuple[jax.Array, jax.Array, jax.Array]:
    """The law of the segments in integers as in `random.counts`, their sums, and the normaliser."""
    log_normalizer = jax.nn.logsumexp(jnp.concatenate([logs for _, logs, _ in totals]))
    parts = [
        jnp.where(weight == 0.0, 0.0, weight * jnp.exp(shift - log_normalizer)[:, None, None]).reshape(-1)
        for weight, _, shift in totals
    ]
    p = jnp.concatenate(parts)
    p = jnp.pad(p, (0, -len(p) % FAN))
    weights = random.cut(p)
    cumulative = jnp.cumsum(jnp.sum(weights.reshape(-1, FAN), axis=1, dtype=jnp.uint64), dtype=jnp.uint64)
    return weights, cumulative, log_normalizer


@float64
def _mean_error(totals: Any, log_normalizer: Any, num_records: Any, scale: Any) -> jax.Array:
    score = jax.nn.logsumexp(jnp.concatenate([logs for _, logs, _ in totals]))
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
