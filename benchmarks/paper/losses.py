"""What figures 6, 7 and others share: bounds of the losses of a model, and their panels."""

from __future__ import annotations

from typing import Any

import numpy as np

import jaxdp
from benchmarks.paper import models, study, style
from benchmarks.paper.study import Settings

UNITS = {"binary_cross_entropy": 0.01, "cross_entropy": 0.01, "squared_error": 1.0, "absolute_error": 1.0}
"""Of the streams: 1, the paper's, is coarser than a cross-entropy."""


def loss_bounds(task: models.Task, statistic: str, settings: Settings) -> tuple[jaxdp.OutputBounds, dict[str, Any]]:
    """Bounds of all repetitions at full radius, and the facts of the model."""
    made, labels, facts = models.outputs(task, settings)
    rng = np.random.default_rng([settings.seed, len(labels)])
    rows = study.draws(rng, len(labels), settings)
    ends = (0.0, task.limit) if task.kind == "regression" else (task.limit,)
    records, fn = (made[rows], labels[rows]), getattr(jaxdp.bounds, statistic)
    if statistic == "accuracy":
        right = made > 0 if task.kind == "binary" else made.argmax(axis=1)
        records, ends = (right.astype(np.int32)[rows], labels.astype(np.int32)[rows]), ()
    facts = facts | {"with_replacement": len(labels) < settings.n}
    return study.batch(records, fn=fn, ends=ends, radius=settings.n), facts


def grids(bounds: jaxdp.OutputBounds, unit: float, settings: Settings) -> dict[str, Any]:
    """The stream and the linear grid over the public range of a statistic."""
    lower, upper = float(np.asarray(bounds.lower)[0, -1]), float(np.asarray(bounds.upper)[0, -1])
    other = study.line(lower, upper, settings.candidates)
    made = study.stream(lower, upper, base=settings.base, unit=unit)
    return {"asymmetric": made, "inverse": other, "smooth": other}


def one(task: models.Task, statistic: str, settings: Settings) -> dict[str, Any]:
    """All cells of one loss of one model."""
    bounds, facts = loss_bounds(task, statistic, settings)
    made = study.compare(bounds, grids(bounds, UNITS[statistic], settings), settings, label=f"{task.name}/{statistic}")
    return {
        "task": task.name,
        "title": task.title,
        "statistic": statistic,
        "unit": task.unit,
        "model": facts,
        "value": float(np.mean(np.asarray(bounds.lower, np.float64)[:, 0])),
        "asymmetry": float(np.mean([float(jaxdp.asymmetry(row, 1.0)) for row in rows_of(bounds, 10)])),
        "records": made,
    }


def rows_of(bounds: jaxdp.OutputBounds, count: int) -> list[jaxdp.OutputBounds]:
    """The first data sets of a batch, one by one."""
    parts = [np.asarray(part) for part in (bounds.lower, bounds.upper, bounds.sensitivity)]
    return [
        jaxdp.OutputBounds(*(part[i] for part in parts), monotonic=bounds.monotonic)
        for i in range(min(count, len(parts[0])))
    ]


def draw(results: dict[str, Any], titles: dict[str, str], columns: int) -> Any:
    """One panel a loss."""
    figure, axes = style.panels(len(results), columns=columns, height=3.0)
    for panel, made in zip(axes, results.values(), strict=True):
        for kind in study.MECHANISMS:
            style.curve(panel, made["records"], kind, label=style.NAMES[kind])
        unit = {"1": "", "nat": " (nats)"}.get(made["unit"], f" ({made['unit']})")
        unit = unit.replace(")", "²)") if made["statistic"] == "squared_error" else unit
        epsilons = sorted({record["epsilon"] for record in made["records"]})
        style.epsilon_axes(panel, epsilons, f"mean absolute error{unit}")
        panel.set_title(f"{titles[made['statistic']]}, {made['title']}")
    style.legend(figure, axes[0])
    return figure


def table(results: dict[str, Any]) -> list[str]:
    """Value of the loss, asymmetry, and the ratio of errors by epsilon."""
    first = next(iter(results.values()))
    epsilons = sorted({record["epsilon"] for record in first["records"]})
    first = {"error of ISM / error of ASM": "---", "loss": "--:", "asymmetry at 1": "--:"}
    lines = style.table_head(first, epsilons)
    for name, made in results.items():
        error = {(r["mechanism"], r["epsilon"]): r.get("closed_form", r["exact"]) for r in made["records"]}
        ratio = " | ".join(f"{error['inverse', e] / error['asymmetric', e]:.2f}" for e in epsilons)
        lines.append(f"| {name} | {made['value']:.4g} | {made['asymmetry']:.2f} | {ratio} |")
    return lines
