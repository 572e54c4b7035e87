"""The heart of the study: exact expected errors and sampled ones, of all mechanisms, batched over repetitions.

A cell is one (statistic of a data set, mechanism, epsilon). One compiled call evaluates all repetitions of a cell:
their laws, which give the exact expected errors, and their releases. Programs depend on the shapes (and the
asymmetric mechanism's on epsilon) alone, so that data sets share them.
"""

from __future__ import annotations

import dataclasses
import functools
import math
import zlib
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import jaxdp

EPSILONS = (0.1, 0.25, 0.5, 1.0, 2.0, 4.0)
MECHANISMS = ("inverse", "asymmetric", "smooth", "laplace")
_RECORDS = {
    "inverse": jaxdp.InverseSensitivity,
    "asymmetric": jaxdp.AsymmetricSensitivity,
    "smooth": jaxdp.SmoothSensitivity,
}
Z90 = 1.6448536269514722
"""Half the width of a normal 90% interval."""


@dataclasses.dataclass(frozen=True)
class Settings:
    """What a run of the study depends on.

    Attributes:
        folder: Data sets, or None.
        quick: Small: for tests and CI.
        n: Records of a data set.
        repetitions: Data sets drawn for each cell.
        releases: Releases from each.
        epsilons: Budgets.
        candidates: Points of the linear grid of the inverse and smooth sensitivity mechanisms.
        base: Growth of the asymmetric mechanism's stream.
        seed: Of everything random.
    """

    folder: Path | None = None
    quick: bool = False
    n: int = 1000
    repetitions: int = 100
    releases: int = 100
    epsilons: tuple[float, ...] = EPSILONS
    candidates: int = 16_384
    base: float = 1.005
    seed: int = 0

    @classmethod
    def of(cls, folder: Path | None, *, quick: bool) -> Settings:
        """The full study, or the quick one."""
        small = dict(n=200, repetitions=8, releases=25, epsilons=(0.5, 2.0), candidates=4096)
        return cls(folder, quick, **(small if quick else {}))

    def facts(self) -> dict[str, Any]:
        """The settings as JSON has them, without the machine's paths."""
        facts = dataclasses.asdict(self)
        return facts | {"folder": None, "epsilons": list(self.epsilons), "data": self.folder is not None}


def draws(rng: np.random.Generator, size: int, settings: Settings) -> np.ndarray:
    """(repetitions, n) rows of a data set; with replacement where it has fewer than n."""
    if size < settings.n:
        return rng.integers(0, size, (settings.repetitions, settings.n))
    return np.stack([rng.choice(size, settings.n, replace=False) for _ in range(settings.repetitions)])


@functools.partial(jax.jit, static_argnames=("fn", "radius", "ends"))
def batch(records: tuple, *, fn: Callable, ends: tuple, radius: int) -> jaxdp.OutputBounds:
    """Bounds of all repetitions at once: `fn(*records, *ends, radius=radius)` mapped over the leading axis."""
    return jax.vmap(lambda *parts: fn(*parts, *ends, radius=radius))(*records)


def coarse(bounds: jaxdp.OutputBounds, width: float, n: int) -> jaxdp.OutputBounds:
    """The same lower bounds of a variance, with the paper's upper ones: min(f + l (b-a)^2 / n, (b-a)^2 / 4)."""
    lower, upper = np.asarray(bounds.lower), np.asarray(bounds.upper)
    levels = np.arange(upper.shape[1], dtype=np.float32)
    rough = np.minimum(lower[:, :1] + levels * np.float32(width**2 / n), upper[:, -1:])
    rough[:, -1] = upper[:, -1]
    # The exact bounds are lower, up to the last digit of float32.
    return dataclasses.replace(bounds, upper=np.maximum(rough, upper))


def unbounded(bounds: jaxdp.OutputBounds) -> jaxdp.OutputBounds:
    """The same lower bounds where nothing is known above: one record may raise f without limit."""
    upper = np.array(bounds.upper)
    upper[:, 1:] = np.inf
    infinite = np.full_like(np.asarray(bounds.sensitivity), np.inf)
    return dataclasses.replace(bounds, upper=upper, sensitivity=infinite)


