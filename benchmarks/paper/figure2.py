"""Output laws of ISM and ASM where f moves alike up and down.

Bands of one unit on both sides, epsilon 1. ASM is charged as for bounds that are not monotonic, the valid budget of the
variance.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

import jaxdp
from benchmarks.paper import style
from benchmarks.paper.study import Settings

LEVELS, PER_BAND, EPSILON = 60, 4, 1.0


def bounds(up: float) -> jaxdp.OutputBounds:
    """A value that each replaced record can lower by 1 and raise by `up`."""
    levels, value = np.arange(LEVELS + 2.0), LEVELS + 1.0
    return jaxdp.OutputBounds(value - levels, value + up * levels)


def grid(up: float, per_band: int = PER_BAND) -> np.ndarray:
    """Candidates from the lowest value on, `per_band` a unit, as many in all cases: they reach beyond the largest."""
    return np.arange(round((LEVELS + 1) * (1.0 + max(up, 16.0)) * per_band) + 1) / per_band


def densities(up: float) -> dict[str, Any]:
    """Probability a unit of length, of both mechanisms, by distance from f(x)."""
    made, candidates = bounds(up), grid(up)
    laws = {
        "inverse": jaxdp.InverseSensitivity(EPSILON).law((made, candidates)),
        "asymmetric": jaxdp.AsymmetricSensitivity(EPSILON).law((made, candidates)),
    }
    shown = np.abs(candidates - made.value) <= max(25.0, 15.0 * np.sqrt(up))
    return {
        "t": (candidates - made.value)[shown].tolist(),
        **{kind: (np.exp(law.log_p) * PER_BAND)[shown].tolist() for kind, law in laws.items()},
        "error": {kind: float(law.expected_error(made.value)) for kind, law in laws.items()},
        "asymmetry": float(jaxdp.asymmetry(made, EPSILON)),
    }


def cells(settings: Settings) -> dict[str, Callable[[], Any]]:
    return {"symmetric": lambda: densities(1.0)}


def draw(results: dict[str, Any]) -> Any:
    return drawn(results, columns=1)


def drawn(results: dict[str, Any], columns: int) -> Any:
    figure, axes = style.panels(len(results), width=4.6, height=3.0, columns=columns)
    for panel, made in zip(axes, results.values(), strict=True):
        for kind in ("inverse", "asymmetric"):
            label = f"{style.NAMES[kind]}, mean error {made['error'][kind]:.2f}"
            panel.step(made["t"], made[kind], where="mid", color=style.COLOURS[kind], label=label)
        panel.axvline(0.0, color="k", lw=0.8, ls=":")
        panel.set_title(f"asymmetry {made['asymmetry']:.2f}, epsilon {EPSILON:g}")
        panel.set_xlabel("output minus f(x), in lower bands")
        panel.set_ylabel("probability per band")
        panel.set_ylim(bottom=0.0)
        panel.legend()
    return figure


def table(results: dict[str, Any]) -> list[str]:
    head = ["| case | asymmetry | error of ISM | error of ASM |", "| --- | --: | --: | --: |"]
    return head + [
        f"| {name} | {made['asymmetry']:.2f} | {made['error']['inverse']:.2f} | {made['error']['asymmetric']:.2f} |"
        for name, made in results.items()
    ]
