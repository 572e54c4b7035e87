"""Slow NumPy truth for the foundation: the discrete Laplace law, divergences, and the realised laws of samplers."""

import itertools
import math
from decimal import Decimal, localcontext

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, PartitionSpec
from scipy import stats

ALPHA = 1e-9
TAIL = 46.0


def transforms(fn, *args):
    """Yields (name, result) of fn mapped over the leading axes of args in each of JAX's ways."""
    mapped = jax.vmap(fn)
    mesh, spec = Mesh(np.array(jax.devices()), ("i",)), PartitionSpec("i")
    yield "jit and vmap", jax.jit(mapped)(*args)
    yield "scan", jax.jit(lambda *xs: jax.lax.scan(lambda carry, x: (carry, fn(*x)), None, xs)[1])(*args)
    yield "shard_map", jax.jit(jax.shard_map(mapped, mesh=mesh, in_specs=spec, out_specs=spec))(*args)


def support(rate):
    """N = 2^D: the noise lies in [-N, N - 1]."""
    size = 1
    while rate * size < TAIL:
        size *= 2
    return size


def discrete_laplace(rate):
    """All outcomes z and P(z) ~ e^(-rate |z|)."""
    z = np.arange(-support(rate), support(rate))
    weights = np.exp(-rate * np.abs(z))
    return z, weights / math.fsum(weights)


def shifted(rate, shift):
    """Probabilities of `shift + Z` and of Z, on the integers that either reaches."""
    _, p = discrete_laplace(rate)
    low, pad = min(0, shift), abs(shift)
    both = np.zeros((2, len(p) + pad))
    both[0, shift - low :][: len(p)] = p
    both[1, -low:][: len(p)] = p
    return both[0], both[1]


def grid(rate, shifts):
    """Probabilities of a vector of `shifted` coordinates, flattened."""
    p, q = np.ones(1), np.ones(1)
    for shift in shifts:
        one, other = shifted(rate, shift)
        p, q = np.multiply.outer(p, one).ravel(), np.multiply.outer(q, other).ravel()
    return p, q


def hockey_stick(p, q, epsilon):
    return math.fsum(np.maximum(p - np.exp(epsilon) * q, 0.0))


def loss_at(p, q, delta):
    """Smallest epsilon >= 0 with hockey_stick <= delta, from the best event of each size."""
    with np.errstate(divide="ignore", invalid="ignore"):
        order = np.argsort(np.where(p > 0, -p / q, 0.0), kind="stable")
        mass, other = np.cumsum(p[order]), np.cumsum(q[order])
        loss = np.where(mass > delta, np.log(np.maximum(mass - delta, 0.0)) - np.log(other), -np.inf)
    return max(0.0, np.max(loss))


def loss_at_events(p, q, delta):
    """The same from all 2^n events."""
    events = np.array(list(itertools.product([0.0, 1.0], repeat=len(p))))
    mass, other = events @ p - delta, events @ q
    with np.errstate(divide="ignore"):
        return max(0.0, np.max(np.log(mass[mass > 1e-14]) - np.log(other[mass > 1e-14]), initial=0.0))


def thresholds(table):
    """The exact thresholds of the digits in use as (integer, bits), and that of the sign."""
    columns = [[int(word) for word in column] for column in np.asarray(table).T]
    digits = []
    for j, (high, middle, low) in enumerate(columns[:-1]):
        if high | middle | low:
            rare = j == 0 or high == 0
            digits.append((high << 64 | middle << 32 | low, 96) if rare else (high << 32 | middle, 64))
    high, middle, low = columns[-1]
    return digits, (high << 64 | middle << 32 | low, 96)


def _log_errors(threshold, bits, scaled):
    """Log of realised over ideal probability 1 / (1 + e^scaled), of a zero and of a one."""
    with localcontext() as context:
        context.prec = 60
        ideal = 1 / (1 + Decimal(scaled).exp())
        off = Decimal(threshold) / Decimal(2**bits) - ideal
        return math.log1p(-float(off / (1 - ideal))), math.log1p(float(off / ideal))


def digit_errors(table, rate):
    """(D, 2) errors of each digit's two values, and those of the sign, in log-probability."""
    digits, sign = thresholds(table)
    assert len(digits) == math.log2(support(rate))
    errors = [_log_errors(*digit, rate * 2**j) for j, digit in enumerate(digits)]
    return np.array(errors).reshape(-1, 2), np.array(_log_errors(*sign, rate))


