"""Base samplers made of raw random words: the only place where jaxdp turns random bits into noise.

`jax.random` draws noise from one 23-bit uniform: `exponential` stops at 15.9, `laplace` has 2^23 values, and for
most of its outputs the privacy loss between two inputs is infinite. The samplers here use 64 bits and more for
each decision, so their realised laws are known integers that the tests recompute.

Every sampler takes one typed key first and consumes it once: it derives children with `fold_in` only.
"""

from __future__ import annotations

import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxdp import _check
from jaxdp._chacha import secure_key as secure_key
from jaxdp._float64 import argmax, float64
from jaxdp.lattice import TAIL

__all__ = ["discrete_laplace", "exponential", "geometric", "secure_key"]

DIGITS = 30
"""Binary digits of a geometric variable: it fits into an int32."""

MIN_RATE = TAIL / 2.0**DIGITS
"""Smallest privacy per step (4.3e-8): below it the noise does not fit into an int32."""

POWERS = np.ldexp(1.0, np.arange(DIGITS))
"""2^j, j < DIGITS."""

_SIGN = DIGITS
_THIRD_WORD = 32


def exponential(key: jax.Array, shape: tuple[int, ...] = (), dtype: jnp.dtype = jnp.float32) -> jax.Array:
    """Draws from the exponential law with scale 1, with both tails in full.

    Args:
        key: One typed key.
        shape: Shape of the result.
        dtype: Floating dtype of the result; the draw is made in float64 and cast.

    Returns:
        Array of `shape` in [2^-65, 45.1].

    Law:
        P(E > t) = e^-t to relative precision 1e-6 (float64: 1e-7) wherever it is at least 2^-40, and P(E <= t) =
        1 - e^-t to 1e-7 likewise, which `jax.random.exponential` cuts to multiples of 2^-23.

    Floating point:
        64 random bits: one bit chooses the half of the law, 63 the place in it.

    Example:
        >>> jaxdp.random.exponential(jax.random.key(0), (3,)).shape
        (3,)
    """
    return from_words(words(_check.key(key), 0, shape)).astype(dtype)


def geometric(key: jax.Array, rate: float | jax.Array, shape: tuple[int, ...] = ()) -> jax.Array:
    """Draws integers G >= 0 with P(G = k) proportional to e^(-rate k), k < 2^D.

    D is the smallest number with rate 2^D >= 46, at most 30; the cut has probability below 1e-20.

    Args:
        key: One typed key.
        rate: Positive scalar, at least 4.3e-8 (46 / 2^30).
        shape: Shape of the result.

    Returns:
        int32 array of `shape`; -1 throughout where a traced `rate` is out of range.

    Raises:
        ValueError: If a concrete `rate` is out of range.

    Law:
        The binary digits of a geometric variable are independent, P(digit j = 1) = 1 / (1 + e^(rate 2^j)).

    Floating point:
        Each digit compares 64 random bits (96 where its probability is below 2^-32) with an integer threshold:
        log-ratios of the realised law are off by at most 1.3e-9 (at rates up to 32, the largest epsilon of a
        mechanism on a lattice), its total variation by less than 2^-50.

    Example:
        >>> jaxdp.random.geometric(jax.random.key(0), 0.5, (2,)).dtype
        dtype('int32')
    """
    return draw_geometric(_check.key(key), thresholds(_rate(rate)), shape)


def discrete_laplace(key: jax.Array, rate: float | jax.Array, shape: tuple[int, ...] = ()) -> jax.Array:
    """Draws integers Z with P(Z = z) proportional to e^(-rate |z|), -2^D <= z < 2^D.

    Args:
        key: One typed key.
        rate: Positive scalar, at least 4.3e-8 (46 / 2^30); the scale is 1 / rate.
        shape: Shape of the result.

    Returns:
        int32 array of `shape`. Where a traced `rate` is out of range: -2^31, never plausible noise.

    Raises:
        ValueError: If a concrete `rate` is out of range.

    Law:
        Z = -1 - G with probability 1 / (1 + e^rate), else G, for the geometric G of `geometric`. Zero is
        counted once.

    Floating point:
        As for `geometric`.

    Example:
        >>> jaxdp.random.discrete_laplace(jax.random.key(0), 0.5, (2,)).shape
        (2,)
    """
    return draw_discrete_laplace(_check.key(key), thresholds(_rate(rate)), shape)


def _rate(rate: float | jax.Array) -> float | jax.Array:
    rate = _check.positive("rate", rate)
    if not _check.is_traced(rate) and rate < MIN_RATE:
        raise ValueError(f"rate must be at least {MIN_RATE:.2g} for int32 noise, got {rate!r}")
    return rate


