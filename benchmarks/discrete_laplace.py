"""Discrete Laplace noise by scale: as one array and by vmap, against OpenDP, NumPy and bare random bits.

All contestants but the last draw integers Z with P(Z = z) proportional to e^(-|z| / scale), which is checked. NumPy
subtracts geometric variables made from 53-bit floats: good enough for a chi-square test, not for privacy. OpenDP's law
is exact, ours to 2^-50. The last contestant makes as many random words as one of our draws compares, and nothing of
them, with jax.random.bits, which XLA makes slowly on a CPU: jaxdp unrolls the same generator. The scale is an argument
of our compiled functions, so one program serves all of them.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import jaxdp
from benchmarks.harness import Size, against_opendp, check, race

_PROMISES = {8: (50.0, 35.0), 4096: (20.0, 20.0), 1: (None, None), 2**20: (None, None)}
"""Scale: promised ratios to OpenDP, as one array and by vmap over keys."""

_draw = jaxdp.random.discrete_laplace
_array = jax.jit(lambda key, rate, n: _draw(key, rate, (n,)), static_argnums=2)
_batch = jax.jit(lambda keys, rate: jax.vmap(lambda key: _draw(key, rate))(keys))
_split = jax.jit(lambda key, rate, n: _batch(jax.random.split(key, n), rate), static_argnums=2)
_bits = jax.jit(lambda key, n: jnp.max(jax.random.bits(key, (n,), jnp.uint32)), static_argnums=1)


def run(size: Size) -> Iterator[dict[str, Any]]:
    n, alone = size.of(1_000_000, 50_000), 5_000 if size.quick else 100_000
    for scale, (array, batched) in _PROMISES.items():
        if scale == 1 and size.late:
            break
        calls = _ours(scale, n) | _others(scale, n, alone)
        promises = {"jaxdp, one array": array, "jaxdp, vmap over keys": batched}
        contestants = against_opendp(calls, promises)
        title = f"Discrete Laplace, scale {scale:,}"
        yield from race(title, contestants, size=size, turns=9, unit="draw", draws=n, scale=scale, dtype="int32")
        for name, (call, _) in calls.items():
            if not name.startswith("jax.random"):
                yield _check(f"{title}: {name}", np.asarray(call()[:1_000_000]), scale)
    yield _check("A scale 30% off", np.asarray(calls["jaxdp, one array"][0]()[:1_000_000]), scale, factor=1.3)


def _ours(scale: int, n: int) -> dict[str, tuple[Callable, int]]:
    key, rate = jax.random.key(scale), 1.0 / scale
    keys = jax.random.split(key, n)
    return {
        "jaxdp, one array": (lambda: _array(key, rate, n), n),
        "jaxdp, vmap over keys": (lambda: _batch(keys, rate), n),
        "jaxdp, vmap over keys, split in the time": (lambda: _split(key, rate, n), n),
    }


def _others(scale: int, n: int, alone: int) -> dict[str, tuple[Callable, int]]:
    """What runs on one core makes `alone` draws, whatever the device."""
    rng, p = np.random.default_rng(scale), -np.expm1(-1.0 / scale)
    # Two words for each digit and for the sign; one or two rare digits compare a third.
    digits = int(np.sum(np.ldexp(1.0 / scale, np.arange(30)) < jaxdp.lattice.TAIL))
    words = 2 * (digits + 1)
    key = jax.random.key(1)
    others = {
        "NumPy, difference of geometrics": (lambda: rng.geometric(p, alone) - rng.geometric(p, alone), alone),
        f"jax.random.bits, {words} words a draw": (lambda: _bits(key, n), n / words),
    }
    if importlib.util.find_spec("opendp") is None:
        return others
    import opendp.prelude as dp

    dp.enable_features("contrib")
    space = dp.vector_domain(dp.atom_domain(T="i64")), dp.l1_distance(T="i64")
    measure, zeros = dp.m.make_laplace(*space, scale=float(scale)), np.zeros(alone // 5, np.int64)
    return {"OpenDP, make_laplace on a vector": (lambda: measure(zeros), len(zeros))} | others


def _check(title: str, draws: np.ndarray, scale: int, factor: float = 1.0) -> dict[str, Any]:
    # Bins of whole numbers of steps, a tenth of the scale wide.
    width, reach = max(1, scale // 10), 20 * scale
    edges = np.arange(-(reach // width), reach // width + 1) * width
    q = np.exp(-1.0 / (factor * scale))
    below = np.where(edges <= 0, q ** (1.0 - edges) / (1.0 + q), 1.0 - q ** np.maximum(edges, 0.0) / (1.0 + q))
    law = np.diff(np.concatenate([[0.0], below, [1.0]]))
    counts = np.bincount(np.searchsorted(edges, draws, side="right"), minlength=len(law))
    return check(title, counts, np.log(law), differ=factor != 1.0)
