"""Exact output laws: what a mechanism's release is distributed as, for one input.

Laws compute in float64 in any program. Their arrays are float64 even where the program is float32: read them
through the methods or np.asarray.
"""

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
from jaxdp._mixed_law import MixedLaw as MixedLaw
from jaxdp._pickles import Pickles

__all__ = ["DiscreteLaw", "LatticeLaw", "MixedLaw"]


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True, eq=False)
class DiscreteLaw(Pickles):
    """A law on finitely many outcomes.

    Attributes:
        log_p: (n,) float64 log-probabilities.
        outcomes: Pytree whose leaves have the leading axis n: what `sample` returns, one row an outcome.

    Example:
        >>> law = jaxdp.ExponentialMechanism(1.0, 1.0).law(np.array([0.0, 3.0]))
        >>> round(float(law.expected_error(np.array([3.0, 0.0]))), 3)
        0.547
    """

    log_p: Any
    outcomes: Any

    def sample(self, key: jax.Array) -> Any:
        """One release: an outcome, drawn by inverting the law, cut to 63-bit integers, with 63 random bits.

        `jax.vmap(law.sample)(keys)` computes the table once and is the way to many releases on one data set.
        A law with NaN (bad traced parameters) gives -1 for integers, NaN for floats, False for booleans.
        """
        return _sample(_check.key(key), random.counts(self.log_p), self.outcomes, once=False)

    def log_prob(self, outcome: Any) -> jax.Array:
        """Log-probability of one outcome; -inf for what is not among the outcomes."""
        # An outcome that is given in another width of integers is the same outcome.
        with jax.numpy_dtype_promotion("standard"):
            same = [
                jnp.all((jnp.asarray(rows) == jnp.asarray(leaf)[None]).reshape(len(rows), -1), axis=1)
                for rows, leaf in zip(jax.tree.leaves(self.outcomes), jax.tree.leaves(outcome), strict=True)
            ]
        return read(_select(self.log_p, jnp.all(jnp.stack(same), axis=0)))

    def expectation(self, fn: Callable) -> jax.Array:
        """E[fn(outcome)]; fn maps one outcome to an array."""
        return read(_mean(self.log_p, jax.vmap(fn)(self.outcomes)))

    def expected_error(self, error: Any) -> jax.Array:
        """Mean error of a release.

        Args:
            error: (n,) the error of each outcome; or a scalar, the truth, for outcomes that are numbers or
                Halts (the error is then |outcome - truth|); or a function of one outcome.
        """
        return read(_mean(self.log_p, self._errors(error)))

    def error_quantile(self, prob: float, error: Any) -> jax.Array:
        """The smallest e with P(error <= e) >= prob; `error` as in `expected_error`."""
        return read(_quantile(self.log_p, self._errors(error), _check.share("prob", prob)))

    def quantile(self, prob: float) -> Any:
        """The first outcome, in the order of `outcomes`, at which the cumulative probability reaches prob."""
        index = _ordered_quantile(self.log_p, _check.share("prob", prob))
        return jax.tree.map(lambda leaf: _row(leaf, index), self.outcomes)

    def max_divergence(self, other: DiscreteLaw) -> jax.Array:
        """Sup over events of log P(event) / Q(event): the pure privacy loss from self to other, maybe inf."""
        return read(_max_divergence(self.log_p, self._same(other).log_p))

    def hockey_stick(self, other: DiscreteLaw, epsilon: Any) -> jax.Array:
        """Sup over events of P(event) - e^epsilon Q(event): the delta at epsilon, from self to other."""
        return read(_hockey_stick(self.log_p, self._same(other).log_p, epsilon))

    def loss_at(self, other: DiscreteLaw, delta: Any = 0.0) -> jax.Array:
        """The smallest epsilon >= 0 with hockey_stick(other, epsilon) <= delta."""
        return read(_loss_at(self.log_p, self._same(other).log_p, delta))

    def _same(self, other: Any) -> DiscreteLaw:
        """The other law, if it is one on the same outcomes."""
        if not isinstance(other, DiscreteLaw):
            raise ValueError(f"other must be a DiscreteLaw, got {type(other).__name__}")
        mine, theirs = (jax.tree.flatten(law.outcomes) for law in (self, other))
        alike = mine[1] == theirs[1] and all(map(_equal_if_known, mine[0], theirs[0]))
        if not alike or np.shape(self.log_p) != np.shape(other.log_p):
            raise ValueError("other must be a law on the same outcomes, of the same mechanism")
        return other

    def _errors(self, error: Any) -> Any:
        if callable(error):
            return jax.vmap(error)(self.outcomes)
        if np.ndim(error) == 0:
            error = _distance(jax.tree.leaves(self.outcomes)[0], error)
        if np.shape(error) != np.shape(self.log_p):
            raise ValueError(f"error must have shape {np.shape(self.log_p)}, got {np.shape(error)}")
        return error


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True, eq=False)
class LatticeLaw(Pickles):
    """The law of (location + Z) granularity, with independent Z: P(Z = z) ~ e^(-rate |z|), -2^D <= z < 2^D.

    Attributes:
        location: () or (k,) whole numbers of steps, float64.
        rate: Privacy loss per step.
        granularity: The step, a power of two.
        dtype: dtype of a release.

    Example:
        >>> law = jaxdp.Laplace(1.0, 0.5).law(10.0)
        >>> round(float(law.expected_error()), 2), float(law.quantile(0.5))
        (2.0, 10.0)
    """

    location: Any
    rate: Any
    granularity: Any
    dtype: Any = dataclasses.field(metadata={"static": True})

    def sample(self, key: jax.Array) -> jax.Array:
        """One release, drawn as the mechanism draws it; NaN (integers: lowest) for bad traced parameters."""
        table = random.thresholds(self.rate)
        noise = random.draw_discrete_laplace(_check.key(key), table, np.shape(self.location))
        return closed_form.release(self.location, noise, self.granularity, dtype=self.dtype)

    def log_prob(self, value: Any) -> jax.Array:
        """Log-probability of a released value (vectors: of all of it); -inf off the lattice or the support."""
        return read(closed_form.log_prob(self.location, self.rate, self.granularity, value))

    def expectation(self, fn: Callable) -> jax.Array:
        """E[fn(value)], of each coordinate, by summation over the support; fn maps a float64 scalar to one."""
        mean = functools.partial(closed_form.mean, fn=fn)
        for _ in np.shape(self.location):
            mean = jax.vmap(mean, (0, None, None))
        location = closed_form.difference(self.location, 0.0)  # vmap would narrow NumPy doubles
        return read(mean(location, self.rate, self.granularity))

    def expected_error(self) -> jax.Array:
        """E|noise| of one coordinate, in the units of the value: close to the scale sensitivity / epsilon."""
        return read(closed_form.mean_error(self.rate, self.granularity))

    def error_quantile(self, prob: float) -> jax.Array:
        """The smallest e with P(|noise| <= e) >= prob, of one coordinate, in the units of the value."""
        return read(closed_form.error_quantile(self.rate, self.granularity, _check.share("prob", prob)))

    def quantile(self, prob: float) -> jax.Array:
        """The smallest lattice value at which the cumulative probability reaches prob, of each coordinate."""
        return read(closed_form.quantile(self.location, self.rate, self.granularity, _check.share("prob", prob)))

    def max_divergence(self, other: LatticeLaw) -> jax.Array:
        """Sup over events of log P(event) / Q(event): inf, unless both laws are the same.

        The supports differ at their ends, of probability below 1e-20: compare `loss_at`, with the delta that
        the mechanism claims, with epsilon.
        """
        return self.loss_at(other, 0.0)

    def hockey_stick(self, other: LatticeLaw, epsilon: Any) -> jax.Array:
        """Sup over events of P(event) - e^epsilon Q(event), from self to other.

        Scalars: a closed form. Vectors: an exact convolution of the privacy losses of the coordinates, on the
        host (not under jit).
        """
        return self._compare(other, epsilon, closed_form.hockey_stick, closed_form.vector_hockey_stick)

    def loss_at(self, other: LatticeLaw, delta: Any = 0.0) -> jax.Array:
        """The smallest epsilon >= 0 with hockey_stick(other, epsilon) <= delta."""
        return self._compare(other, delta, closed_form.loss_at, closed_form.vector_loss_at)

    def shift(self, other: LatticeLaw) -> jax.Array:
        """Steps from the other law's location to this one; ValueError if it is no law of the same mechanism."""
        if not isinstance(other, LatticeLaw):
            raise ValueError(f"other must be a LatticeLaw, got {type(other).__name__}")
        pairs = {name: (getattr(self, name), getattr(other, name)) for name in ("rate", "granularity")}
        for name, (mine, theirs) in pairs.items():
            if not _equal_if_known(mine, theirs):
                raise ValueError(f"other must be a law of the same mechanism, got {name} {theirs}, not {mine}")
        if np.shape(self.location) != np.shape(other.location):
            shapes = f"{np.shape(other.location)}, not {np.shape(self.location)}"
            raise ValueError(f"other must be a law of the same mechanism, got location of shape {shapes}")
        return closed_form.difference(self.location, other.location)

    def _compare(self, other: LatticeLaw, argument: Any, one: Callable, many: Callable) -> Any:
        shift = self.shift(other)
        return read((one if np.ndim(shift) == 0 else many)(shift, self.rate, argument))


