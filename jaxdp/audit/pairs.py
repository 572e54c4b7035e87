"""Search for the pair of neighbouring inputs on which a mechanism loses most.

Audits only speak of the pair they look at. The pair is searched among DATA SETS (a statistic maps them to what the
mechanism reads), so that a wrong sensitivity, which every pair of legal summaries hides, is found. A search comes
before certification and needs no correction; certify what it finds on fresh keys.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxdp import _check
from jaxdp.audit.adjacency import Adjacency
from jaxdp.audit.exact import exact
from jaxdp.audit.monte_carlo import monte_carlo

__all__ = ["FoundPair", "certificate", "exact_loss", "renyi", "search"]

_IDLE = 200


@dataclasses.dataclass(frozen=True, eq=False)
class FoundPair:
    """A pair of neighbouring inputs.

    Attributes:
        summary: One input.
        neighbour: The other.
        value: What `evaluate` says about them.
        evaluations: Calls of `evaluate` and of the divergence in the whole search.
    """

    summary: np.ndarray
    neighbour: np.ndarray
    value: float
    evaluations: int


def exact_loss(mechanism: Any, statistic: Callable | None = None) -> Callable[[Any, Any], float]:
    """For `search`: the exact privacy loss of a pair, from the laws.

    Args:
        mechanism: A mechanism with `law` and `privacy`.
        statistic: Maps a data set to what the mechanism reads; by default it reads the data set itself.
    """
    read = statistic or (lambda data: data)
    return lambda one, other: exact(mechanism, read(one), read(other))


def certificate(
    key: jax.Array, mechanism: Any, statistic: Callable | None = None, **options: Any
) -> Callable[[Any, Any], float]:
    """For `search`: what a small Monte-Carlo audit of a pair certifies, for mechanisms whose law is not known.

    All pairs share the key (common random numbers), so the differences between them are less noisy than each value.

    Args:
        key: One typed key.
        mechanism: As in `monte_carlo`.
        statistic: Maps a data set to what the mechanism reads.
        options: Passed to `monte_carlo`: epsilon, num_samples (by default 2^14), confidence, ...
    """
    read = statistic or (lambda data: data)
    options = {"num_samples": 2**14} | options
    return lambda one, other: monte_carlo(key, mechanism, read(one), read(other), **options).epsilon_lower


def renyi(mechanism: Any, statistic: Callable | None = None, *, order: float = 32.0) -> Callable:
    """For the gradient steps of `search`: the Renyi divergence of high order, a smooth stand-in for the loss.

        D_a(P, Q) = log(sum P^a Q^(1 - a)) / (a - 1)

    It is at most the loss and nears it as the order grows.

    Args:
        mechanism: One with a DiscreteLaw whose probabilities change smoothly with the summary (exponential mechanism,
            permute and flip). Mechanisms on a lattice round their summaries: their gradients are zero.
        statistic: A JAX function from a data set to what the mechanism reads.
        order: Order, more than 1; 8 to 64 serve.

    Returns:
        A JAX function of the pair, float64.
    """
    if not 1.0 < order < np.inf:
        raise ValueError(f"order must be finite and more than 1, got {order!r}")
    read = statistic or (lambda data: data)

    def divergence(one: jax.Array, other: jax.Array) -> jax.Array:
        p, q = (mechanism.law(read(data)).log_p for data in (one, other))
        # What is impossible on both sides carries no loss, and must not spoil the gradient.
        safe = jnp.maximum(jnp.stack([p, q]), -1e4)
        return jax.nn.logsumexp(order * safe[0] - (order - 1.0) * safe[1]) / (order - 1.0)

    return divergence


def search(
    evaluate: Callable[[Any, Any], float],
    adjacency: Adjacency,
    *,
    key: jax.Array,
    budget: int = 400,
    start: Sequence[tuple[Any, Any]] = (),
    divergence: Callable | None = None,
    keep: int = 1,
) -> tuple[FoundPair, ...]:
    """Searches the pairs of an adjacency for those of the largest value.

    A fifth of the budget goes to the given and to random pairs. With a `divergence`, the best are improved by projected
    gradient ascent. The rest is successive halving: each of the remaining pairs is varied in one entry a number of
    times and moves where the value grows, then the worse half is dropped and the others get twice as many steps.

    Args:
        evaluate: (summary, neighbour) -> value; see `exact_loss` and `certificate`. NaN counts as no value.
        adjacency: The relation of neighbours, with the domain; see `jaxdp.audit.adjacency`.
        key: One typed key. Consumed.
        budget: Calls of `evaluate`, and of `divergence` with its gradient.
        start: Pairs to start from, such as `patterns`; they are moved into the relation.
        divergence: A JAX function of two float64 arrays to be climbed, such as `renyi`.
        keep: Pairs to return.

    Returns:
        The best different pairs, best first.

    Raises:
        ValueError: An argument is out of range.

    Example:
        A sum of three numbers from 0 to 1 that claims half of its sensitivity:

        >>> from jaxdp.audit.adjacency import ReplaceOne
        >>> loss = exact_loss(jaxdp.Laplace(sensitivity=0.5, epsilon=1.0), np.sum)
        >>> best = search(loss, ReplaceOne(3, 0.0, 1.0), key=jax.random.key(0))[0]
        >>> 1.9 < best.value <= 2.0
        True
    """
    _check.key(key)
    for name, number in (("budget", budget), ("keep", keep)):
        if isinstance(number, bool) or not isinstance(number, int | np.integer) or number < 1:
            raise ValueError(f"{name} must be a positive integer, got {number!r}")
    for name, function in (("evaluate", evaluate), ("divergence", divergence)):
        if not callable(function) and (name == "evaluate" or function is not None):
            raise ValueError(f"{name} must be a function of two inputs, got {function!r}")
    if not isinstance(adjacency, Adjacency):
        raise ValueError(f"adjacency must be a relation of jaxdp.audit.adjacency, got {adjacency!r}")
    rng = np.random.default_rng(np.asarray(jax.random.key_data(key)).ravel())
    state = _Search(evaluate, divergence, adjacency, rng, budget)
    for one, other in start:
        state.look(adjacency.project(one, other))
    for _ in range(max(1, budget // 5) - len(start)):
        state.look(adjacency.random(state.rng))
    if divergence is not None:
        for pair in state.best(3):
            state.look(state.climb(pair, budget // 5))
    state.halve()
    return tuple(FoundPair(*state.pairs[name], state.values[name], state.used) for name in state.names(keep))


class _Search:
    """Pairs seen so far and their values, under a budget."""

    def __init__(self, evaluate: Callable, divergence: Any, adjacency: Adjacency, rng: Any, budget: int):
        self.evaluate, self.adjacency, self.rng, self.budget, self.used = evaluate, adjacency, rng, budget, 0
        self.slope: Any = None if divergence is None else jax.jit(jax.value_and_grad(divergence, argnums=(0, 1)))
        self.pairs: dict[Any, tuple] = {}
        self.values: dict[Any, float] = {}

    def look(self, pair: tuple) -> float:
        """The value of a pair; -inf where the budget is spent."""
        name = (pair[0].tobytes(), pair[1].tobytes())
        if name not in self.values:
            if self.used >= self.budget:
                return -np.inf
            self.used += 1
            value = float(self.evaluate(*pair))
            self.pairs[name], self.values[name] = pair, -np.inf if np.isnan(value) else value
        return self.values[name]

    def names(self, count: int) -> list:
        return sorted(self.values, key=lambda name: -self.values[name])[:count]

    def best(self, count: int) -> list[tuple]:
        return [self.pairs[name] for name in self.names(count)]

    def climb(self, pair: tuple, steps: int) -> tuple:
        """Projected gradient ascent; the step is halved twice where nothing is gained."""
        with jax.enable_x64(True):
            pair, step = tuple(np.asarray(each, np.float64) for each in pair), 0.25
            value, gradient = self.slope(*pair)
            for _ in range(min(steps, self.budget - self.used - 1)):
                # The pair moves as a whole, and its difference within what the relation allows.
                ways = [_direction(np.asarray(each)) for each in (gradient[0] + gradient[1], gradient[1])]
                if not all(np.all(np.isfinite(way)) for way in ways) or not np.any(ways) or step < 1e-6:
                    break
                length = step * (self.adjacency.upper - self.adjacency.lower)
                moved = pair[0] + length * ways[0], pair[1] + length * (ways[0] + ways[1])
                trial = tuple(np.asarray(each, np.float64) for each in self.adjacency.project(*moved))
                self.used += 1
                reached, slope = self.slope(*trial)
                if float(reached) > float(value):
                    pair, value, gradient, step = trial, reached, slope, min(2.0 * step, 0.5)
                else:
                    step /= 4.0
        return self.adjacency.project(*map(self.adjacency.snap, pair))

    def halve(self) -> None:
        """Successive halving of local searches over the better half of what was seen, at most 16 pairs."""
        pool = self.best(min(16, max(len(self.values) // 2, 1)))
        rounds, idle = max(len(pool) - 1, 0).bit_length() + 1, 0
        # A small relation is exhausted when nothing new comes up for long.
        while pool and self.used < self.budget and idle < _IDLE:
            steps = max((self.budget - self.used) // (rounds * len(pool)), 1)
            improved = []
            for pair in pool:
                value = self.look(pair)
                for _ in range(steps):
                    before = self.used
                    trial = self.adjacency.vary(*pair, self.rng)
                    reached = self.look(trial)
                    # Level ground may be crossed: with ties many entries must change before a value does.
                    if reached >= value > -np.inf:
                        pair, value = trial, reached
                    idle = 0 if self.used > before else idle + 1
                improved.append((value, pair))
            improved.sort(key=lambda each: -each[0])
            pool = [pair for _, pair in improved[: max(len(pool) // 2, 1)]]
            rounds = max(rounds - 1, 1)


def _direction(slope: np.ndarray) -> np.ndarray:
    """Entries with at least a tenth of the steepest slope go all the way, the others in proportion."""
    return np.clip(slope * (10.0 / max(np.max(np.abs(slope)), 1e-300)), -1.0, 1.0)
