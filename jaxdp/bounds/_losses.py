"""Bounds of a sum or a mean of losses, one number a record: the arithmetic and the checks its statistics share."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxdp import _check
from jaxdp._float64 import float64
from jaxdp.bounds._output_bounds import OutputBounds

MAX_RECORDS = 2**31
"""Sums of that many 32-bit steps fit in int64."""

_BITS = 31
_CAP = 2.0**448
_ROOM = 3 - 53


def bounds(
    loss: Callable,
    records: tuple,
    ends: tuple,
    *,
    radius: int,
    dtype: Any,
    total: bool = False,
    unbounded: bool = False,
) -> OutputBounds:
    """Bounds of the mean (total: the sum) of a loss.

    Args:
        loss: A module-level function (*records, *ends) -> (values (n,), low, high), all float64: the loss of each
            record, without NaN, and its public range. It makes `high` NaN for bad (traced) ends.
        records: Arrays with leading axis n.
        ends: Public scalars, checked where they are concrete.
        radius: Static.
        dtype: Of the entries.
        total: Sum instead of mean.
        unbounded: `high` is infinite.
    """
    check_radius(radius)
    n = np.shape(records[0])[0]
    if n > MAX_RECORDS:
        raise ValueError(f"at most {MAX_RECORDS} records can be summed exactly, got {n}")
    core = _unbounded if unbounded else _bounded
    return OutputBounds(*core(records, ends, loss=loss, radius=radius, dtype=dtype, total=total), monotonic=True)


@float64(static_argnames=("loss", "radius", "dtype", "total"))
def _bounded(
    records: tuple, ends: tuple, *, loss: Callable, radius: int, dtype: np.dtype, total: bool
) -> tuple[jax.Array, jax.Array, jax.Array]:
    """Level l replaces the l least losses by `high`, or the l largest by `low`: exact in integers."""
    values, low, high = loss(*records, *_float64(ends))
    n = values.shape[0]
    kept, size = min(radius, n), _size(n, total)
    width = high - low
    # A power of two, so that integers and other short binary fractions lie on the grid, and `low + q * step` is
    # rounded once whether or not the compiler fuses it: entries l and l + 1 are compared with no tolerance.
    step = power_of_two(width) * 2.0 ** (1 - _BITS)
    top = jnp.rint(width / step)
    steps = jnp.clip(jnp.rint((values - low) / step), 0.0, top).astype(jnp.uint32)
    ordered = jnp.sort(steps)
    everything = jnp.sum(steps.astype(jnp.int64))
    up = everything - _prefix_sums(ordered[:kept]) + jnp.arange(kept + 1) * top.astype(jnp.int64)
    down = everything - _prefix_sums(ordered[::-1][:kept])

    # From here on every operation is monotone, from the integer of a level to its entry.
    least, most = (low, high) if not total else (n * low, n * high)
    quotients = jax.lax.optimization_barrier(jnp.stack([down, up]).astype(jnp.float64) / size)
    lower, upper = jnp.clip(least + quotients * step, least, most)
    beyond = jnp.ones(radius + 1 - kept)
    lower = jnp.concatenate([lower, least * beyond]).astype(dtype)
    upper = jnp.concatenate([lower[:1], jnp.concatenate([upper[1:], most * beyond]).astype(dtype)])

    # Two numbers that are rounded to dtype differ by more than what they are rounded from.
    rounding = (float(jnp.finfo(dtype).eps) + 2.0**-50) * jnp.maximum(jnp.abs(least), jnp.abs(most))
    sensitivity = (top * step / size + rounding) * (1.0 + float(jnp.finfo(dtype).eps))
    largest = 2.0 ** _exponent(dtype)
    valid = (width >= 1.0 / largest) & (jnp.maximum(jnp.abs(low), jnp.abs(high)) <= largest)
    nan = jnp.full((), jnp.nan, dtype)
    return tuple(jnp.where(valid, entry, nan) for entry in (lower, upper, sensitivity.astype(dtype)))


@float64(static_argnames=("loss", "radius", "dtype", "total"))
def _unbounded(
    records: tuple, ends: tuple, *, loss: Callable, radius: int, dtype: np.dtype, total: bool
) -> tuple[jax.Array, jax.Array, jax.Array]:
    """Level l replaces the l largest losses by `low`; upwards all is possible.

    There is no public grid, so sums are floats: P_k, the sum of the k least excesses over `low`, nonnegative. It has
    relative error n 2^-53 at most, in any order, and the contract asks for P_(k-1)(x) <= P_k(x'), which holds before
    rounding. The factor 1 - l eta with eta >= 8 n 2^-53 makes room for the errors of both sides.
    """
    values, low, _ = loss(*records, *_float64(ends))
    n = values.shape[0]
    kept, size = min(radius, n), _size(n, total)
    excess = values - low
    # No sum of these is subnormal: relative errors stay small.
    excess = jnp.where(excess >= 2.0**-900, excess, 0.0)
    # Nonnegative floats are ordered like their bits, and integers sort several times faster.
    bits = jax.lax.bitcast_convert_type(excess, jnp.int64)
    sums = _monotone_prefix_sums(jax.lax.bitcast_convert_type(jnp.sort(bits), jnp.float64))
    sums = jnp.concatenate([jnp.zeros(1), sums])[n - kept :][::-1]
    eta = 2.0 ** (math.ceil(math.log2(n)) + _ROOM)
    sums = sums * jnp.maximum(1.0 - eta * jnp.arange(kept + 1.0), 0.0)
    least = n * low if total else low
    entries = least + jax.lax.optimization_barrier(sums / size)
    entries = jnp.minimum(entries, float(jnp.finfo(dtype).max)).astype(dtype)
    lower = jnp.concatenate([entries, jnp.broadcast_to(least.astype(dtype), (radius + 1 - kept,))])
    upper = jnp.concatenate([entries[:1], jnp.full(radius + 1, jnp.inf, dtype)])
    valid = jnp.abs(low) <= 2.0 ** _exponent(dtype)
    nan = jnp.full((), jnp.nan, dtype)
    return tuple(jnp.where(valid, entry, nan) for entry in (lower, upper, jnp.full((), jnp.inf, dtype)))


def power_of_two(x: jax.Array) -> jax.Array:
    """The largest one not above a positive x, exact: frexp fails under jit on JAX 0.12, exp2 is not exact."""
    bits = jax.lax.bitcast_convert_type(x, jnp.int64)
    return jax.lax.bitcast_convert_type(bits & jnp.int64(0x7FF << 52), jnp.float64)


def _size(n: int, total: bool) -> jax.Array:
    """What sums are divided by; not a constant, by whose rounded reciprocal the compiler would multiply."""
    return jax.lax.optimization_barrier(jnp.full((), 1.0 if total else float(n)))


def _prefix_sums(steps: jax.Array) -> jax.Array:
    """Sums of the first 0, 1, .., k integers."""
    return jnp.concatenate([jnp.zeros(1, jnp.int64), jnp.cumsum(steps.astype(jnp.int64))])


def _monotone_prefix_sums(values: jax.Array) -> jax.Array:
    """Prefix sums by additions alone, grouped by position only: no entry falls when a value rises.

    About sqrt(n) blocks side by side, then the blocks one after another (a library's cumsum may group at run time).
    """
    n = values.shape[0]
    blocks = math.isqrt(n - 1) + 1
    length = -(-n // blocks)
    table = jnp.pad(values, (0, blocks * length - n)).reshape(blocks, length).T
    inside = _running_sums(table)
    before = _running_sums(inside[-1])
    before = jnp.concatenate([jnp.zeros_like(before[:1]), before[:-1]])
    return (before[None, :] + inside).T.reshape(-1)[:n]


def _running_sums(rows: jax.Array) -> jax.Array:
    def add(carry: jax.Array, row: jax.Array) -> tuple[jax.Array, jax.Array]:
        carry = carry + row
        return carry, carry

    return jax.lax.scan(add, jnp.zeros_like(rows[0]), rows)[1]


def clamp(x: jax.Array, lower: Any, upper: Any) -> jax.Array:
    """Data in float64, moved into the range; NaN to its lower end."""
    x = x.astype(jnp.float64)
    return jnp.where(x >= lower, jnp.minimum(x, jnp.minimum(upper, _CAP)), lower)


def width(lower: jax.Array, upper: jax.Array) -> jax.Array:
    """The length upper - lower, NaN for bad traced ends."""
    return jnp.where((upper > lower) & (lower > -jnp.inf), upper - lower, jnp.nan)


def _float64(ends: tuple) -> tuple:
    return tuple(end.astype(jnp.float64) for end in ends)


def _exponent(dtype: np.dtype) -> int:
    """Ranges between 2^-e and 2^e are accepted: no sum of losses leaves the dtype."""
    return 400 if np.dtype(dtype).itemsize == 8 else 96


def entry_dtype(*arrays: Any) -> np.dtype:
    """float32, or float64 if JAX has it and an array holds doubles (or none is floating)."""
    dtypes = [array.dtype for array in arrays]
    floating = [dtype.itemsize for dtype in dtypes if jnp.issubdtype(dtype, jnp.floating)]
    wide = max(floating) == 8 if floating else True
    return np.dtype(jax.dtypes.canonicalize_dtype(np.float64 if wide else np.float32))


def check_radius(radius: Any) -> None:
    """A static integer, 0 or more."""
    if isinstance(radius, (bool, np.bool_)) or not isinstance(radius, (int, np.integer)) or radius < 0:
        raise ValueError(f"radius must be an integer >= 0 and static, got {radius!r}")


def check_range(lower: Any, upper: Any, *, dtype: np.dtype, power: int = 1) -> tuple[Any, Any, bool]:
    """The ends, and whether the upper one is infinite. The losses' range is (upper - lower)^power."""
    lower, upper = _check.finite("lower", lower), _check.scalar("upper", upper)
    narrowest = 2.0 ** -(_exponent(dtype) // power)
    largest = 0.5 / narrowest
    if not _check.is_traced(lower) and abs(lower) > largest:
        raise ValueError(f"lower must be between -{largest:.3g} and {largest:.3g}, got {lower!r}")
    if _check.is_traced(upper):
        return lower, upper, False
    if upper == math.inf:
        return lower, upper, True
    if not abs(upper) <= largest:
        raise ValueError(f"upper must be at most {largest:.3g} or infinite, got {upper!r}")
    if not _check.is_traced(lower) and not upper - lower >= narrowest:
        raise ValueError(f"upper must be above lower, got lower={lower!r} and upper={upper!r}")
    return lower, upper, False


def check_limit(limit: Any) -> Any:
    """The largest size of a logit."""
    limit = _check.positive("limit", limit)
    if not _check.is_traced(limit) and not MIN_LIMIT <= limit <= MAX_LIMIT:
        raise ValueError(f"limit must be between {MIN_LIMIT:g} and {MAX_LIMIT:g}, got {limit!r}")
    return limit


MIN_LIMIT, MAX_LIMIT = 1e-6, 1e12


def valid_limit(limit: jax.Array) -> jax.Array:
    """NaN for a bad traced limit."""
    return jnp.where((limit >= MIN_LIMIT) & (limit <= MAX_LIMIT), limit, jnp.nan)


def check_pair(names: tuple[str, str], one: Any, two: Any) -> tuple[Any, Any]:
    """Two real vectors of one length."""
    one, two = _check.vector(names[0], one), _check.vector(names[1], two)
    check_lengths(names, one, two)
    return one, two


def check_labels(name: str, value: Any, *, floating: bool = False) -> Any:
    """An integer or boolean vector (floating: or real)."""
    value = value if isinstance(value, (np.ndarray, jax.Array)) else np.asarray(value)
    accepted = [jnp.integer, jnp.bool_] + [jnp.floating] * floating
    if not any(jnp.issubdtype(value.dtype, kind) for kind in accepted):
        raise ValueError(f"{name} must be integers or booleans, got dtype {value.dtype}")
    if np.ndim(value) != 1 or np.shape(value)[0] == 0:
        raise ValueError(f"{name} must have shape (n,) with n >= 1, got shape {np.shape(value)}")
    return value


def check_lengths(names: tuple[str, str], one: Any, two: Any) -> None:
    if len(one) != len(two):
        raise ValueError(f"{names[0]} and {names[1]} must have the same length, got {len(one)} and {len(two)}")


def draw_numbers(rng: np.random.Generator, n: int, lower: float, upper: float) -> np.ndarray:
    """Numbers in and around a range: ties, constants, ends, integers, heavy tails, huge ones, NaN and infinities."""
    width = upper - lower
    inside = lower + width * rng.random(n)
    few = rng.choice(np.append(rng.choice(inside, 2), [lower, upper, 0.0, -0.0]), n)
    kinds = [
        lambda: inside,
        lambda: few,
        lambda: np.full(n, rng.choice(few)),
        lambda: rng.choice([lower, upper], n),
        lambda: np.rint(inside) + rng.integers(-1, 2, n),
        lambda: lower + 0.01 * width * rng.standard_cauchy(n),
        lambda: np.nextafter(few, rng.choice([-np.inf, np.inf])),
        lambda: rng.choice([np.nan, np.inf, -np.inf, 1e30, -1e30, lower, upper, 1e-30], n),
    ]
    drawn = kinds[rng.integers(len(kinds))]()
    # A mixture of kinds now and then.
    return np.where(rng.random(n) < rng.choice([0.0, 0.1, 0.5]), kinds[rng.integers(len(kinds))](), drawn)


def draw_pairs(rng: np.random.Generator, n: int, lower: float, upper: float) -> tuple[np.ndarray, np.ndarray]:
    """Predictions and targets; equal ones among them."""
    predictions, targets = draw_numbers(rng, n, lower, upper), draw_numbers(rng, n, lower, upper)
    return np.where(rng.random(n) < rng.choice([0.0, 0.5, 1.0]), targets, predictions), targets


def draw_logits(rng: np.random.Generator, shape: tuple, limit: float) -> np.ndarray:
    """Logits within the limit and beyond, ties, NaN and infinities among them."""
    return draw_numbers(rng, math.prod(shape), -limit, limit).reshape(shape)
