"""Noise of the benchmark mechanisms: textbook float samplers, NOT FOR RELEASE, and quadrature over their densities."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

__all__ = ["EXPONENTIAL", "LAPLACE", "Noise", "Panels", "Sampler", "exponential", "laplace"]

_NODES, _WEIGHTS = np.polynomial.legendre.leggauss(8)
# What is left of an exponential tail at this many scales is below the rounding error of a sum of probabilities.
_REACH = 42.0
_CORE = 8.0


class Sampler:
    """Samplers of a mechanism that is a function of some random words and its input."""

    def words(self, x: Any) -> int:
        """Number of random words of one run."""
        raise NotImplementedError

    def run(self, words: jax.Array, x: Any) -> Any:
        """The output for these uint32 words."""
        raise NotImplementedError

    def sample(self, key: jax.Array, x: Any) -> Any:
        """One run. NOT FOR RELEASE."""
        return self.run(_words(key, self.words(x)), x)

    def many(self, key: jax.Array, x: Any, n: int) -> Any:
        """The outputs of n independent runs. NOT FOR RELEASE."""
        words = _words(key, n * self.words(x)).reshape(n, -1)
        return jax.vmap(lambda each: self.run(each, x))(words)


def _words(key: jax.Array, count: int) -> jax.Array:
    """(count,) random uint32 words. A child key is two words from one block; `bits` would use one of them."""
    return jnp.ravel(jax.random.key_data(jax.random.split(key, -(-count // 2))))[:count]


def laplace(words: jax.Array, scale: float) -> jax.Array:
    """Float32 Laplace noise, 31 bits and a sign from each word. Tails end at 22 scales."""
    size = np.float32(-scale) * jnp.log(_unit(words))
    return jnp.where((words & np.uint32(1)) == np.uint32(1), size, -size)


def exponential(words: jax.Array, scale: float) -> jax.Array:
    """Float32 exponential noise, 31 bits from each word."""
    return np.float32(-scale) * jnp.log(_unit(words))


def _unit(words: jax.Array) -> jax.Array:
    """Uniform in (0, 1] from the upper 31 bits."""
    upper = (words >> np.uint32(1)).astype(jnp.int32).astype(jnp.float32)
    return (upper + np.float32(0.5)) * np.float32(2.0**-31)


@dataclasses.dataclass(frozen=True)
class Noise:
    """Density, distribution function and survival function, of (y, scale), in NumPy float64."""

    density: Callable[[np.ndarray, float], np.ndarray]
    below: Callable[[np.ndarray, float], np.ndarray]
    above: Callable[[np.ndarray, float], np.ndarray]


def _laplace_below(y: np.ndarray, scale: float) -> np.ndarray:
    half = 0.5 * np.exp(-np.abs(y) / scale)
    return np.where(y < 0.0, half, 1.0 - half)


LAPLACE = Noise(
    density=lambda y, scale: np.exp(-np.abs(y) / scale) / (2.0 * scale),
    below=_laplace_below,
    above=lambda y, scale: _laplace_below(-y, scale),
)
EXPONENTIAL = Noise(
    density=lambda y, scale: np.where(y < 0.0, 0.0, np.exp(-np.maximum(y, 0.0) / scale) / scale),
    below=lambda y, scale: -np.expm1(-np.maximum(y, 0.0) / scale),
    above=lambda y, scale: np.exp(-np.maximum(y, 0.0) / scale),
)


class Panels:
    """Gauss-Legendre quadrature on intervals between edges: 8 nodes in each, exact to rounding for smooth pieces.

    Attributes:
        edges: (panels + 1,) ascending.
        nodes: (panels, 8).
        weights: (panels, 8), so that sum(weights * f(nodes)) is the integral of f.
    """

    def __init__(self, edges: np.ndarray):
        self.edges = edges
        half = 0.5 * np.diff(edges)[:, None]
        self.nodes = edges[:-1, None] + half * (1.0 + _NODES)
        self.weights = half * _WEIGHTS

    @classmethod
    def around(cls, kinks: np.ndarray, scales: tuple[float, ...], width: float = 1.0, inner: int = 1) -> Panels:
        """Panels over everything that noise of these scales reaches from the kinks.

        They are `width` smallest scales wide up to eight scales from the kinks, one scale wide in the tails (where
        ratios of densities hardly change), and `inner` times narrower than the range of the kinks near that.
        """
        kinks = np.unique(kinks)
        low, high, span = kinks[0], kinks[-1], kinks[-1] - kinks[0]
        edges = [kinks, np.linspace(low - span, high + span, 3 * inner + 1)]
        for reach, step in ((_CORE, min(width, 1.0) * min(scales)), (_REACH, max(width, 1.0) * min(scales))):
            reach *= max(scales)
            grid = np.arange(math.floor((low - reach) / step), math.ceil((high + reach) / step) + 1) * step
            edges.append(grid)
        edges = np.unique(np.concatenate(edges))
        return cls(edges[np.append(True, np.diff(edges) > 1e-9 * min(scales))])

    def integrate(self, values: np.ndarray) -> np.ndarray:
        """Integrals (..., panels) of functions given at the nodes (..., panels, 8)."""
        return np.sum(self.weights * values, axis=-1)

    def remainder(self, values: np.ndarray) -> np.ndarray:
        """Integrals (..., panels, 8) from each node to the end of its panel."""
        return self.integrate(values)[..., None] - 0.5 * np.diff(self.edges)[:, None] * (values @ _PARTIAL.T)

    def antiderivative(self, values: np.ndarray) -> np.ndarray:
        """Integrals (..., panels, 8) from the first edge up to each node, of functions given at the nodes."""
        return np.cumsum(self.integrate(values), axis=-1)[..., None] - self.remainder(values)


def _partial_integrals() -> np.ndarray:
    """(8, 8) matrix that integrates the interpolating polynomial from -1 up to each node."""
    legendre = np.polynomial.legendre
    columns = [legendre.legval(_NODES, legendre.legint(row, lbnd=-1.0)) for row in np.eye(len(_NODES))]
    return np.stack(columns, axis=1) @ np.linalg.inv(legendre.legvander(_NODES, len(_NODES) - 1))


_PARTIAL = _partial_integrals()
