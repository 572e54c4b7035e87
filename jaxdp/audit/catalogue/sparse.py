"""The sparse-vector mechanisms of Lyu, Su and Li (2017), right and wrong ones, and two benchmarks made of them.

NOT FOR RELEASE: see `jaxdp.SparseVector` for a mechanism that keeps what it claims.
"""

from __future__ import annotations

import dataclasses
import functools
import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxdp.audit.catalogue import _noise
from jaxdp.audit.catalogue._entry import EVERY, Entry, entry_of, patterns
from jaxdp.audit.catalogue._loss_law import LossLaw, binned, combine
from jaxdp.audit.catalogue._noise import Sampler
from jaxdp.audit.catalogue._sparse_law import MAX_QUERIES, Rules, pattern_masses, sparse_loss_law, threshold_table

__all__ = ["Pair", "Sparse", "numerical_rules", "sparse_vector_variants", "variant_rules"]

_TABLE = 1024
# The pattern with the largest certificate for each algorithm, at cutoff 1 and ten queries.
_WORST = {1: 8, 2: 8, 3: 10, 4: 8, 5: 5, 6: 8}


@dataclasses.dataclass(frozen=True, eq=False)
class Sparse(Sampler):
    """A sparse-vector mechanism that follows some rules."""

    rules: Rules

    def words(self, x: Any) -> int:
        """One for each threshold, and for each query one or two."""
        rules, n = self.rules, len(x)
        return self._thresholds(n) + (n if rules.query_scale else 0) + (n if rules.release == "fresh" else 0)

    def run(self, words: jax.Array, x: Any) -> Any:
        """(n,) int32 tags: 1 above, 0 below, -1 after the end; with (n,) float32 values, 0 where none is released."""
        rules, queries = self.rules, jnp.asarray(x, jnp.float32)
        n, noise = queries.shape[0], _noise.laplace(words, 1.0)
        thresholds = self._thresholds(n)
        bound = np.float32(rules.threshold) + np.float32(rules.threshold_scale) * noise[:thresholds]
        noisy = queries
        if rules.query_scale:
            noisy = queries + np.float32(rules.query_scale) * noise[thresholds : thresholds + n]
        tags = _redrawn(noisy, bound, rules.cutoff) if thresholds > 1 else _tags(noisy >= bound[0], rules.cutoff)
        if rules.release == "bit":
            return tags
        values = queries + np.float32(rules.value_scale) * noise[-n:] if rules.release == "fresh" else noisy
        return tags, jnp.where(tags == 1, values, np.float32(0.0))

    def _thresholds(self, n: int) -> int:
        return (self.rules.cutoff or n) if self.rules.redraw else 1

    def log_ratio(self, summary: Any, neighbour: Any) -> Any:
        """Log p(output | summary) - log p(output | neighbour), as a function of the output."""
        rules = self.rules
        pair = np.stack([np.ravel(summary), np.ravel(neighbour)]).astype(np.float64)
        one, other = pair.astype(np.float32)
        compared = rules.release == "compared"
        scale = np.float32(rules.query_scale if compared else rules.value_scale)
        panels = rules.panels(pair)
        codes = pattern_masses(rules, pair[0], panels)[0]
        index = np.zeros(1 << pair.shape[1], np.int32 if compared else np.float32)
        if compared:
            index[codes], table, low, step = threshold_table(rules, *pair, codes, _TABLE)
        else:
            p, q = (panels.integrate(pattern_masses(rules, queries, panels)[1]).sum(1) for queries in pair)
            with np.errstate(divide="ignore", invalid="ignore"):
                index[codes] = np.where((p > 0.0) | (q > 0.0), np.log(p) - np.log(q), 0.0)

        def ratio(output: Any) -> jax.Array:
            tags, values = (output, None) if rules.release == "bit" else output
            above = tags == 1
            found = jnp.asarray(index)[_code(above)]
            if compared:
                least = jnp.min(jnp.where(above, values, np.float32(np.inf)))
                found = _interpolate(table, found, (least - np.float32(low)) / np.float32(step))
            if values is None:
                return found
            change = (jnp.abs(values - other) - jnp.abs(values - one)) / scale
            return found + jnp.sum(jnp.where(above, change, np.float32(0.0)))

        return ratio

    def loss_law(self, summary: Any, neighbour: Any) -> LossLaw:
        """The law of the log ratio, by quadrature."""
        return sparse_loss_law(self.rules, np.asarray(summary), np.asarray(neighbour))


@dataclasses.dataclass(frozen=True, eq=False)
class Pair(Sampler):
    """Two independent mechanisms on the same input."""

    one: Sparse
    other: Sparse

    def words(self, x: Any) -> int:
        """Those of both."""
        return self.one.words(x) + self.other.words(x)

    def run(self, words: jax.Array, x: Any) -> Any:
        """Both outputs."""
        first = self.one.words(x)
        return self.one.run(words[:first], x), self.other.run(words[first:], x)

    def log_ratio(self, summary: Any, neighbour: Any) -> Any:
        """The sum of both log ratios."""
        one, other = (each.log_ratio(summary, neighbour) for each in (self.one, self.other))
        return lambda output: one(output[0]) + other(output[1])

    def loss_law(self, summary: Any, neighbour: Any) -> LossLaw:
        """The law of the sum."""
        one, other = (each.loss_law(summary, neighbour) for each in (self.one, self.other))
        return combine(*(binned(law.values, law.masses, law.other_masses) for law in (one, other)))


