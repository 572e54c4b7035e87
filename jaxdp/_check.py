"""Argument checks: concrete bad values raise ValueError with the name and the value; traced ones pass.

A traced value cannot be looked at, so every compiled core repeats the test and fails closed (NaN, index -1).
Nothing here looks at the data under release: an error that depends on it would itself be a release.
"""

from __future__ import annotations

import math
from typing import Any

import jax
import jax.core
import jax.numpy as jnp
import numpy as np

_TINY = float(np.finfo(np.float64).tiny)

MAX_EPSILON = 32.0
"""Largest budget of a mechanism whose noise lives on a lattice.

The noise stops where its probability is e^-46, which costs delta = (e^epsilon - 1) e^-46: 8e-7 at 32.
"""


def is_traced(value: Any) -> bool:
    return isinstance(value, jax.core.Tracer)


def array(name: str, value: Any) -> Any:
    """Arrays as they are, the rest as NumPy's; integers beyond 64 bits are clamped, since no error may tell them."""
    if hasattr(value, "dtype"):
        return value
    result = np.asarray(value)
    if result.dtype == object and all(type(entry) is int for entry in result.ravel()):
        result = np.asarray(np.clip(result, -(2**62), 2**62), np.int64)
    return result


def real_dtype(name: str, value: Any) -> np.dtype:
    """The dtype of an integer or floating argument; anything else is a ValueError, which does not print it."""
    dtype = value.dtype if hasattr(value, "dtype") else np.asarray(value).dtype
    if not (jnp.issubdtype(dtype, jnp.integer) or jnp.issubdtype(dtype, jnp.floating)):
        raise ValueError(f"{name} must be real (integer or floating), got dtype {dtype}")
    return dtype


def scalar(name: str, value: Any) -> Any:
    """A real scalar: a Python float where it is concrete, the tracer itself where it is traced."""
    if type(value) is float:
        return value
    if type(value) is int:
        return float(value) if abs(value) < 2**1023 else math.copysign(math.inf, value)
    try:
        real_dtype(name, value)
    except ValueError as error:
        raise ValueError(f"{error}: {value!r}") from None  # parameters are public
    if np.shape(value) != ():
        raise ValueError(f"{name} must be a scalar (batch with jax.vmap), got shape {np.shape(value)}")
    return value if is_traced(value) else float(value)


def finite(name: str, value: Any) -> Any:
    value = scalar(name, value)
    if not is_traced(value) and not math.isfinite(value):
        raise ValueError(f"{name} must be finite, got {value!r}")
    return value


def positive(name: str, value: Any) -> Any:
    value = scalar(name, value)
    # Subnormal numbers are zero to XLA.
    if not is_traced(value) and not _TINY <= value < math.inf:
        raise ValueError(f"{name} must be positive and finite, got {value!r}")
    return value


def share(name: str, value: Any) -> Any:
    value = scalar(name, value)
    if not is_traced(value) and not 0.0 <= value <= 1.0:
        raise ValueError(f"{name} must be in [0, 1], got {value!r}")
    return value


def lattice_epsilon(epsilon: Any) -> Any:
    epsilon = positive("epsilon", epsilon)
    if not is_traced(epsilon) and epsilon > MAX_EPSILON:
        raise ValueError(f"epsilon must be at most {MAX_EPSILON:g} for noise on a lattice, got {epsilon!r}")
    return epsilon


def probability(name: str, value: Any) -> Any:
    value = scalar(name, value)
    if not is_traced(value) and not 0.0 <= value < 1.0:
        raise ValueError(f"{name} must be in [0, 1), got {value!r}")
    return value


def granularity(value: float | None) -> None:
    """None (chosen from the public parameters) or a power of two that doubles scale exactly; always static."""
    if value is None:
        return
    if is_traced(value):
        raise ValueError("granularity is static: build the record outside of jit and vmap")
    number = positive("granularity", value)
    if math.frexp(number)[0] != 0.5 or not 2.0**-500 <= number <= 2.0**500:
        raise ValueError(f"granularity must be a power of two, got {value!r}")


def key(value: Any) -> jax.Array:
    """One typed PRNG key."""
    if not isinstance(value, jax.Array) or not jnp.issubdtype(value.dtype, jax.dtypes.prng_key):
        kind = getattr(value, "dtype", type(value).__name__)
        raise ValueError(f"key must be a typed key such as jax.random.key(0), got {kind}")
    if value.shape != ():
        raise ValueError(f"key must be one key (batch with jax.vmap), got shape {value.shape}")
    return value


def pair(summary: Any, parts: str) -> tuple[Any, Any]:
    """A summary of two parts, which the message names."""
    if not isinstance(summary, (tuple, list)) or len(summary) != 2:
        raise ValueError(f"summary must be a pair {parts}, got {type(summary).__name__}")
    return tuple(summary)


def vector(name: str, value: Any) -> Any:
    """A one-dimensional, non-empty real array (NumPy doubles keep their precision)."""
    value = array(name, value)
    real_dtype(name, value)
    if np.ndim(value) != 1 or np.shape(value)[0] == 0:
        raise ValueError(f"{name} must have shape (n,) with n >= 1, got shape {np.shape(value)}")
    return value


def choice(name: str, value: Any, options: tuple) -> None:
    if value not in options:
        raise ValueError(f"{name} must be one of {options}, got {value!r}")


def flag(name: str, value: Any) -> None:
    if not isinstance(value, (bool, np.bool_)):
        raise ValueError(f"{name} must be True or False, got {value!r}")


def count(name: str, value: Any, *, optional: bool = False) -> None:
    """A static positive integer, below 2^62."""
    if optional and value is None:
        return
    if isinstance(value, (bool, np.bool_)) or not isinstance(value, (int, np.integer)) or value < 1:
        raise ValueError(f"{name} must be a positive integer, got {value!r}")
    if value >= 2**62:
        raise ValueError(f"{name} must be below 2^62, got 2^{math.log2(value):.0f}")


def devices(value: Any) -> tuple[Any, ...]:
    """The devices that are asked for, or all."""
    try:
        found = tuple(jax.devices() if value is None else value)
    except TypeError:
        found = ()
    if not found or not all(isinstance(device, jax.Device) for device in found) or len(set(found)) < len(found):
        raise ValueError(f"devices must be distinct JAX devices, at least one, got {value!r}")
    if len({device.platform for device in found}) > 1:
        raise ValueError(f"devices must be of one platform, got {value!r}")
    return found
