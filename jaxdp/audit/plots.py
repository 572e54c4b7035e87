"""Pictures of audits. Each function returns a matplotlib Figure, which `savefig` writes; pyplot is never touched."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from jaxdp.audit import _plot
from jaxdp.audit._plot import CERTIFIED, CLAIMED, ESTIMATED, EXACT
from jaxdp.audit.report import AuditReport
from jaxdp.audit.views import claimed_tradeoff, gaussian_lower, tradeoff

__all__ = ["certificates", "heat_map", "log_ratios", "privacy_profile", "tradeoff_curve"]


def tradeoff_curve(report: AuditReport, *, exact: tuple[Any, Any] | None = None) -> Any:
    """The trade-off curve: estimates of the nested events, their simultaneous limits, and what the claim allows.

    The mechanism's true curve lies below the certified line (at the stated confidence), the claim's curve below that,
    unless it is refuted: then the certified line dips into the grey.

    Args:
        report: An audit report with nested events.
        exact: False positive and false negative rates of the true curve, if known.

    Returns:
        A matplotlib Figure.

    Raises:
        ImportError: matplotlib is not installed.
    """
    figure, axis = _plot.single(4.8, 4.6)
    rates = np.linspace(0.0, 1.0, 513)
    claimed = claimed_tradeoff(report.epsilon, report.delta, rates)
    axis.fill_between(rates, 0.0, claimed, color="0.9", lw=0)
    axis.plot(rates, claimed, color=CLAIMED, ls="--", label=f"claimed: not below (epsilon {report.epsilon:.4g})")
    axis.plot([0, 1], [1, 0], color="0.8", lw=0.8)
    corner = tradeoff(report)
    one, other = _plot.nested_rates(report)
    lower, upper = report.band
    axis.errorbar(
        other, 1.0 - one, xerr=[np.zeros_like(other), np.maximum(upper - other, 0.0)],
        yerr=[np.zeros_like(one), np.maximum(one - lower, 0.0)],
        fmt="o", ms=3, lw=0.8, color=ESTIMATED, label="nested events and their limits",
    )  # fmt: skip
    axis.plot(*corner, color=CERTIFIED, label=f"certified: at most ({report.confidence:.4g})")
    if exact is not None:
        axis.plot(*exact, color=EXACT, ls=":", label="exact")
    axis.set(xlim=(0, 1), ylim=(0, 1), aspect="equal", xlabel="false positive rate", ylabel="false negative rate")
    _plot.title(axis, report.mechanism, f"certified mu >= {gaussian_lower(report):.4g}")
    axis.legend(loc="upper right", fontsize=8)
    return figure


def privacy_profile(report: AuditReport, *, exact: Any = None, most: float | None = None) -> Any:
    """Delta as a function of epsilon: estimate, certified lower band, and the claimed point.

    Args:
        report: An audit report with nested events.
        exact: A function from (m,) epsilons to exact deltas, if known.
        most: Right end of the epsilon axis; by default past the claim and what was found.

    Returns:
        A matplotlib Figure.
    """
    figure, axis = _plot.single(5.2, 3.8)
    found = report.epsilon_estimate if np.isfinite(report.epsilon_estimate) else report.epsilon_lower
    most = most or 1.25 * max(report.epsilon, min(found, 4.0 * report.epsilon + 1.0), 0.1)
    epsilons = np.linspace(0.0, most, 301)
    lower, estimate = report.profile(epsilons)
    claimed = _plot.claimed_profile(report.epsilon, report.delta, epsilons)
    axis.plot(epsilons, claimed, color=CLAIMED, ls="--", label="claimed: at most")
    axis.fill_between(epsilons, lower, np.maximum(estimate, lower), color=ESTIMATED, alpha=0.25, lw=0)
    axis.plot(epsilons, estimate, color=ESTIMATED, lw=1.0, label="estimated")
    axis.plot(epsilons, lower, color=CERTIFIED, label=f"certified: at least ({report.confidence:.4g})")
    if exact is not None:
        axis.plot(epsilons, exact(epsilons), color=EXACT, ls=":", label="exact, this pair")
    axis.plot([report.epsilon], [report.delta], "D", color=CLAIMED, ms=6, clip_on=False, zorder=5, label="the claim")
    axis.set(xlim=(0, most), ylim=(0, None), xlabel="epsilon", ylabel="delta")
    _plot.title(axis, report.mechanism)
    axis.legend(fontsize=8)
    return figure


def log_ratios(
    values: Any, masses: Any, other_masses: Any, *, threshold: float | None = None, bins: int = 60, claimed: Any = None
) -> Any:
    """The log likelihood ratio of the output under both inputs, with the threshold that makes the event.

    Args:
        values: (atoms,) log p(output | summary) - log p(output | neighbour); samples of it serve, with equal masses.
        masses: (atoms,) probabilities under the summary.
        other_masses: (atoms,) probabilities under the neighbour.
        threshold: The event holds the outputs whose ratio is above it.
        bins: Bars; infinite ratios have bars of their own at the ends.
        claimed: The claimed epsilon: a private mechanism has all ratios within it.

    Returns:
        A matplotlib Figure.

    Raises:
        ValueError: The three arrays are not (atoms,) of one length, or a value is NaN.
    """
    values, masses, other_masses = (np.asarray(each, np.float64) for each in (values, masses, other_masses))
    if values.ndim != 1 or not values.shape == masses.shape == other_masses.shape or np.any(np.isnan(values)):
        shapes = f"{values.shape}, {masses.shape} and {other_masses.shape}"
        raise ValueError(f"values, masses and other_masses must be (atoms,) without NaN, got shapes {shapes}")
    figure, axis = _plot.single(5.6, 3.6)
    edges, clipped = _plot.ratio_bins(values, bins)
    for weights, colour, name in (
        (masses, EXACT, "under the summary"),
        (other_masses, ESTIMATED, "under the neighbour"),
    ):
        axis.hist(clipped, edges, weights=weights, color=colour, alpha=0.35, lw=0)
        axis.hist(clipped, edges, weights=weights, histtype="step", color=colour, lw=1.2, label=name)
    if threshold is not None:
        power, size = (float(np.sum(each[values > threshold])) for each in (masses, other_masses))
        text = f"event: above {threshold:.4g}\n({power:.3g} against {size:.3g})"
        axis.axvline(np.clip(threshold, edges[0], edges[-1]), color=CERTIFIED, label=text)
    if claimed is not None:
        for sign, text in ((-1, None), (1, f"claimed epsilon {claimed:.4g}")):
            axis.axvline(sign * claimed, color=CLAIMED, ls="--", lw=1.0, label=text)
    _plot.infinite_ticks(axis, values, edges)
    axis.set(yscale="log", xlabel="log likelihood ratio of the output", ylabel="probability of a bar")
    _plot.legend_below(figure)
    return figure


def certificates(
    runs: Any, certified: Any, *, claimed: float, exact: float | None = None, predicted: Any = None, title: str = ""
) -> Any:
    """The certified epsilon against the number of runs.

    Args:
        runs: (m,) runs.
        certified: (m,) certified epsilons: of audits of growing size, or the path of a sequential one.
        claimed: The claimed epsilon.
        exact: The true loss, if known: certificates exceed it only by chance, as often as the confidence allows.
        predicted: (m,) certificates that theory predicts, if known.
        title: Title.

    Returns:
        A matplotlib Figure.

    Raises:
        ValueError: runs and certified differ in length or are empty.
    """
    runs, certified = np.asarray(runs, np.float64), np.asarray(certified, np.float64)
    if runs.shape != certified.shape or runs.ndim != 1 or not len(runs):
        raise ValueError(f"runs and certified must be (m,), m > 0, got shapes {runs.shape} and {certified.shape}")
    figure, axis = _plot.single(5.6, 3.6)
    some = runs > 0
    many = len(runs) > 40
    style = dict(drawstyle="steps-post") if many else dict(marker="o", ms=4)
    axis.plot(runs[some], certified[some], color=CERTIFIED, label="certified", **style)
    if predicted is not None:
        axis.plot(runs[some], np.asarray(predicted, np.float64)[some], color=ESTIMATED, lw=1.2, label="predicted")
    axis.axhline(claimed, color=CLAIMED, ls="--", label=f"claimed {claimed:.4g}")
    if exact is not None and np.isfinite(exact):
        axis.axhline(exact, color=EXACT, ls=":", label=f"exact {exact:.4g}")
    # Separate audits may refute by luck, and not with more runs.
    first = int(np.max(np.flatnonzero(certified <= claimed), initial=-1)) + 1
    if first < len(runs):
        where = runs[first], certified[first]
        axis.plot(*where, "*", ms=12, color=CERTIFIED, mec="k", mew=0.6, zorder=5)
        side = "left" if where[0] ** 2 < runs[some][0] * runs[-1] else "right"
        text = f"refuted from {where[0]:,.0f} runs on"
        axis.annotate(text, where, xytext=(0, 10), textcoords="offset points", fontsize=8, ha=side)
    axis.set(xscale="log", ylim=(0, None), xlabel="runs", ylabel="epsilon")
    _plot.title(axis, title)
    axis.legend(fontsize=8, loc="lower right")
    return figure


def heat_map(values: Any, pairs: Sequence[str], events: Sequence[str], *, claimed: float | None = None) -> Any:
    """Pairs of inputs against events: the certificate that each combination predicts.

    Args:
        values: (pairs, events) predicted certificates; NaN where there is none.
        pairs: Names of the rows.
        events: Names of the columns.
        claimed: The claimed epsilon: larger values are framed.

    Returns:
        A matplotlib Figure.

    Raises:
        ValueError: The names do not fit the matrix.
    """
    values = np.asarray(values, np.float64)
    if values.shape != (len(pairs), len(events)) or not values.size:
        raise ValueError(f"values must have shape {(len(pairs), len(events))}, not empty, got {values.shape}")
    figure, axis = _plot.single(2.4 + 0.62 * len(events), 1.6 + 0.34 * len(pairs))
    finite = values[np.isfinite(values)]
    top = float(np.max(finite, initial=0.0)) or 1.0
    image = axis.imshow(
        np.where(np.isfinite(values), values, np.nan), cmap="viridis", vmin=0.0, vmax=top, aspect="auto"
    )
    for (row, column), value in np.ndenumerate(values):
        if np.isnan(value):
            axis.text(column, row, "none", ha="center", va="center", fontsize=7, color="0.5")
        else:
            dark = not value > 0.6 * top
            axis.text(column, row, f"{value:.2g}", ha="center", va="center", fontsize=7, color="w" if dark else "k")
            if claimed is not None and value > claimed:
                _plot.frame(axis, column, row)
    axis.set_xticks(range(len(events)), events, rotation=35, ha="right", rotation_mode="anchor", fontsize=7)
    axis.set_yticks(range(len(pairs)), pairs, fontsize=7)
    label = "predicted certificate" + ("" if claimed is None else f" (framed: above {claimed:.4g})")
    figure.colorbar(image, ax=axis, label=label, fraction=0.05)
    return figure
