"""One benchmark: a sampler, its inputs, its claim and what is known exactly about it."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxdp.audit.catalogue._loss_law import LossLaw
from jaxdp.audit.targets import Batched

__all__ = ["EVERY", "ONE", "Entry", "Published", "entry_of", "patterns"]

ONE = "one query changes by at most 1"
EVERY = "every query changes by at most 1"


@dataclasses.dataclass(frozen=True)
class Published:
    """What other tools reported for a benchmark, with 2e8 runs a side and a confidence of 0.9 at the end.

    Source: DP-Sniper (Bichsel, Steffen, Bogunovic, Vechev, 2021), reference results of its repository.

    Attributes:
        logistic: Lower bound certified by DP-Sniper with logistic regression.
        network: The same with a neural network.
        statdp: The two lower bounds certified for StatDP; None where it failed.
        seconds_logistic: Time of the search and the final runs, on about twenty cores.
        seconds_network: The same with a neural network.
        seconds_statdp: Time of StatDP's two searches.
    """

    logistic: float
    network: float
    statdp: tuple[float, float] | None
    seconds_logistic: float
    seconds_network: float
    seconds_statdp: tuple[float, float] | None


@dataclasses.dataclass(frozen=True, eq=False)
class Entry:
    """A benchmark mechanism. NOT FOR RELEASE: samplers add float noise as textbooks do.

    Attributes:
        name: Its name in the literature.
        epsilon: What it claims, for its neighbours.
        neighbours: Which inputs are neighbours, in words.
        private: Whether the claim holds.
        sample: (key, input) -> output, a pure JAX function for `audit.monte_carlo`. Floats are float32. An output of
            the sparse vectors is a mask of tags (1 above, 0 below, -1 after the end), or (tags, values) with 0 where
            there is no value.
        many: The same sampler for many runs from one key, for audits that are several times faster.
        pairs: Pairs (summary, neighbour) of NumPy arrays: the patterns of StatDP and DP-Sniper, both orders.
        worst: The pair among them on which the best event certifies most, in 2e8 runs a side at a confidence of 0.9.
        log_ratio: (summary, neighbour) -> function of one output, log p(output | summary) - log p(output | neighbour)
            as float32, to be used as a `score`; None where it is not known.
        loss_law: (summary, neighbour) -> LossLaw, the exact law of that log ratio; None where it is not known.
        published: Figures of other tools, or None.
    """

    name: str
    epsilon: float
    neighbours: str
    private: bool
    sample: Callable[[jax.Array, Any], Any]
    many: Batched
    pairs: tuple[tuple[np.ndarray, np.ndarray], ...]
    worst: tuple[np.ndarray, np.ndarray]
    log_ratio: Callable[[Any, Any], Callable[[Any], jax.Array]] | None
    loss_law: Callable[[Any, Any], LossLaw] | None
    published: Published | None = None

    def event(self, runs: int, alpha: float) -> Callable[[Any], jax.Array]:
        """The log ratio of the event on the worst pair that certifies most: a `score` that leaves a pilot no choice.

        Args:
            runs: Planned runs on each input.
            alpha: Error probability of the certificate.

        Returns:
            A function of one output: float32 log p / q inside of the event, log (1 - p) / (1 - q) outside, cut off at
            50 on both sides.

        Raises:
            ValueError: The law is not known.
        """
        if self.loss_law is None or self.log_ratio is None:
            raise ValueError(f"entry must have a law of its loss, got {self.name!r}")
        law, ratio = self.loss_law(*self.worst), self.log_ratio(*self.worst)
        threshold = law.best_event(runs, alpha)[0]
        inside = law.values >= threshold
        masses = [np.array([side[inside].sum(), side[~inside].sum()]) for side in (law.masses, law.other_masses)]
        with np.errstate(divide="ignore"):
            log_ratios = np.clip(np.log(masses[0]) - np.log(masses[1]), -50.0, 50.0).astype(np.float32)
        # The floats of an atom are near it.
        edge = np.float32(threshold - 1e-5 * max(abs(threshold), 0.1) if np.isfinite(threshold) else threshold)
        return lambda output: jnp.where(ratio(output) >= edge, log_ratios[0], log_ratios[1])


def entry_of(
    name: str,
    epsilon: float,
    neighbours: str,
    private: bool,
    mechanism: Any,
    pairs: tuple,
    worst: int,
    published: Published | None = None,
) -> Entry:
    """The entry of a mechanism with the methods sample, many, log_ratio and loss_law; `worst` is a number of a pair."""
    many, log_ratio, loss_law = Batched(mechanism.many), mechanism.log_ratio, mechanism.loss_law
    return Entry(
        name, epsilon, neighbours, private, mechanism.sample, many, pairs, pairs[worst], log_ratio, loss_law, published
    )


def patterns(size: int | None, neighbours: str, dtype: type = np.float32) -> tuple[tuple[np.ndarray, np.ndarray], ...]:
    """The input pairs of StatDP (Ding et al., 2018) as DP-Sniper uses them: 4, or 16 where every query may change.

    Args:
        size: Number of queries; None for a single number.
        neighbours: ONE or EVERY.
        dtype: Type of the inputs.
    """
    shape, n = ((), 1) if size is None else ((size,), size)
    half = n // 2
    ones = [1] * n
    found = [(ones, [0] + [1] * (n - 1)), (ones, [2] + [1] * (n - 1))]
    if neighbours == EVERY:
        found += [
            (ones, [2] + [0] * (n - 1)),
            (ones, [0] + [2] * (n - 1)),
            (ones, [2] * half + [0] * (n - half)),
            (ones, [2] * n),
            (ones, [0] * n),
            ([1] * half + [0] * (n - half), [0] * half + [1] * (n - half)),
        ]
    arrays = [tuple(np.array(side, dtype).reshape(shape) for side in pair) for pair in found]
    return tuple(pair for one, other in arrays for pair in ((one, other), (other, one)))
