"""AboveThreshold, the sparse-vector technique with one answer, on a lattice."""

from __future__ import annotations

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxdp import _check, lattice, random
from jaxdp._float64 import float64
from jaxdp._mechanism import mechanism, static
from jaxdp.laws import DiscreteLaw
from jaxdp.mechanisms import _sparse
from jaxdp.types import Halt, Privacy, Runs


def _examples(epsilon: float) -> dict[str, Any]:
    return {
        "AboveThreshold": AboveThreshold(0.0, 1.0, epsilon),
        "AboveThreshold(monotonic)": AboveThreshold(0.0, 1.0, epsilon, monotonic=True),
        "AboveThreshold(noise=laplace)": AboveThreshold(0.0, 1.0, epsilon, noise="laplace"),
    }


@mechanism(examples=_examples, neighbours=_sparse.neighbours)
class AboveThreshold:
    """Finds the first of a stream of queries whose noisy score reaches a noisy threshold.

    The threshold gets noise of scale sensitivity / e1 once, each query fresh noise of scale sensitivity / e2; the
    stream halts at the first i with score_i + noise_i >= threshold + noise. e1 + 2 e2 = epsilon, or e1 + e2 =
    epsilon where all scores move the same way, split for the least variance.

    Args:
        threshold: Public threshold, in the scores' units.
        sensitivity: Largest change of one score between neighbouring data sets.
        epsilon: Total privacy budget of the whole stream, at most 32.
        monotonic: Static; True only if for every pair of neighbours ALL scores move the same way. An increasing
            stream alone does not qualify.
        noise: Static; "exponential" (one-sided, the more accurate) or "laplace" (the textbook's).
        granularity: Static; lattice step of the scores, a power of two. By default 1 for integers, and for floats
            the power of two between 1/512 and 1/256 of the sensitivity.

    Guarantee:
        (epsilon, delta)-DP with delta <= (e^epsilon - 1) e^-46, the end of the threshold noise. Tight for
        exponential noise: scores (T, T) against (T + D, T - D), halting at the second. "Never" costs e1 only.
        Monotonic: also (e1 + 2 e2)^2 / 8-zCDP (up to delta). Summary contract: each score of neighbours differs
        by at most `sensitivity` (monotonic: all in the same direction); scores may be chosen from earlier
        answers. Source: Dwork, Roth (2014), section 3.6; Lyu, Su, Li (2017) for the split; the exponential noise
        and its tightness are derived in the tests by enumeration.

    Law:
        DiscreteLaw over Halt at 0..n-1 or never (index n): a finite sum over the threshold noise.

    Floating point:
        Scores are rounded down to the lattice, a monotone map; NaN counts as the lower end (never crosses).
        Float scores spend one lattice step of sensitivity on rounding errors of their own computation. Noise is
        drawn as integers, chances to cross in float64 against 64 fresh bits per query (of Runs: hazards against
        exponentials): outcomes of probability above 2^-40 have it to relative precision 1e-5.

    Example:
        >>> mechanism = jaxdp.AboveThreshold(threshold=10.0, sensitivity=1.0, epsilon=1.0)
        >>> scores = np.array([0, 3, 200, 4])
        >>> int(mechanism.sample(jax.random.key(0), scores).index)
        2
        >>> float(mechanism.law(scores).expected_error(2).round(2))  # positions between the halt and query 2
        0.13
    """

    threshold: Any
    sensitivity: Any
    epsilon: Any
    monotonic: bool = static(False)
    noise: str = static("exponential")
    granularity: float | None = static(None)

    def sample(self, key: jax.Array, scores: Any) -> Halt:
        """One release on a stream that is known in full.

        Args:
            key: One typed key, consumed.
            scores: (n,) real scores, or Runs of equal ones.

        Returns:
            Halt; its index is -1 for bad traced parameters.

        Raises:
            ValueError: For bad concrete parameters or shapes.
        """
        runs, integer = _runs(scores)
        at = _sparse.parameters(self, integer)
        noise, pair = _sparse.draw(_check.key(key), at.table, noise=self.noise, shape=np.shape(runs.scores))
        if isinstance(scores, Runs):
            return _halt_in_run(pair, noise, runs, at, noise_name=self.noise)
        return _halt(pair, noise, runs.scores, at, noise_name=self.noise)

    def law(self, scores: Any, *, rows: int | None = None) -> DiscreteLaw:
        """The exact law of `sample(key, scores)`, in time n x rows.

        Args:
            scores: (n,) real scores, or Runs of equal ones.
            rows: Static number of values of the threshold noise, needed only where the parameters are traced; too
                few give NaN.
        """
        runs, integer = _runs(scores)
        at = _sparse.parameters(self, integer)
        rows = _sparse.row_count(at.threshold_rate, rows)
        log_p = _log_p(runs, at, rows=rows, noise_name=self.noise, expand=isinstance(scores, Runs))
        order = np.arange(runs.length + 1, dtype=np.int32)
        return DiscreteLaw(log_p, Halt(order, order < runs.length))

    def privacy(self) -> Privacy:
        """The guarantee."""
        _sparse.check(self)
        return _sparse.privacy(self, 1)

    def worst_case(self) -> tuple[Any, Any]:
        """The pair on which exponential noise loses all of epsilon."""
        _sparse.check(self)
        return _sparse.worst_case(self, 2)

    def init(self, key: jax.Array, dtype: Any = jnp.float32) -> AboveThresholdState:
        """Starts a stream whose scores come one at a time, for loops.

        Args:
            key: One typed key, consumed.
            dtype: dtype of the scores to come: floating and integer scores live on different lattices.

        Returns:
            A pytree of int32, uint32 and bool, to be carried. It stays secret for ever, also after halting.
        """
        integer = lattice.is_integer(_check.real_dtype("dtype", np.zeros((), dtype)))
        at = _sparse.parameters(self, integer)
        key = _check.key(key)
        noise = _sparse.draw_threshold_noise(key, at.table, noise=self.noise)
        stream = jax.random.fold_in(key, 1)
        # Bad traced parameters halt at once: nothing of the data can come out.
        return AboveThresholdState(
            noise,
            jax.random.key_data(stream),
            jnp.zeros_like(noise),
            _failed(at.threshold_rate, noise),
            impl=jax.random.key_impl(key),
            integer=integer,
        )

    def step(self, state: AboveThresholdState, score: Any) -> tuple[AboveThresholdState, jax.Array]:
        """Asks one query.

        Args:
            state: What `init` or the last `step` returned.
            score: Real scalar; may depend on earlier answers. NaN does not halt.

        Returns:
            The next state and `halted`, bool: True from the halt on. The law over steps is that of `law`.
        """
        score = score if _check.is_traced(score) else np.asarray(score)
        integer = lattice.is_integer(_check.real_dtype("score", score))
        if np.shape(score) != () or integer != state.integer:
            kind = "an integer" if state.integer else "a floating"
            raise ValueError(f"score must be {kind} scalar as announced to init, got {score!r}")
        at = _sparse.parameters(self, integer)
        key = jax.random.wrap_key_data(state.key_data, impl=state.impl)
        pair = random.words(key, state.step)
        halted = state.halted | _crosses(pair, state.noise, score, at, noise_name=self.noise)
        return dataclasses.replace(state, step=state.step + 1, halted=halted), halted


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True, eq=False)
class AboveThresholdState:
    """State of a stream: secret threshold noise and key data, the number of steps, and whether it halted."""

    noise: Any
    key_data: Any
    step: Any
    halted: Any
    impl: Any = dataclasses.field(metadata={"static": True})
    integer: bool = dataclasses.field(metadata={"static": True})


