"""One-call releases of a statistic, and what helps to choose a mechanism."""

from __future__ import annotations

import inspect
import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxdp import _check
from jaxdp._float64 import float64, read
from jaxdp.bounds import _output_bounds
from jaxdp.bounds._statistic import STATISTICS
from jaxdp.mechanisms._sparse import budgets
from jaxdp.mechanisms.asymmetric_sensitivity import AsymmetricSensitivity
from jaxdp.mechanisms.inverse_sensitivity import InverseSensitivity
from jaxdp.mechanisms.laplace import Laplace
from jaxdp.mechanisms.smooth_sensitivity import SmoothSensitivity

_MECHANISMS = {"asymmetric": AsymmetricSensitivity, "inverse": InverseSensitivity, "smooth": SmoothSensitivity}
_NAMES = (*_MECHANISMS, "laplace")
_FAILURE = 1e-9


def release(
    key: jax.Array,
    *records: Any,
    statistic: str,
    epsilon: Any,
    mechanism: str = "asymmetric",
    radius: int | None = None,
    grid_size: int = 4096,
    **parameters: Any,
) -> jax.Array:
    """Releases a statistic of a data set, with bounds, radius and grid chosen from public parameters.

    Args:
        key: One typed key, consumed.
        *records: The data, leading axis n: `x`, or what the statistic takes, such as `logits, labels`.
        statistic: Static; the name of a function of jaxdp.bounds, such as "variance".
        epsilon: Total privacy budget.
        mechanism: Static; "asymmetric", "inverse", "smooth" or "laplace".
        radius: Static; Hamming distance up to which bounds are computed. By default `radius_for` of the grid and
            epsilon, at most n.
        grid_size: Static; number of candidates over the range of the statistic. They are spaced geometrically from the
            lower end (relative spacing 0.4% by default, down to 1e-7 of the range) for "asymmetric", else evenly.
        **parameters: What the statistic takes besides the data, such as lower and upper (variance, median, ..) or
            limit (cross_entropy); see the function of that name in jaxdp.bounds. The range of the statistic must be
            finite.

    Returns:
        The release, a scalar in JAX's default float dtype; NaN for bad traced parameters.

    Raises:
        ValueError: For unknown names and bad concrete parameters.

    Guarantee:
        That of the mechanism on the statistic's bounds: (epsilon, delta)-DP for neighbours that differ in one record
        that is replaced, with the delta of AsymmetricSensitivity or Laplace. In a Ledger enter the mechanism with
        the same epsilon.

    Example:
        >>> x = np.random.default_rng(0).uniform(0.0, 10.0, 1000)
        >>> private = jaxdp.release(
        ...     jax.random.key(0), x, statistic="variance", epsilon=1.0, lower=0.0, upper=10.0
        ... )
        >>> bool(abs(private - 8.33) < 2.0)
        True
    """
    _check.choice("mechanism", mechanism, _NAMES)
    _check.choice("statistic", statistic, tuple(STATISTICS))
    if not records or np.ndim(records[0]) == 0:
        kinds = [type(part).__name__ for part in records]
        raise ValueError(f"records must be one or more arrays with leading axis n, got {kinds}")
    if radius is None:
        if _check.is_traced(epsilon):
            raise ValueError("radius must be given where epsilon is traced: it is the size of an array")
        largest = min(_check.positive("epsilon", epsilon), _check.MAX_EPSILON)
        radius = min(np.shape(records[0])[0], radius_for(grid_size, largest, _FAILURE))
    function = STATISTICS[statistic].fn
    try:
        inspect.signature(function).bind(*records, **parameters, radius=radius)
    except TypeError as error:
        raise ValueError(f"parameters do not fit bounds.{statistic}: {error}") from error
    made = function(*records, **parameters, radius=radius)
    if mechanism == "laplace":
        return Laplace(made.sensitivity, epsilon).sample(key, made.value)
    record = _MECHANISMS[mechanism](epsilon)
    return record.sample(key, (made, default_grid(record, made, grid_size)))