def _equal_if_known(mine: Any, theirs: Any) -> bool:
    """Whether two parameters or outcomes are equal, as far as tracing lets them be compared."""
    if np.shape(mine) != np.shape(theirs):
        return False
    return _check.is_traced(mine) or _check.is_traced(theirs) or np.array_equal(mine, theirs)


def sample_once(key: jax.Array, law: DiscreteLaw) -> Any:
    """What `law.sample(key)` gives, faster where a law serves one release."""
    return _sample(_check.key(key), random.counts(law.log_p), law.outcomes, once=True)


@functools.partial(jax.jit, static_argnames="once")
def _sample(key: jax.Array, weights: Any, outcomes: Any, *, once: bool) -> Any:
    index = (random.invert_once if once else random.invert)(random.words(key, 0), weights)
    return jax.tree.map(lambda leaf: _row(leaf, index), outcomes)


def _row(rows: Any, index: jax.Array) -> jax.Array:
    """Row `index`, or what stands for failure at index -1; in the caller's mode, so that it keeps its dtype."""
    row = rows[jnp.maximum(index, 0)]
    if jnp.issubdtype(row.dtype, jnp.bool_):
        return row & (index >= 0)
    failure = -1 if jnp.issubdtype(row.dtype, jnp.integer) else jnp.nan
    return jnp.where(index >= 0, row, jnp.full_like(row, failure))


