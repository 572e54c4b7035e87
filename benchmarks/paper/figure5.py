"""Mean absolute error of a private variance on five columns and two counter-cases, against epsilon.

Each mechanism with the library's upper bounds of the variance (filled) and with the source paper's coarse ones
(hollow, dashed, drawn a little to the right), f + l (b - a)^2 / n. Lower bounds are the same exact ones.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import jaxdp
from benchmarks.paper import data, study, style
from benchmarks.paper.study import Settings

_COUNTER = ("lognormal", "uniform")
_ON_BOUNDS = ("inverse", "asymmetric", "smooth")


def problems(settings: Settings) -> list[data.Column]:
    """The five columns, and those where the upper bounds are as tight as the lower ones."""
    found = data.columns(settings.folder)
    found = found[:1] if settings.quick else found
    return found + [data.synthetic()[name] for name in _COUNTER[: 1 if settings.quick else 2]]


@functools.lru_cache(maxsize=2)
def variance_bounds(column: data.Column, settings: Settings, seed: int) -> jaxdp.OutputBounds:
    """Of all repetitions, at full radius."""
    rows = study.sampled_rows(column, settings, seed)
    ends = (column.lower, column.upper)
    return study.batch((rows,), fn=jaxdp.bounds.variance, ends=ends, radius=settings.n)


def grids(column: data.Column, settings: Settings, *, base: float | None = None) -> dict[str, Any]:
    """The paper's stream from 0, t_i = base^i - 1, and a linear grid."""
    most = (column.upper - column.lower) ** 2 / 4.0
    other = study.line(0.0, most, settings.candidates)
    return {
        "asymmetric": study.stream(0.0, most, base=base or settings.base),
        "inverse": other,
        "smooth": other,
    }


def _one(column: data.Column, settings: Settings, seed: int, kind: str) -> list[dict[str, Any]]:
    bounds = variance_bounds(column, settings, seed)
    if kind == "coarse":
        bounds = study.coarse(bounds, column.upper - column.lower, settings.n)
    mechanisms = _ON_BOUNDS if kind == "coarse" else study.MECHANISMS
    records = study.compare(
        bounds, grids(column, settings), settings, mechanisms=mechanisms, label=f"{column.name}/{kind}"
    )
    facts = {"column": column.name, "title": column.title, "unit": column.unit, "bounds": kind}
    return [facts | record for record in records]


def cells(settings: Settings) -> dict[str, Callable[[], Any]]:
    return {
        f"{column.name}, {kind}": functools.partial(_one, column, settings, seed, kind)
        for seed, column in enumerate(problems(settings))
        for kind in ("exact", "coarse")
    }


def draw(results: dict[str, Any]) -> Any:
    names = list(dict.fromkeys(name.split(",")[0] for name in results))
    figure, axes = style.panels(len(names), height=3.0, columns=min(4, len(names)))
    for panel, name in zip(axes, names, strict=True):
        exact, rough = results[f"{name}, exact"], results[f"{name}, coarse"]
        for kind in study.MECHANISMS:
            style.curve(panel, exact, kind, label=style.NAMES[kind])
        for kind in _ON_BOUNDS:
            style.curve(panel, rough, kind, label=f"{style.NAMES[kind]}, coarse bounds", dashed=True)
        style.epsilon_axes(panel, sorted({r["epsilon"] for r in exact}), error_label(exact[0]["unit"]))
        panel.set_title(f"variance of {exact[0]['title']}")
    style.legend(figure, axes[0])
    return figure


def error_label(unit: str) -> str:
    """Of the axis of a variance's error."""
    return "mean absolute error" + ("" if unit == "1" else f" ({unit}²)")


def ratios(results: dict[str, Any], kind: str = "exact") -> dict[str, dict[float, float]]:
    """Error of ISM (closed form) over error of ASM, by column and epsilon."""
    found: dict[str, dict[float, float]] = {}
    for name, records in results.items():
        column, bounds = name.split(", ")
        if bounds == kind:
            error = {(r["mechanism"], r["epsilon"]): r.get("closed_form", r["exact"]) for r in records}
            at = sorted({epsilon for _, epsilon in error})
            found[column] = {epsilon: error["inverse", epsilon] / error["asymmetric", epsilon] for epsilon in at}
    return found


REFERENCE = {
    "diamonds_price": {0.1: 3.5, 0.5: 2.8, 1.0: 2.8, 2.0: 3.8},
    "abalone_rings": {0.1: 5.1, 0.5: 2.9, 1.0: 2.9, 2.0: 2.5},
    "bike_hourly_cnt": {0.1: 23.0, 0.5: 15.0, 1.0: 16.0, 2.0: 17.0},
    "adult_age": {0.1: 1.6, 0.5: 1.3, 1.0: 1.2, 2.0: 1.4},
    "adult_hours_per_week": {0.1: 2.6, 0.5: 1.9, 1.0: 1.8, 2.0: 1.7},
}
"""ISM / ASM in an earlier, slow computation with 20 repetitions."""


def table(results: dict[str, Any]) -> list[str]:
    exact, rough = ratios(results), ratios(results, "coarse")
    epsilons = sorted(next(iter(exact.values())))
    lines = style.table_head({"error of ISM / error of ASM": "---", "bounds": "---"}, epsilons)
    for name in exact:
        for kind, found in (("exact", exact), ("coarse", rough)):
            title = results[f"{name}, {kind}"][0]["title"]
            lines.append(f"| {title} | {kind} | " + " | ".join(f"{found[name][e]:.2f}" for e in epsilons) + " |")
    return lines