def default_grid(mechanism: Any, summary: Any, size: int = 4096) -> Any:
    """The public grid that `release` takes over the (finite) range of a statistic.

    Args:
        mechanism: The record that will release; AsymmetricSensitivity gets geometric spacing from where it starts.
        summary: OutputBounds; only their last entries, which are public, are used.
        size: Number of candidates.
    """
    _check.count("size", size)
    if isinstance(mechanism, AsymmetricSensitivity):
        share = np.expm1(np.linspace(0.0, np.log1p(1e7), size)) / 1e7
        share = 1.0 - share[::-1] if mechanism.direction == "down" else share
    else:
        share = np.linspace(0.0, 1.0, size)
    summary = _output_bounds.check(summary)
    lower, upper = summary.lower[-1], summary.upper[-1]
    if not (_check.is_traced(lower) or _check.is_traced(upper)) and upper - lower in (0.0, np.inf):
        raise ValueError(f"the range of the statistic must be finite and more than a point, got [{lower}, {upper}]")
    return read(_between(lower, upper, share))


def expected_error(mechanism: Any, summary: Any, grid: Any = None) -> Any:
    """Exact E|release - f(x)| on one data set. Not private: for public or synthetic data.

    Args:
        mechanism: A mechanism on output bounds, or Laplace.
        summary: OutputBounds of the data set.
        grid: Public candidates; by default those of `release`.

    Example:
        >>> x = np.random.default_rng(0).uniform(size=1000)
        >>> summary = jaxdp.bounds.variance(x, 0.0, 1.0, radius=100)
        >>> mechanisms = jaxdp.AsymmetricSensitivity(1.0), jaxdp.Laplace(1.0, 1.0)
        >>> errors = [jaxdp.expected_error(mechanism, summary) for mechanism in mechanisms]
        >>> bool(errors[0] < 0.01 < errors[1])
        True
    """
    summary = _output_bounds.check(summary)
    if isinstance(mechanism, Laplace):
        return mechanism.law(summary.value).expected_error()
    grid = default_grid(mechanism, summary) if grid is None else grid
    return mechanism.law((summary, grid)).expected_error(summary.value)


def asymmetry(summary: Any, epsilon: Any) -> Any:
    """Share of the upper side in how far f moves: near 1/2 both sides are alike, near 1 only the upper one moves.

    sum_l dU^l e^(-l epsilon / 2) / sum_l (dU^l + dL^l) e^(-l epsilon / 2). Far from 1/2 the asymmetric mechanism
    (direction "up" above, "down" below) beats the inverse sensitivity mechanism. Not private.

    Example:
        >>> bounds = jaxdp.OutputBounds(np.array([2.0, 1.0, 0.0]), np.array([2.0, 8.0, 10.0]))
        >>> round(float(jaxdp.asymmetry(bounds, 1.0)), 2)
        0.82
    """
    summary = _output_bounds.check(summary)
    return read(_asymmetry(summary.lower, summary.upper, _check.positive("epsilon", epsilon)))


def radius_for(grid_size: int, epsilon: float, failure: float) -> int:
    """Radius beyond which AsymmetricSensitivity halts too early with probability `failure` at most.

    ceil(log(grid_size / failure) / e2) with e2 the budget of one query (0.307 epsilon).

    Example:
        >>> jaxdp.radius_for(2000, 1.0, 1e-6)
        70
    """
    _check.count("grid_size", grid_size)
    failure = _check.probability("failure", failure)
    if not failure > 0.0:
        raise ValueError(f"failure must be above 0, got {failure!r}")
    return math.ceil(math.log(grid_size / failure) / budgets(_check.lattice_epsilon(epsilon), 1, False)[1])


@float64
def _between(lower: Any, upper: Any, share: Any) -> jax.Array:
    return lower + (upper - lower) * share


@float64
def _asymmetry(lower: Any, upper: Any, epsilon: Any) -> jax.Array:
    weights = jnp.exp(-epsilon / 2.0 * np.arange(1.0, len(upper)))
    up, down = jnp.sum(weights * jnp.diff(upper)), jnp.sum(weights * -jnp.diff(lower))
    return up / (up + down)
