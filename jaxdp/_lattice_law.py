"""Closed forms of the discrete Laplace law on [-2^D, 2^D - 1], in float64.

With q = e^-rate and N = 2^D: P(Z = z) = (1 - q) q^|z| / ((1 + q) (1 - q^N)), the realised law of
`random.discrete_laplace`.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxdp import _check, lattice
from jaxdp._float64 import float64
from jaxdp.lattice import TAIL
from jaxdp.random import MIN_RATE, POWERS

_CHUNK = 2**14
_MAX_LOSSES = 2**20


@float64
def size(rate: Any) -> jax.Array:
    """N = 2^D, as a float; NaN if the rate is out of range."""
    digits = jnp.sum(rate * POWERS < TAIL)
    valid = (rate >= MIN_RATE) & (rate < jnp.inf)
    return jnp.where(valid, jnp.left_shift(1, digits).astype(jnp.float64), jnp.nan)


@float64
def difference(a: Any, b: Any) -> jax.Array:
    return a - b


@float64(static_argnames=("dtype",))
def release(location: Any, noise: Any, granularity: Any, *, dtype: Any) -> jax.Array:
    failed = noise == jnp.iinfo(jnp.int32).min
    steps = jnp.where(failed, jnp.nan, location + noise.astype(jnp.float64))
    return lattice.from_steps(steps, granularity, dtype=dtype)


@float64
def log_prob(location: Any, rate: Any, granularity: Any, value: Any) -> jax.Array:
    steps = value.astype(jnp.float64) / granularity
    z = steps - location
    n = size(rate)
    inside = (jnp.floor(steps) == steps) & (z >= -n) & (z < n)
    one = jnp.log(-jnp.expm1(-rate)) - jnp.log1p(jnp.exp(-rate)) - jnp.log1p(-jnp.exp(-rate * n)) - rate * jnp.abs(z)
    one = jnp.where(inside, one, -jnp.inf)
    return jnp.sum(jnp.where(jnp.isnan(n), jnp.nan, one))


@float64(static_argnames=("fn",))
def mean(location: Any, rate: Any, granularity: Any, *, fn: Any) -> jax.Array:
    """E fn((location + Z) granularity) in chunks: the support can have 2^31 points, and fn any shape."""
    n = size(rate)
    scale = -jnp.expm1(-rate) / ((1.0 + jnp.exp(-rate)) * -jnp.expm1(-rate * n))

    def body(chunk: Any, total: Any) -> Any:
        z = -n + chunk.astype(jnp.float64) * _CHUNK + jnp.arange(_CHUNK, dtype=jnp.float64)
        p = jnp.where(z < n, scale * jnp.exp(-rate * jnp.abs(z)), 0.0)
        values = jax.vmap(fn)((location + z) * granularity).astype(jnp.float64)
        return total + jnp.sum(jnp.where(p > 0.0, p * values, 0.0))

    chunks = jnp.where(jnp.isnan(n), 0.0, jnp.ceil(2.0 * n / _CHUNK)).astype(jnp.int32)
    total = jax.lax.fori_loop(0, chunks, body, jnp.zeros_like(location))
    return jnp.where(jnp.isnan(n), jnp.nan, total)


@float64
def mean_error(rate: Any, granularity: Any) -> jax.Array:
    return granularity / jnp.sinh(rate)


@float64
def error_quantile(rate: Any, granularity: Any, prob: Any) -> jax.Array:
    # P(|Z| <= e) = 1 - 2 q^(e+1) / (1 + q)
    steps = jnp.ceil(jnp.log(2.0 / ((1.0 + jnp.exp(-rate)) * (1.0 - prob))) / rate - 1.0)
    return granularity * jnp.clip(steps, 0.0, size(rate))


@float64
def quantile(location: Any, rate: Any, granularity: Any, prob: Any) -> jax.Array:
    n, q = size(rate), jnp.exp(-rate)
    below = -jnp.floor(-jnp.log(prob * (1.0 + q)) / rate)
    # Not below 0, where a huge rate absorbs the logarithm.
    above = jnp.maximum(jnp.ceil(-jnp.log((1.0 - prob) * (1.0 + q)) / rate - 1.0), 0.0)
    z = jnp.where(prob * (1.0 + q) <= q, below, above)
    return (location + jnp.clip(z, -n, n - 1.0)) * granularity


def tail(m: Any, rate: Any, n: Any, end: Any) -> jax.Array:
    """P(Z >= m) for the law on [n - 1 - end - n, end]: end = n - 1 for Z itself, n for -Z."""
    other = 2.0 * n - 1.0 - end
    total = (1.0 + jnp.exp(-rate)) * -jnp.expm1(-rate * n)

    def upper(k: Any, last: Any) -> Any:  # the sum of q^j (1 - q) over j = k..last, k >= 1
        return jnp.exp(-rate * k) * -jnp.expm1(-rate * jnp.maximum(last + 1.0 - k, 0.0)) / total

    return jnp.where(m >= 1.0, upper(jnp.maximum(m, 1.0), end), 1.0 - upper(jnp.maximum(1.0 - m, 1.0), other))


@float64
def hockey_stick(shift: Any, rate: Any, epsilon: Any) -> jax.Array:
    """The log ratio is monotone in z, so the best event is a half line; mirrored for negative shifts.

    Negative epsilons, infinite ones too, serve laws that are parts of a mixture.
    """
    n, d = size(rate), jnp.abs(shift)
    end = jnp.where(shift >= 0.0, n - 1.0, n)
    # Beyond the largest finite ratio only the end of the support is left, where the other law is zero.
    m = jnp.where(epsilon >= rate * d, end + 1.0 - d, jnp.floor((epsilon / rate - d) / 2.0) + 1.0)
    # Below the smallest one it is the whole support.
    m = jnp.where(epsilon < -rate * d, end + 1.0 - 2.0 * n, m)
    other = tail(m + d, rate, n, end)
    # e^epsilon may be inf where the other law is zero.
    delta = tail(m, rate, n, end) - jnp.where(other > 0.0, jnp.exp(epsilon) * other, 0.0)
    return jnp.where(jnp.isnan(n), jnp.nan, jnp.maximum(delta, 0.0))


def invert(divergence: Callable[[Any], jax.Array], top: jax.Array, delta: Any) -> jax.Array:
    """The smallest epsilon in [0, top] at which a divergence that falls with it is delta at most, by bisection."""

    def halve(_: Any, ends: Any) -> Any:
        low, high = ends
        middle = (low + high) / 2.0
        above = divergence(middle) > delta
        return jnp.where(above, middle, low), jnp.where(above, high, middle)

    _, epsilon = jax.lax.fori_loop(0, 64, halve, (jnp.zeros_like(top), top))
    return jnp.where(divergence(0.0) <= delta, 0.0, epsilon)


def log_ratio(log_p: Any, log_q: Any) -> jax.Array:
    """Privacy loss of outcomes with these log-probabilities."""
    # -inf - -inf: what is impossible on both sides carries no loss.
    return jnp.where(log_p == -jnp.inf, -jnp.inf, log_p - log_q)


@float64
def loss_at(shift: Any, rate: Any, delta: Any) -> jax.Array:
    """The smallest epsilon >= 0 with hockey_stick(shift, rate, epsilon) <= delta."""
    top = rate * jnp.abs(shift)
    loss = invert(functools.partial(hockey_stick, shift, rate), top, delta)
    loss = jnp.where(hockey_stick(shift, rate, top) > delta, jnp.inf, loss)
    return jnp.where(jnp.isnan(size(rate) + delta), jnp.nan, loss)


@np.errstate(divide="ignore")  # a coordinate whose laws have disjoint supports
def _losses(shift: Any, rate: Any) -> tuple[np.ndarray, np.ndarray, float]:
    """Privacy losses of a vector, their probabilities, and the mass where the loss is infinite; on the host."""
    if _check.is_traced(shift) or _check.is_traced(rate):
        raise ValueError("laws of vectors are compared on the host: call this outside jit and vmap")
    shift, rate = np.asarray(shift), float(rate)
    shift = shift[shift != 0]
    if np.sum(np.abs(shift)) > _MAX_LOSSES:
        raise ValueError(f"the laws are {np.sum(np.abs(shift)):g} steps apart, more than {_MAX_LOSSES} in all")
    n = float(size(rate))
    mass = -np.expm1(-rate) / ((1 + np.exp(-rate)) * -np.expm1(-rate * n))
    pmf, log_finite = np.ones(1), 0.0
    for d, end in zip(np.abs(shift).astype(int), np.where(shift > 0, n - 1, n), strict=True):
        # Loss rate * m: m = d for z >= 0 (short of the end), d + 2 z for -d < z < 0, -d for z <= -d.
        cut, upper, middle = (float(_tail_64(m, rate, n, end)) for m in (end + 1.0 - d, 0.0, 1.0 - d))
        one = np.zeros(2 * d + 1)
        z = np.arange(1 - d, 0)
        one[2 * d + 2 * z] = mass * np.exp(rate * z)
        one[2 * d] += upper - cut
        one[0] += 1.0 - middle
        pmf, log_finite = np.convolve(pmf, one), log_finite + np.log1p(-cut)
    total = (len(pmf) - 1) // 2
    return rate * np.arange(-total, total + 1), pmf, -np.expm1(log_finite)


_tail_64 = float64(tail)


@np.errstate(over="ignore")
def vector_hockey_stick(shift: Any, rate: Any, epsilon: Any) -> float:
    losses, pmf, infinite = _losses(shift, rate)
    return float(infinite + np.sum(pmf * np.maximum(-np.expm1(float(epsilon) - losses), 0.0)))


def vector_loss_at(shift: Any, rate: Any, delta: Any) -> float:
    losses, pmf, infinite = _losses(shift, rate)
    if not infinite <= delta:
        return np.nan if np.isnan(delta) else np.inf
    p = infinite + np.cumsum(pmf[::-1])
    q = np.cumsum((pmf * np.exp(-losses))[::-1])
    with np.errstate(divide="ignore", invalid="ignore"):
        return float(max(0.0, np.max(np.where((p > delta) & (q > 0), np.log(p - delta) - np.log(q), 0.0))))
