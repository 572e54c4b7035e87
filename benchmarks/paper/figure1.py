"""Distance and signed distance of an output, as step functions.

The variance of 40 records of a public synthetic column: how many records must be replaced for it to reach t.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

import jaxdp
from benchmarks.paper import data, style
from benchmarks.paper.study import Settings

_N, _UPPER = 40, 120.0


def cells(settings: Settings) -> dict[str, Callable[[], Any]]:
    return {"steps": _steps}


def _steps() -> dict[str, Any]:
    x = data.synthetic()["counts"].values[:_N]
    bounds = jaxdp.bounds.variance(x, 0.0, _UPPER, radius=10)
    points = np.concatenate([np.asarray(bounds.lower)[:9], np.asarray(bounds.upper)[:9]])
    points = np.unique(np.concatenate([points, np.nextafter(points, np.float32(np.inf)), np.linspace(0.0, 2e3, 200)]))
    points = points[points <= float(bounds.upper[8])]
    return {
        "value": float(bounds.value),
        "t": points.tolist(),
        "distance": np.asarray(bounds.distance(points)).tolist(),
        "signed": np.asarray(bounds.signed_distance(points)).tolist(),
        "levels": [np.asarray(side)[:9].tolist() for side in (bounds.lower, bounds.upper)],
    }


def draw(results: dict[str, Any]) -> Any:
    made = results["steps"]
    figure, axes = style.panels(2, width=4.4, columns=2)
    for panel, name, label in zip(axes, ("distance", "signed"), ("distance", "signed distance"), strict=True):
        panel.step(made["t"], made[name], where="post", color=style.COLOURS["asymmetric"])
        panel.axvline(made["value"], color="k", lw=0.8, ls=":", label="f(x)")
        panel.set_xlabel("output t (variance of 40 geometric counts)")
        panel.set_ylabel(f"{label} (records)")
        panel.legend(loc="upper center" if name == "distance" else "lower right")
    return figure


def table(results: dict[str, Any]) -> list[str]:
    lower, upper = results["steps"]["levels"]
    rows = [
        f"| {level} | {low:,.0f} | {high:,.0f} |" for level, (low, high) in enumerate(zip(lower, upper, strict=True))
    ]
    return ["| records replaced | least variance | largest variance |", "| --: | --: | --: |", *rows[:6]]
