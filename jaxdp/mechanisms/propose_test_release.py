"""Propose-test-release: a statistic with the noise of a proposed local sensitivity, after a private test of it."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxdp import _check, _lattice_law, _mixed_law, lattice, random
from jaxdp._float64 import float64, read
from jaxdp._mechanism import mechanism, static
from jaxdp._stability import check_proposal
from jaxdp.laws import LatticeLaw, MixedLaw
from jaxdp.types import Privacy, Release, Stability

_NOISELESS = 1e6
"""A rate at which every other noise than 0 has probability 0, to 96 random bits."""


def _examples(epsilon: float) -> dict[str, Any]:
    return {
        "ProposeTestRelease": ProposeTestRelease(epsilon, 1e-6),
        "ProposeTestRelease(granularity=0.25)": ProposeTestRelease(epsilon, 1e-6, granularity=0.25),
    }


def _neighbours(record: Any, rng: np.random.Generator) -> tuple[Any, Any]:
    bound, value = rng.uniform(0.5, 2.0), rng.normal(scale=100.0)
    if rng.random() < 0.2:
        pair = (value, 0), (rng.normal(scale=100.0), 0)
    else:
        near = rng.random() < 0.8
        distance = record.threshold() + rng.integers(-3, 4) if near else rng.integers(0, 60)
        distance = max(0, int(distance))
        moved = value + bound * rng.choice([-1.0, 1.0, rng.uniform(-1.0, 1.0)])
        pair = (value, distance), (moved, max(0, distance + rng.integers(-1, 2)))
    return tuple(Stability(np.float64(v), np.int32(d), np.float64(bound)) for v, d in pair)


@mechanism(examples=_examples, neighbours=_neighbours)
class ProposeTestRelease:
    """Tests in private whether a data set is stable for a proposed bound b, and only then releases f(x) + noise for b.

    Accepted if d + Z >= m, for the distance d of the data set from one where f moves by more than b, Z discrete Laplace
    noise of rate e = epsilon / 2, and m = max(0, ceil(log(1 / (delta (1 + e^-e))) / e)). The value then has discrete
    Laplace noise of scale b / e. A proposal b = 0 (f is constant nearby: the mode) needs no noise, so that the test
    gets e = epsilon.

    Args:
        epsilon: Total privacy budget of one release, at most 32.
        delta: Probability at most with which an unstable data set passes the test; 0 refuses always.
        granularity: Static; the step of the value's lattice, a power of two. By default that of `Laplace` for
            sensitivity b and budget e: 1 for integers. Floats with b = 0 need one.

    Guarantee:
        (epsilon, max(delta, (e^epsilon - 1) e^-46))-DP; the second number is the ends of both noises' supports. Summary
        contract: that of Stability. If values are within b, the decision and the value lose e each; otherwise both
        distances are 0, both sides refuse with equal probability and accept with at most delta: P(Z >= m) =
        e^(-e m) / (1 + e^-e). Source: Dwork, Lei (2009); the threshold for continuous noise, log(1 / (2 delta)) / e,
        would understate delta by a factor up to 2 / (1 + e^-e) here.

    Law:
        MixedLaw, exact: a refusal, or a LatticeLaw.

    Floating point:
        The decision compares whole numbers. m is computed in float64 and rounded up, with 1e-14 (1 + |log delta|)
        added before; it may exceed 32 bits, and distances are cut at 2^52. The value is treated as by Laplace, with the
        same slack of one step for floats and none for integers; also NaN and infinite values. The log-ratios of both
        noises are off by at most 1.3e-9 each. With b = 0 noise has probability 2^-96.

    Example:
        The most frequent item, if it leads by enough; no error is made unless the test refuses.

        >>> counts = jnp.array([12, 3, 480, 97])
        >>> mechanism = jaxdp.ProposeTestRelease(epsilon=1.0, delta=1e-6)
        >>> summary = jaxdp.mode_stability(counts)
        >>> summary.distance.item(), int(mechanism.threshold(proposal=0.0))
        (191, 14)
        >>> release = mechanism.sample(jax.random.key(0), summary)
        >>> int(release.value), bool(release.accepted)
        (2, True)
        >>> close = jaxdp.mode_stability(jnp.array([100, 99]))
        >>> bool(mechanism.sample(jax.random.key(0), close).accepted), bool(mechanism.law(close).acceptance < 1e-6)
        (False, True)
    """

    epsilon: Any
    delta: Any
    granularity: Any = static(None)

    def sample(self, key: jax.Array, summary: Stability) -> Release:
        """One release.

        Args:
            key: One typed key, consumed.
            summary: Stability of one data set, with scalars.

        Returns:
            Release: the value in its dtype as JAX has it and True, or NaN (integers: the lowest value) and False. Bad
            traced parameters and proposals are refused always.

        Raises:
            ValueError: For bad concrete parameters, proposals, shapes or dtypes.
        """
        test, for_key = _check.key(key), jax.random.fold_in
        law, rate, gap = self._parts(summary)
        noise = random.draw_discrete_laplace(for_key(test, 0), random.thresholds(rate))
        return _mixed_law.decide(_passes(noise, gap), law.sample(for_key(test, 1)))

    def law(self, summary: Stability) -> MixedLaw:
        """The exact law of `sample(key, summary)`."""
        law, rate, gap = self._parts(summary)
        return MixedLaw(*_decision(rate, gap), law)

    def threshold(self, proposal: Any = 1.0) -> Any:
        """The m of the test, a whole number (inf if delta is 0); it only matters whether the proposal is 0."""
        self._check()
        proposal = check_proposal(proposal)
        return read(_threshold(_test_rate(proposal, self.epsilon), self.delta))

    def privacy(self) -> Privacy:
        """The guarantee."""
        self._check()
        tail = lattice.tail_delta(self.epsilon)
        traced = _check.is_traced(self.delta) or _check.is_traced(tail)
        return Privacy(self.epsilon, jnp.maximum(self.delta, tail) if traced else max(float(self.delta), tail))

    def worst_case(self) -> tuple[Stability, Stability]:
        """Values at distance b = 1, on both sides of the threshold."""
        low, high = map(read, _around(self.threshold()))
        one = np.float64(1.0)
        return Stability(np.float64(0.0), low, one), Stability(one, high, one)

    def _check(self) -> None:
        _check.lattice_epsilon(self.epsilon)
        _check.probability("delta", self.delta)
        _check.granularity(self.granularity)

    def _parts(self, summary: Stability) -> tuple[LatticeLaw, Any, Any]:
        """Law of an accepted value, rate of the test's noise (NaN for bad parameters), and what it must reach."""
        self._check()
        if not isinstance(summary, Stability):
            raise ValueError(
                f"summary must be a Stability, such as jaxdp.stability makes, got {type(summary).__name__}"
            )
        value, distance = (_check.array(name, getattr(summary, name)) for name in ("value", "distance"))
        proposal = check_proposal(summary.proposal)
        for name, part in (("value", value), ("distance", distance)):
            _check.real_dtype(name, part)
            if np.shape(part) != ():
                raise ValueError(f"{name} must be a scalar (batch with jax.vmap), got shape {np.shape(part)}")
        dtype = jax.dtypes.canonicalize_dtype(value.dtype)
        integer = lattice.is_integer(dtype)
        if not _check.is_traced(proposal) and proposal == 0.0 and self.granularity is None and not integer:
            raise ValueError("granularity must be given where the proposal is 0 and the value a float, got None")
        location, rate, step, test, gap = _parameters(
            value, distance, proposal, self.epsilon, self.delta, granularity=self.granularity, integer=integer
        )
        if not _check.is_traced(test) and np.isnan(test):
            raise ValueError(
                f"epsilon must be at least {random.MIN_RATE:.2g} per step of the lattice in each half, got epsilon="
                f"{self.epsilon!r} with proposal={proposal!r} and granularity={float(step)!r}"
            )
        return LatticeLaw(location, rate, step, dtype), test, gap