def realised_law(table, rate):
    """Outcomes z, ideal P(z), and log of realised over ideal probability, from the integers of the table."""
    digits, sign = digit_errors(table, rate)
    g = np.arange(2 ** len(digits))
    log_error = np.zeros(len(g))
    for j, (zero, one) in enumerate(digits):
        log_error += np.where(g >> j & 1, one, zero)
    z, p = discrete_laplace(rate)
    return z, p, np.concatenate([log_error[::-1] + sign[1], log_error + sign[0]])


def total_variation(p, log_error):
    return 0.5 * math.fsum(p * np.abs(np.expm1(log_error)))


def _bins(p, n):
    """Starts of bins of neighbouring outcomes: quantiles in the body, powers of two in the tails."""
    below = np.cumsum(p) - p / 2
    tail = np.log2(np.maximum(np.minimum(below, 1 - below), 1e-300))
    change = (np.diff(np.floor(400 * below)) != 0) | (np.diff(np.floor(tail)) != 0)
    starts = [0]
    for start in np.flatnonzero(change) + 1:
        if n * p[starts[-1] : start].sum() >= 10 and n * p[start:].sum() >= 10:
            starts.append(start)
    return starts


def chi_square(counts, p):
    """p-value of counts of ordered outcomes against their probabilities; 0 for an impossible outcome."""
    counts, n = np.asarray(counts), np.sum(counts)
    if np.any(counts[p == 0]):
        return 0.0
    starts = _bins(p, n)
    expected, observed = np.add.reduceat(p, starts) * n, np.add.reduceat(counts, starts)
    return stats.chi2.sf(np.sum((observed - expected) ** 2 / expected), len(starts) - 1)


def noise_test(draws, rate):
    """p-value of integer draws against the discrete Laplace law."""
    z, p = discrete_laplace(rate)
    draws = np.asarray(draws).ravel()
    assert draws.min() >= z[0] and draws.max() <= z[-1]
    return chi_square(np.bincount(draws - z[0], minlength=len(z)), p)


@jax.jit
def jax_uniform(bits):
    """The float32 uniform in [0, 1) that jax.random makes of 32 random bits."""
    one = jax.lax.bitcast_convert_type((bits >> 9) | jnp.uint32(0x3F800000), jnp.float32)
    return one - jnp.float32(1.0)


@jax.jit
def jax_laplace(bits):
    """The float32 value that jax.random.laplace makes of 32 random bits."""
    low = jnp.float32(-1.0 + 2.0**-24)
    u = jnp.maximum(low, jax_uniform(bits) * (jnp.float32(1.0) - low) + low)
    return jnp.sign(u) * jnp.log1p(-jnp.abs(u))


def every_uniform():
    """One word of 32 bits for each of the 2^23 uniforms of float32 jax.random."""
    return np.arange(2**23, dtype=np.uint32) << np.uint32(9)


def run_lengths(values):
    """Distinct entries of a sorted array, and how often each occurs."""
    starts = np.flatnonzero(np.append(True, values[1:] != values[:-1]))
    return values[starts], np.diff(starts, append=len(values))


def count_below(from_words, high_bit, t, dtype):
    """For an exponential from two words: how many of the low 63 bits, with this high bit, give a value beyond t.

    Beyond is E > t for a high bit of 1, where E falls with the other bits, and E <= t for 0, where it rises.
    """

    def value(place):
        words = np.stack([place >> 32 | high_bit << 31, place & 0xFFFFFFFF]).astype(np.uint32)
        return np.asarray(from_words(words)).astype(dtype)

    low, high = np.full(len(t), -1, np.int64), np.full(len(t), 2**63 - 1, np.int64)
    for _ in range(64):
        middle = np.maximum((low & high) + ((low ^ high) >> 1), 0)
        inside = value(middle) > t if high_bit else value(middle) <= t
        low, high = np.where(inside, middle, low), np.where(inside, high, middle)
    # All 2^63 places are inside where the last one is.
    last = value(np.full(len(t), 2**63 - 1, np.int64))
    last = last > t if high_bit else last <= t
    return [2**63 if whole else int(n) for whole, n in zip(last, high, strict=True)]


def tail_errors(above, below, t):
    """Largest relative errors of P(E > t) and of P(E <= t), where these are at least 2^-40."""
    upper, lower = np.exp(-t), -np.expm1(-t)
    errors = np.abs(above / upper - 1), np.abs(below / lower - 1)
    return np.max(errors[0][upper >= 2.0**-40]), np.max(errors[1][lower >= 2.0**-40])
