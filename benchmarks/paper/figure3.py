"""Output laws of ISM and ASM where f can be raised much further than it can be lowered.

As figure 2, with upper bands 4 and 16 times as wide as the lower ones: ISM spreads over them, ASM stops before them.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from benchmarks.paper import figure2
from benchmarks.paper.study import Settings


def cells(settings: Settings) -> dict[str, Callable[[], Any]]:
    return {f"upper bands {up:g} times as wide": (lambda up=up: figure2.densities(up)) for up in (4.0, 16.0)}


def draw(results: dict[str, Any]) -> Any:
    return figure2.drawn(results, columns=2)


table = figure2.table
