"""Output bounds: how far a statistic can move when l records are replaced."""

from __future__ import annotations

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxdp import _check
from jaxdp._float64 import float64


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True, eq=False)
class OutputBounds:
    """Bounds of a statistic f by Hamming distance: L^l <= f(x') <= U^l for all x' that differ in at most l records.

    They obey the contract that all privacy arguments rest on, with no tolerance: for data sets x, x' that differ in at
    most one record, U^l(x') <= U^(l+1)(x) and L^(l+1)(x) <= L^l(x').

    Attributes:
        lower: (radius + 2,) L^0, .., L^radius, and the least value f can have at all (-inf is allowed).
        upper: (radius + 2,) U^0, .., U^radius, and the largest value (inf is allowed). upper[0] == lower[0] == f(x).
        sensitivity: Public; the most that one record can change f. inf if unknown: the range takes its place.
        monotonic: Static; True if raising one record lowers no entry. The functions of `jaxdp.bounds` set it.

    Example:
        >>> b = jaxdp.bounds.median(np.array([1.0, 2.0, 4.0, 8.0, 9.0]), 0.0, 10.0, radius=2)
        >>> b.lower.tolist(), b.upper.tolist()
        ([4.0, 2.0, 1.0, 0.0], [4.0, 8.0, 9.0, 10.0])
        >>> b.distance(np.array([4.0, 5.0, 9.5])).tolist()
        [0, 1, 3]
    """

    lower: Any
    upper: Any
    sensitivity: Any = np.inf
    monotonic: bool = dataclasses.field(default=False, kw_only=True, metadata={"static": True})

    @property
    def value(self) -> jax.Array:
        """f(x), not private."""
        return self.lower[..., 0]

    @property
    def radius(self) -> int:
        """Number of replaced records up to which the bounds are known."""
        return np.shape(self.lower)[-1] - 2

    def distance(self, points: Any) -> jax.Array:
        """How many records must be replaced for f to reach each point, by the bounds.

        Args:
            points: Real array of any shape.

        Returns:
            int32 array: the least l with L^l <= point <= U^l, at most radius + 1 (also where a point or f(x) is
            NaN). Of sensitivity 1.
        """
        return _score(check(self).lower, self.upper, _points(points), reflected=False)

    def signed_distance(self, points: Any) -> jax.Array:
        """Distance - 1/2 above f(x), its negative below, 0 at f(x): of sensitivity 1 too, and nondecreasing.

        Returns:
            float32 array of the shape of `points`; NaN where a point or f(x) is.
        """
        points = _points(points)
        score = _score(check(self).lower, self.upper, points, reflected=True).astype(jnp.float32)
        at, unknown = _equal(self.lower, points)
        score = jnp.where(at, jnp.zeros_like(score), score + 0.5)
        return jnp.where(unknown, jnp.full_like(score, jnp.nan), score)

    def cuts(self, grid: Any) -> tuple[jax.Array, jax.Array]:
        """Where an increasing grid crosses the levels: points [a_l, b_l) are at distance l or less.

        Args:
            grid: (n,) increasing.

        Returns:
            int32 arrays a, b (radius + 2,); the last level takes the whole grid.
        """
        return cuts(check(self).lower, self.upper, _check.vector("grid", grid))

    def local_sensitivity(self) -> jax.Array:
        """(radius,) bounds on the local sensitivity at distance l < radius, at most `sensitivity`."""
        return local_sensitivity(check(self).lower, self.upper, self.sensitivity)


def check(summary: Any) -> OutputBounds:
    """An OutputBounds of one data set, or a ValueError."""
    if not isinstance(summary, OutputBounds):
        raise ValueError(f"bounds must be an OutputBounds, made by jaxdp.bounds, got {type(summary).__name__}")
    if not (hasattr(summary.lower, "dtype") and hasattr(summary.upper, "dtype")):
        raise ValueError("bounds must have arrays as lower and upper, got lists or numbers")
    _check.real_dtype("lower", summary.lower)
    _check.real_dtype("upper", summary.upper)
    _check.flag("monotonic", summary.monotonic)
    public = _check.scalar("sensitivity", summary.sensitivity)
    if not _check.is_traced(public) and not (public > 0.0 or np.isnan(public)):
        raise ValueError(f"sensitivity must be positive (inf if unknown), got {public!r}")
    shape = np.shape(summary.lower)
    if len(shape) != 1 or shape[0] < 2 or np.shape(summary.upper) != shape:
        shapes = f"{shape} and {np.shape(summary.upper)}"
        raise ValueError(f"bounds must have lower and upper of shape (radius + 2,) (batch with vmap), got {shapes}")
    return summary


def _points(value: Any) -> Any:
    _check.real_dtype("points", value)
    return value if hasattr(value, "dtype") else np.asarray(value)


