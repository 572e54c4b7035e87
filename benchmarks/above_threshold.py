"""AboveThreshold on 4060 queries: a million releases on one data set from its law, and one on a fresh data set.

The stream is what the asymmetric sensitivity mechanism asks: scores that rise by one from -1900 to 101, most of them
two or three times. NumPy's loops draw noise for every query, in the ways that might be fastest. All contestants have
one law, that of an integer threshold noise: with continuous noise on the threshold it would be another one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import jax
import numpy as np

import jaxdp
from benchmarks.harness import Contestant, check, race

_QUERIES, _RUNS = 4060, 2002
_FIRST = 1.0 / (1.0 + 2.0 ** (2.0 / 3.0))
_QUERY = (1.0 - _FIRST) / 2.0
"""Budgets at epsilon 1: of the threshold and of a query (two of these are spent)."""


def stream() -> jaxdp.Runs:
    repeats = np.full(_RUNS, 2, np.int32)
    repeats[np.random.default_rng(0).choice(_RUNS, _QUERIES - 2 * _RUNS, replace=False)] += 1
    return jaxdp.Runs(np.arange(101 - _RUNS + 1, 102, dtype=np.int32), repeats, _QUERIES)


def run(*, quick: bool) -> Iterator[dict[str, Any]]:
    runs, mechanism = stream(), jaxdp.AboveThreshold(threshold=0.0, sensitivity=1.0, epsilon=1.0)
    scores = np.repeat(runs.scores, runs.repeats)
    n, rows, turns = (100_000, 256, 3) if quick else (1_000_000, 2048, 15)
    key = jax.random.key(0)
    keys = jax.jit(lambda key: jax.random.split(key, n))(key)
    facts = {"queries": _QUERIES, "runs": _RUNS, "epsilon": 1.0, "dtype": "int32"}

    def releases() -> jaxdp.Halt:
        return jax.vmap(mechanism.law(runs).sample)(keys)

    @jax.jit
    def compiled(key: jax.Array, scores: Any, repeats: Any) -> jaxdp.Halt:
        return jax.vmap(mechanism.law(jaxdp.Runs(scores, repeats, _QUERIES)).sample)(jax.random.split(key, n))

    loops = numpy_loops(scores)
    contestants = [
        Contestant("jaxdp, vmap(law(runs).sample)(keys), law in the time", releases, n, at_least=250.0),
        Contestant("jaxdp, the same under jit, split in the time", lambda: compiled(key, runs.scores, runs.repeats), n),
        *(Contestant(name, lambda call=call: call(rows), rows, reference=True) for name, call in loops.items()),
    ]
    yield from race("AboveThreshold, many releases on one data set", contestants, turns=turns, releases=n, **facts)

    inside = jax.jit(lambda key, scores, repeats: mechanism.sample(key, jaxdp.Runs(scores, repeats, _QUERIES)))
    many = jax.jit(jax.vmap(mechanism.sample))
    shifts = np.random.default_rng(1).integers(-5, 6, (rows, 1), dtype=np.int32)
    batch = jaxdp.Runs(runs.scores + shifts, np.tile(runs.repeats, (rows, 1)), _QUERIES)
    first = next(iter(loops.values()))
    calls = 20 if quick else 200
    contestants = [
        Contestant(
            "jaxdp, sample(key, runs), NumPy arrays", lambda: mechanism.sample(key, runs), at_most=4e-4, calls=calls
        ),
        Contestant("jaxdp, sample(key, scores)", lambda: mechanism.sample(key, scores), calls=calls),
        Contestant("jaxdp, the first under jit", lambda: inside(key, runs.scores, runs.repeats), calls=calls),
        Contestant(f"jaxdp, vmap over {rows} data sets", lambda: many(keys[:rows], batch), rows),
        Contestant("NumPy, one release", lambda: first(1), reference=True, calls=calls),
    ]
    yield from race("AboveThreshold, one release on a fresh data set", contestants, turns=turns, **facts)

    log_p, count = np.asarray(mechanism.law(runs).log_p), rows * (10 if quick else 100)
    index = np.asarray(releases().index)
    yield check("law(runs).sample", np.bincount(index, minlength=_QUERIES + 1), log_p)
    other = jaxdp.AboveThreshold(threshold=0.0, sensitivity=1.0, epsilon=0.95).law(runs).log_p
    yield check("law(runs).sample against epsilon 0.95", np.bincount(index, minlength=_QUERIES + 1), other, differ=True)
    same = jax.jit(jax.vmap(mechanism.sample, (0, None)))
    fresh = np.concatenate([same(keys[i : i + rows], runs).index for i in range(0, count, rows)])
    yield check("sample(key, runs)", np.bincount(fresh, minlength=_QUERIES + 1), log_p)
    for name, call in loops.items():
        drawn = np.concatenate([call(rows) for _ in range(count // rows)])
        yield check(name, np.bincount(drawn, minlength=_QUERIES + 1), log_p)


def numpy_loops(scores: np.ndarray) -> dict[str, Callable[[int], np.ndarray]]:
    """Ways to make `count` releases that draw noise for every query; each gives the indices where they halted."""
    rng, n = np.random.default_rng(0), len(scores)
    scaled, likely = (scores * _QUERY).astype(np.float32), np.exp(scores * _QUERY).astype(np.float32)
    size = 64  # Rows of noise at a time: they stay in the cache; 16 to 128 are equally fast.
    noise, hit = np.empty((size, n), np.float32), np.empty((size, n), bool)

    def threshold(count: int) -> np.ndarray:
        return np.floor(rng.standard_exponential(count) / _FIRST)

    def place(hit: np.ndarray) -> np.ndarray:
        index = hit.argmax(axis=1)
        return np.where(hit[np.arange(len(hit)), index], index, n)

    def each(count: int) -> np.ndarray:
        index = np.empty(count, int)
        for i, noisy in enumerate(threshold(count)):
            crossed = scores + rng.standard_exponential(n) / _QUERY >= noisy
            first = crossed.argmax()
            index[i] = first if crossed[first] else n
        return index

    def in_parts(fill: Callable[[int], np.ndarray]) -> Callable[[int], np.ndarray]:
        return lambda count: np.concatenate([fill(size) for _ in range(0, count, size)])[:count]

    def in_rows(cross: Callable[[np.ndarray], np.ndarray]) -> Callable[[int], np.ndarray]:
        return in_parts(lambda count: place(cross(threshold(count))))

    def exponential(noisy: np.ndarray) -> np.ndarray:
        rng.standard_exponential(out=noise, dtype=np.float32)
        np.add(noise, scaled, out=noise)
        return np.greater_equal(noise, (noisy * _QUERY).astype(np.float32)[:, None], out=hit)

    def uniform(noisy: np.ndarray) -> np.ndarray:
        # score + Expo >= noisy is U <= e^(score - noisy), with no logarithm; half a step off, so that 0 is nothing.
        rng.random(out=noise, dtype=np.float32)
        level = np.exp(noisy * _QUERY).astype(np.float32)[:, None]
        np.multiply(np.add(noise, np.float32(2.0**-25), out=noise), level, out=noise)
        return np.less_equal(noise, likely, out=hit)

    def geometric(noisy: np.ndarray) -> np.ndarray:
        return scores + rng.geometric(-np.expm1(-_QUERY), (size, n)) - 1 >= noisy[:, None]

    def blocks(count: int, width: int = 406) -> np.ndarray:
        index, alive, noisy = np.full(count, n), np.arange(count), (threshold(count) * _QUERY).astype(np.float32)
        for start in range(0, n, width):
            part = scaled[start : start + width]
            drawn = rng.standard_exponential((len(alive), len(part)), dtype=np.float32) + part
            reached = drawn >= noisy[alive, None]
            halted = reached.any(axis=1)
            index[alive[halted]] = start + reached[halted].argmax(axis=1)
            alive = alive[~halted]
        return index

    return {
        "NumPy, a release at a time": each,
        "NumPy, rows of float32 exponentials": in_rows(exponential),
        "NumPy, rows of float32 uniforms": in_rows(uniform),
        "NumPy, rows of geometrics": in_rows(geometric),
        "NumPy, blocks of queries, stopping early": in_parts(blocks),
    }