def truncate(bounds: jaxdp.OutputBounds, radius: int) -> jaxdp.OutputBounds:
    """Levels beyond the radius replaced by the extremes: fewer levels, the same contract."""
    return bounds if radius >= np.shape(bounds.lower)[-1] - 2 else _truncate(bounds, radius=radius)


@functools.partial(jax.jit, static_argnames=("radius",))
def _truncate(bounds: jaxdp.OutputBounds, *, radius: int) -> jaxdp.OutputBounds:
    sides = (jnp.concatenate([side[:, : radius + 1], side[:, -1:]], 1) for side in (bounds.lower, bounds.upper))
    return dataclasses.replace(bounds, **dict(zip(("lower", "upper"), sides, strict=True)))


def stream(lower: float, upper: float, *, base: float = 1.005, unit: float = 1.0, multiple: int = 2048) -> np.ndarray:
    """The asymmetric mechanism's candidates, float32.

    Filled up at its end to a multiple of 2048 with candidates up to 0.1% above `upper`, so that data sets of other
    ranges share one compiled program; these are reached only by what has passed all of the range.
    """
    grid = jaxdp.geometric_grid(lower, upper, base=base, unit=unit)
    extra = -len(grid) % multiple
    above = upper + (upper - lower) * np.arange(1, extra + 1) * 2.0**-21
    return np.append(grid, above).astype(np.float32)


def line(lower: float, upper: float, size: int) -> np.ndarray:
    """The candidates of the other mechanisms, float32."""
    return jaxdp.linear_grid(lower, upper, size).astype(np.float32)


@functools.partial(jax.jit, static_argnames=("kind", "fixed", "releases"))
def cell(
    keys: Any, bounds: Any, grid: Any, epsilon: Any, *, kind: str, fixed: float | None = None, releases: int
) -> tuple[Any, Any, Any, Any]:
    """(repetitions,) exact mean, mean square and median of the error, and the mean error of the releases.

    The size of the asymmetric mechanism's law depends on epsilon: it needs a fixed one, the others share a program.
    """
    record = _RECORDS[kind](epsilon if fixed is None else fixed)

    def one(key: Any, bounds: Any) -> tuple[Any, Any, Any, Any]:
        law = record.law((bounds, grid))
        error = jnp.abs(law.outcomes - bounds.value)
        # The asymmetric mechanism's own sampler shares nothing with the law: agreement says more.
        draw = (lambda key: record.sample(key, (bounds, grid))) if kind == "asymmetric" else law.sample
        drawn = jax.vmap(draw)(jax.random.split(key, releases))
        exact = law.expected_error(error), law.expected_error(error * error), law.error_quantile(0.5, error)
        return *exact, jnp.mean(jnp.abs(drawn - bounds.value))

    return jax.vmap(one)(keys, bounds)


@jax.jit
def closed_form(bounds: Any, epsilon: Any) -> Any:
    """(repetitions,) error of the inverse sensitivity mechanism in its continuous form."""
    return jax.vmap(jaxdp.InverseSensitivity(epsilon).continuous_error)(bounds)


@functools.partial(jax.jit, static_argnames=("releases",))
def _laplace(keys: Any, values: Any, sensitivity: Any, epsilon: Any, *, releases: int) -> Any:
    def one(key: Any, value: Any) -> Any:
        draw = jaxdp.Laplace(sensitivity, epsilon).sample
        drawn = jax.vmap(draw, (0, None))(jax.random.split(key, releases), value)
        return jnp.mean(jnp.abs(drawn - value))

    return jax.vmap(one)(keys, values)