@float64(static_argnames=("reflected",))
def _score(lower: Any, upper: Any, points: Any, *, reflected: bool) -> jax.Array:
    """The distance; reflected: floor of the signed distance. Sides are decided by comparisons, never by a sign."""
    points = points.astype(jnp.float64)
    last = len(lower) - 1
    up = jnp.minimum(jnp.searchsorted(upper, points, side="left"), last)
    down = jnp.minimum(jnp.searchsorted(-lower, -points, side="left"), last)
    above, below = points > upper[0], points < lower[0]
    if reflected:
        score = jnp.where(above, up - 1, jnp.where(below, -down, 0))
    else:
        at = (points >= lower[0]) & (points <= upper[0])
        # Neither above, below nor at f(x): one of them is NaN.
        score = jnp.where(above, up, jnp.where(below, down, jnp.where(at, 0, last)))
    return score.astype(jnp.int32)


@float64
def _equal(lower: Any, points: Any) -> tuple[jax.Array, jax.Array]:
    """Which points are f(x), and which cannot be compared with it."""
    points = points.astype(jnp.float64)
    return points == lower[0], jnp.isnan(points) | jnp.isnan(lower[0])


@float64
def cuts(lower: Any, upper: Any, grid: Any) -> tuple[jax.Array, jax.Array]:
    grid = grid.astype(jnp.float64)
    a = jnp.searchsorted(grid, lower, side="left").at[-1].set(0)
    b = jnp.searchsorted(grid, upper, side="right").at[-1].set(len(grid))
    return a.astype(jnp.int32), b.astype(jnp.int32)


def nested(lower: jax.Array, upper: jax.Array) -> jax.Array:
    """Whether traced entries can be bounds: nested, around one value; NaN is none. For use in a float64 core."""
    return jnp.all(upper[1:] >= upper[:-1]) & jnp.all(lower[1:] <= lower[:-1]) & (lower[0] == upper[0])


@float64
def local_sensitivity(lower: Any, upper: Any, sensitivity: Any) -> jax.Array:
    each = jnp.maximum(upper[1:-1] - lower[:-2], upper[:-2] - lower[1:-1])
    return jnp.minimum(each, jnp.minimum(sensitivity, upper[-1] - lower[-1]))


def linear_grid(lower: float, upper: float, size: int) -> np.ndarray:
    """(size,) equally spaced public candidates, float64, both ends included.

    Example:
        >>> jaxdp.linear_grid(0.0, 1.0, 5).tolist()
        [0.0, 0.25, 0.5, 0.75, 1.0]
    """
    _range(lower, upper)
    _check.count("size", size)
    grid = np.linspace(float(lower), float(upper), size)
    if np.any(np.diff(grid) <= 0.0):
        raise ValueError(f"size must be small enough for the candidates to differ, got {size}")
    return grid


def geometric_grid(
    lower: float, upper: float, *, base: float = 1.005, unit: float = 1.0, max_size: int = 50_000
) -> np.ndarray:
    """Public candidates whose distance from `lower` grows geometrically, up to `upper`.

    t_i = lower + unit (base^i - 1), i = 1, 2, ..; those below `upper`, then `upper` itself.

    Args:
        lower: Where the spacing is finest: unit (base - 1).
        upper: The last candidate.
        base: Growth, above 1.
        unit: Public scale near which the relative spacing becomes base - 1; choose it near the smallest
            distance from `lower` that matters (1.0 is too coarse for losses around 0.4).
        max_size: The stream is cut after this many candidates (the last one is still `upper`).

    Returns:
        Increasing float64 array.

    Example:
        >>> jaxdp.geometric_grid(0.0, 10.0, base=2.0).tolist()
        [1.0, 3.0, 7.0, 10.0]
    """
    _range(lower, upper)
    unit, base = _check.positive("unit", unit), _check.positive("base", base)
    _check.count("max_size", max_size)
    if not base > 1.0:
        raise ValueError(f"base must be above 1, got {base!r}")
    size = min(max_size, int(np.ceil(np.log1p((upper - lower) / unit) / np.log(base))) + 2)
    with np.errstate(over="ignore"):
        grid = lower + unit * (np.power(base, np.arange(1.0, size + 1.0)) - 1.0)
    grid = grid[grid < upper][: max_size - 1]
    return np.append(np.unique(grid), float(upper))


def check_grid(value: Any) -> Any:
    """A public grid: (n,), finite and increasing where it is concrete (a traced one is judged in the core)."""
    value = _check.vector("grid", value)
    if not _check.is_traced(value):
        value = np.asarray(value)
        if not np.all(np.isfinite(value)) or np.any(np.diff(value) <= 0.0):
            raise ValueError(f"grid must be finite and increasing, got {value!r}")
    return value


def _range(lower: Any, upper: Any) -> None:
    lower, upper = _check.finite("lower", lower), _check.finite("upper", upper)
    if not 0.0 < upper - lower < np.inf:
        raise ValueError(f"upper must be above lower, by a finite number, got lower={lower!r} and upper={upper!r}")
