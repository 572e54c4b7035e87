"""Privacy profiles as a picture; the only place that needs matplotlib."""

from __future__ import annotations

from typing import Any

import numpy as np


def require_matplotlib() -> Any:
    """matplotlib.figure, or an ImportError that says how to install it."""
    try:
        import matplotlib.figure
    except ImportError as error:
        raise ImportError("a plot needs matplotlib: pip install 'jaxdp-privacy[plot]'") from error
    return matplotlib.figure


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
