"""Deliberately broken mechanisms, NOT FOR RELEASE: an audit that cannot refute these is worth nothing."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxdp import random
from jaxdp.mechanisms import _selection
from jaxdp.mechanisms.exponential_mechanism import ExponentialMechanism
from jaxdp.mechanisms.laplace import Laplace

__all__ = ["Broken", "broken"]


@dataclasses.dataclass(frozen=True)
class Broken:
    """A mechanism that claims more privacy than it has, and inputs that show it.

    Attributes:
        name: What it is.
        sample: (key, summary) -> release, for `audit.monte_carlo`.
        summary: One input.
        neighbour: A neighbouring input on which it loses more than it claims.
        epsilon: What it claims.
        loss: What it loses on this pair, at delta 0.
    """

    name: str
    sample: Callable[[jax.Array, Any], Any]
    summary: Any
    neighbour: Any
    epsilon: float
    loss: float


def broken(epsilon: float = 1.0) -> tuple[Broken, ...]:
    """The catalogue, every entry claiming `epsilon`.

    Example:
        >>> [entry.name for entry in jaxdp.audit.broken(1.0)][0]
        'Laplace at half the scale'
    """
    candidates = _selection.worst_case(ExponentialMechanism(1.0, epsilon), 32)
    # The loss of 32 candidates under twice the budget.
    forgotten = float(np.log((1.0 + 31.0 * np.exp(2.0 * epsilon)) / 32.0))
    # Rising and falling scores change places: without fresh noise the second cannot halt after the first.
    places = np.array([0, 1], np.int32), np.array([1, 0], np.int32)
    scores = np.array([0, 0], np.int32), np.array([1, -1], np.int32)
    half = Laplace(0.5, epsilon).sample
    forgets = ExponentialMechanism(1.0, epsilon, monotonic=True).sample
    return (
        Broken("Laplace at half the scale", half, np.float32(0.0), np.float32(1.0), epsilon, 2.0 * epsilon),
        Broken("AboveThreshold without query noise", _threshold_noise_only(epsilon), *places, epsilon, np.inf),
        Broken("AboveThreshold that prints the noisy query", _noisy_query(epsilon), *scores, epsilon, np.inf),
        Broken("ExponentialMechanism with the factor 2 forgotten", forgets, *candidates, epsilon, forgotten),
    )


def _threshold_noise_only(epsilon: float) -> Callable:
    def sample(key: jax.Array, scores: Any) -> jax.Array:
        threshold = random.geometric(key, epsilon)
        reached = jnp.asarray(scores) >= threshold
        return jnp.where(jnp.any(reached), jnp.argmax(reached), len(scores))

    return sample


def _noisy_query(epsilon: float) -> Callable:
    def sample(key: jax.Array, scores: Any) -> tuple[jax.Array, jax.Array]:
        scores = jnp.asarray(scores)
        first, second = jax.random.split(key)
        noisy = scores + random.geometric(second, epsilon / 4.0, scores.shape)
        reached = noisy >= random.geometric(first, epsilon / 2.0)
        index = jnp.argmax(reached)
        halted = jnp.any(reached)
        return jnp.where(halted, index, len(scores)), jnp.where(halted, noisy[index], 0)

    return sample
