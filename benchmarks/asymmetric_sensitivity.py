"""The asymmetric sensitivity mechanism on a private variance: many releases, a fresh data set, a fine grid.

NumPy's textbook loop is AboveThreshold's, on the same integer scores: noise for every candidate of every release.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import jax
import numpy as np

import jaxdp
from benchmarks.above_threshold import numpy_loops
from benchmarks.harness import Contestant, check, race

_N, _RADIUS, _LOWER, _UPPER = 1000, 100, 0.0, 100.0


def run(*, quick: bool) -> Iterator[dict[str, Any]]:
    x = np.random.default_rng(0).lognormal(1.0, 0.8, _N).astype(np.float32)
    mechanism = jaxdp.AsymmetricSensitivity(1.0)
    grid = jaxdp.geometric_grid(0.0, _UPPER**2 / 4.0, unit=1e-3)
    fine = jaxdp.geometric_grid(0.0, _UPPER**2 / 4.0, base=1.00034, unit=1e-3)
    bounds = jaxdp.bounds.variance(x, _LOWER, _UPPER, radius=_RADIUS)
    n, rows, turns = (100_000, 256, 3) if quick else (1_000_000, 2048, 9)
    key = jax.random.key(0)
    keys = jax.jit(lambda key: jax.random.split(key, n))(key)
    facts = {"n": _N, "radius": _RADIUS, "candidates": len(grid), "epsilon": 1.0, "dtype": "float32"}

    signed = np.floor(np.asarray(bounds.signed_distance(grid))).astype(np.int32)
    loops = numpy_loops(signed)

    def releases() -> jax.Array:
        return jax.vmap(mechanism.law((bounds, grid)).sample)(keys)

    contestants = [
        Contestant("jaxdp, vmap(law((bounds, grid)).sample)(keys)", releases, n, at_least=200.0),
        *(Contestant(name, lambda call=call: call(rows), rows, reference=True) for name, call in loops.items()),
    ]
    yield from race("Asymmetric sensitivity, many releases on one data set", contestants, turns=turns, **facts)

    def fresh(key: jax.Array, x: Any) -> jax.Array:
        return mechanism.sample(key, (jaxdp.bounds.variance(x, _LOWER, _UPPER, radius=_RADIUS), grid))

    compiled, first = jax.jit(fresh), next(iter(loops.values()))
    cuts = jax.jit(lambda bounds: bounds.cuts(fine))
    calls = 10 if quick else 50
    contestants = [
        Contestant("jaxdp, bounds and release, eager", lambda: fresh(key, x), at_most=5e-3, calls=calls),
        Contestant("jaxdp, the same under jit", lambda: compiled(key, x), at_most=5e-3, calls=calls),
        Contestant(f"jaxdp, {len(fine)} candidates counted by level", lambda: cuts(bounds), at_most=1e-3, calls=calls),
        Contestant("NumPy, one release, bounds given", lambda: first(1), reference=True, calls=calls),
    ]
    yield from race("Asymmetric sensitivity, a fresh data set", contestants, turns=turns, **facts)

    law = mechanism.law((bounds, grid))
    p, index = np.exp(law.log_p), np.searchsorted(np.asarray(law.outcomes), np.asarray(releases()))
    yield check("law((bounds, grid)).sample", np.bincount(index, minlength=len(p)), np.log(p))
    drawn = np.minimum(np.concatenate([first(rows) for _ in range(40)]), len(p) - 1)
    yield check("NumPy, a release at a time", np.bincount(drawn, minlength=len(p)), np.log(p))
