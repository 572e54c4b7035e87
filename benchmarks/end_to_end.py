"""A private variance end to end by n: records, output bounds, a grid and one release, by two mechanisms, against NumPy.

One release: every contestant starts from unsorted records, computes the bounds of the variance up to 100 replaced
records, finds the distance of each candidate of one public grid, and draws one candidate. NumPy does the same with its
best code for the bounds (benchmarks.bounds), a sorted search, and noise for every candidate (asymmetric sensitivity) or
one inversion of the cumulative weights (inverse sensitivity). It takes one data set at a time, a vmapped call many.
Many releases: a million of one data set, whose bounds are given; ours compute the law in the time, NumPy's loops draw
noise for every candidate of every release. The candidates drawn follow the exact law, which is checked; a budget 20%
off is the negative control.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import jaxdp
from benchmarks.above_threshold import numpy_loops, numpy_rows
from benchmarks.bounds import rows as numpy_bounds
from benchmarks.harness import Contestant, Size, agree, check, race

_RADIUS, _LOWER, _UPPER = 100, 0.0, 100.0
_MECHANISMS = {
    "Asymmetric sensitivity": jaxdp.AsymmetricSensitivity(1.0),
    "Inverse sensitivity": jaxdp.InverseSensitivity(1.0),
}
_GRID = jaxdp.geometric_grid(0.0, _UPPER**2 / 4.0, unit=1e-3)
_FINE = jaxdp.geometric_grid(0.0, _UPPER**2 / 4.0, base=1.00034, unit=1e-3)
_FACTS = {"radius": _RADIUS, "candidates": len(_GRID), "epsilon": 1.0, "dtype": "float32"}


def run(size: Size) -> Iterator[dict[str, Any]]:
    bounds = jaxdp.bounds.variance(_records(1000), _LOWER, _UPPER, radius=_RADIUS)
    yield from _many(size, bounds)
    yield from _fine(size, bounds)
    for n in (1000,) if size.quick else (1000, 10_000, 100_000):
        for name in _MECHANISMS:
            if not size.late:
                yield from _one(size, name, _records(n))


def _records(n: int) -> np.ndarray:
    return np.random.default_rng(n).lognormal(1.0, 0.8, n).astype(np.float32)


def _one(size: Size, name: str, x: np.ndarray) -> Iterator[dict[str, Any]]:
    n, mechanism, device = len(x), _MECHANISMS[name], jnp.asarray(x)
    sets = max(4, size.of(1_000_000, 32_000) // n)

    def release(key: jax.Array, x: Any) -> jax.Array:
        return mechanism.sample(key, (jaxdp.bounds.variance(x, _LOWER, _UPPER, radius=_RADIUS), _GRID))

    key, compiled, batched = jax.random.key(0), jax.jit(release), jax.jit(jax.vmap(release))
    keys, batch = jax.random.split(key, sets), jnp.tile(device, (sets, 1))
    promise, calls = (None if size.quick or n > 1000 else 5e-3), (3 if size.quick else 20) if n == 1000 else 1
    theirs = functools.partial(_numpy_release, np.random.default_rng(0), name, x)
    contestants = {
        "eager": Contestant("jaxdp, eager", lambda: release(key, device), at_most=promise, calls=calls),
        "jit": Contestant("jaxdp, under jit", lambda: compiled(key, device), at_most=promise, calls=calls),
        "vmap": Contestant(f"jaxdp, vmap over {sets} data sets", lambda: batched(keys, batch), sets),
        "NumPy": Contestant("NumPy", theirs, reference=True, calls=calls),
    }
    if size.quick or n > 1000:  # Programs take seconds to compile.
        del contestants["jit"]
    if size.quick:
        del contestants["vmap"]
    title = f"{name}, one release, n = {n:,}"
    yield from race(title, list(contestants.values()), size=size, turns=7, unit="release", n=n, **_FACTS)
    if n > 1000:
        return
    law = mechanism.law((jaxdp.bounds.variance(x, _LOWER, _UPPER, radius=_RADIUS), _GRID))
    rounds = [jax.random.split(jax.random.key(i), sets) for i in range(1, 11)]
    some = 200 if size.quick else 1000
    if "vmap" in contestants:
        drawn = np.concatenate([np.asarray(batched(keys, batch)) for keys in rounds])
        yield check(f"{name}: vmap", _counts(law, drawn), law.log_p)
    if "eager" in contestants:
        drawn = np.array([release(key, device) for key in jnp.concatenate(rounds)[:some]])
        yield check(f"{name}: eager", _counts(law, drawn), law.log_p)
    drawn = np.bincount([theirs() for _ in range(some)], minlength=len(_GRID))
    yield check(f"{name}: NumPy", drawn, law.log_p)


def _numpy_release(rng: np.random.Generator, name: str, x: np.ndarray) -> int:
    """Index of the candidate."""
    below, above = _numpy_distances(*numpy_bounds(x, _LOWER, _UPPER, _RADIUS))
    if name == "Asymmetric sensitivity":
        return int(min(numpy_rows(_signed(below, above)[None], rng)()[0], len(_GRID) - 1))
    cumulative = np.cumsum(np.exp(-0.5 * np.maximum(below, above)))
    return int(np.searchsorted(cumulative, rng.random() * cumulative[-1]))


def _numpy_distances(lower: np.ndarray, upper: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """How many records must be replaced for the statistic to fall, and to rise, to each candidate."""
    return np.searchsorted(-lower, -_GRID), np.searchsorted(upper, _GRID)


def _signed(below: np.ndarray, above: np.ndarray) -> np.ndarray:
    """Signed distances, rounded down."""
    return np.where(above > 0, above - 1, -below)


def _many(size: Size, bounds: jaxdp.OutputBounds) -> Iterator[dict[str, Any]]:
    n, some = size.of(1_000_000, 50_000), 128 if size.quick else 2048
    mechanism, keys = _MECHANISMS["Asymmetric sensitivity"], jax.random.split(jax.random.key(0), n)
    known = np.asarray(bounds.lower[:-1], np.float64), np.asarray(bounds.upper[:-1], np.float64)
    loops = numpy_loops(_signed(*_numpy_distances(*known)))

    def releases() -> jax.Array:
        return jax.vmap(mechanism.law((bounds, _GRID)).sample)(keys)

    promise = None if size.quick else 200.0
    contestants = [
        Contestant("jaxdp, vmap(law((bounds, grid)).sample)(keys)", releases, n, at_least=promise),
        *(Contestant(name, functools.partial(call, some), some, reference=True) for name, call in loops.items()),
    ]
    title = "Asymmetric sensitivity, many releases on one data set"
    yield from race(title, contestants, size=size, turns=9, unit="release", **_FACTS)
    law = mechanism.law((bounds, _GRID))
    counts = _counts(law, np.asarray(releases()[:1_000_000]))
    yield check(f"{title}: jaxdp", counts, law.log_p)
    off = jaxdp.AsymmetricSensitivity(0.8).law((bounds, _GRID)).log_p
    yield check(f"{title}: jaxdp, against epsilon 0.8", counts, off, differ=True)
    for name, call in loops.items():
        drawn = np.minimum(call(some), len(_GRID) - 1)
        yield check(f"{title}: {name}", np.bincount(drawn, minlength=len(_GRID)), law.log_p)


def _counts(law: jaxdp.DiscreteLaw, releases: np.ndarray) -> np.ndarray:
    return np.bincount(np.searchsorted(np.asarray(law.outcomes), releases), minlength=len(_GRID))


def _fine(size: Size, bounds: jaxdp.OutputBounds) -> Iterator[dict[str, Any]]:
    cuts: Callable = jax.jit(lambda bounds: bounds.cuts(_FINE))
    lower, upper = np.asarray(bounds.lower, np.float64), np.asarray(bounds.upper, np.float64)

    def theirs() -> tuple[np.ndarray, np.ndarray]:
        return np.searchsorted(_FINE, lower), np.searchsorted(_FINE, upper, side="right")

    def points() -> tuple[np.ndarray, np.ndarray]:
        return np.searchsorted(-lower, -_FINE), np.searchsorted(upper, _FINE)

    contestants = [
        Contestant("jaxdp, bounds.cuts, levels in the grid", lambda: cuts(bounds), at_most=1e-3, calls=10),
        Contestant("NumPy, levels in the grid", theirs, reference=True, calls=10),
        Contestant("NumPy, candidates in the levels", points, calls=10),
    ]
    title = f"{len(_FINE):,} candidates counted by level"
    yield from race(title, contestants, size=size, turns=9, radius=_RADIUS)
    yield agree(title, cuts(bounds), theirs(), within=0.0)