def laplace(keys: Any, bounds: Any, *, epsilon: float, releases: int) -> tuple[Any, Any, Any, Any]:
    """As `cell`, of the Laplace mechanism with the global sensitivity; its error does not depend on the data."""
    sensitivity = float(np.max(np.asarray(bounds.sensitivity)))
    law = jaxdp.Laplace(sensitivity, epsilon).law(np.float32(0.0))
    q, step = math.exp(-float(law.rate)), float(law.granularity)
    count = len(np.asarray(bounds.sensitivity))
    mean, square = np.full(count, float(law.expected_error())), np.full(count, 2.0 * q * (step / (1.0 - q)) ** 2)
    median = np.full(count, float(law.error_quantile(0.5)))
    return mean, square, median, _laplace(keys, np.asarray(bounds.lower)[:, 0], sensitivity, epsilon, releases=releases)


def compare(
    bounds: jaxdp.OutputBounds,
    grids: dict[str, np.ndarray],
    settings: Settings,
    *,
    mechanisms: Iterable[str] = MECHANISMS,
    label: str,
) -> list[dict[str, Any]]:
    """One record for each mechanism and epsilon: exact and sampled errors of all repetitions.

    Args:
        bounds: Of all repetitions.
        grids: Candidates of "asymmetric" and of "inverse" and "smooth".
        settings: Of the study.
        mechanisms: Some of MECHANISMS.
        label: Cells of other labels have other random numbers.
    """
    return [
        one_cell(bounds, grids, settings, kind=kind, epsilon=epsilon, label=label)
        for epsilon in settings.epsilons
        for kind in mechanisms
    ]


def one_cell(
    bounds: jaxdp.OutputBounds, grids: dict[str, Any], settings: Settings, *, kind: str, epsilon: float, label: str
) -> dict[str, Any]:
    """The record of one mechanism and epsilon."""
    key = jax.random.fold_in(jax.random.key(settings.seed), zlib.crc32(f"{label}/{kind}/{epsilon}".encode()))
    keys = jax.random.split(key, np.shape(bounds.lower)[0])
    if kind == "laplace":
        measured = laplace(keys, bounds, epsilon=epsilon, releases=settings.releases)
    else:
        fixed, known = None, bounds
        if kind == "asymmetric":  # The levels that `jaxdp.release` uses: beyond them it halts once in 1e9 times.
            fixed, known = epsilon, truncate(bounds, jaxdp.radius_for(len(grids[kind]), epsilon, 1e-9))
        measured = cell(keys, known, grids[kind], epsilon, kind=kind, fixed=fixed, releases=settings.releases)
    closed = closed_form(bounds, epsilon) if kind == "inverse" else None
    return {"mechanism": kind, "epsilon": epsilon, **summary(*measured, settings.releases, closed)}


def summary(mean: Any, square: Any, median: Any, sampled: Any, releases: int, closed: Any = None) -> dict[str, Any]:
    """The figures of a cell.

    `half` is half the width of the 90% interval, around the exact mean error, of the mean over all releases, with
    the variance of the exact laws.
    """
    mean, square, sampled = (np.asarray(part, np.float64) for part in (mean, square, sampled))
    half = Z90 * math.sqrt(float(np.sum(np.maximum(square - mean**2, 0.0)))) / (len(mean) * math.sqrt(releases))
    exact, found = float(mean.mean()), float(sampled.mean())
    record = {
        "exact": exact,
        "exact_q05": float(np.quantile(mean, 0.05)),
        "exact_q95": float(np.quantile(mean, 0.95)),
        "median": float(np.mean(np.asarray(median, np.float64))),
        "sampled": found,
        "sampled_q05": float(np.quantile(sampled, 0.05)),
        "sampled_q95": float(np.quantile(sampled, 0.95)),
        "half": half,
        "inside": bool(abs(found - exact) <= half),
        "repetitions": len(mean),
    }
    return record if closed is None else record | {"closed_form": float(np.mean(np.asarray(closed, np.float64)))}


def sampled_rows(column: Any, settings: Settings, seed: int) -> np.ndarray:
    """(repetitions, n) records of a column."""
    rng = np.random.default_rng([settings.seed, seed])
    return column.values[draws(rng, len(column.values), settings)]