def variant_rules(number: int, epsilon: float, cutoff: int, threshold: float) -> Rules:
    """The rules of Algorithm `number` of Lyu, Su and Li for queries of sensitivity 1."""
    half = epsilon / 2.0
    return {
        1: Rules(threshold, 1.0 / half, 2.0 * cutoff / half, cutoff),
        2: Rules(threshold, cutoff / half, 2.0 * cutoff / half, cutoff, redraw=True),
        3: Rules(threshold, 1.0 / half, cutoff / half, cutoff, release="compared"),
        4: Rules(threshold, 4.0 / epsilon, 4.0 / (3.0 * epsilon), cutoff),
        5: Rules(threshold, 1.0 / half, 0.0),
        6: Rules(threshold, 1.0 / half, 1.0 / half),
    }[number]


def _tags(above: jax.Array, cutoff: int | None) -> jax.Array:
    """Tags of queries that are all compared with one threshold."""
    if cutoff is None:
        return above.astype(jnp.int32)
    place = np.arange(above.shape[0], dtype=np.uint32)
    earlier = (np.uint32(1) << place) - np.uint32(1)
    before = jax.lax.population_count(_code(above).astype(jnp.uint32) & earlier)
    return jnp.where(before < np.uint32(cutoff), above.astype(jnp.int32), np.int32(-1))


def _redrawn(noisy: jax.Array, bounds: jax.Array, cutoff: int | None) -> jax.Array:
    """Tags of queries that meet a fresh threshold after each one above."""
    count, tags = jnp.int32(0), []
    for i in range(noisy.shape[0]):
        bound = functools.reduce(lambda kept, j: jnp.where(count >= j, bounds[j], kept), range(len(bounds)), bounds[0])
        above = (noisy[i] >= bound).astype(jnp.int32)
        tags.append(above if cutoff is None else jnp.where(count < cutoff, above, np.int32(-1)))
        count = count + above
    return jnp.stack(tags)


def _code(above: jax.Array) -> jax.Array:
    """The sum of 2^i over the queries i above."""
    weights = np.int32(1) << np.arange(above.shape[0], dtype=np.int32)
    return jnp.sum(jnp.where(above, weights, np.int32(0)), dtype=jnp.int32)


def _interpolate(table: np.ndarray, row: jax.Array, place: jax.Array) -> jax.Array:
    size = table.shape[1]
    place = jnp.clip(place, np.float32(0.0), np.float32(size - 1.001))
    left = place.astype(jnp.int32)
    flat, start = jnp.asarray(table.ravel(), jnp.float32), row * np.int32(size) + left
    share = place - left.astype(jnp.float32)
    return flat[start] * (np.float32(1.0) - share) + flat[start + np.int32(1)] * share


def numerical_rules(epsilon: float, cutoff: int, threshold: float) -> Rules:
    """The numerical sparse vector technique (Wang et al., 2019): values above get fresh noise."""
    scale = 3.0 / epsilon
    return Rules(threshold, scale, 2.0 * cutoff * scale, cutoff, release="fresh", value_scale=cutoff * scale)


def sparse_vector_variants(epsilon: float, cutoff: int, n: int, *, threshold: float = 1.0) -> tuple[Entry, ...]:
    """Algorithms 1 to 6 of Lyu, Su and Li (2017), NOT FOR RELEASE.

    Queries have sensitivity 1 and all of them may change. Algorithms 1 and 2 keep their claim; 3 releases the value
    that it compared; 4 loses up to (1 + 6 cutoff) / 4 times its claim; 5 adds no noise to queries and 6 never ends, so
    that both lose more with every query.

    Args:
        epsilon: The claim.
        cutoff: Queries above after which Algorithms 1 to 4 end, at least 1.
        n: Number of queries, from 1 to 16.
        threshold: What the noisy queries are compared with.

    Returns:
        One entry for each algorithm; `worst` is the pair that is worst at cutoff 1 and ten queries. The law of
        Algorithm 3 is known for cutoffs 1 and 2.

    Raises:
        ValueError: An argument is out of range.

    Example:
        >>> one, *_, six = sparse_vector_variants(0.1, 1, 10)
        >>> one.private, round(one.loss_law(*one.worst).epsilon, 4)
        (True, 0.0882)
        >>> six.private, round(six.loss_law(*six.worst).epsilon, 4)
        (False, 0.42)
    """
    if not (math.isfinite(epsilon) and epsilon > 0.0):
        raise ValueError(f"epsilon must be positive and finite, got {epsilon!r}")
    for name, value, most in (("cutoff", cutoff, MAX_QUERIES), ("n", n, MAX_QUERIES)):
        if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= most:
            raise ValueError(f"{name} must be an integer from 1 to {most}, got {value!r}")
    pairs, found = patterns(n, EVERY), []
    for number, worst in _WORST.items():
        variant = Sparse(variant_rules(number, epsilon, cutoff, threshold))
        entry = entry_of(f"Algorithm {number}", epsilon, EVERY, number <= 2, variant, pairs, worst)
        found.append(dataclasses.replace(entry, loss_law=None) if number == 3 and cutoff > 2 else entry)
    return tuple(found)
