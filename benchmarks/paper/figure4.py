"""Error of ASM over error of ISM against the asymmetry of the bounds.

(a) Bands of 1 below and dU above, epsilon 1, four candidates a lower band: with the budget of monotonic statistics
(e1 + e2 = epsilon) and with that of all others (e1 + 2 e2 = epsilon). (b) Heavy-tailed upper bounds: the l-th upper
band is l wide, so that the asymmetry grows as epsilon falls.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import numpy as np

import jaxdp
from benchmarks.paper import figure2, style
from benchmarks.paper.study import Settings

UP = (0.25, 0.5, 1.0, 2.0, 4.0, 8.0, 16.0)
_TICKS = (0.1, 0.2, 0.5, 1.0, 2.0, 5.0)
_REFERENCE = {0.25: 2.22, 1.0: 1.95, 2.0: 1.19, 4.0: 0.60, 8.0: 0.29, 16.0: 0.14}
"""An earlier, slow computation with the monotonic budget."""


def point(bounds: jaxdp.OutputBounds, grid: np.ndarray, epsilon: float) -> dict[str, Any]:
    """Asymmetry, errors, and ratios of ASM to ISM with both budgets."""
    inverse = float(jaxdp.InverseSensitivity(epsilon).continuous_error(bounds))
    mechanism = jaxdp.AsymmetricSensitivity(epsilon)
    errors = {
        name: float(mechanism.law((dataclasses.replace(bounds, monotonic=flag), grid)).expected_error(bounds.value))
        for name, flag in (("monotonic", True), ("general", False))
    }
    return {
        "asymmetry": float(jaxdp.asymmetry(bounds, epsilon)),
        "inverse": inverse,
        **errors,
        "ratio_monotonic": errors["monotonic"] / inverse,
        "ratio_general": errors["general"] / inverse,
    }


def _uniform() -> list[dict[str, Any]]:
    rows = []
    for up in UP:
        row = {"up": up, **point(figure2.bounds(up), figure2.grid(up), figure2.EPSILON)}
        rows.append(row | {"reference": _REFERENCE.get(up)})
    return rows


def _heavy(epsilons: tuple[float, ...]) -> list[dict[str, Any]]:
    levels = np.arange(402.0)
    value = levels[-1]
    bounds = jaxdp.OutputBounds(value - levels, value + levels * (levels + 1.0) / 2.0)
    steps = np.arange(0.0, value + 4000.0, 0.25)
    grid = np.append(steps, value + np.geomspace(4000.25, levels[-1] * levels.size / 2.0, 400))
    return [{"epsilon": epsilon, **point(bounds, grid, epsilon)} for epsilon in epsilons]


def cells(settings: Settings) -> dict[str, Callable[[], Any]]:
    return {"uniform": _uniform, "heavy": lambda: _heavy(settings.epsilons)}


def draw(results: dict[str, Any]) -> Any:
    figure, axes = style.panels(2, width=4.4, height=3.1, columns=2)
    titles = ("(a) uniform bands, epsilon 1", "(b) l-th upper band l wide (labels: epsilon)")
    for panel, title, rows in zip(axes, titles, (results["uniform"], results["heavy"]), strict=True):
        for budget, marker in (("monotonic", "o"), ("general", "s")):
            label = {"monotonic": "e1 + e2 = epsilon", "general": "e1 + 2 e2 = epsilon"}[budget]
            points = [(row["asymmetry"], row[f"ratio_{budget}"]) for row in rows]
            panel.plot(*zip(*points, strict=True), marker=marker, label=label)
        panel.axhline(1.0, color="k", lw=0.8, ls=":")
        panel.set_yscale("log")
        panel.set_yticks(_TICKS, [f"{tick:g}" for tick in _TICKS])
        panel.minorticks_off()
        panel.set_title(title)
        panel.set_xlabel("asymmetry (1/2: both sides alike)")
        panel.set_ylabel("error of ASM / error of ISM")
        panel.legend()
    for row in results["heavy"]:
        at = row["asymmetry"], row["ratio_general"]
        axes[1].annotate(f"{row['epsilon']:g}", at, textcoords="offset points", xytext=(5, 4), fontsize=7)
    return figure


def table(results: dict[str, Any]) -> list[str]:
    head = "| dU/dL | asymmetry | ASM/ISM, monotonic budget | earlier computation | ASM/ISM, general budget |"
    rows = [
        f"| {row['up']:g} | {row['asymmetry']:.3f} | {row['ratio_monotonic']:.2f} | "
        f"{row['reference'] or '-'} | {row['ratio_general']:.2f} |"
        for row in results["uniform"]
    ]
    return [head, "| --: | --: | --: | --: | --: |", *rows]
