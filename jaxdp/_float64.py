"""One decorator that computes in float64 inside anybody's float32 program."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.core
import jax.numpy as jnp
import numpy as np

__all__ = ["argmax", "float64", "read"]


def _widen(leaf: Any) -> Any:
    """Casts real floating leaves to float64; integers, random words and booleans stay as they are."""
    array = jnp.asarray(leaf)
    return array.astype(jnp.float64) if jnp.issubdtype(array.dtype, jnp.floating) else array


def _settle(leaf: Any) -> Any:
    """Makes vmap over a NumPy double, which calls itself float32, hold a float32 before the scope looks at it."""
    if isinstance(leaf, jax.core.Tracer) and jnp.issubdtype(leaf.dtype, jnp.number):
        return jnp.array(leaf, copy=True)
    return leaf


def float64(fun: Callable | None = None, *, static_argnames: tuple[str, ...] = ()) -> Callable:
    """Compiles a pure function of arrays so that it runs in double precision wherever it is called.

    Probabilities, hazards, thresholds and laws need float64 whatever the caller's `jax_enable_x64` is. The
    decorated function is jit-compiled under `jax.enable_x64(True)`; its floating arguments (Python floats,
    NumPy doubles and float32 tracers alike) arrive as float64. It can be called inside jit, vmap, scan and
    shard_map of a float32 program, and returns float64 arrays there.

    Random words must be drawn by the caller, outside: under x64 the default dtypes of jax.random differ.
    Some lowerings run outside the scope, in the caller's mode: gammainc, betainc, argmax (use the one below) and
    jax.checkpoint do not work.
    """
    if fun is None:
        return functools.partial(float64, static_argnames=static_argnames)

    @functools.partial(jax.jit, static_argnames=static_argnames)
    @functools.wraps(fun)
    def core(*args: Any, **kwargs: Any) -> Any:
        dynamic = {name: value for name, value in kwargs.items() if name not in static_argnames}
        static = {name: value for name, value in kwargs.items() if name in static_argnames}
        return fun(*jax.tree.map(_widen, args), **jax.tree.map(_widen, dynamic), **static)

    @functools.wraps(fun)
    def scoped(*args: Any, **kwargs: Any) -> Any:
        if not jax.config.read("jax_enable_x64"):
            args, kwargs = jax.tree.map(_settle, (args, kwargs))
        with jax.enable_x64(True):
            return core(*args, **kwargs)

    return scoped


def read(value: Any) -> Any:
    """A computed float64 number as NumPy's, unless it is traced.

    Arithmetic on float64 JAX arrays in a float32 program warns and truncates; on NumPy's it does not.
    """
    return value if isinstance(value, jax.core.Tracer) else np.asarray(value)[()]


def argmax(values: jax.Array) -> jax.Array:
    """int32 index of the first largest entry of a vector, for use inside a float64 core; n for NaN alone."""
    n = values.shape[0]
    return jnp.min(jnp.where(values == jnp.max(values), jax.lax.iota(jnp.int32, n), jnp.int32(n)))
