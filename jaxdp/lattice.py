"""Public lattices: values become integers of steps before any noise is added, and the noise is an integer.

A float plus float noise is not differentially private. Rounding a value with floor(v / g), g a power of two, is
exact in floating point, and the sensitivity is counted in steps of the lattice.
"""

from __future__ import annotations

import math
from typing import Any

import jax
import jax.core
import jax.numpy as jnp
import numpy as np

from jaxdp._float64 import float64

__all__ = ["default_granularity", "from_steps", "sensitivity_steps", "to_steps"]

TAIL = 46.0
"""The noise ends at the first power of two where its tail probability is at most e^-TAIL (1e-20)."""

_POWERS = np.ldexp(1.0, np.arange(-500, 501))

MAX_STEPS = 2.0**52
"""Values are clamped to this many steps on both sides: doubles count them exactly, noise included."""


def is_integer(dtype: np.dtype) -> bool:
    """Whether values of this dtype are integers, which have a lattice of their own."""
    return bool(jnp.issubdtype(dtype, jnp.integer))


def tail_delta(epsilon: Any) -> Any:
    """Bound on the delta of noise of budget `epsilon` that ends at e^-TAIL."""
    expm1 = jnp.expm1 if isinstance(epsilon, jax.core.Tracer) else math.expm1
    return expm1(epsilon) * math.exp(-TAIL)


@float64
def default_granularity(sensitivity: Any, epsilon: Any, divisor: Any = 4096.0) -> jax.Array:
    """A power of two near sensitivity / divisor, between 2^-24 and 2^-8 of the noise's scale."""
    scale = sensitivity / epsilon
    fine = jnp.clip(sensitivity / divisor, scale * 2.0**-23, scale * 2.0**-8)
    # A table, since exp2 and ldexp are not exact on every backend.
    place = jnp.searchsorted(_POWERS, fine, side="right") - 1
    return jnp.asarray(_POWERS)[jnp.maximum(place, 0)]


@float64
def to_steps(value: Any, granularity: Any) -> jax.Array:
    """floor(value / granularity) as an exact integer in float64, clamped; NaN goes to the lower end."""
    value = value.astype(jnp.float64)
    value = jnp.where(jnp.isnan(value), -jnp.inf, value)
    return jnp.clip(jnp.floor(value / granularity), -MAX_STEPS, MAX_STEPS)


@float64(static_argnames=("integer",))
def sensitivity_steps(sensitivity: Any, granularity: Any, changed: Any, *, integer: bool) -> jax.Array:
    """L1 sensitivity in steps, where one record changes at most `changed` coordinates.

    Each changed coordinate may cross one more step than its share of the distance. For floating values one step
    on top covers the rounding errors of the computation behind them; integers are exact, and on a lattice with
    steps of at most 1 they lie on it.
    """
    whole = jnp.ceil(sensitivity / granularity)
    changed = changed.astype(jnp.float64)
    if integer:
        return whole + jnp.where(granularity <= 1.0, 0.0, changed - 1.0)
    return whole + changed


@float64(static_argnames=("dtype",))
def from_steps(steps: Any, granularity: Any, *, dtype: np.dtype) -> jax.Array:
    """The released value in the caller's dtype (post-processing): saturated, NaN for NaN (integers: lowest)."""
    value = steps * granularity
    if not is_integer(dtype):
        limit = float(jnp.finfo(dtype).max)
        return jnp.clip(value, -limit, limit).astype(dtype)
    info = jnp.iinfo(dtype)
    top = np.nextafter(float(info.max), 0.0) if float(info.max) > info.max else float(info.max)
    value = jnp.clip(jnp.floor(value), float(info.min), top)
    return jnp.where(jnp.isnan(value), info.min, value).astype(dtype)
