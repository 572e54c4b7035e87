"""Beyond the paper: median, quantiles, trimmed mean, standard deviation and accuracy, by the same four mechanisms.

The streams of the asymmetric mechanism are those of `jaxdp.default_grid`, which know nothing but the range.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import numpy as np

import jaxdp
from benchmarks.paper import data, losses, models, study, style
from benchmarks.paper.study import Settings

STATISTICS = {
    "median": (jaxdp.bounds.median, ()),
    "quantile 0.25": (jaxdp.bounds.quantile, (0.25,)),
    "quantile 0.9": (jaxdp.bounds.quantile, (0.9,)),
    "trimmed mean 10%": (jaxdp.bounds.trimmed_mean, (0.1,)),
    "standard deviation": (jaxdp.bounds.standard_deviation, ()),
}
_EPSILONS = (0.1, 0.5, 1.0, 2.0)
_COLUMNS = (0, 1, 4)


def _records(bounds: jaxdp.OutputBounds, settings: Settings, title: str, statistic: str, unit: str) -> dict[str, Any]:
    one = losses.rows_of(bounds, 10)
    stream = jaxdp.default_grid(jaxdp.AsymmetricSensitivity(1.0), one[0], 4096).astype(np.float32)
    other = study.line(float(one[0].lower[-1]), float(one[0].upper[-1]), settings.candidates)
    grids = {"asymmetric": stream, "inverse": other, "smooth": other}
    return {
        "title": title,
        "statistic": statistic,
        "unit": unit,
        "value": float(np.mean(np.asarray(bounds.lower, np.float64)[:, 0])),
        "asymmetry": float(np.mean([float(jaxdp.asymmetry(row, 1.0)) for row in one])),
        "records": study.compare(bounds, grids, settings, label=f"{title}/{statistic}"),
    }


def _column(column: data.Column, settings: Settings, seed: int, statistic: str) -> dict[str, Any]:
    fn, ends = STATISTICS[statistic]
    rows = study.sampled_rows(column, settings, seed)
    bounds = study.batch((rows,), fn=fn, ends=(*ends, column.lower, column.upper), radius=settings.n)
    return _records(bounds, settings, column.title, statistic, column.unit)


def _accuracy(task: models.Task, settings: Settings) -> dict[str, Any]:
    bounds, _ = losses.loss_bounds(task, "accuracy", settings)
    return _records(bounds, settings, task.title, "accuracy", "1")


def cells(settings: Settings) -> dict[str, Callable[[], Any]]:
    chosen = tuple(epsilon for epsilon in settings.epsilons if epsilon in _EPSILONS)
    settings = study.dataclasses.replace(settings, epsilons=chosen)
    columns = data.columns(settings.folder)
    picked = [0] if settings.quick else [index for index in _COLUMNS if index < len(columns)]
    names = list(STATISTICS)[: 1 if settings.quick else None]
    made = {
        f"{name}, {columns[index].name}": functools.partial(_column, columns[index], settings, index, name)
        for name in names
        for index in picked
    }
    tasks = [] if settings.quick else models.tasks(settings, regression=False)
    return made | {f"accuracy, {task.name}": functools.partial(_accuracy, task, settings) for task in tasks}


def draw(results: dict[str, Any]) -> Any:
    figure, axes = style.panels(len(results), height=2.7, columns=4)
    for panel, made in zip(axes, results.values(), strict=True):
        for kind in study.MECHANISMS:
            style.curve(panel, made["records"], kind, label=style.NAMES[kind])
        epsilons = sorted({record["epsilon"] for record in made["records"]})
        unit = "" if made["unit"] == "1" else f" ({made['unit']})"
        style.epsilon_axes(panel, epsilons, f"mean absolute error{unit}")
        panel.set_title(f"{made['statistic']}, {made['title']}", fontsize=9)
    style.legend(figure, axes[0])
    return figure


def table(results: dict[str, Any]) -> list[str]:
    lines = ["| statistic | data | value | asymmetry | ISM | ASM | smooth | Laplace | best |"]
    lines.append("| --- | --- | --: | --: | --: | --: | --: | --: | --- |")
    for made in results.values():
        at = max(e for e in (r["epsilon"] for r in made["records"]) if e <= 1.0)
        error = {r["mechanism"]: r["exact"] for r in made["records"] if r["epsilon"] == at}
        best = style.NAMES[min(error, key=error.get)]
        shown = " | ".join(f"{error[kind]:.3g}" for kind in study.MECHANISMS)
        facts = f"{made['value']:.4g} | {made['asymmetry']:.2f}"
        lines.append(f"| {made['statistic']} | {made['title']} | {facts} | {shown} | {best} |")
    return lines
