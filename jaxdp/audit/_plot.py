"""What the pictures of audits share; the only place that needs matplotlib, which is loaded when a picture is drawn."""

from __future__ import annotations

from typing import Any

import numpy as np

CERTIFIED, ESTIMATED, EXACT, CLAIMED = "#d55e00", "#0072b2", "#009e73", "0.35"
"""One colour for each kind of statement, told apart by the colour-blind too."""


def require_matplotlib() -> Any:
    """matplotlib.figure, or an ImportError that says how to install it."""
    try:
        import matplotlib.figure
    except ImportError as error:
        raise ImportError("a plot needs matplotlib: pip install 'jaxdp-privacy[plot]'") from error
    return matplotlib.figure


def single(width: float, height: float) -> tuple[Any, Any]:
    """A figure with one panel."""
    figure = require_matplotlib().Figure(figsize=(width, height), dpi=130, layout="constrained")
    axis = figure.subplots()
    axis.spines[["top", "right"]].set_visible(False)
    return figure, axis


def title(axis: Any, *lines: str) -> None:
    """A title of a size that long names fit into."""
    axis.set_title("\n".join(line if len(line) < 60 else line[:57] + "..." for line in lines), fontsize=9)


def legend_below(figure: Any) -> None:
    """A legend outside of the panel, where the data leave no room."""
    figure.legend(loc="outside lower center", ncols=2, fontsize=8, frameon=False)


def nested_rates(report: Any) -> tuple[np.ndarray, np.ndarray]:
    """Shares of the runs that hit the nested events, on both inputs."""
    one, other = report.nested_hits or (report.hits,), report.nested_other_hits or (report.other_hits,)
    return np.array(one) / report.runs, np.array(other) / report.other_runs


def ratio_bins(values: np.ndarray, bins: int) -> tuple[np.ndarray, np.ndarray]:
    """Edges of the bars over the finite values, one more at each end where there are infinite ones, and the values."""
    finite = values[np.isfinite(values)]
    low, high = (float(finite.min()), float(finite.max())) if len(finite) else (-1.0, 1.0)
    room = max(high - low, 1e-6 + 1e-3 * max(abs(low), abs(high)))
    edges = np.linspace(low - 0.02 * room, high + 0.02 * room, bins + 1)
    width = edges[1] - edges[0]
    ends = [[edge] for edge in (edges[0] - 2.0 * width, edges[-1] + 2.0 * width)]
    edges = np.concatenate([ends[0] if np.any(values == -np.inf) else [], edges, ends[1] if np.inf in values else []])
    return edges, np.clip(values, edges[0] + 1e-3 * width, edges[-1] - 1e-3 * width)


def infinite_ticks(axis: Any, values: np.ndarray, edges: np.ndarray) -> None:
    """Names the bars of infinite values, below the axis."""
    places = {
        text: float(np.mean(ends)) for text, ends in (("-inf", edges[:2]), ("inf", edges[-2:])) if _has(values, text)
    }
    for text, place in places.items():
        where = dict(xycoords=("data", "axes fraction"), textcoords="offset points")
        axis.annotate(text, (place, 0.0), xytext=(0, -4), ha="center", va="top", fontsize=9, weight="bold", **where)


def _has(values: np.ndarray, number: str) -> bool:
    return bool(np.any(values == float(number)))


def frame(axis: Any, column: int, row: int) -> None:
    """A frame around one cell of a heat map."""
    from matplotlib.patches import Rectangle

    axis.add_patch(Rectangle((column - 0.46, row - 0.42), 0.92, 0.84, fill=False, ec="#d55e00", lw=1.5))


def claimed_profile(epsilon: float, delta: float, epsilons: np.ndarray) -> np.ndarray:
    """The largest delta that an (epsilon, delta)-DP mechanism can have: that of randomised response."""
    pure = np.maximum(0.0, (np.exp(epsilon) - np.exp(epsilons)) / (1.0 + np.exp(epsilon)))
    return delta + (1.0 - delta) * pure


def plot_profiles(rows: list[dict[str, Any]], path: str) -> None:
    """Draws delta(epsilon) of each audited mechanism: claimed, exact on the pair audited, certified with its band.

    Args:
        rows: One dict a mechanism: name, epsilon, delta, epsilons, exact (an array or None), lower, estimate.
        path: File to write; its ending chooses the format.
    """
    figure_module = require_matplotlib()
    columns = min(3, len(rows))
    lines = -(-len(rows) // columns)
    figure = figure_module.Figure(figsize=(4.0 * columns, 3.0 * lines), layout="constrained")
    axes = np.atleast_1d(figure.subplots(lines, columns, sharey=True)).ravel()
    for axis, row in zip(axes, rows, strict=False):
        x = row["epsilons"]
        axis.plot(x, claimed_profile(row["epsilon"], row["delta"], x), color="0.6", ls="--", label="claimed: at most")
        if row["exact"] is not None:
            axis.plot(x, row["exact"], color="C0", label="exact, this pair")
        axis.fill_between(x, row["lower"], np.maximum(row["estimate"], row["lower"]), color="C1", alpha=0.35, lw=0)
        axis.plot(x, row["estimate"], color="C1", lw=0.8, label="estimated")
        axis.plot(x, row["lower"], color="C3", lw=1.2, label="certified: at least")
        axis.set_title(row["name"], fontsize=8)
        axis.set_ylim(0.0, None)
    for axis in axes[len(rows) :]:
        axis.set_visible(False)
    axes[0].legend(fontsize=7)
    figure.supxlabel("epsilon")
    figure.supylabel("delta")
    figure.savefig(path, dpi=110)
