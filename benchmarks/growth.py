"""How time grows with the size of the work, and whether it does so as stated.

Time ~ cost^exponent is fitted to the median times; the exponent is to be within 0.15 of 1, or of 0 where the size must
not matter. Sizes are such that the start of a call does not matter on a CPU; --scale multiplies batches and records.
With --quick they are smaller, and the exponents mean little. Every size has a program of its own but for audits, whose
memory is measured by `audit_memory`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Any

import jax
import numpy as np

import jaxdp
from benchmarks.harness import Size, growth
from jaxdp.audit import monte_carlo
from jaxdp.audit.catalogue import catalogue

_TURNS = 5


def run(size: Size) -> Iterator[dict[str, Any]]:
    # The first ones are those to have where time is short.
    parts = [_variance, _queries, _audits, _law, _levels, _candidates, _batches, _runs, _radius, _cross_entropy]
    parts = [_median, _audits] if size.quick else [*parts, _median]
    for number, part in enumerate(parts):
        if number and size.late:
            break
        yield part(size.share(len(parts) - number))


def _sizes(size: Size, first: int, last: int, quick: tuple[int, int], scaled: bool = True) -> list[int]:
    """Sizes from the first to the last, each four times as large as the one before."""
    if size.quick:
        return list(quick)
    factor = size.scale if scaled else 1
    return [factor * first * 4**i for i in range(round(math.log(last / first, 4)) + 1)]


def _grow(size: Size, panel: str, title: str, calls: dict[int, Callable], **options: Any) -> dict[str, Any]:
    options = {"cost": lambda n: n, "formula": "n"} | options
    return growth(title, calls, size=size, turns=_TURNS, panel=panel, **options)


# -- output bounds ------------------------------------------------------------------------------------------

_N_LOG_N = {"cost": lambda n: n * math.log(n), "formula": "n log n"}


def _records(n: int) -> np.ndarray:
    return np.random.default_rng(n).gamma(2.0, 4000.0, n).astype(np.float32)


def _bounds(size: Size, name: str, bounds: Callable, data: Callable) -> dict[str, Any]:
    calls = {}
    for n in _sizes(size, 2**16, 2**22, (2**12, 2**14)):
        compiled, arguments = jax.jit(bounds), jax.device_put(data(n))
        calls[n] = lambda compiled=compiled, arguments=arguments: compiled(*arguments)
    return _grow(size, "Output bounds, n records, radius 64", name, calls, **_N_LOG_N)


def _variance(size: Size) -> dict[str, Any]:
    bounds = lambda x: jaxdp.bounds.variance(x, 0.0, 50_000.0, radius=64)  # noqa: E731
    return _bounds(size, "variance", bounds, lambda n: (_records(n),))


def _median(size: Size) -> dict[str, Any]:
    bounds = lambda x: jaxdp.bounds.median(x, 0.0, 50_000.0, radius=64)  # noqa: E731
    return _bounds(size, "median", bounds, lambda n: (_records(n),))


def _cross_entropy(size: Size) -> dict[str, Any]:
    def data(n: int) -> tuple[np.ndarray, np.ndarray]:
        rng = np.random.default_rng(n)
        return rng.normal(size=(n, 10)).astype(np.float32), rng.integers(0, 10, n, dtype=np.int32)

    bounds = lambda x, labels: jaxdp.bounds.cross_entropy(x, labels, 10.0, radius=64)  # noqa: E731
    return _bounds(size, "cross entropy, 10 classes", bounds, data)


def _radius(size: Size) -> dict[str, Any]:
    n, calls = 2**15, {}
    x = jax.device_put(_records(n))
    for radius in (2**12, 2**13, 2**14):
        compiled = jax.jit(lambda x, radius=radius: jaxdp.bounds.variance(x, 0.0, 50_000.0, radius=radius))
        calls[radius] = lambda compiled=compiled: compiled(x)
    panel = f"Output bounds, radius n, {2**15:,} records"
    return _grow(size, panel, "variance, by radius", calls, cost=lambda radius: radius**2, formula="n^2")


# -- streams and mechanisms on bounds -----------------------------------------------------------------------

_STREAMS = "A stream of n queries, runs or levels"
_ABOVE = jaxdp.AboveThreshold(threshold=0.0, sensitivity=1.0, epsilon=1.0)
_ASYMMETRIC = jaxdp.AsymmetricSensitivity(1.0)


def _keys(n: int) -> jax.Array:
    return jax.jit(lambda key: jax.random.split(key, n))(jax.random.key(0))


def _queries(size: Size) -> dict[str, Any]:
    sets, calls = size.of(64, 16), {}
    keys, many = _keys(sets), jax.jit(jax.vmap(_ABOVE.sample))
    for n in _sizes(size, 2**14, 2**18, (2**8, 2**10), scaled=False):
        scores = jax.device_put(np.random.default_rng(n).integers(-2000, -1000, (sets, n), dtype=np.int32))
        calls[n] = lambda scores=scores: many(keys, scores)
    return _grow(size, _STREAMS, f"AboveThreshold on {sets:,} fresh data sets, by queries", calls)


def _law(size: Size) -> dict[str, Any]:
    calls, law = {}, jax.jit(lambda scores: _ABOVE.law(scores).log_p)
    for n in _sizes(size, 2**12, 2**16, (2**10, 2**12)):
        scores = jax.device_put(np.random.default_rng(n).integers(-2000, -1000, n, dtype=np.int32))
        calls[n] = lambda scores=scores: law(scores)
    return _grow(size, _STREAMS, "AboveThreshold's law, by queries", calls)


def _runs(size: Size) -> dict[str, Any]:
    sets, length, calls = size.of(256, 16), 2**17, {}
    keys = _keys(sets)
    many = jax.jit(jax.vmap(lambda key, scores, repeats: _ABOVE.sample(key, jaxdp.Runs(scores, repeats, length))))
    for n in _sizes(size, 2**12, 2**16, (2**8, 2**10), scaled=False):
        scores = np.tile(np.arange(-1000 - n, -1000, dtype=np.int32), (sets, 1))
        repeats = np.full((sets, n), length // n, np.int32)
        arguments = jax.device_put((scores, repeats))
        calls[n] = lambda arguments=arguments: many(keys, *arguments)
    return _grow(size, _STREAMS, f"AboveThreshold on {sets:,} fresh data sets of {length:,} queries, by runs", calls)


def _on_bounds(size: Size, radius: int, candidates: int) -> Callable:
    """Releases of the asymmetric sensitivity mechanism on fresh bounds, all in one call."""
    sets = size.of(128, 16)
    value = np.random.default_rng(0).uniform(0.4, 0.6, (sets, 1))
    levels = np.append(np.arange(radius + 1) / (4.0 * radius), 1.0)
    lower, upper = (np.clip(value + sign * levels, 0.0, 1.0).astype(np.float32) for sign in (-1, 1))
    bounds, grid = (
        jaxdp.OutputBounds(lower, upper, np.full(sets, np.inf, np.float32)),
        np.linspace(0.0, 1.0, candidates),
    )
    many = jax.jit(jax.vmap(lambda key, bounds, grid: _ASYMMETRIC.sample(key, (bounds, grid)), (0, 0, None)))
    arguments = jax.device_put((_keys(sets), bounds, grid))
    return lambda: many(*arguments)


def _levels(size: Size) -> dict[str, Any]:
    calls = {radius: _on_bounds(size, radius, 2**12) for radius in _sizes(size, 2**9, 2**13, (32, 128), scaled=False)}
    return _grow(size, _STREAMS, "AsymmetricSensitivity, 4,096 candidates, by levels", calls)


def _candidates(size: Size) -> dict[str, Any]:
    sizes = _sizes(size, 2**12, 2**16, (2**8, 2**10), scaled=False)
    calls = {n: _on_bounds(size, 2**12, n) for n in sizes}
    title = "AsymmetricSensitivity, 4,096 levels, by candidates"
    return _grow(size, "n candidates", title, calls, promised=0.0)


# -- batches and audits -------------------------------------------------------------------------------------


def _batches(size: Size) -> dict[str, Any]:
    many, calls = jax.jit(jax.vmap(jaxdp.Laplace(1.0, 1.0).sample)), {}
    for n in _sizes(size, 2**18, 2**24, (2**10, 2**12)):
        arguments = _keys(n), jax.device_put(np.linspace(0.0, 1.0, n, dtype=np.float32))
        calls[n] = lambda arguments=arguments: many(*arguments)
    return _grow(size, "A batch of n", "vmap of Laplace.sample over keys and values", calls)


def _audits(size: Size) -> dict[str, Any]:
    entry = next(entry for entry in catalogue() if entry.name == "LaplaceMechanism")
    # The law has chosen the event: the pilot has nothing left to choose.
    settings = dict(epsilon=entry.epsilon, score=entry.event(10**8, 0.1), selection=0.01)

    def audit(runs: int) -> float:
        return monte_carlo(jax.random.key(0), entry.many, *entry.worst, num_samples=runs, **settings).epsilon_lower

    calls = {n: lambda n=n: audit(n) for n in _sizes(size, 2**22, 2**26, (2**20, 2**22))}
    return _grow(size, "An audit with n runs an input", "monte_carlo on LaplaceMechanism", calls)
