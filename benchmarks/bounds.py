"""Both bounds of the variance by n and radius, and of a batch of data sets by vmap, against NumPy.

All contestants compute lower and upper bounds at all distances up to the radius from unsorted records, and agree.
NumPy's versions work on sorted records and prefix sums, without the care for the last bits. Its best one takes lower
bounds row by row in preallocated arrays (or all at once) and finds the upper ones by the same bisection as ours. The
straightforward one is what the definition says once one knows that the records to replace are neighbours in order: for
each level one vectorised pass over all positions of these neighbours, O(n) a level. That upper bounds rise to one peak
over the positions, so that a search is enough, is a theorem of the docstring of jaxdp.bounds.variance; who does not
know it writes the straightforward version. Both stand side by side in the race where the promise is made against it.
With a million records sorting binds, and on CPUs XLA's sort is several times slower than NumPy's.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from typing import Any

import jax
import numpy as np

import jaxdp
from benchmarks.harness import Contestant, Size, agree, race

Both = tuple[np.ndarray, np.ndarray]

_UPPER = 50_000.0
_PROMISES = {(1000, 1000): 4e-3, (100_000, 2000): 60e-3, (1_000_000, 512): 500e-3}
"""Size and radius: promised seconds."""

_QUICK = {(1000, 100): None}


def run(size: Size) -> Iterator[dict[str, Any]]:
    rng = np.random.default_rng(0)
    for (n, radius), promise in (_QUICK if size.quick else _PROMISES).items():
        x = rng.gamma(2.0, 4000.0, n).astype(np.float32)
        ours = {"jaxdp, bounds.variance": functools.partial(_ours, x, radius)}
        theirs = {name: functools.partial(fn, x, 0.0, _UPPER, radius) for name, fn in _numpy(n).items()}
        contestants = [
            Contestant(name, call, at_most=promise, calls=5 if n == 1000 else 1) for name, call in ours.items()
        ]
        contestants += [Contestant(name, call, reference=True) for name, call in theirs.items()]
        title, facts = f"Variance, n = {n:,}, radius {radius:,}", {"n": n, "radius": radius, "dtype": "float32"}
        yield from race(title, contestants, size=size, turns=11, **facts)
        for name, call in theirs.items():
            yield _agree(f"{title}: {name}", _ours(x, radius), call())
    yield from _straightforward(size)
    yield from _batch(size)


def _straightforward(size: Size) -> Iterator[dict[str, Any]]:
    n, radius = (1000, 100) if size.quick else (100_000, 2000)
    x = np.random.default_rng(1).gamma(2.0, 4000.0, n).astype(np.float32)
    contestants = [
        Contestant("jaxdp, bounds.variance", lambda: _ours(x, radius), at_least=None if size.quick else 40.0),
        Contestant(
            "NumPy, a pass over all positions for each level", lambda: levels(x, 0.0, _UPPER, radius), reference=True
        ),
        Contestant("NumPy, rows and bisection", lambda: rows(x, 0.0, _UPPER, radius)),
    ]
    title = f"Variance, n = {n:,}, radius {radius:,}, against the straightforward way"
    yield from race(title, contestants, size=size, turns=7, n=n, radius=radius, dtype="float32")
    yield _agree(title, _ours(x, radius), contestants[1].call())


def _batch(size: Size) -> Iterator[dict[str, Any]]:
    n, radius = 1000, 100 if size.quick else 1000
    sets, some = size.of(256, 16), 4 if size.quick else 16
    batch = np.random.default_rng(2).gamma(2.0, 4000.0, (sets, n)).astype(np.float32)
    promise = None if size.quick else 6.0
    many = jax.jit(jax.vmap(lambda x: _ours(x, radius)))
    contestants = [
        Contestant(f"jaxdp, vmap over {sets} data sets", lambda: many(batch), sets, at_least=promise),
        Contestant("jaxdp, one by one", lambda: [_ours(x, radius) for x in batch[:some]], some),
        *(
            Contestant(
                f"{name}, one by one",
                lambda fn=fn: [fn(x, 0.0, _UPPER, radius) for x in batch[:some]],
                some,
                reference=True,
            )
            for name, fn in _numpy(n).items()
        ),
    ]
    title = f"Variance, a batch of n = {n:,}, radius {radius:,}"
    yield from race(title, contestants, size=size, turns=9, unit="data set", n=n, radius=radius, dtype="float32")
    ours = many(batch)
    for row in (0, sets - 1):
        one = jaxdp.OutputBounds(ours.lower[row], ours.upper[row])
        yield _agree(f"{title}: data set {row}", one, rows(batch[row], 0.0, _UPPER, radius))


def _ours(x: Any, radius: int) -> jaxdp.OutputBounds:
    return jaxdp.bounds.variance(x, 0.0, _UPPER, radius=radius)


def _agree(title: str, ours: jaxdp.OutputBounds, theirs: Both) -> dict[str, Any]:
    known = len(theirs[0])  # The entries beyond are the extremes of the range.
    return agree(title, (ours.lower[:known], ours.upper[:known]), theirs, within=1e-6)


def _numpy(n: int) -> dict[str, Callable]:
    best = {"NumPy, rows and bisection": rows}
    return best | ({"NumPy, one table and bisection": table} if n == 1000 else {})


def rows(x: np.ndarray, lower: float, upper: float, radius: int) -> Both:
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


def table(x: np.ndarray, lower: float, upper: float, radius: int) -> Both:
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


def levels(x: np.ndarray, lower: float, upper: float, radius: int) -> Both:
    """Both bounds by one pass over all positions for each level."""
    z, kept, _ = _prepare(x, lower, upper, radius)
    n, (sums, squares) = len(z), _prefix_sums(z)
    least, most = np.empty(kept + 1), np.empty(kept + 1)
    for level in range(kept + 1):
        # Lower: the n - level records that stay are neighbours, and the others join their mean.
        stay, stay_squares = (part[n - level :] - part[: level + 1] for part in (sums, squares))
        least[level] = np.min(stay_squares - stay * stay / (n - level))
        # Upper: those that go are neighbours, and come back at the ends such that the sum is as close to 0 as it can.
        total, total_squares = (part[-1] - (part[level:] - part[: n + 1 - level]) for part in (sums, squares))
        rest = total - np.clip(total, -0.5 * level, 0.5 * level)
        most[level] = np.max(n * (total_squares + 0.25 * level) - rest * rest)
    units = (upper - lower) ** 2
    return np.minimum.accumulate(least / n) * units, np.maximum.accumulate(most / n**2) * units


def _prepare(x: np.ndarray, lower: float, upper: float, radius: int) -> tuple[np.ndarray, int, tuple]:
    z = (np.sort(np.clip(x, lower, upper)).astype(np.float64) - lower) / (upper - lower) - 0.5
    n = len(z)
    kept = min(radius, n - 1)

    def sums(values: np.ndarray) -> np.ndarray:
        return np.concatenate([[0.0], np.cumsum(values[:kept])])

    bottom, bottom_squares = z.sum() - sums(z), np.square(z).sum() - sums(np.square(z))
    return z, kept, (bottom, bottom_squares, sums(z[::-1]), sums(np.square(z[::-1])), 1.0 / (n - np.arange(kept + 1)))


def _finish(z: np.ndarray, least: np.ndarray, kept: int, width: float) -> Both:
    """Upper bounds by bisection, then units."""
    n, removed = len(z), np.arange(1, kept + 1)
    sums, squares = _prefix_sums(z)

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


def _prefix_sums(z: np.ndarray) -> Both:
    return np.concatenate([[0.0], np.cumsum(z)]), np.concatenate([[0.0], np.cumsum(np.square(z))])
