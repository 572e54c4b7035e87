"""Smooth sensitivity: noise as large as the data set's own neighbourhood demands, on a public grid."""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxdp import _check
from jaxdp._float64 import float64, read
from jaxdp._mechanism import mechanism, static
from jaxdp.bounds import _output_bounds
from jaxdp.laws import DiscreteLaw, sample_once
from jaxdp.mechanisms import _on_bounds
from jaxdp.types import Privacy


def _examples(epsilon: float) -> dict[str, Any]:
    return {
        "SmoothSensitivity": SmoothSensitivity(epsilon),
        "SmoothSensitivity(tail=2)": SmoothSensitivity(epsilon, tail=2),
        "SmoothSensitivity(delta=1e-6)": SmoothSensitivity(epsilon, 1e-6),
    }


@mechanism(examples=_examples, neighbours=_on_bounds.neighbours)
class SmoothSensitivity:
    """Releases f(x) + (S(x) / a) Z, rounded to the nearest candidate of a public grid.

    S(x) = max over l of e^(-b l) A^l(x), A^l the local sensitivity at distance l (from the output bounds, capped by the
    global sensitivity), is b-smooth: neighbours' S differ by a factor e^b at most. The classical baseline of the
    instance-specific mechanisms.

    Args:
        epsilon: Total privacy budget of one release.
        delta: Static; 0 for pure privacy, else Laplace noise is used.
        tail: Static; without delta, the noise has density ~ 1 / (1 + |z|^tail), 4 or 2.

    Guarantee:
        delta = 0: epsilon-DP, with kappa a = epsilon / 2 and max(1, tail - 1) b = epsilon / 2, kappa = (tail -
        1)^((tail - 1) / tail); the sum of both is what a shift and a stretch of the noise can lose. delta > 0:
        (epsilon, delta)-DP with a = epsilon / 2, b = epsilon / (2 log(2 / delta)). Rounding to the grid is
        post-processing. Summary contract: that of OutputBounds, its `sensitivity` included; the grid is public.
        Source: Nissim, Raskhodnikova, Smith (2007), with the sharper condition for pure privacy derived in the tests.

    Law:
        DiscreteLaw over the grid: differences of the closed-form cdf at the midpoints between candidates.

    Floating point:
        The continuous release is never formed: its cdf is taken in float64 at public points and inverted with 63
        random bits, as for ExponentialMechanism. Candidates of probability below 2^-63 cannot occur: on a grid of n
        candidates this costs delta <= n (1 + e^epsilon) 2^-63.

    Example:
        >>> bounds = jaxdp.bounds.median(np.array([1.0, 2.0, 4.0, 8.0, 9.0]), 0.0, 10.0, radius=5)
        >>> mechanism = jaxdp.SmoothSensitivity(1.0)
        >>> 0.0 <= float(mechanism.sample(jax.random.key(0), (bounds, jaxdp.linear_grid(0.0, 10.0, 101)))) <= 10.0
        True
    """

    epsilon: Any
    delta: float = dataclasses.field(default=0.0, metadata={"static": True})
    tail: int = static(4)

    def sample(self, key: jax.Array, summary: Any) -> jax.Array:
        """One release.

        Args:
            key: One typed key, consumed.
            summary: Pair of OutputBounds and a public grid (n,), increasing. What lies beyond its ends is released as
                an end.

        Returns:
            A candidate; NaN for bad traced parameters.

        Raises:
            ValueError: For bad concrete parameters or shapes.
        """
        return sample_once(key, self.law(summary))

    def law(self, summary: Any) -> DiscreteLaw:
        """The exact law of `sample(key, summary)`."""
        self._check()
        bounds, grid = _on_bounds.split(summary)
        return DiscreteLaw(
            _log_p(bounds, grid, self.epsilon, delta=self.delta, tail=self.tail), _on_bounds.candidates(grid)
        )

    def privacy(self) -> Privacy:
        """The guarantee."""
        self._check()
        return Privacy(self.epsilon, self.delta)

    def worst_case(self) -> tuple[Any, Any]:
        """A shift by the global sensitivity; the condition on a and b is not tight."""
        self._check()
        one = _output_bounds.OutputBounds(np.array([0.0, 0.0, -20.0]), np.array([0.0, 1.0, 20.0]), 1.0)
        two = _output_bounds.OutputBounds(np.array([1.0, 0.0, -20.0]), np.array([1.0, 2.0, 20.0]), 1.0)
        grid = np.linspace(-20.0, 20.0, 401)
        return (one, grid), (two, grid)

    def smooth_sensitivity(self, bounds: Any) -> Any:
        """S(x), not private; the noise has scale S / a."""
        self._check()
        bounds = _output_bounds.check(bounds)
        return read(_smooth(bounds, self.epsilon, delta=self.delta, tail=self.tail)[0])

    def _check(self) -> None:
        _check.positive("epsilon", self.epsilon)
        if _check.is_traced(self.delta):
            raise ValueError("delta is static: build the record outside of jit and vmap")
        _check.probability("delta", self.delta)
        _check.choice("tail", self.tail, (2, 4))