def _runs(scores: Any) -> tuple[Runs, bool]:
    """Any summary as Runs, and whether the scores are integers."""
    if not isinstance(scores, Runs):
        scores = _check.vector("scores", scores)
        scores = Runs(scores, np.ones(np.shape(scores), np.int32), np.shape(scores)[0])
    values, repeats = _check.vector("scores", scores.scores), _check.vector("repeats", scores.repeats)
    _check.count("length", scores.length)
    if np.shape(values) != np.shape(repeats):
        raise ValueError(f"repeats must have the shape of scores, {np.shape(values)}, got {np.shape(repeats)}")
    if not lattice.is_integer(repeats.dtype):
        raise ValueError(f"repeats must be integers, got dtype {repeats.dtype}")
    return Runs(values, repeats, scores.length), lattice.is_integer(values.dtype)


@float64
def _failed(rate: Any, noise: Any) -> jax.Array:
    # A loop's carry keeps its type, and in shard_map that has the mesh axes over which the key varies.
    return jnp.isnan(rate) | jnp.zeros_like(noise, jnp.bool_)


def _distance(scores: Any, noise: Any, at: _sparse.Parameters) -> jax.Array:
    return at.threshold + noise.astype(jnp.float64) - lattice.to_steps(scores, at.granularity)


@float64(static_argnames=("noise_name",))
def _crosses(pair: Any, noise: Any, score: Any, at: _sparse.Parameters, *, noise_name: str) -> jax.Array:
    return _sparse.crosses(pair, _distance(score, noise, at), at.query_rate, noise_name)