@jax.jit(static_argnames="shape")
def words(key: jax.Array, index: int | jax.Array, shape: tuple[int, ...] = ()) -> jax.Array:
    """Two random uint32 words an element, of the child `index` of `key`; shape (2, *shape).

    They are the key words of the child, and for an array those of its children: Threefry makes two words a block,
    of which jax.random.bits would use one.
    """
    if jax.random.key_impl(key) == "threefry2x32" and math.prod(shape) < 2**32:
        first, second = jax.random.key_data(key)
        pair = _threefry(first, second, jnp.uint32(0), jnp.asarray(index).astype(jnp.uint32))
        if shape != ():
            counts = jax.lax.iota(jnp.uint32, math.prod(shape)).reshape(shape)
            pair = _threefry(*pair, jnp.zeros_like(counts), counts)
        return jnp.stack(pair)
    child = jax.random.fold_in(key, index)
    return jax.random.key_data(child)[:2] if shape == () else jax.random.bits(child, (2, *shape), jnp.uint32)


def _threefry(first: Any, second: Any, high: Any, low: Any) -> tuple[jax.Array, jax.Array]:
    """Threefry-2x32 as jax.random computes it, but unrolled: XLA then fuses it with what uses the words."""
    keys = (first, second, first ^ second ^ jnp.uint32(0x1BD11BDA))
    high, low = high + first, low + second
    for turn in range(5):
        for shift in ((13, 15, 26, 6), (17, 29, 16, 24))[turn % 2]:
            high = high + low
            low = high ^ ((low << jnp.uint32(shift)) | (low >> jnp.uint32(32 - shift)))
        high, low = high + keys[(turn + 1) % 3], low + keys[(turn + 2) % 3] + jnp.uint32(turn + 1)
    return high, low


@float64
def from_words(pair: jax.Array) -> jax.Array:
    """Exponential variables (float64) from uint32 words of shape (2, ...)."""
    upper, v = _half(pair)
    # One logarithm for both halves of the law: log1p(-v) is log(1 - v) mended for the rounding of 1 - v.
    argument = jnp.where(upper, v, 1.0 - v)
    lost = jnp.where(upper, 0.0, (1.0 - argument) - v)
    return -jnp.log(argument) - lost / argument


@float64
def happens(pair: jax.Array, p: jax.Array, rest: jax.Array) -> jax.Array:
    """Events of probability p, given with rest = 1 - p, from uint32 words of shape (2, ...).

    from_words(pair) <= -log(rest), without a logarithm; rare events and rare misses keep their relative precision.
    """
    upper, v = _half(pair)
    return jnp.where(upper, rest <= v, p >= v)


def _half(pair: jax.Array) -> tuple[jax.Array, jax.Array]:
    """A bit that chooses the half of a law, and the place in it: 63 bits, in (0, 1/2]."""
    high = (pair[0] & jnp.uint32(0x7FFFFFFF)).astype(jnp.float64) * 2.0**-32
    return pair[0] >> 31 == 1, high + (pair[1].astype(jnp.float64) + 0.5) * 2.0**-64


@float64
def thresholds(rate: jax.Array) -> jax.Array:
    """Integer thresholds of the digits of a geometric variable, and of the sign of a discrete Laplace one.

    Returns uint32 words (3, DIGITS + 1), most significant first: floor(p 2^96) for each digit's probability p,
    zero for unused digits; the last column is the sign. All zero if `rate` is out of range.
    """
    scaled = rate * POWERS
    scaled = jnp.append(scaled, rate)
    p = jnp.exp(-scaled)
    p = p / (1.0 + p)
    used = (scaled < TAIL) | (jnp.arange(DIGITS + 1) == _SIGN)
    valid = (rate >= MIN_RATE) & (rate < jnp.inf)
    rest = jnp.where(used & valid, p, 0.0)
    columns = []
    for _ in range(3):
        rest = rest * 2.0**32
        whole = jnp.floor(rest)
        columns.append(whole.astype(jnp.uint32))
        rest = rest - whole
    # The sign bit of the last word marks a valid table: a huge rate has no digit and a sign of probability 0.
    return jnp.stack(columns).at[2, _SIGN].set(jnp.where(valid, columns[2][_SIGN] | jnp.uint32(1), 0))


def _bernoulli(key: jax.Array, index: int | jax.Array, threshold: jax.Array, shape: tuple, rare: bool) -> jax.Array:
    """Booleans that are True with probability threshold / 2^96 (threshold / 2^64 unless rare)."""
    first, second = words(key, index, shape)
    low = second < threshold[1]
    if rare:
        third = words(key, index + _THIRD_WORD, shape)[0]
        low = low | ((second == threshold[1]) & (third < threshold[2]))
    return (first < threshold[0]) | ((first == threshold[0]) & low)


def _digits(key: jax.Array, table: jax.Array, shape: tuple[int, ...]) -> jax.Array:
    # Trip counts come from the table, so one program serves every rate; two loops spare a branch in each turn.
    used = jnp.sum(jnp.any(table[:, :DIGITS] > 0, axis=0), dtype=jnp.int32)
    common = jnp.sum(table[0, :DIGITS] > 0, dtype=jnp.int32)

    def digit(rare: bool):
        def body(j: jax.Array, total: jax.Array) -> jax.Array:
            bit = _bernoulli(key, j, jax.lax.dynamic_index_in_dim(table, j, 1, False), shape, rare)
            return total | (bit.astype(jnp.int32) << j)

        return body

    total = _bernoulli(key, 0, table[:, 0], shape, rare=True).astype(jnp.int32)
    total = jax.lax.fori_loop(1, common, digit(rare=False), total)
    return jax.lax.fori_loop(jnp.maximum(common, 1), used, digit(rare=True), total)


