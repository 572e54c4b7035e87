"""Beyond the paper: the whole variance part as a few compiled calls, against NumPy implementations of the paper.

The work: bounds of all data sets (columns x repetitions) at full radius, and releases of the four mechanisms at every
epsilon from each. NumPy does a slice of it, which is scaled up: one data set a column, some releases a cell.
"""

from __future__ import annotations

import functools
import time
from collections.abc import Callable
from typing import Any

import jax
import numpy as np

import jaxdp
from benchmarks.paper import baseline, data, study
from benchmarks.paper.study import Settings

_CANDIDATES, _LOOPED, _TURNS = 8192, 5, 5
_FIRST = 1.0 / (1.0 + 2.0 ** (2.0 / 3.0))
"""The library's share of the threshold, for the same law in NumPy."""


@functools.partial(jax.jit, static_argnames=("kind", "fixed", "releases"))
def release(keys: Any, bounds: Any, grid: Any, epsilon: Any, *, kind: str, fixed: float | None, releases: int) -> Any:
    """(repetitions, releases) of one mechanism."""

    def one(key: Any, bounds: Any) -> Any:
        children = jax.random.split(key, releases)
        if kind == "laplace":
            return jax.vmap(jaxdp.Laplace(bounds.sensitivity, epsilon).sample, (0, None))(children, bounds.value)
        if kind == "asymmetric":
            mechanism = jaxdp.AsymmetricSensitivity(fixed)
            return jax.vmap(mechanism.sample, (0, None))(children, (bounds, grid))
        record = jaxdp.InverseSensitivity if kind == "inverse" else jaxdp.SmoothSensitivity
        return jax.vmap(record(epsilon).law((bounds, grid)).sample)(children)

    return jax.vmap(one)(keys, bounds)


def library(columns: list[data.Column], rows: list[np.ndarray], settings: Settings) -> list[Any]:
    """All of the variance part; waits for the results."""
    key, done = jax.random.key(settings.seed), []
    for index, (column, x) in enumerate(zip(columns, rows, strict=True)):
        bounds = study.batch((x,), fn=jaxdp.bounds.variance, ends=(column.lower, column.upper), radius=settings.n)
        most = (column.upper - column.lower) ** 2 / 4.0
        stream, other = study.stream(0.0, most, base=settings.base), study.line(0.0, most, _CANDIDATES)
        keys = jax.random.split(jax.random.fold_in(key, index), len(x))
        for epsilon in settings.epsilons:
            for kind in study.MECHANISMS:
                part, fixed = bounds, None
                if kind == "asymmetric":
                    part, fixed = study.truncate(bounds, jaxdp.radius_for(4096, epsilon, 1e-9)), epsilon
                grid = stream if kind == "asymmetric" else other
                done.append(release(keys, part, grid, epsilon, kind=kind, fixed=fixed, releases=settings.releases))
    return jax.block_until_ready(done)


def numpy(columns: list[data.Column], rows: list[np.ndarray], settings: Settings, *, loop: bool) -> dict[str, float]:
    """Seconds of the variance part in NumPy, measured on the first data set of each column and scaled."""
    rng, seconds = np.random.default_rng(settings.seed), dict.fromkeys(("bounds", *study.MECHANISMS), 0.0)
    for column, x in zip(columns, (row[0] for row in rows), strict=True):
        most = (column.upper - column.lower) ** 2 / 4.0
        grid = jaxdp.geometric_grid(0.0, most, base=settings.base)
        sensitivity = (column.upper - column.lower) ** 2 / len(x)

        def timed(name: str, call: Callable[[], Any], share: float) -> Any:
            start = time.perf_counter()
            made = call()
            seconds[name] += (time.perf_counter() - start) * share
            return made

        all_sets, all_releases = settings.repetitions, settings.repetitions * settings.releases
        low, high = timed("bounds", lambda c=column, x=x: baseline.variance_bounds(x, c.lower, c.upper), all_sets)
        for epsilon in settings.epsilons:
            e1, e2 = _FIRST * epsilon, (1.0 - _FIRST) / 2.0 * epsilon
            scores = timed("asymmetric", lambda: baseline.signed_scores(low, high, grid), all_sets)  # noqa: B023
            one, count = (baseline.asymmetric_loop, _LOOPED) if loop else (baseline.asymmetric, settings.releases)
            timed(
                "asymmetric",
                lambda: [one(rng, scores, grid, e1, e2) for _ in range(count)],  # noqa: B023
                all_releases / count,
            )
            count, calls = (1, _LOOPED) if loop else (settings.releases, 1)
            for name, call in {
                "inverse": lambda: baseline.inverse(rng, low, high, epsilon, count),  # noqa: B023
                "smooth": lambda: baseline.smooth(rng, low, high, sensitivity, epsilon, count),  # noqa: B023
                "laplace": lambda: low[0] + rng.laplace(0.0, sensitivity / epsilon, count),  # noqa: B023
            }.items():
                timed(name, lambda: [call() for _ in range(calls)], all_releases / (count * calls))  # noqa: B023
    return seconds


def _race(settings: Settings) -> dict[str, Any]:
    columns = data.columns(settings.folder)[: 1 if settings.quick else 5]
    rows = [study.sampled_rows(column, settings, seed) for seed, column in enumerate(columns)]
    start = time.perf_counter()
    library(columns, rows, settings)
    first, turns = time.perf_counter() - start, []
    for _ in range(2 if settings.quick else _TURNS):  # In turn: a burst of other load hits all alike.
        start = time.perf_counter()
        library(columns, rows, settings)
        ours = time.perf_counter() - start
        parts = {name: numpy(columns, rows, settings, loop=name == "loop") for name in ("loop", "vectorised")}
        turns.append({"library": ours, **{name: sum(part.values()) for name, part in parts.items()}, "parts": parts})
    releases = len(columns) * settings.repetitions * settings.releases * len(settings.epsilons) * len(study.MECHANISMS)
    middle = {name: float(np.median([turn[name] for turn in turns])) for name in ("library", "loop", "vectorised")}
    return {
        "columns": len(columns),
        "data_sets": len(columns) * settings.repetitions,
        "releases": releases,
        "first_call_s": first,
        "seconds": middle,
        "ratio": {n: float(np.median([t[n] / t["library"] for t in turns])) for n in ("loop", "vectorised")},
        "ratios": {n: [t[n] / t["library"] for t in turns] for n in ("loop", "vectorised")},
        "parts": turns[len(turns) // 2]["parts"],
    }


def cells(settings: Settings) -> dict[str, Callable[[], Any]]:
    return {"variance part": functools.partial(_race, settings)}


def table(results: dict[str, Any]) -> list[str]:
    made = results["variance part"]
    names = {
        "library": "jaxdp, compiled and batched",
        "vectorised": "NumPy, noise of a whole stream at once, other mechanisms 100 releases a call",
        "loop": "NumPy, one release and one query at a time",
    }
    lines = ["| " + f"{made['releases']:,} releases on {made['data_sets']:,} data sets" + " | seconds | ratio |"]
    lines.append("| --- | --: | --: |")
    for name, title in names.items():
        ratio = f"{made['ratio'][name]:.3g}" if name in made["ratio"] else "1"
        lines.append(f"| {title} | {made['seconds'][name]:,.1f} | {ratio} |")
    return [*lines, "", f"The first call, with all compilation, takes {made['first_call_s']:.0f} s."]