def _smooth(bounds: _output_bounds.OutputBounds, epsilon: Any, *, delta: float, tail: int) -> tuple[Any, Any]:
    """S and a."""
    if delta > 0.0:
        a, b = epsilon / 2.0, epsilon / (2.0 * math.log(2.0 / delta))
    else:
        a, b = epsilon / (2.0 * (tail - 1.0) ** ((tail - 1.0) / tail)), epsilon / (2.0 * max(1.0, tail - 1.0))
    top = jnp.minimum(bounds.sensitivity, bounds.upper[-1] - bounds.lower[-1])
    # Beyond the levels that are known only the global sensitivity holds.
    local = jnp.append(_output_bounds.local_sensitivity(bounds.lower, bounds.upper, bounds.sensitivity), top)
    return jnp.max(jnp.exp(-b * np.arange(len(local), dtype=np.float64)) * local), a


_smooth = float64(static_argnames=("delta", "tail"))(_smooth)


@float64(static_argnames=("delta", "tail"))
def _log_p(bounds: _output_bounds.OutputBounds, grid: Any, epsilon: Any, *, delta: float, tail: int) -> jax.Array:
    smooth, a = _smooth(bounds, epsilon, delta=delta, tail=tail)
    z = (a / smooth) * ((grid[1:] + grid[:-1]) / 2.0 - bounds.lower[0])
    beyond = _tail_probability(jnp.abs(z), tail, laplace=delta > 0.0)
    # Probability above and below each midpoint, each to full relative precision on its own side.
    above = jnp.concatenate([jnp.ones(1), jnp.where(z > 0.0, beyond, 1.0 - beyond), jnp.zeros(1)])
    below = jnp.concatenate([jnp.zeros(1), jnp.where(z > 0.0, 1.0 - beyond, beyond), jnp.ones(1)])
    p = jnp.where(above[:-1] < 0.5, above[:-1] - above[1:], below[1:] - below[:-1])
    # A smooth sensitivity of 0 would release f(x) itself.
    valid = (
        (epsilon > 0.0)
        & (epsilon < jnp.inf)
        & (bounds.sensitivity > 0.0)
        & (smooth > 0.0)
        & _on_bounds.valid(bounds.lower, bounds.upper, grid)
    )
    return jnp.where(valid, jnp.log(jnp.maximum(p, 0.0)), jnp.nan)


def _tail_probability(z: Any, tail: int, *, laplace: bool) -> jax.Array:
    """P(Z > z) for z >= 0 in closed form."""
    if laplace:
        return jnp.exp(-z) / 2.0
    w = 1.0 / jnp.maximum(z, 1e-300)
    if tail == 2:
        return jnp.arctan(w) / jnp.pi
    # With t = 1 / w the tail is sqrt(2) / pi times the integral of w^2 / (1 + w^4) from 0; near 0 by its series.
    root = math.sqrt(2.0)
    small = jnp.minimum(w, 0.1)
    series = sum((-1) ** k * small ** (4 * k + 3) / (4 * k + 3) for k in range(5))
    inner, wide = _primitive(z, root), _primitive(jnp.minimum(w, 1.0), -root)
    half = math.pi / (2.0 * root)
    integral = jnp.where(w < 0.1, series, jnp.where(w < 1.0, wide, half - inner))
    return integral * root / jnp.pi


def _primitive(t: Any, root: float) -> jax.Array:
    """Integral of 1 / (1 + t^4) from 0 (root = sqrt 2), or of t^2 / (1 + t^4) (root = -sqrt 2), t >= 0."""
    size = abs(root)
    ratio = jnp.log1p(2.0 * root * t / (t * t - root * t + 1.0)) / (4.0 * size)
    return ratio + (jnp.arctan(size * t + 1.0) + jnp.arctan(size * t - 1.0)) / (2.0 * size)
