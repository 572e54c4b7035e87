"""What the sparse-vector mechanisms share: budgets, lattice, hazards, and the finite sum over threshold noise.

On the lattice, with scores q_i and threshold T in steps, noise k on the threshold and a = e2 / sensitivity, query i
crosses with probability h_i(k) = P(noise >= T + k - q_i), which depends on u = T + k - q_i alone.
"""

from __future__ import annotations

import functools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from jaxdp import _check, lattice, random
from jaxdp import _lattice_law as closed_form
from jaxdp._float64 import float64
from jaxdp.types import Privacy

NOISES = ("exponential", "laplace")
_MAX_ROWS = 2**22
_CELLS = 2**16


def budgets(epsilon: Any, cutoff: int, monotonic: bool) -> tuple[Any, Any]:
    """Budget of the threshold and of ONE query: e1 + 2 c e2 = epsilon (monotonic: e1 + c e2), least variance."""
    crossings = cutoff if monotonic else 2 * cutoff
    first = epsilon / (1.0 + crossings ** (2.0 / 3.0))
    return first, (epsilon - first) / crossings


class Parameters(NamedTuple):
    """Public parameters in steps of the lattice; the rates are NaN where they were bad."""

    threshold: jax.Array
    threshold_rate: jax.Array
    query_rate: jax.Array
    granularity: jax.Array
    table: jax.Array


def check(record: Any) -> tuple[Any, Any, Any]:
    """Checks all parameters of a record; returns the numbers among them."""
    _check.flag("monotonic", record.monotonic)
    _check.choice("noise", record.noise, NOISES)
    _check.granularity(record.granularity)
    threshold = _check.finite("threshold", record.threshold)
    return threshold, _check.positive("sensitivity", record.sensitivity), _check.lattice_epsilon(record.epsilon)


def parameters(record: Any, integer: bool, cutoff: int = 1) -> Parameters:
    """Puts a record on its lattice: integers on theirs, floats on one of 1/512 to 1/256 of the sensitivity."""
    numbers = check(record)
    static = dict(granularity=record.granularity, monotonic=record.monotonic, cutoff=cutoff, integer=integer)
    if any(map(_check.is_traced, numbers)):
        return _parameters(*numbers, **static)
    result = _concrete(*numbers, **static)
    if np.isnan(result.threshold_rate):
        raise ValueError(
            f"epsilon is too small for noise on a lattice of granularity {float(result.granularity)!r}: got "
            f"epsilon={record.epsilon!r} with sensitivity={record.sensitivity!r}"
        )
    return result


@functools.lru_cache(maxsize=1024)
def _concrete(*numbers: float, **static: Any) -> Parameters:
    # Public numbers stay concrete inside jit: the size of the exact law's sum depends on them.
    with jax.ensure_compile_time_eval():
        return jax.tree.map(np.asarray, _parameters(*numbers, **static))


@float64(static_argnames=("granularity", "monotonic", "cutoff", "integer"))
def _parameters(
    threshold: Any,
    sensitivity: Any,
    epsilon: Any,
    *,
    granularity: float | None,
    monotonic: bool,
    cutoff: int,
    integer: bool,
) -> Parameters:
    threshold, sensitivity, epsilon = (x.astype(jnp.float64) for x in (threshold, sensitivity, epsilon))
    if granularity is None:
        step = jnp.ones_like(epsilon) if integer else lattice.default_granularity(sensitivity, epsilon, 256.0)
    else:
        step = jnp.full_like(epsilon, granularity)
    first, query = budgets(epsilon, cutoff, monotonic)
    steps = lattice.sensitivity_steps(sensitivity, step, 1.0, integer=integer)
    valid = (epsilon > 0.0) & (epsilon <= _check.MAX_EPSILON) & (sensitivity > 0.0) & (sensitivity < jnp.inf)
    valid &= jnp.isfinite(threshold) & (first / steps >= random.MIN_RATE)
    # q >= T and floor(q) >= ceil(T) are the same event for T in steps.
    whole = jnp.clip(jnp.ceil(threshold / step), -lattice.MAX_STEPS, lattice.MAX_STEPS)
    first, query = (jnp.where(valid, rate / steps, jnp.nan) for rate in (first, query))
    return Parameters(whole, first, query, step, random.thresholds(first))


@jax.jit(static_argnames=("noise", "shape"))
def draw(key: jax.Array, table: jax.Array, *, noise: str, shape: tuple[int, ...]) -> tuple[jax.Array, jax.Array]:
    """int32 noise on the threshold, in steps, and random words for queries of the given shape."""
    return draw_threshold_noise(key, table, noise=noise), random.words(key, 1, shape)


@jax.jit(static_argnames=("noise",))
def draw_threshold_noise(key: jax.Array, table: jax.Array, *, noise: str) -> jax.Array:
    """int32 noise on the threshold, in steps."""
    one_sided = noise == "exponential"
    return (random.draw_geometric if one_sided else random.draw_discrete_laplace)(jax.random.fold_in(key, 0), table)


