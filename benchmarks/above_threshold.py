"""The sparse vector technique by stream length: AboveThreshold from its law, and on fresh data sets, against NumPy.

The streams are what the asymmetric sensitivity mechanism asks: scores that rise by one, most of them two or three
times, of which few are above the threshold. NumPy's loops draw noise for every query, in the ways that might be
fastest; ours invert the law, which is computed in the time, or draw one exponential an entry on a fresh data set. All
contestants have one law, that of an integer threshold noise (with continuous noise on the threshold it would be another
one), which is checked; a budget 5% off is the negative control.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import jaxdp
from benchmarks.harness import Contestant, Size, check, race

_PROMISES = {4060: 250.0, 64: None, 65_536: None}
"""Queries: promised ratio of releases from the law to the best NumPy loop."""

_FIRST = 1.0 / (1.0 + 2.0 ** (2.0 / 3.0))
_QUERY = (1.0 - _FIRST) / 2.0
"""Budgets at epsilon 1: of the threshold and of a query (two of these are spent)."""

_MECHANISM = jaxdp.AboveThreshold(threshold=0.0, sensitivity=1.0, epsilon=1.0)


def stream(queries: int) -> jaxdp.Runs:
    """Scores that rise by one up to at most 101, all twice and some three times."""
    runs = int(queries / 2.028)
    repeats = np.full(runs, 2, np.int32)
    repeats[np.random.default_rng(0).choice(runs, queries - 2 * runs, replace=False)] += 1
    top = min(101, runs // 4)
    return jaxdp.Runs(np.arange(top - runs + 1, top + 1, dtype=np.int32), repeats, queries)


def run(size: Size) -> Iterator[dict[str, Any]]:
    for queries in (4060,) if size.quick else _PROMISES:
        if size.late:
            return
        runs = stream(queries)
        loops = numpy_loops(np.repeat(runs.scores, runs.repeats))
        # NumPy's loops fill about as many cells for each length, whatever the device.
        rows = min(2048, (1_000_000 if size.quick else 8_000_000) // queries)
        yield from _law(size, runs, loops, rows)
        yield from _fresh(size, runs, loops, rows)


def _law(size: Size, runs: jaxdp.Runs, loops: dict[str, Callable], rows: int) -> Iterator[dict[str, Any]]:
    n, queries, key = size.of(1_000_000, 100_000), runs.length, jax.random.key(0)
    keys = jax.random.split(key, n)

    def releases() -> jaxdp.Halt:
        return jax.vmap(_MECHANISM.law(runs).sample)(keys)

    @jax.jit
    def compiled(key: jax.Array, scores: Any, repeats: Any) -> jaxdp.Halt:
        return jax.vmap(_MECHANISM.law(jaxdp.Runs(scores, repeats, queries)).sample)(jax.random.split(key, n))

    under_jit = functools.partial(compiled, key, runs.scores, runs.repeats)
    promise = None if size.quick else _PROMISES[queries]
    contestants = [
        Contestant("jaxdp, vmap(law(runs).sample)(keys), law in the time", releases, n, at_least=promise),
        *([] if size.quick else [Contestant("jaxdp, the same under jit, split in the time", under_jit, n)]),
        *(Contestant(name, lambda call=call: call(rows), rows, reference=True) for name, call in loops.items()),
    ]
    title, facts = f"AboveThreshold, {queries:,} queries, many releases on one data set", _facts(runs)
    yield from race(title, contestants, size=size, turns=7, unit="release", releases=n, **facts)

    log_p, off = np.asarray(_MECHANISM.law(runs).log_p), jaxdp.AboveThreshold(0.0, 1.0, 0.95).law(runs).log_p
    counts = np.bincount(np.asarray(releases().index), minlength=queries + 1)
    yield check(f"{queries:,} queries: law(runs).sample", counts, log_p)
    yield check(f"{queries:,} queries: law(runs).sample, against epsilon 0.95", counts, off, differ=True)
    if not size.quick:
        counts = np.bincount(np.asarray(under_jit().index), minlength=queries + 1)
        yield check(f"{queries:,} queries: the same under jit", counts, log_p)
    for name, call in loops.items():
        counts = np.bincount(np.concatenate([call(rows) for _ in range(4)]), minlength=queries + 1)
        yield check(f"{queries:,} queries: {name}", counts, log_p)


def _fresh(size: Size, runs: jaxdp.Runs, loops: dict[str, Callable], rows: int) -> Iterator[dict[str, Any]]:
    queries, key, first = runs.length, jax.random.key(1), next(iter(loops.values()))
    scores = np.repeat(runs.scores, runs.repeats)
    sets = max(8, size.of(8_000_000, 1_000_000) // queries)
    keys = jax.random.split(key, sets)
    many = jax.jit(jax.vmap(_MECHANISM.sample))
    rng = np.random.default_rng(1)
    shifts = rng.integers(-5, 6, (sets, 1), dtype=np.int32)
    shifted, repeats = runs.scores + shifts, jnp.asarray(np.tile(runs.repeats, (sets, 1)))
    batch = jaxdp.Runs(jnp.asarray(shifted), repeats, queries)
    streams = np.repeat(shifted, runs.repeats, axis=1)
    numpy_fresh, streams = numpy_rows(streams[:rows], rng), jnp.asarray(streams)
    calls = 10 if size.quick else 100
    contestants = [
        Contestant(f"jaxdp, vmap over {sets} data sets", lambda: many(keys, streams), sets),
        Contestant("NumPy, a release at a time", lambda: first(1), reference=True, calls=calls),
        Contestant("NumPy, rows of float32 exponentials", numpy_fresh, min(sets, rows), reference=True),
    ]
    if not size.quick:  # Each is one more program to compile.
        inside = jax.jit(lambda key, scores, repeats: _MECHANISM.sample(key, jaxdp.Runs(scores, repeats, queries)))
        contestants += [
            Contestant(f"jaxdp, vmap over {sets} data sets, runs", lambda: many(keys, batch), sets),
            Contestant("jaxdp, sample(key, runs)", lambda: _MECHANISM.sample(key, runs), calls=calls),
            Contestant("jaxdp, the same under jit", lambda: inside(key, runs.scores, runs.repeats), calls=calls),
            Contestant("jaxdp, sample(key, scores)", lambda: _MECHANISM.sample(key, scores), calls=calls),
        ]
    title = f"AboveThreshold, {queries:,} queries, a release on a fresh data set"
    yield from race(title, contestants, size=size, turns=7, unit="release", **_facts(runs))

    # Rows that are the data set itself, so that one law describes them.
    same = jaxdp.Runs(np.tile(runs.scores, (sets, 1)), repeats, queries)
    index = [np.asarray(many(jax.random.split(jax.random.key(i), sets), same).index) for i in range(2, 22)]
    counts, log_p = np.bincount(np.concatenate(index), minlength=queries + 1), np.asarray(_MECHANISM.law(runs).log_p)
    yield check(f"{queries:,} queries: sample(key, runs)", counts, log_p)
    plain = jnp.tile(scores, (sets, 1))
    index = [np.asarray(many(jax.random.split(jax.random.key(i), sets), plain).index) for i in range(22, 42)]
    counts = np.bincount(np.concatenate(index), minlength=queries + 1)
    yield check(f"{queries:,} queries: sample(key, scores)", counts, log_p)
    rows_of_one = numpy_rows(np.tile(scores, (rows, 1)), rng)
    counts = np.bincount(np.concatenate([rows_of_one() for _ in range(4)]), minlength=queries + 1)
    yield check(f"{queries:,} queries: NumPy, fresh rows of float32 exponentials", counts, log_p)


def _facts(runs: jaxdp.Runs) -> dict[str, Any]:
    return {"queries": runs.length, "runs": len(runs.scores), "epsilon": 1.0, "dtype": "int32"}


def numpy_loops(scores: np.ndarray) -> dict[str, Callable[[int], np.ndarray]]:
    """Ways to make `count` releases that draw noise for every query; each gives the indices where they halted."""
    rng, n = np.random.default_rng(0), len(scores)
    scaled, likely = (scores * _QUERY).astype(np.float32), np.exp(scores * _QUERY).astype(np.float32)
    size = min(2048, max(1, 2**18 // n))  # Rows of noise at a time: they stay in the cache; a quarter is as fast.
    noise, hit = np.empty((size, n), np.float32), np.empty((size, n), bool)

    def each(count: int) -> np.ndarray:
        index = np.empty(count, int)
        for i, noisy in enumerate(_threshold(rng, count)):
            crossed = scores + rng.standard_exponential(n) / _QUERY >= noisy
            first = crossed.argmax()
            index[i] = first if crossed[first] else n
        return index

    def in_parts(fill: Callable[[int], np.ndarray]) -> Callable[[int], np.ndarray]:
        return lambda count: np.concatenate([fill(size) for _ in range(0, count, size)])[:count]

    def in_rows(cross: Callable[[np.ndarray], np.ndarray]) -> Callable[[int], np.ndarray]:
        return in_parts(lambda count: _place(cross(_threshold(rng, count))))

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
        index, alive, noisy = np.full(count, n), np.arange(count), (_threshold(rng, count) * _QUERY).astype(np.float32)
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


def numpy_rows(scores: np.ndarray, rng: np.random.Generator) -> Callable[[], np.ndarray]:
    """One release for each row of scores."""
    scaled = (scores * _QUERY).astype(np.float32)
    parts = np.array_split(scaled, max(1, scaled.size // 2**18))

    def release(part: np.ndarray) -> np.ndarray:
        noisy = rng.standard_exponential(part.shape, np.float32)
        np.add(noisy, part, out=noisy)
        return _place(noisy >= (_threshold(rng, len(part)) * _QUERY).astype(np.float32)[:, None])

    return lambda: np.concatenate([release(part) for part in parts])


def _threshold(rng: np.random.Generator, count: int) -> np.ndarray:
    return np.floor(rng.standard_exponential(count) / _FIRST)


def _place(hit: np.ndarray) -> np.ndarray:
    index = hit.argmax(axis=1)
    return np.where(hit[np.arange(len(hit)), index], index, hit.shape[1])
