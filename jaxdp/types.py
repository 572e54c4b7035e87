"""The small records that mechanisms take and return."""

from __future__ import annotations

import dataclasses
import math
from typing import Any, NamedTuple

import jax
import numpy as np

from jaxdp import _check

__all__ = ["Halt", "Privacy", "Runs", "compose"]


class Halt(NamedTuple):
    """Where a stream halted.

    Attributes:
        index: int32, position of the query that halted; the number of queries if none did, -1 if the
            parameters of the mechanism were bad (traced ones cannot be rejected).
        halted: bool, whether a query halted.
    """

    index: jax.Array
    halted: jax.Array


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True, eq=False)
class Runs:
    """A stream of scores in which equal neighbours are stored once.

    Attributes:
        scores: (r,) real, the scores of the runs.
        repeats: (r,) int32, how often each is asked; zeros are allowed.
        length: The number of queries, sum of repeats. Public and static.

    Example:
        >>> jaxdp.Runs.of(np.array([3, 3, 3, 5])).repeats.tolist()
        [3, 1]
    """

    scores: Any
    repeats: Any
    length: int = dataclasses.field(metadata={"static": True})

    @classmethod
    def of(cls, scores: Any) -> Runs:
        """Finds the runs of a concrete stream, on the host."""
        scores = np.asarray(_check.vector("scores", scores))
        starts = np.flatnonzero(np.append(True, scores[1:] != scores[:-1]))
        repeats = np.diff(np.append(starts, len(scores))).astype(np.int32)
        return cls(scores[starts], repeats, len(scores))


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True, eq=False)
class Privacy:
    """A privacy guarantee.

    Attributes:
        epsilon: The bound on the privacy loss.
        delta: The mass on which the bound may fail.
        rho: The zCDP parameter where one better than epsilon^2 / 2 is known, else None.
        neighbours: The relation of data sets it holds for.

    Example:
        >>> jaxdp.compose(jaxdp.Privacy(0.5, 0.0), jaxdp.Privacy(1.0, 1e-9)).epsilon
        1.5
    """

    epsilon: Any
    delta: Any = 0.0
    rho: Any = None
    neighbours: str = dataclasses.field(default="replace-one", kw_only=True, metadata={"static": True})

    def to_dp_event(self) -> Any:
        """The guarantee as an event for the accountants of the optional package dp-accounting.

        Every epsilon-DP mechanism is a post-processing of binary randomised response with the same epsilon, so
        that event dominates it. Use an accountant with `NeighboringRelation.REPLACE_ONE`, and compose repeated
        events one by one: dp-accounting 0.6 ignores the count of `compose(event, count)` here. The event cannot
        carry a delta: one below 1e-15 (the end of the noise's support) is left out, for the caller to add up.

        Raises:
            ImportError: If dp-accounting is not installed; says how to install it.
            ValueError: If delta is 1e-15 or more.
        """
        if self.delta >= 1e-15:
            raise ValueError(f"delta must be below 1e-15 for a dp_event, got {self.delta!r}")
        try:
            from dp_accounting import dp_event
        except ImportError as error:
            raise ImportError("to_dp_event needs dp-accounting: pip install 'jaxdp-privacy[accounting]'") from error
        return dp_event.RandomizedResponseDpEvent(2.0 / (1.0 + math.exp(float(self.epsilon))), 2)


def compose(*parts: Privacy) -> Privacy:
    """Basic composition: releases on the same data, parameters possibly chosen from earlier answers.

    epsilon and delta add up; so does rho, where each part has one (epsilon^2 / 2 for a pure guarantee without).

    Raises:
        ValueError: If there is no part, or the parts speak of different neighbouring relations.
    """
    if not parts:
        raise ValueError("compose needs at least one Privacy, got none")
    relations = {part.neighbours for part in parts}
    if len(relations) > 1:
        raise ValueError(f"neighbours must be the same in all parts, got {sorted(relations)}")
    rho = None if all(part.rho is None for part in parts) else sum(_rho(part) for part in parts)
    epsilon = sum(part.epsilon for part in parts)
    return Privacy(epsilon, sum(part.delta for part in parts), rho, neighbours=relations.pop())


def _rho(part: Privacy) -> Any:
    return part.epsilon**2 / 2.0 if part.rho is None else part.rho