def hazard(u: Any, rate: Any, noise: str) -> jax.Array:
    """-log(1 - h), where a fresh exponential of at most this size makes the query cross."""
    if noise == "exponential":
        return jnp.where(u > 0.0, -jnp.log1p(-jnp.exp(-rate * jnp.maximum(u, 0.0))), jnp.inf)
    total = jnp.log1p(jnp.exp(-rate))
    above = -jnp.log1p(-jnp.exp(-rate * jnp.maximum(u, 1.0) - total))
    return jnp.where(u >= 1.0, above, rate * (1.0 - jnp.minimum(u, 0.0)) + total)


def crossing(u: Any, rate: Any, noise: str) -> jax.Array:
    """h, the probability that the query crosses."""
    return chances(u, rate, noise)[0]


def crosses(pair: Any, u: Any, rate: Any, noise: str) -> jax.Array:
    """Whether the query crosses, from fresh random words."""
    return random.happens(pair, *chances(u, rate, noise))


def chances(u: Any, rate: Any, noise: str) -> tuple[jax.Array, jax.Array]:
    """The probability h and 1 - h, each to full relative precision."""
    if noise == "exponential":
        scaled = rate * jnp.maximum(u, 0.0)
        return jnp.exp(-scaled), -jnp.expm1(-scaled)
    total = 1.0 + jnp.exp(-rate)
    above = jnp.exp(-rate * jnp.maximum(u, 1.0)) / total
    below = jnp.exp(-rate * (1.0 - jnp.minimum(u, 0.0))) / total
    return jnp.where(u >= 1.0, above, 1.0 - below), jnp.where(u >= 1.0, 1.0 - above, below)


def row_count(rate: Any, rows: int | None) -> int:
    """Number of values of one-sided threshold noise, 2^D, from a concrete rate or as given."""
    if _check.is_traced(rate):
        if rows is None:
            raise ValueError(
                "rows must be given where epsilon or sensitivity are traced: a power of two of at least "
                "46 sensitivity / (the threshold's share of epsilon), sensitivity in steps of the lattice"
            )
        _check.count("rows", rows)
        return rows
    needed = 2 ** int(np.sum(float(rate) * random.POWERS < lattice.TAIL))
    if needed > _MAX_ROWS:
        raise ValueError(
            f"epsilon is too small for an exact law: it needs {needed} rows of threshold noise, more than "
            f"{_MAX_ROWS}; give a larger epsilon or granularity"
        )
    return needed


def sum_over_rows(term: Any, rate: Any, rows: int, width: int, noise: str) -> Any:
    """Sums term(k, weights) over the values k of the threshold noise, in chunks of about 2^16 cells.

    `term` gets (r,) values and their probabilities and returns a tree of sums over them; `width` is the number of
    cells it needs a row. For use inside a float64 core.
    """
    n, q = closed_form.size(rate), jnp.exp(-rate)
    total = rows if noise == "exponential" else 2 * rows
    size = int(np.gcd(total, 2 ** int(np.log2(max(1, _CELLS // width)))))
    scale = -jnp.expm1(-rate) / (-jnp.expm1(-rate * n) * (1.0 if noise == "exponential" else 1.0 + q))

    def chunk(index: Any) -> Any:
        k = (index * size + jnp.arange(size) - (total - rows)).astype(jnp.float64)
        return term(k, jnp.where((k < n) & (k >= -n), scale * jnp.exp(-rate * jnp.abs(k)), 0.0))

    # Starting from a chunk, not from zeros, gives the carry the sharding of its inputs under shard_map.
    sums = jax.lax.fori_loop(1, total // size, lambda i, sums: jax.tree.map(jnp.add, sums, chunk(i)), chunk(0))
    return jax.tree.map(lambda part: jnp.where(n <= rows, part, jnp.nan), sums)


def privacy(record: Any, cutoff: int) -> Privacy:
    """Guarantee of a record."""
    first, query = budgets(record.epsilon, cutoff, record.monotonic)
    # Monotonic scores bound the loss to [-(e1 + c e2), c e2].
    rho = (first + 2.0 * cutoff * query) ** 2 / 8.0 if record.monotonic else None
    return Privacy(record.epsilon, lattice.tail_delta(record.epsilon), rho)


def worst_case(record: Any, n: int) -> tuple[Any, Any]:
    """Scores at the threshold; the first rises out of reach and the others, unless monotonic, fall."""
    scores = np.full(n, float(record.threshold))
    others = 0.0 if record.monotonic else -1.0
    other = scores + float(record.sensitivity) * np.where(np.arange(n) == 0, 1.0, others)
    whole = record.granularity in (None, 1) and np.all(scores == np.rint(scores)) and np.all(other == np.rint(other))
    return (scores.astype(np.int32), other.astype(np.int32)) if whole else (scores, other)


def neighbours(record: Any, rng: np.random.Generator) -> tuple[Any, Any]:
    """Random integer scores around the threshold, 1 to 8 of them, and neighbours; needs sensitivity >= 1."""
    n, reach = rng.integers(1, 9), int(record.sensitivity)
    scores = int(np.ceil(record.threshold)) + rng.integers(-4 * reach, 4 * reach + 1, n)
    change = rng.integers(0, reach + 1, n) * rng.choice([-1, 1], 1 if record.monotonic else n)
    return scores.astype(np.int32), (scores + change).astype(np.int32)
