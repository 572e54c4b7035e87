"""Both bounds of the variance: n = 1000 at full radius, large n, and a batch of data sets by vmap, against NumPy.

NumPy's versions do the same work with sorted records and prefix sums, without the care for the last bits: lower bounds
row by row in preallocated arrays or all at once, upper bounds by the same bisection.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import jax
import numpy as np

import jaxdp
from benchmarks.harness import Contestant, race

_UPPER = 50_000.0
_PROMISES = {(1000, 1000): 4e-3, (100_000, 2000): 60e-3, (1_000_000, 512): 500e-3}
"""Size and radius: promised seconds."""


def run(*, quick: bool) -> Iterator[dict[str, Any]]:
    turns = 3 if quick else 15
    rng = np.random.default_rng(0)
    for (n, radius), promise in _PROMISES.items():
        if quick and n > 100_000:
            continue
        x = rng.gamma(2.0, 4000.0, n).astype(np.float32)
        calls = {"jaxdp": lambda x=x, radius=radius: _variance(radius)(x)} | {
            name: lambda x=x, radius=radius, fn=fn: fn(x, 0.0, _UPPER, radius) for name, fn in _numpy(n).items()
        }
        contestants = [
            Contestant(
                name,
                call,
                reference=name.startswith("NumPy"),
                at_most=promise if name == "jaxdp" else None,
                calls=5 if n == 1000 else 1,
            )
            for name, call in calls.items()
        ]
        facts = {"n": n, "radius": radius, "dtype": "float32"}
        yield from race(f"Variance, n = {n:,}, radius {radius:,}", contestants, turns=turns, **facts)

    sets, n = (32, 1000) if quick else (256, 1000)
    batch = rng.gamma(2.0, 4000.0, (sets, n)).astype(np.float32)
    many = jax.jit(jax.vmap(_variance(n)))
    some = batch[:16]
    contestants = [
        Contestant(f"jaxdp, vmap over {sets} data sets", lambda: many(batch), sets, at_least=6.0),
        Contestant("jaxdp, one by one", lambda: [_variance(n)(x) for x in some], 16),
        *(
            Contestant(f"{name}, one by one", lambda fn=fn: [fn(x, 0.0, _UPPER, n) for x in some], 16, reference=True)
            for name, fn in _numpy(n).items()
        ),
    ]
    facts = {"n": n, "radius": n, "dtype": "float32", "temporary_bytes": _temporary_bytes(many, batch)}
    yield from race("Variance, a batch of n = 1,000 at full radius", contestants, turns=turns, **facts)


def _variance(radius: int) -> Callable:
    return lambda x: jaxdp.bounds.variance(x, 0.0, _UPPER, radius=radius)


def _temporary_bytes(compiled: Any, batch: Any) -> int:
    return compiled.lower(batch).compile().memory_analysis().temp_size_in_bytes


def _numpy(n: int) -> dict[str, Callable]:
    both = {"NumPy, rows": rows, "NumPy, one table": table}
    return both if n == 1000 else {"NumPy, rows": rows}


def rows(x: np.ndarray, lower: float, upper: float, radius: int) -> tuple[np.ndarray, np.ndarray]:
    """Lower bounds by one pass over the levels for each number of records removed at the bottom."""
    z, kept, tables = _prepare(x, lower, upper, radius)
    bottom, bottom_squares, top, top_squares, shares = tables
    least, sums, around = np.full(kept + 1, np.inf), np.empty(kept + 1), np.empty(kept + 1)
    for s in range(kept + 1):
        b, a = sums[s:], around[s:]
        np.subtract(bottom[s], top[: kept + 1 - s], out=b)
        np.subtract(bottom_squares[s], top_squares[: kept + 1 - s], out=a)
        np.multiply(b, b, out=b)
        np.multiply(b, shares[s:], out=b)
        np.subtract(a, b, out=a)
        np.minimum(least[s:], a, out=least[s:])
    return _finish(z, least, kept, upper - lower)


def table(x: np.ndarray, lower: float, upper: float, radius: int) -> tuple[np.ndarray, np.ndarray]:
    """Lower bounds from one table of all numbers removed at the bottom and at the top."""
    z, kept, tables = _prepare(x, lower, upper, radius)
    bottom, bottom_squares, top, top_squares, shares = tables
    moved = [
        np.lib.stride_tricks.sliding_window_view(np.concatenate([np.full(kept, fill), tail]), kept + 1)[::-1]
        for tail, fill in ((top, 0.0), (top_squares, -np.inf))
    ]
    sums = bottom[:, None] - moved[0]
    np.multiply(sums, sums, out=sums)
    np.multiply(sums, shares, out=sums)
    around = bottom_squares[:, None] - moved[1]
    return _finish(z, np.min(np.subtract(around, sums, out=around), axis=0), kept, upper - lower)


def _prepare(x: np.ndarray, lower: float, upper: float, radius: int) -> tuple[np.ndarray, int, tuple]:
    z = (np.sort(np.clip(x, lower, upper)).astype(np.float64) - lower) / (upper - lower) - 0.5
    n = len(z)
    kept = min(radius, n - 1)

    def sums(values: np.ndarray) -> np.ndarray:
        return np.concatenate([[0.0], np.cumsum(values[:kept])])

    bottom, bottom_squares = z.sum() - sums(z), np.square(z).sum() - sums(np.square(z))
    return z, kept, (bottom, bottom_squares, sums(z[::-1]), sums(np.square(z[::-1])), 1.0 / (n - np.arange(kept + 1)))


def _finish(z: np.ndarray, least: np.ndarray, kept: int, width: float) -> tuple[np.ndarray, np.ndarray]:
    """Upper bounds by bisection, then units."""
    n, removed = len(z), np.arange(1, kept + 1)
    sums, squares = (np.concatenate([[0.0], np.cumsum(part)]) for part in (z, np.square(z)))

    def rest(total: np.ndarray) -> np.ndarray:
        return total - np.clip(total, -0.5 * removed, 0.5 * removed)

    def value(w: np.ndarray) -> np.ndarray:
        w = np.clip(w, 0, n - removed)
        total, total_squares = (part[-1] - (part[w + removed] - part[w]) for part in (sums, squares))
        return n * (total_squares + 0.25 * removed) - np.square(rest(total))

    first, last = np.zeros(kept, int), n - removed
    for _ in range(n.bit_length()):
        w = (first + last) // 2
        enters, leaves = z[w], z[np.minimum(w + removed, n - 1)]
        total = sums[-1] - (sums[w + removed] - sums[w])
        rising = n * (enters + leaves) < rest(total) + rest(total + (enters - leaves))
        first, last = np.where(rising, np.minimum(w + 1, last), first), np.where(rising, last, w)
    most = np.maximum(np.maximum(value(first - 1), value(first + 1)), value(first)) / n**2
    f = least[0] / n
    return np.minimum.accumulate(least / n) * width**2, np.maximum.accumulate(np.append(f, most)) * width**2
