"""Permute-and-flip: the exponential mechanism's better twin."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxdp import _check, random
from jaxdp._float64 import argmax, float64
from jaxdp._mechanism import mechanism, static
from jaxdp.laws import DiscreteLaw
from jaxdp.mechanisms import _selection
from jaxdp.types import Privacy

_NODES = 24


def _examples(epsilon: float) -> dict[str, Any]:
    return {
        "PermuteAndFlip": PermuteAndFlip(1.0, epsilon),
        "PermuteAndFlip(monotonic)": PermuteAndFlip(1.0, epsilon, monotonic=True),
    }


@mechanism(examples=_examples, neighbours=_selection.neighbours)
class PermuteAndFlip:
    """Selects argmax(score_i + Expo(2 sensitivity / epsilon)), one of n candidates.

    It is the same law as visiting the candidates in random order and taking each with probability
    a_i = e^(factor (score_i - largest score)), factor = epsilon / (2 sensitivity); epsilon / sensitivity where
    all scores move the same way. Its expected score is never below the exponential mechanism's.

    Args:
        sensitivity: Largest change of one score between neighbouring data sets; in the scores' units.
        epsilon: Total privacy budget of one selection.
        monotonic: Static; True only if for every pair of neighbours ALL scores move the same way (counts).

    Guarantee:
        epsilon-DP, tight for n = 2. Summary contract: the scores of neighbours differ by at most `sensitivity`
        each (monotonic: all in the same direction). Source: McKenna, Sheldon (2020); the noise form: Ding,
        Kifer, et al. (2021).

    Law:
        DiscreteLaw over int32 indices, P(i) = a_i int_0^1 prod_{j != i} (1 - t a_j) dt by Gauss-Legendre
        quadrature: exact for n <= 48, to 1e-12 beyond.

    Floating point:
        The noise is a full-tail exponential of 64 random bits, added in float64: outcomes of probability above
        2^-40 have it to relative precision 1e-5. Scores are clamped to +-1e300; NaN counts as the lower end.

    Example:
        >>> mechanism = jaxdp.PermuteAndFlip(sensitivity=1.0, epsilon=1.0)
        >>> np.exp(mechanism.law(np.array([0.0, 2.0])).log_p).round(3).tolist()
        [0.184, 0.816]
        >>> int(mechanism.sample(jax.random.key(0), np.array([0.0, 100.0])))
        1
    """

    sensitivity: Any
    epsilon: Any
    monotonic: bool = static(False)

    def sample(self, key: jax.Array, scores: Any) -> jax.Array:
        """One selection.

        Args:
            key: One typed key, consumed.
            scores: (n,) real scores.

        Returns:
            int32 index; -1 for bad traced parameters.

        Raises:
            ValueError: For bad concrete parameters or shapes.
        """
        _selection.check(self)
        scores = _check.vector("scores", scores)
        pair = random.words(_check.key(key), 0, np.shape(scores))
        return _argmax(pair, scores, self.sensitivity, self.epsilon, monotonic=self.monotonic)

    def law(self, scores: Any) -> DiscreteLaw:
        """The exact law of `sample(key, scores)`; takes O(n log n) exponentials."""
        _selection.check(self)
        scores = _check.vector("scores", scores)
        log_p = _log_p(scores, self.sensitivity, self.epsilon, monotonic=self.monotonic)
        return DiscreteLaw(log_p, np.arange(np.shape(scores)[0], dtype=np.int32))

    def privacy(self) -> Privacy:
        """The guarantee."""
        _selection.check(self)
        return Privacy(self.epsilon)

    def worst_case(self) -> tuple[Any, Any]:
        """Two candidates: the loss is epsilon."""
        _selection.check(self)
        return _selection.worst_case(self, 2)


@float64(static_argnames=("monotonic",))
def _argmax(pair: Any, scores: Any, sensitivity: Any, epsilon: Any, *, monotonic: bool) -> jax.Array:
    noisy = _selection.logits(scores, sensitivity, epsilon, monotonic) + random.from_words(pair)
    return jnp.where(jnp.any(jnp.isnan(noisy)), -1, argmax(noisy))


@float64(static_argnames=("monotonic",))
def _log_p(scores: Any, sensitivity: Any, epsilon: Any, *, monotonic: bool) -> jax.Array:
    # The integrand is a polynomial of degree n - 1 that falls like e^(-t sum a): panels that halve towards 0 keep
    # every factor smooth. The candidate's own a_i stays outside in log space, so rare outcomes keep precision.
    logits = _selection.logits(scores, sensitivity, epsilon, monotonic)
    a = jnp.exp(logits)
    ends = np.append(0.0, 2.0 ** np.arange(-max(0, int(np.ceil(np.log2(len(scores) / (2 * _NODES))))), 1))
    x, w = np.polynomial.legendre.leggauss(_NODES)
    widths = np.diff(ends)[:, None]
    nodes = (ends[:-1, None] + widths * (x + 1.0) / 2.0).ravel()
    weights = (widths * w / 2.0).ravel()

    def add(total: Any, node: Any) -> Any:
        t, weight = node
        each = jnp.log1p(-t * a)
        return total + weight * jnp.exp(jnp.sum(each) - each), None

    total, _ = jax.lax.scan(add, jnp.zeros_like(a), (jnp.asarray(nodes), jnp.asarray(weights)))
    return logits + jnp.log(total)
