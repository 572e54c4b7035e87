"""Benchmarks that add noise: Laplace, histograms, prefix sums, truncated geometric noise. NOT FOR RELEASE."""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxdp.audit.catalogue import _noise
from jaxdp.audit.catalogue._loss_law import LossLaw, combine, laplace
from jaxdp.audit.catalogue._noise import Sampler

__all__ = ["Additive", "Geometric"]


@dataclasses.dataclass(frozen=True, eq=False)
class Additive(Sampler):
    """Laplace noise on every query, several times or summed up.

    Attributes:
        scale: Scale of the noise.
        copies: Answers to each query.
        prefix: Whether the sums of the first, first two, ... noisy queries are released instead.
    """

    scale: float
    copies: int = 1
    prefix: bool = False

    def words(self, x: Any) -> int:
        """One for each answer."""
        return np.size(x) * self.copies

    def run(self, words: jax.Array, x: Any) -> jax.Array:
        """Float32 noisy queries, in the shape of the input; (n * copies,) for copies."""
        queries = jnp.asarray(x).astype(jnp.float32)
        noisy = jnp.repeat(jnp.ravel(queries), self.copies) + _noise.laplace(words, self.scale)
        if self.prefix:
            noisy = jnp.cumsum(noisy)
        return noisy if self.copies > 1 else noisy.reshape(queries.shape)

    def log_ratio(self, summary: Any, neighbour: Any) -> Any:
        """Sum of |y_i - x'_i| - |y_i - x_i| over the scale."""
        one, other = (np.repeat(np.ravel(x).astype(np.float32), self.copies) for x in (summary, neighbour))
        changed = np.flatnonzero(one != other)
        # A single number is a slice; several are cheaper taken all than gathered, since the others add zero.
        part = slice(changed[0], changed[0] + 1) if len(changed) == 1 else slice(None)

        def ratio(output: jax.Array) -> jax.Array:
            noisy = jnp.ravel(output)
            if self.prefix:
                noisy = noisy - jnp.concatenate([jnp.zeros(1, noisy.dtype), noisy[:-1]])
            noisy = noisy[part]
            change = jnp.abs(noisy - other[part]) - jnp.abs(noisy - one[part])
            return jnp.sum(change) / np.float32(self.scale)

        return ratio

    def loss_law(self, summary: Any, neighbour: Any) -> LossLaw:
        """The law of the log ratio, by convolution over the queries that differ."""
        change = np.repeat(np.abs(np.ravel(summary).astype(np.float64) - np.ravel(neighbour)), self.copies)
        laws = [laplace(float(each) / self.scale) for each in change[change > 0.0]] or [laplace(0.0)]
        total = laws[0]
        for law in laws[1:]:
            total = combine(total, law)
        return total


@dataclasses.dataclass(frozen=True, eq=False)
class Geometric(Sampler):
    """The truncated geometric mechanism for finite computers, GeoSample of Balcer and Vadhan (2018).

    A count in 0 to n. All probabilities are multiples of 1/d, and the loss is exactly log(1 + 2^-k). DP-Sniper takes
    k = ceil(ln(2 / parameter)).

    Attributes:
        parameter: What k is made of.
        size: n, the largest count.
    """

    parameter: float
    size: int

    @property
    def k(self) -> int:
        """The exponent of the loss."""
        return math.ceil(math.log(2.0 / self.parameter))

    def cumulative(self, count: int) -> list[int]:
        """The numbers of the d equally likely words that give at most 0, ..., at most n; the last is d."""
        base, top = 2**self.k, 2**self.k + 1
        d = (2 * base + 1) * top ** (self.size - 1)
        lower = [base ** (count - z) * top ** (self.size - (count - z)) for z in range(count)]
        upper = [d - base ** (z - count + 1) * top ** (self.size - 1 - (z - count)) for z in range(count, self.size)]
        return [*lower, *upper, d]

    def words(self, x: Any) -> int:
        """One."""
        return 1

    def run(self, words: jax.Array, x: Any) -> jax.Array:
        """An int32 count, by inversion of one 32-bit word (probabilities are within 2^-32)."""
        table = [self.cumulative(count) for count in range(self.size + 1)]
        limits = np.array([[round(each * 2**32 / row[-1]) for each in row[:-1]] for row in table], np.uint32)
        return jnp.sum(words >= jnp.asarray(limits)[jnp.asarray(x, jnp.int32)], dtype=jnp.int32)

    def masses(self, count: Any) -> np.ndarray:
        """(n + 1,) probabilities of the outputs."""
        cumulative = self.cumulative(int(count))
        return np.diff(np.array(cumulative, np.float64), prepend=0.0) / cumulative[-1]

    def log_ratio(self, summary: Any, neighbour: Any) -> Any:
        """A table over the outputs."""
        table = np.log(self.masses(summary) / self.masses(neighbour)).astype(np.float32)
        return lambda output: jnp.asarray(table)[output]

    def loss_law(self, summary: Any, neighbour: Any) -> LossLaw:
        """One atom for each output."""
        return LossLaw.of(self.masses(summary), self.masses(neighbour))
