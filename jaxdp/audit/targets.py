"""What can be audited beside mechanisms and functions (key, summary): batched samplers, and code outside of JAX."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import jax

__all__ = ["Batched", "Foreign", "one_line"]


@dataclasses.dataclass(frozen=True)
class Batched:
    """A sampler of many runs from one key, which audits of cheap mechanisms take several times faster.

    A key for each run costs as many random words as a scalar's noise. `jax.random` draws a whole array from one key;
    the runs must be independent given the key, which nobody but the sampler can see to.

    Attributes:
        sample: (key, summary, n) -> outputs of n runs, a pytree whose leaves all have a leading axis of n. n is a
            Python integer. A pure JAX function.

    Example:
        >>> import jax
        >>> def respond(key, bit, n):
        ...     return bit ^ jax.random.bernoulli(key, 0.25, (n,))
        >>> target = jaxdp.audit.Batched(respond)
        >>> report = jaxdp.audit.monte_carlo(jax.random.key(0), target, False, True, epsilon=1.0)
        >>> report.refuted, report.mechanism
        (True, 'respond')
    """

    sample: Callable[[jax.Array, Any, int], Any]

    def __call__(self, key: jax.Array, summary: Any, n: int) -> Any:
        """The outputs of n runs."""
        outputs = self.sample(key, summary, n)
        for path, leaf in jax.tree_util.tree_flatten_with_path(outputs)[0]:
            if leaf.ndim == 0 or leaf.shape[0] != n:
                place = f"{leaf.shape} in outputs{jax.tree_util.keystr(path)}"
                raise ValueError(f"a batched sampler must return leaves with a leading axis of n, got {place}")
        return outputs


@dataclasses.dataclass(frozen=True)
class Foreign:
    """Any Python callable, such as a mechanism of another library: run on the host, with the same statistics.

    Outputs are numbers, arrays, None, texts, or sequences of them of any length: the first runs decide whether they
    are read as arrays of one shape or item by item with tags. 64-bit floats are read to the last bit.

    Attributes:
        function: (summary) -> output.
        batched: Whether it is (summary, n) -> arrays of n runs with a leading axis of n, which is much faster.
        seeded: Whether a NumPy Generator comes first: (generator, summary) -> output. Without it the function's own
            random numbers are used, and an audit does not repeat.

    Example:
        >>> import numpy as np
        >>> def noisy(generator, value, n):
        ...     return np.round(value + generator.laplace(size=n))
        >>> target = jaxdp.audit.Foreign(noisy, batched=True, seeded=True)
        >>> report = jaxdp.audit.monte_carlo(jax.random.key(0), target, 0.0, 1.0, epsilon=0.8, num_samples=100_000)
        >>> report.refuted, report.mechanism
        (True, 'noisy')
    """

    function: Callable[..., Any]
    batched: bool = False
    seeded: bool = False


def one_line(error: BaseException) -> str:
    """Type and first line of an error."""
    lines = str(error).strip().splitlines() or [""]
    return f"{type(error).__name__}: {lines[0]}"
