"""Beyond the paper: variance of n = 1,000 to 1,000,000 records, error and run time.

Synthetic records of a gamma law. Exact errors: ISM and smooth sensitivity in their continuous forms, ASM with the
paper's stream and with one ten times as fine, which it needs once n is large.
"""

from __future__ import annotations

import functools
import math
import time
from collections.abc import Callable
from typing import Any

import jax
import numpy as np

import jaxdp
from benchmarks.paper import study, style
from benchmarks.paper.study import Settings

SIZES = (1_000, 10_000, 100_000, 1_000_000)
_UPPER, _EPSILONS, _RELEASES, _BASES = 50_000.0, (0.1, 1.0), 10_000, {"asymmetric": 1.005, "fine": 1.0005}
_MEAN_TAIL = math.sqrt(0.5)
"""E|Z| of the density proportional to 1 / (1 + z^4)."""


@functools.partial(jax.jit, static_argnames=("radius",))
def _bounds(x: Any, *, radius: int) -> jaxdp.OutputBounds:
    return jaxdp.bounds.variance(x, 0.0, _UPPER, radius=radius)


@functools.partial(jax.jit, static_argnames=("epsilon",))
def _releases(keys: Any, bounds: Any, grid: Any, *, epsilon: float) -> tuple[Any, Any]:
    law = jaxdp.AsymmetricSensitivity(epsilon).law((bounds, grid))
    return law.expected_error(bounds.value), jax.vmap(law.sample)(keys)


def _seconds(call: Callable[[], Any], turns: int = 3) -> float:
    times = []
    for _ in range(turns + 1):  # The first call compiles.
        start = time.perf_counter()
        jax.block_until_ready(call())
        times.append(time.perf_counter() - start)
    return float(np.median(times[1:]))


def _one(n: int, settings: Settings) -> list[dict[str, Any]]:
    repetitions = 2 if settings.quick else (10 if n < 1_000_000 else 3)
    rng, found = np.random.default_rng([settings.seed, n]), []
    data = [rng.gamma(2.0, 4000.0, n).astype(np.float32) for _ in range(repetitions)]
    keys = jax.random.split(jax.random.key(settings.seed), _RELEASES)
    for epsilon in _EPSILONS[1 if settings.quick else 0 :]:
        radius = min(n, jaxdp.radius_for(4096, epsilon, 1e-9))
        made = [_bounds(x, radius=radius) for x in data]
        inverse, smooth = jaxdp.InverseSensitivity(epsilon), jaxdp.SmoothSensitivity(epsilon)
        grids = {name: study.stream(0.0, _UPPER**2 / 4.0, base=base) for name, base in _BASES.items()}
        laws = {
            name: np.mean([float(_releases(keys[:1], b, grid, epsilon=epsilon)[0]) for b in made])
            for name, grid in grids.items()
            if name == "asymmetric" or (epsilon >= 1.0 and not settings.quick)
        }
        scale = 2.0 * 3.0**0.75 / epsilon
        errors = {
            "inverse": np.mean([float(inverse.continuous_error(b)) for b in made]),
            "smooth": np.mean([float(smooth.smooth_sensitivity(b)) * scale * _MEAN_TAIL for b in made]),
            "laplace": float(made[0].sensitivity) / epsilon,
            **laws,
        }
        seconds = {
            "bounds": _seconds(lambda radius=radius: _bounds(data[0], radius=radius)),
            "law and releases": _seconds(
                lambda made=made, epsilon=epsilon, grids=grids: _releases(
                    keys, made[0], grids["asymmetric"], epsilon=epsilon
                )
            ),
        }
        value = float(np.mean([float(b.value) for b in made]))
        found.append(
            {
                "n": n,
                "epsilon": epsilon,
                "radius": radius,
                "value": value,
                "repetitions": repetitions,
                "errors": {name: float(error) for name, error in errors.items()},
                "seconds": seconds,
            }
        )
    return found


def cells(settings: Settings) -> dict[str, Callable[[], Any]]:
    return {f"n = {n}": functools.partial(_one, n, settings) for n in (SIZES[:1] if settings.quick else SIZES)}


def draw(results: dict[str, Any]) -> Any:
    figure, axes = style.panels(3, width=3.8, height=3.2)
    rows = [row for part in results.values() for row in part]
    epsilons = sorted({row["epsilon"] for row in rows})
    for panel, epsilon in zip(axes[:2], epsilons, strict=False):
        chosen = [row for row in rows if row["epsilon"] == epsilon]
        at = [row["n"] for row in chosen]
        for name in (*study.MECHANISMS, "fine"):
            if name in chosen[0]["errors"]:
                look = {"color": "#56b4e9", "marker": "v"} if name == "fine" else {}
                look = look or {"color": style.COLOURS[name], "marker": style.MARKERS[name]}
                label = "ASM, beta = 1.0005" if name == "fine" else style.NAMES[name]
                panel.plot(at, [row["errors"][name] / row["value"] for row in chosen], label=label, **look)
        panel.set_xscale("log")
        panel.set_yscale("log")
        panel.set_xlabel("records n")
        panel.set_ylabel("mean absolute error / variance")
        panel.set_title(f"epsilon {epsilon:g}")
    for name, marker in (("bounds", "o"), ("law and releases", "s")):
        for epsilon, dash in zip(epsilons, ("--", "-"), strict=False):
            chosen = [row for row in rows if row["epsilon"] == epsilon]
            times = [row["seconds"][name] for row in chosen]
            label = f"{name}, epsilon {epsilon:g}".replace("releases", f"{_RELEASES:,} releases")
            axes[2].plot([row["n"] for row in chosen], times, marker=marker, ls=dash, label=label)
    axes[2].set_xscale("log")
    axes[2].set_yscale("log")
    axes[2].set_xlabel("records n")
    axes[2].set_ylabel("seconds")
    axes[2].set_ylim(top=20.0 * axes[2].get_ylim()[1])  # Room for the legend.
    axes[2].set_title("run time, one data set")
    axes[2].legend(fontsize=7)
    axes[len(epsilons) - 1].legend(fontsize=7)
    return figure


def table(results: dict[str, Any]) -> list[str]:
    lines = ["| n | epsilon | ISM | ASM | ASM, fine | smooth | Laplace | bounds | law and 10,000 releases |"]
    lines.append("| --: | --: | --: | --: | --: | --: | --: | --: | --: |")
    for row in (row for part in results.values() for row in part):
        errors = [row["errors"].get(name) for name in ("inverse", "asymmetric", "fine", "smooth", "laplace")]
        shown = " | ".join("-" if error is None else f"{error / row['value']:.3%}" for error in errors)
        times = " | ".join(f"{seconds * 1e3:,.1f} ms" for seconds in row["seconds"].values())
        lines.append(f"| {row['n']:,} | {row['epsilon']:g} | {shown} | {times} |")
    return lines
