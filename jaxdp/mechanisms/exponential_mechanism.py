"""The exponential mechanism."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxdp._float64 import float64
from jaxdp._mechanism import mechanism, static
from jaxdp.laws import DiscreteLaw, sample_once
from jaxdp.mechanisms import _selection
from jaxdp.types import Privacy


def _examples(epsilon: float) -> dict[str, Any]:
    return {
        "ExponentialMechanism": ExponentialMechanism(1.0, epsilon),
        "ExponentialMechanism(monotonic)": ExponentialMechanism(1.0, epsilon, monotonic=True),
    }


@mechanism(examples=_examples, neighbours=_selection.neighbours)
class ExponentialMechanism:
    """Selects one of n candidates with P(i) ~ base_i e^(factor score_i).

    factor = epsilon / (2 sensitivity), or epsilon / sensitivity where all scores move the same way.

    Args:
        sensitivity: Largest change of one score between neighbouring data sets; in the scores' units.
        epsilon: Total privacy budget of one selection.
        monotonic: Static; True only if for every pair of neighbours ALL scores move the same way (counts).

    Guarantee:
        epsilon-DP, and epsilon^2 / 8-zCDP. Summary contract: the scores of neighbours differ by at most
        `sensitivity` each (monotonic: all in the same direction); the base measure is public. Source: McSherry,
        Talwar (2007); the rho: Cesar, Rogers (2021).

    Law:
        DiscreteLaw over int32 indices; for many releases on one data set, `jax.vmap(m.law(scores).sample)(keys)`
        computes it once.

    Floating point:
        The law is computed in float64 and inverted with 63 random bits, after cutting it to integers over 2^63:
        log-ratios are off by 1e-5 at most for outcomes of probability above 2^-46; outcomes below 2^-63
        cannot occur. Scores are clamped to +-1e300; NaN counts as the lower end.

    Example:
        >>> mechanism = jaxdp.ExponentialMechanism(sensitivity=1.0, epsilon=1.0)
        >>> np.exp(mechanism.law(np.array([0.0, 2.0])).log_p).round(3).tolist()
        [0.269, 0.731]
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
            scores: (n,) real scores; or a pair of scores and (n,) log-probabilities `log_base` of a public base
                measure (they need not be normalised; -inf excludes a candidate).

        Returns:
            int32 index; -1 for bad traced parameters.

        Raises:
            ValueError: For bad concrete parameters or shapes.
        """
        return sample_once(key, self.law(scores))

    def law(self, scores: Any) -> DiscreteLaw:
        """The exact law of `sample(key, scores)`."""
        _selection.check(self)
        scores, log_base = _selection.split(scores)
        log_p = _log_p(scores, log_base, self.sensitivity, self.epsilon, monotonic=self.monotonic)
        return DiscreteLaw(log_p, np.arange(np.shape(scores)[0], dtype=np.int32))

    def privacy(self) -> Privacy:
        """The guarantee."""
        _selection.check(self)
        return Privacy(self.epsilon, 0.0, self.epsilon * self.epsilon / 8.0)

    def worst_case(self) -> tuple[Any, Any]:
        """One candidate against 31 others: loss log((1 + 31 e^epsilon) / 32), which nears epsilon from below."""
        _selection.check(self)
        return _selection.worst_case(self, 32)


@float64(static_argnames=("monotonic",))
def _log_p(scores: Any, log_base: Any, sensitivity: Any, epsilon: Any, *, monotonic: bool) -> jax.Array:
    return jax.nn.log_softmax(log_base.astype(jnp.float64) + _selection.logits(scores, sensitivity, epsilon, monotonic))