@float64
def _select(log_p: Any, same: Any) -> Any:
    return jax.nn.logsumexp(jnp.where(same, log_p, -jnp.inf))


@float64
def _mean(log_p: Any, values: Any) -> Any:
    values = values.astype(jnp.float64)
    p = jnp.exp(log_p).reshape(-1, *(1,) * (values.ndim - 1))
    # 0 * inf: an impossible outcome must not spoil the mean.
    return jnp.sum(jnp.where(p > 0.0, p * values, jnp.where(jnp.isnan(p), p, 0.0)), axis=0)


@float64
def _distance(values: Any, truth: Any) -> Any:
    return jnp.abs(values.astype(jnp.float64) - truth.astype(jnp.float64))


@float64
def _ordered_quantile(log_p: Any, prob: Any) -> Any:
    cumulative = jnp.cumsum(jnp.exp(log_p))
    index = jnp.minimum(jnp.searchsorted(cumulative, prob), len(log_p) - 1)
    return jnp.where(jnp.isnan(cumulative[-1] + prob), -1, index).astype(jnp.int32)


@float64
def _quantile(log_p: Any, values: Any, prob: Any) -> Any:
    order = jnp.argsort(values)
    index = _ordered_quantile(log_p[order], prob)
    return jnp.where(index < 0, jnp.nan, values[order][index].astype(jnp.float64))


@float64
def _max_divergence(log_p: Any, log_q: Any) -> Any:
    return jnp.max(closed_form.log_ratio(log_p, log_q))


@float64
def _hockey_stick(log_p: Any, log_q: Any, epsilon: Any) -> Any:
    excess = -jnp.expm1(epsilon - closed_form.log_ratio(log_p, log_q))
    return jnp.sum(jnp.exp(log_p) * jnp.maximum(excess, 0.0))


@float64
def _loss_at(log_p: Any, log_q: Any, delta: Any) -> Any:
    # The best event at any delta is an upper set of the likelihood ratio, so the largest over those is exact.
    ratio = closed_form.log_ratio(log_p, log_q)
    order = jnp.argsort(-ratio)
    p, q = jnp.cumsum(jnp.exp(log_p)[order]), jnp.cumsum(jnp.exp(log_q)[order])
    loss = jnp.where(p > delta, jnp.log(jnp.maximum(p - delta, 0.0)) - jnp.log(q), -jnp.inf)
    bad = jnp.any(jnp.isnan(ratio)) | jnp.isnan(delta)
    # At delta 0 the densities need not be summed, so that none can underflow.
    loss = jnp.where(delta > 0.0, jnp.max(loss), jnp.max(ratio))
    return jnp.where(bad, jnp.nan, jnp.maximum(loss, 0.0))
