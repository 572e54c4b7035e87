"""The decorator that makes a function a statistic which the contract tests find."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

STATISTICS: dict[str, Statistic] = {}


@dataclasses.dataclass(frozen=True)
class Statistic:
    """What the tests and `jaxdp.release` need to know of a statistic.

    Attributes:
        fn: The public function.
        draw: (numpy Generator, n) -> records: a tuple of arrays with leading axis n, random or adversarial. Two draws
            differ in all records, so that a neighbour takes one record of another draw.
        call: (records, radius) -> OutputBounds, with the ranges that `draw` keeps to.
        contribution: records -> (n,) the number through which f depends on each record, nondecreasing in each;
            None if f is not monotonic.
    """

    fn: Callable
    draw: Callable
    call: Callable
    contribution: Callable | None


def statistic(*, draw: Callable, call: Callable, contribution: Callable | None = None) -> Callable:
    """Registers a public function under its name."""

    def register(fn: Callable) -> Callable:
        STATISTICS[fn.__name__] = Statistic(fn, draw, call, contribution)
        return fn

    return register
