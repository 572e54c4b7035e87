"""Order-preserving integers of booleans, integers and floats, exact to the last bit, and their cells.

Integers are their own codes. Floats are mapped by their bits, so that nothing is rounded: -0.0 lies just below 0.0, and
every NaN is one code above infinity. Codes are int32 or int64; 64-bit ones are computed inside `jax.enable_x64(True)`.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

__all__ = [
    "arithmetic", "arithmetic_dtype", "cells", "decode", "encode", "float_edges", "lowest_bit", "spell", "spell_bit"
]  # fmt: skip

# Lowest bits of what has none, above all exponents of floats.
_ZERO, _INFINITE, _NAN = 2000, 2001, 2002
_WORDS = {_ZERO: "zero", _INFINITE: "infinite", _NAN: "nan"}


def encode(leaf: jax.Array, code: np.dtype) -> jax.Array:
    """Order-preserving signed integers of an array of booleans, integers or floats."""
    values = arithmetic(leaf)
    bits = 8 * values.dtype.itemsize
    signed = jnp.int64 if bits == 64 else jnp.int32
    if jnp.issubdtype(values.dtype, jnp.signedinteger):
        return values.astype(code)
    raw = lax.bitcast_convert_type(values, signed)
    if jnp.issubdtype(values.dtype, jnp.unsignedinteger):
        return (raw ^ np.iinfo(signed).min).astype(code)
    top = np.iinfo(signed).max
    infinity = np.asarray(float_edges(np.dtype(values.dtype))[-1], signed)
    # Bits decide what is NaN: float comparisons may flush subnormals, and payloads are not told apart.
    nan = (raw & top) > infinity
    return jnp.where(nan, np.asarray(top, signed), jnp.where(raw < 0, raw ^ top, raw)).astype(code)


def lowest_bit(leaf: jax.Array, code: np.dtype) -> jax.Array:
    """Exponent b of the largest power of two 2^b that divides each float; zero, infinities and NaN come last.

    Adding noise to a number rounds it to the spacing of floats of that size, and what is near zero after that is a
    multiple of a larger power of two than small noise is. So this tells inputs apart where thresholds do not.
    """
    values = arithmetic(leaf)
    bits = 8 * values.dtype.itemsize
    signed = np.dtype(np.int64 if bits == 64 else np.int32)
    digits = jnp.finfo(values.dtype).nmant
    top = np.asarray((1 << (bits - 1 - digits)) - 1, signed)  # exponent field of infinities and NaN
    one = np.asarray(1, signed)
    raw = lax.bitcast_convert_type(values, signed)
    exponent = lax.shift_right_logical(raw, np.asarray(digits, signed)) & top
    fraction = raw & np.asarray((1 << digits) - 1, signed)
    whole = jnp.where(exponent > 0, fraction | np.asarray(1 << digits, signed), fraction)
    trailing = np.asarray(bits - 1, signed) - lax.clz(whole & -whole)
    found = trailing + jnp.maximum(exponent, one) - np.asarray((int(top) >> 1) + digits, signed)
    found = jnp.where(whole == 0, np.asarray(_ZERO, signed), found)
    special = jnp.where(fraction == 0, np.asarray(_INFINITE, signed), np.asarray(_NAN, signed))
    return jnp.where(exponent == top, special, found).astype(code)


def cells(codes: jax.Array, edges: jax.Array) -> jax.Array:
    """Number of sorted edges strictly below each code: code c lies in cell i if edges[i-1] < c <= edges[i].

    32 edges are compared at once (vectorised, no gather). Longer lists, a power of two, are first narrowed by 32 such
    comparisons and then halved. The barriers keep the compiler from fusing the steps into one that repeats them.
    """
    size = edges.shape[0]
    stride = max(size // 32, 1)
    coarse = edges if stride == 1 else edges[stride - 1 :: stride]
    cell = jnp.sum((codes[:, None] > coarse[None, :]).astype(jnp.int32), axis=1, dtype=jnp.int32)
    if stride == 1:
        return cell
    # A code above every edge would start its search behind the end of the list.
    cell = lax.optimization_barrier(cell * np.int32(stride))
    step = stride // 2
    padded = jnp.concatenate([edges, jnp.full(stride, np.iinfo(edges.dtype).max, edges.dtype)])
    while step:
        pivot = padded.at[cell + np.int32(step - 1)].get(mode="promise_in_bounds")
        cell = lax.optimization_barrier(cell + jnp.where(codes > pivot, np.int32(step), np.int32(0)))
        step //= 2
    return cell


def decode(codes: np.ndarray, dtype: np.dtype) -> np.ndarray:
    """Values of codes, in the type that the codes were made from (16-bit floats and small integers widened)."""
    if jnp.issubdtype(dtype, jnp.floating):
        integer, real = (np.int64, np.float64) if dtype.itemsize == 8 else (np.int32, np.float32)
        bits = codes.astype(integer)
        return np.where(bits < 0, bits ^ np.iinfo(integer).max, bits).view(real)
    if dtype in (np.dtype(np.uint32), np.dtype(np.uint64)):
        signed = np.int64 if dtype.itemsize == 8 else np.int32
        return codes.astype(signed).view(dtype) ^ dtype.type(1 << (8 * dtype.itemsize - 1))
    return codes


def spell(code: Any, dtype: np.dtype) -> str:
    """The value behind a code, as text."""
    value = decode(np.asarray([code]), dtype)[0]
    if jnp.issubdtype(dtype, jnp.floating):
        return format(float(value), ".17g" if dtype.itemsize == 8 else ".9g")
    return str(bool(value)) if dtype == np.bool_ else str(int(value))


def spell_bit(code: Any) -> str:
    """A lowest bit as text."""
    return _WORDS.get(int(code), f"2^{int(code)}")


def float_edges(dtype: np.dtype) -> tuple[int, ...]:
    """Edges that set -inf, +inf and NaN apart from the finite values of a float type."""
    if not jnp.issubdtype(dtype, jnp.floating):
        return ()
    infinity = int(np.asarray(np.inf, np.float64).view(np.int64)) if dtype.itemsize == 8 else 0x7F800000
    lowest = -infinity - 1
    return (lowest, infinity - 1, infinity)


def arithmetic_dtype(dtype: np.dtype) -> np.dtype:
    """Type in which a leaf is summed: its own, at least 32 bits."""
    if dtype.itemsize >= 4:
        return dtype
    return np.dtype(np.float32 if jnp.issubdtype(dtype, jnp.floating) else np.int32)


def arithmetic(leaf: jax.Array) -> jax.Array:
    return leaf.astype(arithmetic_dtype(np.dtype(leaf.dtype)))
