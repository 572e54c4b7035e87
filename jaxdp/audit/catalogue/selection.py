"""Report noisy max: which query is the greatest after noise, or the noisy value itself (wrong). NOT FOR RELEASE."""

from __future__ import annotations

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxdp.audit.catalogue import _noise
from jaxdp.audit.catalogue._loss_law import LossLaw
from jaxdp.audit.catalogue._noise import Noise, Panels, Sampler

__all__ = ["NoisyMax"]


@dataclasses.dataclass(frozen=True, eq=False)
class NoisyMax(Sampler):
    """The index or the value of the greatest noisy query.

    Attributes:
        scale: Scale of the noise.
        one_sided: Exponential noise in place of Laplace noise.
        value: Whether the noisy value is released.
    """

    scale: float
    one_sided: bool = False
    value: bool = False

    @property
    def noise(self) -> Noise:
        """Densities of the noise."""
        return _noise.EXPONENTIAL if self.one_sided else _noise.LAPLACE

    def words(self, x: Any) -> int:
        """One for each query."""
        return np.size(x)

    def run(self, words: jax.Array, x: Any) -> jax.Array:
        """An int32 index, or a float32 value."""
        draw = _noise.exponential if self.one_sided else _noise.laplace
        noisy = jnp.asarray(x, jnp.float32) + draw(words, self.scale)
        return jnp.max(noisy) if self.value else jnp.argmax(noisy).astype(jnp.int32)

    def log_ratio(self, summary: Any, neighbour: Any) -> Any:
        """A table over the indices, or the log ratio of two densities of a maximum."""
        if not self.value:
            table = np.log(self.masses(summary, neighbour) / self.masses(neighbour, summary))
            table = table.astype(np.float32)
            return lambda output: jnp.asarray(table)[output]
        one, other = (
            np.unique(np.ravel(queries).astype(np.float32), return_counts=True) for queries in (summary, neighbour)
        )

        def ratio(output: jax.Array) -> jax.Array:
            p, q = self._log_density(output, *one), self._log_density(output, *other)
            return jnp.where(p == q, np.float32(0.0), p - q)

        return ratio

    def loss_law(self, summary: Any, neighbour: Any) -> LossLaw:
        """Atoms for the index; the value is cut into cells of 1/64 of a scale, finer where the queries are."""
        if not self.value:
            return LossLaw.of(self.masses(summary, neighbour), self.masses(neighbour, summary))
        panels = self._panels(summary, neighbour, 1.0 / 64.0, 256)
        return LossLaw.of(*(panels.integrate(self._density(queries, panels.nodes)) for queries in (summary, neighbour)))

    def masses(self, queries: Any, other: Any) -> np.ndarray:
        """(n,) probability that a query is the greatest; `other` queries only shape the quadrature."""
        panels = self._panels(queries, other, 0.5, 1)
        return np.array([np.sum(panels.integrate(row)) for row in self._densities(queries, panels.nodes)])

    def _panels(self, summary: Any, neighbour: Any, width: float, inner: int) -> Panels:
        return Panels.around(np.concatenate([np.ravel(summary), np.ravel(neighbour)]), (self.scale,), width, inner)

    def _density(self, queries: Any, y: np.ndarray) -> np.ndarray:
        return np.sum(self._densities(queries, y), axis=0)

    def _densities(self, queries: Any, y: np.ndarray) -> np.ndarray:
        """Densities (n, ...) of the event that query i is the greatest, at noisy value y."""
        queries = np.ravel(queries).astype(np.float64)
        below = np.stack([self.noise.below(y - query, self.scale) for query in queries])
        return np.stack(
            [
                self.noise.density(y - query, self.scale) * np.prod(np.delete(below, i, axis=0), axis=0)
                for i, query in enumerate(queries)
            ]
        )

    def _log_density(self, y: jax.Array, queries: np.ndarray, repeats: np.ndarray) -> jax.Array:
        """Log density of the maximum, up to a constant; minus infinity where it is zero."""
        repeats = repeats.astype(np.float32)
        gap = (y - queries) / np.float32(self.scale)
        tail = jnp.exp(-jnp.abs(gap))
        if self.one_sided:
            below, density = -jnp.expm1(-jnp.abs(gap)), tail
        else:
            below, density = jnp.where(gap < 0, np.float32(0.5) * tail, np.float32(1.0) - np.float32(0.5) * tail), tail
        logs = jnp.sum(repeats * jnp.log(below)) + jnp.log(jnp.sum(repeats * density / below))
        return jnp.where(jnp.all(gap > 0), logs, -jnp.inf) if self.one_sided else logs
