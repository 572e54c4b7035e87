"""Mean absolute error of a private cross-entropy, for models of four data sets.

Logits are clamped to [-10, 10] (two classes) and [-25, 25] (ten). A mean of losses is monotonic: ASM has its cheaper
budget, e1 + e2 = epsilon.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from benchmarks.paper import losses, models
from benchmarks.paper.study import Settings

STATISTIC = {"binary": "binary_cross_entropy", "multiclass": "cross_entropy"}


def cells(settings: Settings) -> dict[str, Callable[[], Any]]:
    return {
        task.name: functools.partial(losses.one, task, STATISTIC[task.kind], settings)
        for task in models.tasks(settings, regression=False)
    }


def draw(results: dict[str, Any]) -> Any:
    titles = dict.fromkeys(STATISTIC.values(), "cross-entropy")
    return losses.draw(results, titles, columns=4)


table = losses.table
