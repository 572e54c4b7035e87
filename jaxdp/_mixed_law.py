"""The law of a value that is sometimes refused: a public coin, and a law on a lattice."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxdp import _check, random
from jaxdp import _lattice_law as closed_form
from jaxdp._float64 import float64, read
from jaxdp._pickles import Pickles
from jaxdp.types import Release

__all__ = ["MixedLaw", "refusal"]


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True, eq=False)
class MixedLaw(Pickles):
    """The law of a Release: refused, or a value that follows a LatticeLaw, independent of the decision.

    Attributes:
        log_accept: Log-probability of a value, float64.
        log_refuse: Log-probability of a refusal; both are exact to full relative precision on their own side.
        law: LatticeLaw of the value if it is accepted.

    Example:
        >>> law = jaxdp.ProposeTestRelease(2.0, 1e-6).law(jaxdp.Stability(5.0, 20, 0.5))
        >>> round(float(law.acceptance), 4), round(float(law.expected_error(refusal=10.0)), 3)
        (0.9993, 0.506)
    """

    log_accept: Any
    log_refuse: Any
    law: Any

    @property
    def acceptance(self) -> jax.Array:
        """Probability that a value is released."""
        return read(_exp(self.log_accept))

    def sample(self, key: jax.Array) -> Release:
        """One release; the decision is drawn with 63 random bits.

        An acceptance or a refusal of probability below 2^-63 does not occur. NaN (integers: lowest) and False for bad
        traced parameters.
        """
        key = _check.key(key)
        weights = random.counts(_pair(self.log_refuse, self.log_accept))
        accepted = random.invert(random.words(key, 0), weights) == 1
        return decide(accepted, self.law.sample(jax.random.fold_in(key, 1)))

    def log_prob(self, release: Release) -> jax.Array:
        """Log-probability of one Release; a refusal carries NaN (integers: the lowest value)."""
        value, accepted = release
        value = jnp.asarray(value)
        integer = jnp.issubdtype(value.dtype, jnp.integer)
        refused = value == jnp.full_like(value, refusal(value.dtype)) if integer else jnp.isnan(value)
        parts = self.log_accept, self.log_refuse, self.law.log_prob(value)
        return read(_log_prob(*parts, accepted, refused))

    def expectation(self, fn: Callable) -> jax.Array:
        """E[fn(release)]; fn maps a Release with a float64 value to a scalar.

        The value of a refusal is NaN (integers: the lowest value), so that fn usually asks `release.accepted`.
        """
        parts = self.law.location, self.law.rate, self.law.granularity
        return read(_expectation(self.log_accept, self.log_refuse, *parts, fn=fn, dtype=self.law.dtype))

    def expected_error(self, refusal: Any) -> jax.Array:
        """E|noise| of an accepted value, and the error that is charged for a refusal.

        Args:
            refusal: Error that counts for a refusal, in the units of the value; a number >= 0.
        """
        refusal = _check.scalar("refusal", refusal)
        if not _check.is_traced(refusal) and not refusal >= 0.0:
            raise ValueError(f"refusal must be at least 0, got {refusal!r}")
        return read(_mixture(self.log_accept, self.log_refuse, self.law.expected_error(), refusal))

    def max_divergence(self, other: MixedLaw) -> jax.Array:
        """Sup over events of log P(event) / Q(event): inf, unless both value laws are the same or never used."""
        return self.loss_at(other, 0.0)

    def hockey_stick(self, other: MixedLaw, epsilon: Any) -> jax.Array:
        """Sup over events of P(event) - e^epsilon Q(event), from self to other; a closed form."""
        return read(_hockey_stick(*self._compare(other), epsilon))

    def loss_at(self, other: MixedLaw, delta: Any = 0.0) -> jax.Array:
        """The smallest epsilon >= 0 with hockey_stick(other, epsilon) <= delta."""
        return read(_loss_at(*self._compare(other), delta))

    def _compare(self, other: MixedLaw) -> tuple:
        if not isinstance(other, MixedLaw):
            raise ValueError(f"other must be a MixedLaw, got {type(other).__name__}")
        shift = self.law.shift(other.law)
        return self.log_accept, self.log_refuse, other.log_accept, other.log_refuse, shift, self.law.rate


def refusal(dtype: Any) -> Any:
    """What a refusal carries in place of a value."""
    return int(jnp.iinfo(dtype).min) if jnp.issubdtype(dtype, jnp.integer) else np.nan


def decide(accepted: jax.Array, value: jax.Array) -> Release:
    """The value if it is accepted, never otherwise."""
    return Release(jnp.where(accepted, value, jnp.full_like(value, refusal(value.dtype))), accepted)


@float64
def _exp(log_p: Any) -> jax.Array:
    return jnp.exp(log_p)


@float64
def _pair(log_refuse: Any, log_accept: Any) -> jax.Array:
    return jnp.stack([log_refuse, log_accept])


@float64
def _log_prob(log_accept: Any, log_refuse: Any, log_value: Any, accepted: Any, refused: Any) -> jax.Array:
    return jnp.where(accepted, log_accept + log_value, jnp.where(refused, log_refuse, -jnp.inf))


@float64
def _mixture(log_accept: Any, log_refuse: Any, accepted: Any, refused: Any) -> jax.Array:
    """Mean of two numbers; an impossible side counts nothing, whatever its number is."""
    p, r = jnp.exp(log_accept), jnp.exp(log_refuse)
    # Not > 0.0, so that a law with NaN has a mean of NaN.
    return jnp.where(p == 0.0, 0.0, p * accepted) + jnp.where(r == 0.0, 0.0, r * refused)


@float64(static_argnames=("fn", "dtype"))
def _expectation(
    log_accept: Any, log_refuse: Any, location: Any, rate: Any, granularity: Any, *, fn: Callable, dtype: Any
) -> jax.Array:
    def of_value(value: jax.Array) -> jax.Array:
        return fn(Release(value, jnp.bool_(True)))

    mean = closed_form.mean(location, rate, granularity, fn=of_value)
    refused = fn(Release(jnp.float64(refusal(dtype)), jnp.bool_(False)))
    return _mixture(log_accept, log_refuse, mean, jnp.asarray(refused).astype(jnp.float64))


def _losses(log_accept: Any, log_refuse: Any, other_accept: Any, other_refuse: Any) -> tuple[jax.Array, jax.Array]:
    """Privacy losses of a refusal and of an acceptance."""
    return closed_form.log_ratio(log_refuse, other_refuse), closed_form.log_ratio(log_accept, other_accept)


@float64
def _hockey_stick(
    log_accept: Any, log_refuse: Any, other_accept: Any, other_refuse: Any, shift: Any, rate: Any, epsilon: Any
) -> jax.Array:
    # p P(v) - e^epsilon p' P'(v) = p (P(v) - e^(epsilon - log(p / p')) P'(v))
    refused, accepted = (
        # inf - inf: what is impossible for the other counts in full at every epsilon.
        jnp.where(ratio == jnp.inf, -jnp.inf, epsilon - ratio)
        for ratio in _losses(log_accept, log_refuse, other_accept, other_refuse)
    )
    refused = jnp.exp(log_refuse) * jnp.maximum(-jnp.expm1(refused), 0.0)
    return refused + jnp.exp(log_accept) * closed_form.hockey_stick(shift, rate, accepted)


@float64
def _loss_at(
    log_accept: Any, log_refuse: Any, other_accept: Any, other_refuse: Any, shift: Any, rate: Any, delta: Any
) -> jax.Array:
    """The smallest epsilon >= 0 at which `_hockey_stick` is delta at most."""
    laws = log_accept, log_refuse, other_accept, other_refuse, shift, rate
    refused, accepted = _losses(*laws[:4])
    largest = jnp.maximum(refused, accepted + rate * jnp.abs(shift))
    top = jnp.where(jnp.isfinite(refused), refused, 0.0)
    top = jnp.maximum(top, jnp.where(jnp.isfinite(accepted), accepted + rate * jnp.abs(shift), 0.0))
    top = jnp.maximum(top, 0.0)
    infinite = _hockey_stick(*laws, jnp.inf)
    loss = closed_form.invert(functools.partial(_hockey_stick, *laws), top, delta)
    # At delta 0 the ratios say it exactly; beyond them only outcomes are left that are impossible for the other.
    loss = jnp.where(delta > 0.0, loss, jnp.maximum(largest, 0.0))
    loss = jnp.where(infinite > jnp.maximum(delta, 0.0), jnp.inf, loss)
    return jnp.where(jnp.isnan(closed_form.size(rate) + log_accept + other_accept + delta), jnp.nan, loss)