@float64(static_argnames=("noise_name",))
def _halt(pair: Any, noise: Any, scores: Any, at: _sparse.Parameters, *, noise_name: str) -> Halt:
    hit = _sparse.crosses(pair, _distance(scores, noise, at), at.query_rate, noise_name)
    n, valid = len(scores), ~jnp.isnan(at.threshold_rate)
    first = jnp.min(jnp.where(hit, jax.lax.iota(jnp.int32, n), jnp.int32(n)))
    return Halt(jnp.where(valid, first, -1).astype(jnp.int32), (first < n) & valid)


@float64(static_argnames=("noise_name",))
def _halt_in_run(pair: Any, noise: Any, runs: Runs, at: _sparse.Parameters, *, noise_name: str) -> Halt:
    # One exponential a run: it halts inside if the summed hazard reaches it, at the query where that happens.
    each = _sparse.hazard(_distance(runs.scores, noise, at), at.query_rate, noise_name)
    repeats, last = runs.repeats.astype(jnp.float64), len(runs.scores) - 1
    hit = (jnp.where(repeats > 0.0, each * repeats, 0.0) >= random.from_words(pair)) & (repeats > 0.0)
    order = jax.lax.iota(jnp.int32, len(runs.scores))
    first = jnp.min(jnp.where(hit, order, last + 1))
    halted, run = first <= last, jnp.minimum(first, last)
    # Only the run that halts needs its place: twice as fast under vmap as gathers from whole streams.
    hazard = _sparse.hazard(_distance(runs.scores[run], noise, at), at.query_rate, noise_name)
    place = jnp.ceil(random.from_words(pair[:, run]) / hazard) - 1.0
    inside = jnp.clip(place, 0.0, repeats[run] - 1.0).astype(jnp.int32)
    before = jnp.sum(jnp.where(order < first, runs.repeats.astype(jnp.int32), 0), dtype=jnp.int32)
    valid = ~jnp.isnan(at.threshold_rate) & (jnp.sum(repeats) == runs.length) & jnp.all(repeats >= 0.0)
    index = jnp.where(halted, before + inside, jnp.int32(runs.length))
    return Halt(jnp.where(valid, index, -1).astype(jnp.int32), halted & valid)


@float64(static_argnames=("rows", "noise_name", "expand"))
def _log_p(runs: Runs, at: _sparse.Parameters, *, rows: int, noise_name: str, expand: bool) -> jax.Array:
    length, repeats = runs.length, runs.repeats.astype(jnp.int32)
    run = jnp.repeat(jax.lax.iota(jnp.int32, len(runs.scores)), repeats, total_repeat_length=length)
    before = jnp.cumsum(repeats) - repeats
    inside = (jax.lax.iota(jnp.int32, length) - before[run]).astype(jnp.float64)
    base = _distance(runs.scores, jnp.zeros_like(at.threshold), at)

    def term(k: Any, weights: Any) -> tuple[jax.Array, jax.Array]:
        u = base[None] + k[:, None]
        h, misses = _sparse.chances(u, at.query_rate, noise_name)
        if expand:  # A finite stand-in for log 0, below every double: no 0 * inf where a run is empty.
            log_miss = jnp.maximum(-_sparse.hazard(u, at.query_rate, noise_name), -1e4)
            misses = jnp.exp(log_miss * repeats.astype(jnp.float64)[None])
        survival = jnp.cumprod(misses, axis=1) * weights[:, None]
        halts = h * jnp.concatenate([weights[:, None], survival[:, :-1]], axis=1)
        if expand:  # Inside a run the place of the halt is geometric.
            halts = halts[:, run] * jnp.exp(inside[None] * log_miss[:, run])
        return jnp.sum(halts, axis=0), jnp.sum(survival[:, -1])

    halts, never = _sparse.sum_over_rows(term, at.threshold_rate, rows, length, noise_name)
    valid = (jnp.sum(repeats) == length) & jnp.all(repeats >= 0)
    return jnp.where(valid, jnp.log(jnp.append(halts, never)), jnp.nan)
