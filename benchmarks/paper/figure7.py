"""Mean absolute error of a private mean squared and mean absolute error, for models of three data sets.

Predictions and targets are clamped to the public range of the target. Both are monotonic.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from benchmarks.paper import losses, models
from benchmarks.paper.study import Settings

_TITLES = {"squared_error": "MSE", "absolute_error": "MAE"}


def cells(settings: Settings) -> dict[str, Callable[[], Any]]:
    return {
        f"{task.name}, {title}": functools.partial(losses.one, task, statistic, settings)
        for statistic, title in list(_TITLES.items())[: 1 if settings.quick else 2]
        for task in models.tasks(settings, regression=True)
    }


def draw(results: dict[str, Any]) -> Any:
    return losses.draw(results, _TITLES, columns=3)


table = losses.table
