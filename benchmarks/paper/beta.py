"""Appendix: the growth of the asymmetric mechanism's stream, beta = 1.001 to 1.02.

Finer streams halt early more often, since every candidate below f(x) is one more chance to; coarser ones step further
over it. Here the bars are the 90% intervals of the means, from the exact laws.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from benchmarks.paper import data, figure5, study, style
from benchmarks.paper.study import Settings

BASES = (1.001, 1.002, 1.005, 1.01, 1.02)


def _one(column: data.Column, settings: Settings, seed: int, base: float) -> list[dict[str, Any]]:
    bounds = figure5.variance_bounds(column, settings, seed)
    grids = figure5.grids(column, settings, base=base)
    label = f"{column.name}/beta/{base}"
    facts = {"column": column.name, "title": column.title, "unit": column.unit, "base": base}
    records = study.compare(bounds, grids, settings, mechanisms=("asymmetric",), label=label)
    return [facts | record for record in records]


def cells(settings: Settings) -> dict[str, Callable[[], Any]]:
    columns = data.columns(settings.folder)
    columns = columns[:1] if settings.quick else [columns[min(1, len(columns) - 1)], columns[-1]]
    bases = BASES[2:3] if settings.quick else BASES
    return {
        f"{column.name}, {base:g}": functools.partial(_one, column, settings, seed, base)
        for seed, column in enumerate(columns)
        for base in bases
    }


def draw(results: dict[str, Any]) -> Any:
    names = list(dict.fromkeys(name.split(", ")[0] for name in results))
    figure, axes = style.panels(len(names), width=4.2, height=3.2)
    for panel, name in zip(axes, names, strict=True):
        chosen = [records for key, records in results.items() if key.startswith(f"{name}, ")]
        middle = {r["epsilon"]: r["exact"] for r in chosen[len(chosen) // 2]}
        for records, colour in zip(chosen, style.RAMP, strict=False):
            at = [r["epsilon"] for r in records]
            label = f"beta = {records[0]['base']:g}"
            panel.plot(at, [r["exact"] / middle[r["epsilon"]] for r in records], color=colour, label=label)
            points = [r["sampled"] / middle[r["epsilon"]] for r in records]
            halves = [r["half"] / middle[r["epsilon"]] for r in records]
            panel.errorbar(at, points, yerr=halves, fmt="o", color=colour, capsize=2)
        style.epsilon_ticks(panel, at)
        panel.set_ylabel(f"error / error at beta = {chosen[len(chosen) // 2][0]['base']:g}")
        panel.set_title(f"variance of {chosen[0][0]['title']}")
    style.legend(figure, axes[0], columns=5)
    return figure


def table(results: dict[str, Any]) -> list[str]:
    epsilons = sorted({record["epsilon"] for record in next(iter(results.values()))})
    lines = style.table_head({"mean error of ASM": "---", "beta": "--:"}, epsilons)
    for records in results.values():
        values = " | ".join(f"{record['exact']:.4g}" for record in sorted(records, key=lambda r: r["epsilon"]))
        lines.append(f"| variance of {records[0]['title']} | {records[0]['base']:g} | {values} |")
    return lines
