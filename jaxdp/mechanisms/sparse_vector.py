"""The sparse-vector technique with several answers, on a lattice."""

from __future__ import annotations

import itertools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxdp import _check, lattice
from jaxdp._float64 import float64, read
from jaxdp._mechanism import mechanism, static
from jaxdp.laws import DiscreteLaw
from jaxdp.mechanisms import _sparse
from jaxdp.types import Privacy

_MAX_QUERIES = 16


def _examples(epsilon: float) -> dict[str, Any]:
    return {
        "SparseVector(cutoff=2)": SparseVector(0.0, 1.0, epsilon, cutoff=2),
        "SparseVector(cutoff=3,monotonic)": SparseVector(0.0, 1.0, epsilon, cutoff=3, monotonic=True),
        "SparseVector(cutoff=2,noise=laplace)": SparseVector(0.0, 1.0, epsilon, cutoff=2, noise="laplace"),
    }


@mechanism(examples=_examples, neighbours=_sparse.neighbours)
class SparseVector:
    """Tells which queries of a stream reach a noisy threshold, until `cutoff` of them have.

    ONE noisy threshold serves all answers, each query gets fresh noise of scale sensitivity / e2. e1 + 2 cutoff e2 =
    epsilon, or e1 + cutoff e2 = epsilon where all scores move the same way, split for the least variance.

    Args:
        threshold: Public threshold, in the scores' units.
        sensitivity: Largest change of one score between neighbouring data sets.
        epsilon: Total privacy budget of the whole stream, at most 32.
        cutoff: Static; the number of crossings after which the stream ends.
        monotonic: Static; True only if for every pair of neighbours ALL scores move the same way.
        noise: Static; "exponential" (one-sided, the more accurate) or "laplace".
        granularity: Static; lattice step, as for AboveThreshold.

    Guarantee:
        (epsilon, delta)-DP with delta <= (e^epsilon - 1) e^-46, tight for exponential noise and every cutoff: scores
        (T, .., T) against (T + D, T - D, .., T - D), mask (0, 1, .., 1). Summary contract: as for AboveThreshold.
        Source: Lyu, Su, Li (2017), whose e2 is the total of all answers; the one-sided noise and tightness are
        derived in the tests by enumeration.

    Law:
        DiscreteLaw over masks, enumerated for up to 16 queries; `log_prob` for one mask of any length.

    Floating point:
        As for AboveThreshold.

    Example:
        >>> mechanism = jaxdp.SparseVector(threshold=10.0, sensitivity=1.0, epsilon=2.0, cutoff=2)
        >>> mechanism.sample(jax.random.key(0), np.array([200, -200, 200, 200])).tolist()
        [True, False, True, False]
    """

    threshold: Any
    sensitivity: Any
    epsilon: Any
    cutoff: int = static()
    monotonic: bool = static(False)
    noise: str = static("exponential")
    granularity: float | None = static(None)

    def sample(self, key: jax.Array, scores: Any) -> jax.Array:
        """One release.

        Args:
            key: One typed key, consumed.
            scores: (n,) real scores.

        Returns:
            (n,) bool, at most `cutoff` of them True; what follows the last crossing was not asked and is False. All
            False for bad traced parameters.

        Raises:
            ValueError: For bad concrete parameters or shapes.
        """
        scores, at = self._prepare(scores)
        noise, pair = _sparse.draw(_check.key(key), at.table, noise=self.noise, shape=np.shape(scores))
        return _crossings(pair, noise, scores, at, cutoff=self.cutoff, noise_name=self.noise)

    def law(self, scores: Any, *, rows: int | None = None) -> DiscreteLaw:
        """The exact law of `sample(key, scores)`, over all masks that can occur.

        Args:
            scores: (n,) real scores, n <= 16.
            rows: Static number of values of the threshold noise, needed only where the parameters are traced.

        Raises:
            ValueError: If there are more than 16 queries: use `log_prob`.
        """
        n = np.size(scores)
        if n > _MAX_QUERIES:
            raise ValueError(f"scores must be at most {_MAX_QUERIES} to enumerate masks (see log_prob), got {n}")
        masks = np.array([m for m in itertools.product((False, True), repeat=n) if sum(m) <= self.cutoff])
        return DiscreteLaw(self._log_probs(scores, masks, rows), masks)

    def log_prob(self, scores: Any, mask: Any, *, rows: int | None = None) -> Any:
        """Exact log-probability that `sample(key, scores)` gives `mask`, (n,) bool, for any n."""
        if np.shape(mask) != np.shape(scores):
            raise ValueError(f"mask must have the shape of scores, {np.shape(scores)}, got {np.shape(mask)}")
        return read(self._log_probs(scores, jnp.asarray(mask, bool)[None], rows)[0])

    def privacy(self) -> Privacy:
        """The guarantee; monotonic ones have a rho too."""
        self._check()
        return _sparse.privacy(self, self.cutoff)

    def worst_case(self) -> tuple[Any, Any]:
        """The pair on which exponential noise loses all of epsilon: cutoff + 1 queries."""
        self._check()
        return _sparse.worst_case(self, self.cutoff + 1)

    def _check(self) -> None:
        _sparse.check(self)
        _check.count("cutoff", self.cutoff)

    def _prepare(self, scores: Any) -> tuple[Any, _sparse.Parameters]:
        self._check()
        scores = _check.vector("scores", scores)
        return scores, _sparse.parameters(self, lattice.is_integer(scores.dtype), self.cutoff)

    def _log_probs(self, scores: Any, masks: Any, rows: int | None) -> jax.Array:
        scores, at = self._prepare(scores)
        rows = _sparse.row_count(at.threshold_rate, rows)
        return _log_p(scores, masks, at, rows=rows, cutoff=self.cutoff, noise_name=self.noise)