@float64
def _test_rate(proposal: Any, epsilon: Any) -> jax.Array:
    epsilon = epsilon.astype(jnp.float64)
    return jnp.where(proposal == 0, epsilon, epsilon / 2.0)


@float64
def _threshold(rate: Any, delta: Any) -> jax.Array:
    log_delta = jnp.log(delta.astype(jnp.float64))
    allowance = 1e-14 * (1.0 + jnp.abs(log_delta))
    m = jnp.ceil((allowance - log_delta - jnp.log1p(jnp.exp(-rate))) / rate)
    return jnp.where((delta >= 0.0) & (delta < 1.0), jnp.maximum(m, 0.0), jnp.nan)


@float64
def _around(m: Any) -> tuple[jax.Array, jax.Array]:
    """Distances just below the threshold and at it."""
    # With delta = 0 nothing is released at any distance.
    high = jnp.where(m < jnp.inf, m, 1.0)
    return jnp.maximum(high - 1.0, 0.0), high


@float64(static_argnames=("granularity", "integer"))
def _parameters(
    value: Any, distance: Any, proposal: Any, epsilon: Any, delta: Any, *, granularity: float | None, integer: bool
) -> tuple[jax.Array, ...]:
    proposal, epsilon, delta = (part.astype(jnp.float64) for part in (proposal, epsilon, delta))
    constant = proposal == 0.0
    test = _test_rate(proposal, epsilon)
    if granularity is not None:
        step = jnp.float64(granularity)
    elif integer:
        step = jnp.float64(1.0)
    else:
        step = lattice.default_granularity(proposal, test, 4096.0)
    rate = test / lattice.sensitivity_steps(proposal, step, 1.0, integer=integer)
    rate = jnp.where(constant, _NOISELESS, rate)
    valid = (epsilon > 0.0) & (epsilon <= _check.MAX_EPSILON) & (delta >= 0.0) & (delta < 1.0)
    valid &= (proposal >= 0.0) & (proposal < jnp.inf) & (rate >= random.MIN_RATE) & (test >= random.MIN_RATE)
    if granularity is None and not integer:
        valid &= ~constant
    rate, test = jnp.where(valid, rate, jnp.nan), jnp.where(valid, test, jnp.nan)
    distance = distance.astype(jnp.float64)
    distance = jnp.clip(jnp.floor(jnp.where(jnp.isnan(distance), 0.0, distance)), 0.0, lattice.MAX_STEPS)
    return lattice.to_steps(value, step), rate, step, test, _threshold(test, delta) - distance


@float64
def _passes(noise: Any, gap: Any) -> jax.Array:
    failed = noise == jnp.iinfo(jnp.int32).min
    return ~failed & (noise.astype(jnp.float64) >= gap)


@float64
def _decision(rate: Any, gap: Any) -> tuple[jax.Array, jax.Array]:
    """Log-probabilities that the noise reaches the gap, and that it does not."""
    n = _lattice_law.size(rate)
    accept = _lattice_law.tail(gap, rate, n, n - 1.0)
    refuse = _lattice_law.tail(1.0 - gap, rate, n, n)
    return jnp.log(accept), jnp.log(refuse)
