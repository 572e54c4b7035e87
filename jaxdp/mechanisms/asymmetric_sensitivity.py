"""The asymmetric sensitivity mechanism: sparse vector over a stream of candidate outputs."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxdp import _check
from jaxdp._float64 import float64
from jaxdp._mechanism import mechanism, static
from jaxdp.bounds import _output_bounds
from jaxdp.laws import DiscreteLaw
from jaxdp.mechanisms import _on_bounds
from jaxdp.mechanisms.above_threshold import AboveThreshold
from jaxdp.types import Privacy, Runs


def _examples(epsilon: float) -> dict[str, Any]:
    return {
        "AsymmetricSensitivity": AsymmetricSensitivity(epsilon),
        "AsymmetricSensitivity(direction=down)": AsymmetricSensitivity(epsilon, direction="down"),
    }


@mechanism(examples=_examples, neighbours=_on_bounds.neighbours)
class AsymmetricSensitivity:
    """Walks up a stream of candidate outputs and releases the one where it seems to have passed f(x).

    AboveThreshold over the public candidates t_1 < t_2 < .., with the signed distance of t_i as score (sensitivity 1)
    and threshold 0; the last candidate if it never halts. Most accurate where f can hardly be lowered by few records
    but raised a lot: the variance, means of losses that have no upper bound.

    Args:
        epsilon: Total privacy budget of one release, at most 32.
        offset: Public threshold: positive values halt later. Trades stopping early against overshooting.
        direction: Static; "up" walks from the least candidate, "down" from the largest (where the upper bounds are
            the tight side).

    Guarantee:
        (epsilon, delta)-DP with delta <= (e^epsilon - 1) e^-46. Summary contract: that of OutputBounds; the grid is
        public. The cheaper monotonic budget (AboveThreshold) is used exactly when bounds.monotonic is set. Source:
        Durfee (2023), section 4; the lattice form and its tightness are derived in the tests.

    Law:
        DiscreteLaw over the candidates, a finite sum over the threshold noise.

    Floating point:
        Scores are integers: floor(signed distance), with sensitivity 1 like the distance itself. All slack is that of
        AboveThreshold on integers. Candidates are released in JAX's default float dtype.

    Example:
        >>> x = np.random.default_rng(0).uniform(size=1000)
        >>> bounds = jaxdp.bounds.variance(x, 0.0, 1.0, radius=100)
        >>> grid = jaxdp.geometric_grid(0.0, 0.25, unit=1e-3)
        >>> law = jaxdp.AsymmetricSensitivity(1.0).law((bounds, grid))
        >>> bool(law.expected_error(bounds.value) < 0.01)
        True
    """

    epsilon: Any
    offset: Any = 0
    direction: str = static("up")

    def sample(self, key: jax.Array, summary: Any) -> jax.Array:
        """One release.

        Args:
            key: One typed key, consumed.
            summary: Pair of OutputBounds and a public grid (n,), increasing: `geometric_grid` or any other.

        Returns:
            A candidate; NaN for bad traced parameters.

        Raises:
            ValueError: For bad concrete parameters or shapes.
        """
        runs, candidates, stream = self._prepare(summary)
        return _candidate(candidates, stream.sample(key, runs).index)

    def law(self, summary: Any, *, rows: int | None = None) -> DiscreteLaw:
        """The exact law of `sample(key, summary)`.

        Args:
            summary: Pair of OutputBounds and grid.
            rows: Static number of values of the threshold noise, needed only where epsilon is traced.
        """
        runs, candidates, stream = self._prepare(summary)
        return DiscreteLaw(_never_is_last(stream.law(runs, rows=rows).log_p), candidates)

    def privacy(self) -> Privacy:
        """The guarantee."""
        self._check()
        return self._stream(monotonic=False).privacy()

    def worst_case(self) -> tuple[Any, Any]:
        """Scores (-1, .., -1, 1) and (0, .., 0), halting at the last: nears epsilon (for bounds not monotonic)."""
        self._check()
        one = _output_bounds.OutputBounds(np.array([1.0, 0.0, -1.0, -9.0]), np.array([1.0, 1.5, 2.0, 9.0]))
        two = _output_bounds.OutputBounds(np.array([0.0, -1.0, -2.0, -9.0]), np.array([0.0, 2.0, 3.0, 9.0]))
        grid = np.append(np.linspace(0.0, 0.9, 16), [2.0, 9.0])
        if self.direction == "up":
            return (one, grid), (two, grid)
        return tuple((_negate(bounds), -grid[::-1]) for bounds in (one, two))

    def _check(self) -> None:
        _check.lattice_epsilon(self.epsilon)
        _check.finite("offset", self.offset)
        _check.choice("direction", self.direction, ("up", "down"))

    def _stream(self, monotonic: bool) -> AboveThreshold:
        return AboveThreshold(self.offset, 1.0, self.epsilon, monotonic=monotonic)

    def _prepare(self, summary: Any) -> tuple[Runs, Any, AboveThreshold]:
        """The stream's scores in runs, its candidates in the order of the walk, and the mechanism on it."""
        self._check()
        bounds, grid = _on_bounds.split(summary)
        down = self.direction == "down"
        levels = np.arange(1, bounds.radius + 2, dtype=np.int32)
        scores = np.concatenate([-levels[::-1], levels - 1])
        runs = Runs(scores, _repeats(bounds.lower, bounds.upper, grid, down=down), np.shape(grid)[0])
        candidates = _on_bounds.candidates(grid)
        return runs, candidates[::-1] if down else candidates, self._stream(bounds.monotonic)


def _negate(bounds: _output_bounds.OutputBounds) -> _output_bounds.OutputBounds:
    return _output_bounds.OutputBounds(-bounds.upper, -bounds.lower, bounds.sensitivity, monotonic=bounds.monotonic)


@float64(static_argnames=("down",))
def _repeats(lower: Any, upper: Any, grid: Any, *, down: bool) -> jax.Array:
    """How many candidates have each score -(radius + 1), .., -1, 0, .., radius; a bad grid makes them negative."""
    good = _on_bounds.valid(lower, upper, grid)
    if down:
        lower, upper, grid = -upper, -lower, -grid[::-1]
    a, b = _output_bounds.cuts(lower, upper, grid)
    # Score 0 goes from f(x) to U^1: levels 0 and 1 above share it.
    ends = jnp.concatenate([a[::-1], b[1:]])
    return jnp.where(good, jnp.diff(ends), -1)


@float64
def _never_is_last(log_p: Any) -> jax.Array:
    return log_p[:-1].at[-1].set(jnp.logaddexp(log_p[-2], log_p[-1]))


@jax.jit
def _candidate(candidates: jax.Array, index: jax.Array) -> jax.Array:
    chosen = candidates[jnp.clip(index, 0, len(candidates) - 1)]
    return jnp.where(index >= 0, chosen, jnp.full_like(chosen, jnp.nan))
