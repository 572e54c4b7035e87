"""The inverse sensitivity mechanism on a public grid."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxdp import _check
from jaxdp._float64 import float64, read
from jaxdp._mechanism import mechanism
from jaxdp.bounds import _output_bounds
from jaxdp.laws import DiscreteLaw, sample_once
from jaxdp.mechanisms import _on_bounds
from jaxdp.types import Privacy


def _examples(epsilon: float) -> dict[str, Any]:
    return {"InverseSensitivity": InverseSensitivity(epsilon)}


@mechanism(examples=_examples, neighbours=_on_bounds.neighbours)
class InverseSensitivity:
    """Releases a candidate of a public grid, the likelier the fewer records must change for f to reach it.

    The exponential mechanism with the score -distance(x; t): P(t) ~ e^(-epsilon distance / 2). Most accurate for
    statistics whose bounds are tight on both sides; it adapts to the data where the global sensitivity is hopeless.

    Args:
        epsilon: Total privacy budget of one release.

    Guarantee:
        epsilon-DP, and epsilon^2 / 8-zCDP. Summary contract: that of OutputBounds (jaxdp.bounds keeps it); the grid is
        public. The score is never monotonic, whatever the bounds are. Source: Asi, Duchi (2020).

    Law:
        DiscreteLaw over the grid. `continuous_error` gives the expected error of the mechanism's continuous form.

    Floating point:
        Distances are integers, exact; the law is computed in float64 and inverted with 63 random bits, as for
        ExponentialMechanism. Candidates are released in JAX's default float dtype.

    Example:
        >>> x = np.array([1.0, 2.0, 4.0, 8.0, 9.0])
        >>> summary = jaxdp.bounds.median(x, 0.0, 10.0, radius=3), jaxdp.linear_grid(0.0, 10.0, 101)
        >>> 0.0 <= float(jaxdp.InverseSensitivity(2.0).sample(jax.random.key(0), summary)) <= 10.0
        True
    """

    epsilon: Any

    def sample(self, key: jax.Array, summary: Any) -> jax.Array:
        """One release.

        Args:
            key: One typed key, consumed.
            summary: Pair of OutputBounds and a public grid (n,), increasing.

        Returns:
            A candidate; NaN for bad traced parameters.

        Raises:
            ValueError: For bad concrete parameters or shapes.
        """
        return sample_once(key, self.law(summary))

    def law(self, summary: Any) -> DiscreteLaw:
        """The exact law of `sample(key, summary)`."""
        epsilon = _check.positive("epsilon", self.epsilon)
        bounds, grid = _on_bounds.split(summary)
        return DiscreteLaw(_log_p(bounds.lower, bounds.upper, grid, epsilon), _on_bounds.candidates(grid))

    def privacy(self) -> Privacy:
        """The guarantee."""
        _check.positive("epsilon", self.epsilon)
        return Privacy(self.epsilon, 0.0, self.epsilon * self.epsilon / 8.0)

    def worst_case(self) -> tuple[Any, Any]:
        """F moves away from the candidate 0 and towards many others: the loss nears epsilon."""
        _check.positive("epsilon", self.epsilon)
        levels = np.arange(4.0)
        here = _output_bounds.OutputBounds(np.array([0.0, -1, -2, -9]), np.array([0.0, 1, 2, 9]))
        there = _output_bounds.OutputBounds(1.0 - levels * [1, 1, 1, 10 / 3], 1.0 + levels * [1, 1, 1, 8 / 3])
        grid = np.append(0.0, np.linspace(1.0, 2.0, 129)[1:])
        return (here, grid), (there, grid)

    def continuous_error(self, bounds: Any) -> Any:
        """E|error| of the continuous form, with density ~ e^(-epsilon distance / 2) on the range of f.

        What a fine grid's `law(..).expected_error(f)` tends to; the source paper's figures show it.

        Args:
            bounds: OutputBounds with a finite range.
        """
        epsilon = _check.positive("epsilon", self.epsilon)
        bounds = _output_bounds.check(bounds)
        return read(_continuous_error(bounds.lower, bounds.upper, epsilon))


@float64
def _log_p(lower: Any, upper: Any, grid: Any, epsilon: Any) -> jax.Array:
    distance = _on_bounds.grid_distance(lower, upper, grid).astype(jnp.float64)
    valid = (epsilon > 0.0) & (epsilon < jnp.inf) & _on_bounds.valid(lower, upper, grid)
    return jax.nn.log_softmax(jnp.where(valid, -epsilon / 2.0, jnp.nan) * distance)


@float64
def _continuous_error(lower: Any, upper: Any, epsilon: Any) -> jax.Array:
    # Band l is [L^l, L^(l-1)] and [U^(l-1), U^l]; inside, the density is constant.
    ends = jnp.stack([upper - upper[0], lower[0] - lower])
    weights = jnp.exp(-epsilon / 2.0 * np.arange(1.0, len(upper)))
    mass = jnp.sum(weights[None] * jnp.diff(ends))
    first = jnp.sum(weights[None] * jnp.diff(ends**2)) / 2.0
    return jnp.where(mass > 0.0, first / jnp.where(mass > 0.0, mass, 1.0), 0.0)
