"""The Laplace mechanism on a public lattice."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxdp import _check, lattice, random
from jaxdp._float64 import float64
from jaxdp._mechanism import mechanism, static
from jaxdp.laws import LatticeLaw
from jaxdp.types import Privacy


def _examples(epsilon: float) -> dict[str, Any]:
    return {"Laplace": Laplace(1.0, epsilon)}


def _neighbours(record: Any, rng: np.random.Generator) -> tuple[Any, Any]:
    value = rng.normal(scale=100.0)
    return np.float64(value), np.float64(value + record.sensitivity * rng.uniform(-1.0, 1.0))


@mechanism(examples=_examples, neighbours=_neighbours)
class Laplace:
    """Releases a number, or a vector, with Laplace noise of scale sensitivity / epsilon.

    The value is rounded down to a public lattice, integer noise is added, and the result is a multiple of the
    granularity: P(noise = z steps) ~ e^(-rate |z|), with rate = epsilon / (sensitivity in steps).

    Args:
        sensitivity: Largest L1 distance between the values of neighbouring data sets; in the value's units.
        epsilon: Total privacy budget of one release, at most 32.
        granularity: Static; the step, a power of two. By default 1 for integers, and for floats the power of two below
            sensitivity / 4096, within 2^-23 and 2^-8 of the scale.
        max_changed: Static; how many coordinates of a vector one record may change (2 for a histogram when a
            record is replaced). By default all of them. It only costs rounding slack, max_changed steps.

    Guarantee:
        (epsilon, delta)-DP with delta <= (e^epsilon - 1) e^-46, the ends of the noise's support. Summary
        contract: the values of neighbours differ by at most `sensitivity` in L1 norm, in at most `max_changed`
        coordinates. Source: Dwork, McSherry, Nissim, Smith (2006); Ghosh, Roughgarden, Sundararajan (2009).

    Law:
        LatticeLaw, exact; independent over coordinates.

    Floating point:
        Integers (granularity at most 1) have no slack. Floats spend one step on rounding errors of the value's
        own computation (up to half a step per changed coordinate): rate = epsilon / (ceil(sensitivity /
        granularity) + max_changed), so the realised loss on exact inputs is epsilon (1 - 1/4097) at the default.
        The noise's log-ratios are off by at most 1.3e-9. NaN counts as the lower end of the range, +-2^52 steps,
        to which values are clamped.

    Example:
        >>> mechanism = jaxdp.Laplace(sensitivity=1.0, epsilon=0.5)
        >>> mechanism.sample(jax.random.key(0), 37).dtype
        dtype('int32')
        >>> jax.vmap(mechanism.sample, (0, None))(jax.random.split(jax.random.key(0), 4), 0.5).shape
        (4,)
    """

    sensitivity: Any
    epsilon: Any
    granularity: Any = static(None)
    max_changed: int | None = static(None)

    def sample(self, key: jax.Array, value: Any) -> jax.Array:
        """One release.

        Args:
            key: One typed key, consumed.
            value: Real scalar or vector (k,); integers, floats of 16 to 64 bits. A float64 NumPy value is used
                in full even where JAX is in 32-bit mode.

        Returns:
            Array of the shape of `value` and its dtype as JAX has it (float32 for doubles without x64): the
            release is exact in double precision and rounded to that dtype last.

        Raises:
            ValueError: For bad concrete parameters, shapes or dtypes. Bad traced parameters give NaN (integers:
                the lowest value).
        """
        return self.law(value).sample(key)

    def law(self, value: Any) -> LatticeLaw:
        """The exact law of `sample(key, value)`."""
        self._check()
        value = _check.array("value", value)
        dtype = jax.dtypes.canonicalize_dtype(_check.real_dtype("value", value))
        if np.ndim(value) > 1 or np.size(value) == 0:
            raise ValueError(f"value must be a scalar or a non-empty vector, got shape {np.shape(value)}")
        size = np.size(value)
        changed = min(self.max_changed or size, size)
        location, rate, granularity = _parameters(
            value,
            self.sensitivity,
            self.epsilon,
            granularity=self.granularity,
            changed=float(changed),
            integer=lattice.is_integer(dtype),
        )
        if not _check.is_traced(rate) and np.isnan(rate):
            raise ValueError(
                f"epsilon must be at least {random.MIN_RATE:.2g} per step of the lattice, got epsilon="
                f"{self.epsilon!r} with sensitivity={self.sensitivity!r} and granularity={float(granularity)!r}"
            )
        return LatticeLaw(location, rate, granularity, dtype)

    def privacy(self) -> Privacy:
        """The guarantee."""
        self._check()
        return Privacy(self.epsilon, lattice.tail_delta(self.epsilon))

    def worst_case(self) -> tuple[Any, Any]:
        """Values at distance `sensitivity`."""
        self._check()
        return np.float64(0.0), np.float64(self.sensitivity)

    def _check(self) -> None:
        _check.positive("sensitivity", self.sensitivity)
        _check.lattice_epsilon(self.epsilon)
        _check.granularity(self.granularity)
        _check.count("max_changed", self.max_changed, optional=True)


@float64(static_argnames=("granularity", "changed", "integer"))
def _parameters(
    value: Any, sensitivity: Any, epsilon: Any, *, granularity: float | None, changed: float, integer: bool
) -> tuple[jax.Array, jax.Array, jax.Array]:
    """Location in steps, rate (NaN for bad parameters) and granularity."""
    sensitivity, epsilon = sensitivity.astype(jnp.float64), epsilon.astype(jnp.float64)
    if granularity is None:
        step = lattice.default_granularity(sensitivity, epsilon, 4096.0 * changed)
        step = jnp.ones_like(step) if integer else step
    else:
        step = jnp.float64(granularity)
    rate = epsilon / lattice.sensitivity_steps(sensitivity, step, changed, integer=integer)
    valid = (epsilon > 0.0) & (epsilon <= _check.MAX_EPSILON) & (sensitivity > 0.0) & (sensitivity < jnp.inf)
    rate = jnp.where(valid & (rate >= random.MIN_RATE), rate, jnp.nan)
    return lattice.to_steps(value, step), rate, step
