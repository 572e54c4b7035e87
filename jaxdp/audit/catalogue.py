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
from jaxdp.mechanisms.above_threshold import AboveThreshold
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
    one = AboveThreshold(0.0, 1.0, epsilon)
    scores, others = one.worst_case()
    selection = ExponentialMechanism(1.0, epsilon)
    # With K candidates the loss of the mechanism run at factor epsilon / sensitivity.
    candidates = _selection.worst_case(selection, 32)
    forgotten = np.log((1.0 + 31.0 * np.exp(2.0 * epsilon)) / 32.0)
    return (
        Broken("Laplace at half the scale", Laplace(0.5, epsilon).sample, np.int32(0), np.int32(1), epsilon, 2 * epsilon),
        Broken("AboveThreshold without query noise", _threshold_noise_only(one), scores, others, epsilon, np.inf),
        Broken("AboveThreshold that prints the noisy query", _noisy_query(epsilon), scores, others, epsilon, np.inf),
        Broken(
            "ExponentialMechanism with the factor 2 forgotten",
            ExponentialMechanism(1.0, epsilon, monotonic=True).sample,
            *candidates,
            epsilon,
            float(forgotten),
        ),
    )


def _threshold_noise_only(mechanism: AboveThreshold) -> Callable:
    def sample(key: jax.Array, scores: Any) -> jax.Array:
        threshold = random.geometric(key, mechanism.epsilon)
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
