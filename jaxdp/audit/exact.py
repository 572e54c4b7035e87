"""Exact audits: the privacy loss of a pair of inputs, computed from the laws."""

from __future__ import annotations

from typing import Any

import numpy as np

__all__ = ["exact", "privacy_profile"]


def exact(mechanism: Any, summary: Any, neighbour: Any, *, delta: float | None = None) -> float:
    """The privacy loss of a mechanism on one pair of inputs, without sampling.

    It is the smallest epsilon for which the mechanism is (epsilon, delta)-DP on this pair, in both directions, with
    a given delta. It refutes a claim if it exceeds it (beyond 1e-12, the arithmetic), and never
    proves one: other pairs may lose more.

    Args:
        mechanism: A mechanism with `law` and `privacy`.
        summary: One input.
        neighbour: A neighbouring input, by the mechanism's summary contract.
        delta: Mass on which the loss may be exceeded; by default that of `mechanism.privacy()`.

    Returns:
        The loss; inf if outcomes of one input, of more mass than delta, are impossible under the other.

    Example:
        >>> mechanism = jaxdp.AboveThreshold(threshold=0.0, sensitivity=1.0, epsilon=1.0)
        >>> round(jaxdp.audit.exact(mechanism, *mechanism.worst_case()), 9)
        1.0
    """
    law, other = mechanism.law(summary), mechanism.law(neighbour)
    delta = mechanism.privacy().delta if delta is None else delta
    return float(np.maximum(law.loss_at(other, delta), other.loss_at(law, delta)))


def privacy_profile(law: Any, other: Any, epsilons: Any) -> np.ndarray:
    """Delta as a function of epsilon on one pair of inputs: the larger hockey-stick divergence of the two directions.

    Args:
        law: Law of one input.
        other: Law of the neighbour.
        epsilons: (m,) values of epsilon.

    Returns:
        (m,) float64 values of delta.

    Example:
        >>> mechanism = jaxdp.Laplace(sensitivity=1.0, epsilon=1.0)
        >>> laws = [mechanism.law(value) for value in (0, 1)]
        >>> jaxdp.audit.privacy_profile(*laws, [0.0, 1.1]).round(3).tolist()
        [0.462, 0.0]
    """
    epsilons = np.asarray(epsilons, dtype=np.float64)
    if epsilons.ndim != 1:
        raise ValueError(f"epsilons must have shape (m,), got {epsilons.shape}")
    both = [[a.hockey_stick(b, e) for e in epsilons] for a, b in ((law, other), (other, law))]
    return np.maximum(*np.array(both, dtype=np.float64))
