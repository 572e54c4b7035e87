"""Exponential noise: as one array and by vmap, against jax.random, NumPy and bare random bits.

All contestants but the last draw from the exponential law with scale 1, checked on 160 bins; a rate 5% off is the
negative control. The same law to a chi-square test is not the same noise: jax.random.exponential has 2^23 values
only, -log(1 - k / 2^23), none above 15.95, and for most of its outputs the privacy loss is infinite; ours has 2^63
values on each side of the median and the tail up to 45.1. The figures show this on the draws themselves. NumPy's
ziggurat needs one word a draw for the most part. The last contestant makes the two words that one of our draws takes
and nothing of them: the floor of the method with jax.random on this device.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import jaxdp
from benchmarks.harness import Contestant, Size, check, figure, race


def run(size: Size) -> Iterator[dict[str, Any]]:
    n, alone = size.of(2_000_000, 100_000), 100_000 if size.quick else 1_000_000
    calls = _calls(n, alone)
    contestants = [
        Contestant(name, call, units, reference=name == "jax.random, one array")
        for name, (call, units) in calls.items()
    ]
    yield from race("Exponential draws", contestants, size=size, turns=15, unit="draw", draws=n, dtype="float32")
    draws = {
        name: np.asarray(call()[:2_000_000])
        for name, (call, _) in calls.items()
        if not name.startswith("jax.random.bits")
    }
    for name, drawn in draws.items():
        yield _check(name, drawn)
    yield _check("jaxdp, one array, against a rate 5% off", draws["jaxdp, one array"], rate=1.05)
    coarse, fine = (_on_lattice(draws[name]) for name in ("jax.random, one array", "jaxdp, one array"))
    title = "share of draws E for which 2^23 (1 - e^-E) is within 0.05 of a whole number"
    yield figure(f"jax.random, {title}", coarse, "", against="0.1 for an exponential variable")
    yield figure(f"jaxdp, {title}", fine, "", against="0.1 for an exponential variable", passed=abs(fine - 0.1) < 0.05)


def _calls(n: int, alone: int) -> dict[str, tuple[Callable, float]]:
    key, rng = jax.random.key(0), np.random.default_rng(0)
    keys = jax.random.split(key, n)
    ours = jax.jit(lambda key: jaxdp.random.exponential(key, (n,)))
    ours_batch = jax.jit(jax.vmap(jaxdp.random.exponential))
    theirs = jax.jit(lambda key: jax.random.exponential(key, (n,)))
    theirs_batch = jax.jit(jax.vmap(jax.random.exponential))
    bits = jax.jit(lambda key: jnp.max(jax.random.bits(key, (n,), jnp.uint32)))
    return {
        "jaxdp, one array": (lambda: ours(key), n),
        "jaxdp, vmap over keys": (lambda: ours_batch(keys), n),
        "jax.random, one array": (lambda: theirs(key), n),
        "jax.random, vmap over keys": (lambda: theirs_batch(keys), n),
        "NumPy, float64": (lambda: rng.standard_exponential(alone), alone),
        "NumPy, float32": (lambda: rng.standard_exponential(alone, np.float32), alone),
        "jax.random.bits, 2 words a draw": (lambda: bits(key), n / 2),
    }


def _check(title: str, draws: np.ndarray, rate: float = 1.0) -> dict[str, Any]:
    edges = np.linspace(0.0, 8.0, 161)[1:]
    below = np.concatenate([[0.0], -np.expm1(-rate * edges), [1.0]])
    counts = np.bincount(np.searchsorted(edges, draws, side="right"), minlength=len(edges) + 1)
    return check(title, counts, np.log(np.diff(below)), differ=rate != 1.0)


def _on_lattice(draws: np.ndarray) -> float:
    # Where float32 resolves these multiples to a thirtieth.
    draws = draws[(draws > 2.0**-8) & (draws < 2.0**-4)].astype(np.float64)
    steps = -np.expm1(-draws) * 2.0**23
    return float(np.mean(np.abs(steps - np.rint(steps)) < 0.05))