def _valid(table: jax.Array) -> jax.Array:
    return table[2, _SIGN] > 0


@jax.jit(static_argnames="shape")
def draw_geometric(key: jax.Array, table: jax.Array, shape: tuple[int, ...] = ()) -> jax.Array:
    """`geometric` from the table of `thresholds`."""
    return jnp.where(_valid(table), _digits(key, table, shape), -1)


@jax.jit(static_argnames="shape")
def draw_discrete_laplace(key: jax.Array, table: jax.Array, shape: tuple[int, ...] = ()) -> jax.Array:
    """`discrete_laplace` from the table of `thresholds`."""
    size = _digits(key, table, shape)
    negative = _bernoulli(key, _SIGN, table[:, _SIGN], shape, rare=True)
    return jnp.where(_valid(table), jnp.where(negative, -1 - size, size), jnp.iinfo(jnp.int32).min)


@float64
def counts(log_p: jax.Array) -> jax.Array:
    """Cuts a law to integers (uint64) that sum to 2^63 exactly.

    Each probability is rounded down, which keeps 1e-5 of relative precision down to 2^-46; the largest one takes
    what is left over, so that no rare outcome pays for the rounding of the others. All zero for a NaN law.
    """
    return cut(jnp.exp(log_p))


@float64
def cut(p: jax.Array) -> jax.Array:
    """`counts` of probabilities."""
    valid = ~jnp.any(jnp.isnan(p))
    # In two words of 32 bits: there is no fast conversion to 64. What it makes of NaN does not matter.
    high = jnp.floor(p * 2.0**31)
    low = (p * 2.0**31 - high) * 2.0**32
    whole = _join(high.astype(jnp.uint32), low.astype(jnp.uint32))
    rest = jnp.uint64(2**63) - jnp.sum(whole, dtype=jnp.uint64)
    extra = jnp.where(jax.lax.iota(jnp.int32, len(whole)) == argmax(whole), rest, jnp.uint64(0))
    return jnp.where(valid, whole + extra, jnp.uint64(0))


@float64
def invert(pair: jax.Array, weights: jax.Array) -> jax.Array:
    """Indices (int32) with law weights / 2^63, from uint32 words of shape (2, ...); -1 if the weights are zero."""
    cumulative = jnp.cumsum(weights, dtype=jnp.uint64)
    return jnp.where(cumulative[-1] > 0, search(cumulative, place(pair)), -1).astype(jnp.int32)


def search(cumulative: jax.Array, places: jax.Array) -> jax.Array:
    """How many entries of an increasing table (uint64) are <= places below 2^63. For use inside a float64 core.

    Counted from the highest binary digit of the count down: one word of state an element, 2.6 times faster than
    searchsorted.
    """
    levels = len(cumulative).bit_length()
    # The padding is above every place.
    table = jnp.pad(cumulative, (0, 2**levels - len(cumulative)), constant_values=np.uint64(2**64 - 1))

    def descend(i: jax.Array, index: jax.Array) -> jax.Array:
        further = index + (jnp.int32(1) << (levels - 1 - i).astype(jnp.int32))
        return jnp.where(table[further - 1] <= places, further, index)

    return jax.lax.fori_loop(0, levels, descend, (places >> jnp.uint64(63)).astype(jnp.int32))


@float64
def invert_once(pair: jax.Array, weights: jax.Array) -> jax.Array:
    """What `invert` gives for one pair of words, faster: sums of blocks, of which one is looked at more closely.

    A cumulative table pays off only where many draws share it: it costs as much as all else of a release.
    """
    n = len(weights)
    size = 2 ** ((n - 1).bit_length() // 2)
    weights, at = jnp.pad(weights, (0, -n % size)), place(pair)
    totals = jnp.sum(weights.reshape(-1, size), axis=1, dtype=jnp.uint64)
    ends = jnp.cumsum(totals, dtype=jnp.uint64)
    block = jnp.minimum(jnp.sum(ends <= at, dtype=jnp.int32), len(totals) - 1)
    part = jax.lax.dynamic_slice(weights, (block * size,), (size,))
    inside = ends[block] - totals[block] + jnp.cumsum(part, dtype=jnp.uint64)
    index = block * size + jnp.sum(inside <= at, dtype=jnp.int32)
    return jnp.where(ends[-1] > 0, index, -1)


def place(pair: jax.Array) -> jax.Array:
    """63 random bits (uint64) from uint32 words of shape (2, ...). For use inside a float64 core."""
    return _join(pair[0] & jnp.uint32(0x7FFFFFFF), pair[1])


def _join(high: jax.Array, low: jax.Array) -> jax.Array:
    return (high.astype(jnp.uint64) << jnp.uint64(32)) | low.astype(jnp.uint64)
