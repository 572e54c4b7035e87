"""Appendix: ASM with infinite upper bounds, where nothing is known above f(x), against ASM with finite ones.

With f anywhere above f(x) after one replaced record only ASM is left: ISM and the others need a finite range. The
stream still ends at a public number, here the range that the other mechanisms know. The mean error hangs on rare
overshoots, so the median error is shown too. Hollow points are drawn a little to the right.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from benchmarks.paper import data, figure5, study, style
from benchmarks.paper.study import Settings


def _one(column: data.Column, settings: Settings, seed: int) -> list[dict[str, Any]]:
    finite = figure5.variance_bounds(column, settings, seed)
    grids, found = figure5.grids(column, settings), []
    for name, bounds in (("finite", finite), ("infinite", study.unbounded(finite))):
        label = f"{column.name}/unbounded/{name}"
        records = study.compare(bounds, grids, settings, mechanisms=("asymmetric",), label=label)
        facts = {"column": column.name, "title": column.title, "unit": column.unit, "bounds": name}
        found += [facts | record for record in records]
    return found


def cells(settings: Settings) -> dict[str, Callable[[], Any]]:
    columns = data.columns(settings.folder)
    chosen = [0] if settings.quick else sorted({0, min(1, len(columns) - 1), len(columns) - 1})
    return {columns[seed].name: functools.partial(_one, columns[seed], settings, seed) for seed in chosen}


def draw(results: dict[str, Any]) -> Any:
    figure, axes = style.panels(len(results), height=3.0)
    for panel, records in zip(axes, results.values(), strict=True):
        for name, colour in (("finite", style.COLOURS["asymmetric"]), ("infinite", "#cc79a7")):
            chosen = [record for record in records if record["bounds"] == name]
            label = f"mean, {name} upper bounds"
            style.curve(panel, chosen, "asymmetric", label=label, color=colour, dashed=name != "finite")
        at = [record["epsilon"] for record in chosen]
        medians = [record["median"] for record in chosen]
        panel.plot(at, medians, color="k", lw=1.0, ls=":", label="median, infinite (finite: within the line)")
        style.epsilon_axes(panel, at, figure5.error_label(records[0]["unit"]).replace("mean a", "a"))
        panel.set_title(f"variance of {records[0]['title']}")
    style.legend(figure, axes[0])
    return figure


def table(results: dict[str, Any]) -> list[str]:
    epsilons = sorted({record["epsilon"] for record in next(iter(results.values()))})
    lines = style.table_head({"error with infinite / with finite upper bounds": "---", "of": "---"}, epsilons)
    for records in results.values():
        for name in ("exact", "median"):
            error = {(r["bounds"], r["epsilon"]): r[name] for r in records}
            ratio = " | ".join(f"{error['infinite', e] / error['finite', e]:.2f}" for e in epsilons)
            lines.append(f"| {records[0]['title']} | {'mean' if name == 'exact' else name} | {ratio} |")
    return lines
