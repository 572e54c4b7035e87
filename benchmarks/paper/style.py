"""One look for all figures: a colour and a marker for each mechanism, log axes, units on every axis."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

COLOURS = {"inverse": "#d55e00", "asymmetric": "#0072b2", "smooth": "#009e73", "laplace": "#7f7f7f"}
MARKERS = {"inverse": "s", "asymmetric": "o", "smooth": "^", "laplace": "D"}
NAMES = {"inverse": "ISM", "asymmetric": "ASM", "smooth": "smooth sensitivity", "laplace": "Laplace"}
RAMP = ("#9ecae1", "#6baed6", "#4292c6", "#2171b5", "#08306b")
"""For ordered parameters, from small to large."""


def pyplot() -> Any:
    """matplotlib.pyplot with the study's settings, and no display."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    pyplot.rcParams.update(
        {
            "figure.dpi": 130,
            "font.size": 9,
            "axes.spines.top": False,
            "axes.spines.right": False,
            "axes.grid": True,
            "grid.alpha": 0.3,
            "grid.linewidth": 0.6,
            "legend.frameon": False,
            "lines.linewidth": 1.5,
            "lines.markersize": 4,
        }
    )
    return pyplot


def panels(count: int, *, width: float = 3.3, height: float = 2.8, columns: int = 3) -> tuple[Any, list[Any]]:
    """A figure with `count` axes in rows; what remains of the last row is hidden."""
    columns = min(columns, count)
    rows = math.ceil(count / columns)
    figure, axes = pyplot().subplots(
        rows, columns, figsize=(width * columns, height * rows + 0.5), squeeze=False, layout="constrained"
    )
    flat = list(axes.flat)
    for spare in flat[count:]:
        spare.set_visible(False)
    return figure, flat[:count]


def epsilon_axes(axes: Any, epsilons: Iterable[float], label: str = "mean absolute error") -> None:
    """Log-log axes over budgets, with the budgets as ticks."""
    axes.set_yscale("log")
    epsilon_ticks(axes, epsilons)
    axes.set_ylabel(label)


def epsilon_ticks(axes: Any, epsilons: Iterable[float]) -> None:
    """A log axis of budgets, with the budgets as ticks."""
    epsilons = list(epsilons)
    axes.set_xscale("log")
    axes.set_xticks(epsilons, [f"{epsilon:g}" for epsilon in epsilons])
    axes.minorticks_off()
    axes.set_xlabel("epsilon")


def table_head(first: dict[str, str], epsilons: Iterable[float]) -> list[str]:
    """The two lines above a table: the first columns with their alignment, then a column for each budget."""
    epsilons = list(epsilons)
    rules = [*first.values(), *["--:"] * len(epsilons)]
    return [f"| {' | '.join([*first, *(f'{e:g}' for e in epsilons)])} |", f"| {' | '.join(rules)} |"]


def curve(
    axes: Any, records: list[dict[str, Any]], kind: str, *, label: str, dashed: bool = False, **look: Any
) -> None:
    """The exact expected error as a line; sampled means with the middle 90% of data sets as points with bars."""
    chosen = sorted((r for r in records if r["mechanism"] == kind), key=lambda r: r["epsilon"])
    if not chosen:
        return
    look = {"color": COLOURS[kind], "marker": MARKERS[kind]} | look
    # Beside each other where two curves agree.
    at = [r["epsilon"] * (1.1 if dashed else 1.0) for r in chosen]
    exact, sampled = [r.get("closed_form", r["exact"]) for r in chosen], [r["sampled"] for r in chosen]
    axes.plot(at, exact, color=look["color"], ls="--" if dashed else "-", alpha=0.9)
    spread = [
        [max(r["sampled"] - r["sampled_q05"], 0.0) for r in chosen],
        [max(r["sampled_q95"] - r["sampled"], 0.0) for r in chosen],
    ]
    axes.errorbar(
        at,
        sampled,
        yerr=spread,
        fmt=look["marker"],
        color=look["color"],
        mfc="white" if dashed else look["color"],
        elinewidth=0.7,
        capsize=1.5,
        label=label,
        ls="none",
    )


def legend(figure: Any, axes: Any, columns: int = 4) -> None:
    """One legend under all panels."""
    handles, labels = axes.get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=columns)
