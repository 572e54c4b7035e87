"""The small records that mechanisms take and return."""

from __future__ import annotations

import dataclasses
import math
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from jaxdp import _check

__all__ = ["Halt", "Privacy", "Release", "Runs", "Stability", "compose"]


class Halt(NamedTuple):
    """Where a stream halted.

    Attributes:
        index: int32, position of the query that halted; the number of queries if none did, -1 if the
            parameters of the mechanism were bad (traced ones cannot be rejected).
        halted: bool, whether a query halted.
    """

    index: jax.Array
    halted: jax.Array


class Release(NamedTuple):
    """A value, or the refusal to release one.

    Attributes:
        value: The released value; NaN (integers: the lowest value of the dtype) if it was refused.
        accepted: bool, whether a value was released; False too if the parameters of the mechanism were bad (traced
            ones cannot be rejected).
    """

    value: jax.Array
    accepted: jax.Array


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True, eq=False)
class Stability:
    """How far a data set is from one near which a statistic moves by more than a proposed bound; not private.

    The contract of neighbours: the proposal is the same, the distances differ by at most 1, and the values by at most
    `proposal` unless both distances are 0. Made by `jaxdp.stability` and the functions named after a statistic.

    Attributes:
        value: () real, the statistic.
        distance: () integer, the number of records that can be replaced before one more may move the statistic by more
            than `proposal`, or less than that number. Floats are rounded down; NaN and negative numbers count as 0.
        proposal: Public; the bound b >= 0 on the change of the statistic, in its units.

    Example:
        >>> jaxdp.mode_stability(np.array([3, 40, 7])).distance.item()
        16
    """

    value: Any
    distance: Any
    proposal: Any


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
        rho: The zCDP parameter where one better than epsilon^2 / 2 is known, else None. Like epsilon it may fail on
            a mass of delta (delta-approximate zCDP).
        neighbours: The relation of data sets it holds for: "replace-one", or "add-remove" for a guarantee from
            elsewhere, which `to_replace_one` converts.

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

    def to_replace_one(self) -> Privacy:
        """The guarantee for data sets that differ in one replaced record, as all of jaxdp has it.

        To replace a record is to remove one and to add one: group privacy of two steps, (2 epsilon, (1 + e^epsilon)
        delta), 4 rho where delta is 0. Accountants of DP-SGD that work with the replace-one relation themselves (such
        as dp-accounting's) give smaller numbers.

        Raises:
            ValueError: For bad concrete numbers and for an unknown relation.

        Source:
            Vadhan (2017), lemma 2.2.

        Example:
            >>> jaxdp.Privacy(1.0, 1e-6, neighbours="add-remove").to_replace_one().epsilon
            2.0
        """
        _check.choice("neighbours", self.neighbours, ("add-remove", "replace-one"))
        epsilon, delta, rho = check_privacy(self)
        if self.neighbours == "replace-one":
            return self
        exp = jnp.exp if _check.is_traced(epsilon) else math.exp
        pure = not _check.is_traced(delta) and delta == 0.0
        return Privacy(2.0 * epsilon, (1.0 + exp(epsilon)) * delta, 4.0 * rho if pure and rho is not None else None)


def check_privacy(part: Privacy, prefix: str = "") -> tuple[Any, Any, Any]:
    """Epsilon, delta and rho of a guarantee: Python floats where they are concrete; rho may be None."""
    epsilon, rho = _check.finite(f"{prefix}epsilon", part.epsilon), part.rho
    rho = None if rho is None else _check.finite(f"{prefix}rho", rho)
    for name, value in (("epsilon", epsilon), ("rho", rho)):
        if value is not None and not _check.is_traced(value) and value < 0.0:
            raise ValueError(f"{prefix}{name} must be at least 0, got {value!r}")
    return epsilon, _check.probability(f"{prefix}delta", part.delta), rho


def compose(*parts: Privacy) -> Privacy:
    """Basic composition: releases on the same data, parameters possibly chosen from earlier answers.

    epsilon and delta add up; so does rho, where each part has one (epsilon^2 / 2 for a pure guarantee without).

    Raises:
        ValueError: If there is no part, if one is no Privacy or has bad concrete numbers (negative, NaN, infinite), or
            if they speak of different neighbouring relations (see `Privacy.to_replace_one`).
    """
    if not parts:
        raise ValueError("compose needs at least one Privacy, got none")
    for part in parts:
        if not isinstance(part, Privacy):
            raise ValueError(f"parts must be Privacy, got {part!r}")
        check_privacy(part)
    relations = {part.neighbours for part in parts}
    if len(relations) > 1:
        raise ValueError(f"neighbours must be the same in all parts, got {sorted(relations)}")
    rho = None if all(part.rho is None for part in parts) else sum(_rho(part) for part in parts)
    epsilon = sum(part.epsilon for part in parts)
    return Privacy(epsilon, sum(part.delta for part in parts), rho, neighbours=relations.pop())


def _rho(part: Privacy) -> Any:
    return part.epsilon**2 / 2.0 if part.rho is None else part.rho