def _asked(mask: Any, cutoff: int) -> jax.Array:
    """Queries up to the last allowed crossing: the others are not asked."""
    return jnp.cumsum(mask, axis=-1, dtype=jnp.int32) - mask.astype(jnp.int32) < cutoff


@float64(static_argnames=("cutoff", "noise_name"))
def _crossings(
    pair: Any, noise: Any, scores: Any, at: _sparse.Parameters, *, cutoff: int, noise_name: str
) -> jax.Array:
    u = at.threshold + noise.astype(jnp.float64) - lattice.to_steps(scores, at.granularity)
    crosses = _sparse.crosses(pair, u, at.query_rate, noise_name)
    return crosses & _asked(crosses, cutoff) & ~jnp.isnan(at.threshold_rate)


@float64(static_argnames=("rows", "cutoff", "noise_name"))
def _log_p(scores: Any, masks: Any, at: _sparse.Parameters, *, rows: int, cutoff: int, noise_name: str) -> jax.Array:
    asked = _asked(masks, cutoff)
    crossed, passed = (masks & asked).astype(jnp.float64), (~masks & asked).astype(jnp.float64)
    base = at.threshold - lattice.to_steps(scores, at.granularity)

    def term(k: Any, weights: Any) -> jax.Array:
        u = base[None] + k[:, None]
        # A finite stand-in for log 0, below every double: products of masks and logs stay free of NaN.
        cross = jnp.maximum(jnp.log(_sparse.crossing(u, at.query_rate, noise_name)), -1e4)
        no_cross = jnp.maximum(-_sparse.hazard(u, at.query_rate, noise_name), -1e4)
        each = _dot(crossed, cross) + _dot(passed, no_cross)
        return jnp.sum(jnp.exp(each) * weights[None], axis=1)

    width = max(masks.shape[0], masks.shape[1])
    p = _sparse.sum_over_rows(term, at.threshold_rate, rows, width, noise_name)
    possible = jnp.all(asked | ~masks, axis=1)
    return jnp.where(possible | jnp.isnan(p), jnp.log(p), -jnp.inf)


def _dot(masks: jax.Array, logs: jax.Array) -> jax.Array:
    return jnp.matmul(masks, logs.T, precision=jax.lax.Precision.HIGHEST)
