"""Private multiplicative weights: a synthetic database fitted to a few noisy answers that matter most (MWEM)."""

from __future__ import annotations

import dataclasses
import functools
import math
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from jaxdp import _check, lattice, workload
from jaxdp._float64 import float64
from jaxdp._mechanism import static
from jaxdp.laws import DiscreteLaw, LatticeLaw
from jaxdp.mechanisms.exponential_mechanism import ExponentialMechanism
from jaxdp.mechanisms.laplace import Laplace
from jaxdp.types import Privacy

_MAX_RECORDS = 2**29
"""So that counts in units of 2^-24 are whole numbers up to 2^53, which doubles hold exactly."""

_FINE = 1024
"""Scores are multiples of 1 / (denominator _FINE); of 2^-24 where that is the denominator."""


class SyntheticData(NamedTuple):
    """A synthetic database and the transcript that it was computed from.

    Attributes:
        weights: (|X|,) float32, nonnegative, sum to the number of records; NaN if the parameters were bad (traced ones
            cannot be rejected).
        queries: (rounds,) int32, the queries that were measured, in this order; -1 if the parameters were bad.
        answers: (rounds,) float32, their noisy averages, not clipped to [0, 1]; NaN if the parameters were bad.
    """

    weights: jax.Array
    queries: jax.Array
    answers: jax.Array


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True, eq=False)
class MultiplicativeWeights:
    """Fits a synthetic database to linear queries: in each round to the one that it answers worst, measured with noise.

    A_0 is uniform over the universe X and has as many records as the data B, n. A round selects q with probability
    ~ e^(eps_select n |q(A) - q(B)| / 2), measures m = n q(B) + Laplace(1 / eps_measure), and reweights, A(x) ~
    A(x) e^(q(x) (m / n - q(A)) / 2): once for the new measurement, then in `replays` passes over all so far.

    Args:
        epsilon: Total privacy budget; at most 32 a measurement.
        rounds: Static; the number T of measurements. `rounds_for` has a rule, which need not be met closely: where it
            says 66 (universe 2^16, 500 three-way marginals, n epsilon = 10^4), the largest error was 0.07 to 0.09 for
            all T from 30 to 120, and 0.13 at T = 10.
        measure_share: Static; the share of epsilon for measurements, in (0, 1), the rest is for selections.
        replays: Static; passes over the past measurements after each round. They cost time, rounds^2 replays / 2
            updates in all, but no privacy.

    Guarantee:
        epsilon-DP but for delta = T (e^eps_measure - 1) e^-46, the ends of the noise's support, by basic composition
        of T selections with eps_select = epsilon (1 - measure_share) / T and T measurements with eps_measure =
        epsilon measure_share / T; rho = T (eps_select^2 / 8 + eps_measure^2 / 2). Summary contract: the queries are
        the same and public, and one record moves from one entry of the counts to another, so that n q(B) changes by
        at most 1; n is public. The release is computed from the selected indices and the noisy answers alone.
        Source: Hardt, Ligett, McSherry (2012).

    Law:
        A tree of 2 T steps, each with an exact law, given the steps before: `selection_law` and `measurement_law`.
        The probability of a transcript is their product.

    Floating point:
        Counts of the data are exact: integers, in units of the queries' common denominator. What the model answers is
        public, and rounded to 1/1024 of such a unit (a multiple of 2^-24), so that scores are whole numbers below
        2^53 and their sensitivity is 1 exactly. Predicates are measured on the integers (Laplace without slack),
        other queries on Laplace's lattice for floats. A matrix of floats is rounded to float32 and then to multiples
        of 2^-24; a Workload finds smaller denominators.

    Example:
        A synthetic database for a table of yes/no attributes that keeps all its pairs of attributes.

        >>> table = np.random.default_rng(0).random((5000, 6)) < np.linspace(0.1, 0.9, 6)  # the sensitive records
        >>> universe = jaxdp.binary_universe(6)
        >>> pairs = jaxdp.Workload([universe[:, i] & universe[:, j] for i in range(6) for j in range(i + 1)])
        >>> counts = jaxdp.histogram(table, universe)
        >>> mechanism = jaxdp.MultiplicativeWeights(epsilon=1.0, rounds=15)
        >>> release = mechanism.sample(jax.random.key(0), (counts, pairs))
        >>> release.weights.shape, bool(jaxdp.max_error(release.weights, counts, pairs) < 0.1)
        ((64,), True)
        >>> p = np.asarray(release.weights, np.float64)
        >>> synthetic = universe[np.random.default_rng(1).choice(64, 5000, p=p / p.sum())]
        >>> synthetic.shape
        (5000, 6)
    """

    epsilon: Any
    rounds: int = static()
    measure_share: float = static(0.5)
    replays: int = static(5)

    def sample(self, key: jax.Array, summary: Any) -> SyntheticData:
        """One release.

        Args:
            key: One typed key, consumed.
            summary: Pair of counts (|X|,), a histogram of the data, and queries: a Workload, or a matrix (|Q|, |X|) of
                booleans, of integers 0 and 1, or of floats in [0, 1]. A matrix may be traced; inside of jit, pass a
                large one as an argument, or it becomes a constant of the program.

        Returns:
            SyntheticData.

        Raises:
            ValueError: For bad concrete parameters, shapes or queries, and for n = 0 or n > 2^29 records. Bad traced
                ones give NaN and index -1.
        """
        return _sample(_check.key(key), self._problem(summary), rounds=self.rounds, replays=self.replays)

    def selection_law(self, summary: Any, queries: Any = (), answers: Any = ()) -> DiscreteLaw:
        """The exact law of the next selected query, given the transcript so far.

        Args:
            summary: As for `sample`.
            queries: (t,) integers and
            answers: (t,) floats, as in SyntheticData; the first t rounds.
        """
        problem = self._problem(summary)
        if not _check.is_traced(queries):
            queries = np.asarray(queries, None if np.size(queries) else np.int32)
        _check_indices("queries", queries, np.shape(queries)[:1], problem.matrix.shape[0])
        queries, answers = jnp.asarray(queries, jnp.int32), jnp.asarray(answers, jnp.float32)
        if len(queries) > self.rounds:
            raise ValueError(f"queries must be at most {self.rounds}, one a round, got {len(queries)}")
        if queries.ndim != 1 or queries.shape != answers.shape:
            raise ValueError(f"queries must have shape (t,) as answers, got shapes {queries.shape} and {answers.shape}")
        return _selection(problem, _replay(problem, queries, answers, replays=self.replays))

    def measurement_law(self, summary: Any, index: Any) -> LatticeLaw:
        """The exact law of the noisy count n q(B) of query number `index`; `answers` has it divided by n."""
        problem = self._problem(summary)
        _check_indices("index", index, (), problem.matrix.shape[0])
        return _measurement(problem, jnp.asarray(index, jnp.int32))

    @staticmethod
    def rounds_for(n: int, universe_size: int, num_queries: int, epsilon: float) -> int:
        """Rounds with the least proved bound on the error, 2 sqrt(log|X| / T) + 10 T log|Q| / (n epsilon).

        Example:
            >>> jaxdp.MultiplicativeWeights.rounds_for(10_000, 2**16, 500, epsilon=1.0)
            66
        """
        for name, value in {"n": n, "universe_size": universe_size, "num_queries": num_queries}.items():
            _check.count(name, value)
        per_round = 10.0 * math.log(max(num_queries, 2)) / (n * _check.positive("epsilon", epsilon))
        return max(1, round((math.sqrt(math.log(max(universe_size, 2))) / per_round) ** (2.0 / 3.0)))

    def privacy(self) -> Privacy:
        """The guarantee."""
        select, measure = _shares(self._check(), self.measure_share, self.rounds)
        delta = self.rounds * lattice.tail_delta(measure)
        return Privacy(self.epsilon, delta, self.rounds * (select**2 / 8.0 + measure**2 / 2.0))

    def _check(self) -> Any:
        _check.count("rounds", self.rounds)
        if isinstance(self.replays, bool) or not isinstance(self.replays, (int, np.integer)) or self.replays < 0:
            raise ValueError(f"replays must be a nonnegative integer, got {self.replays!r}")
        if not 0.0 < _check.scalar("measure_share", self.measure_share) < 1.0:
            raise ValueError(f"measure_share must be in (0, 1), got {self.measure_share!r}")
        epsilon = _check.positive("epsilon", self.epsilon)
        most = _check.MAX_EPSILON * self.rounds / self.measure_share
        if not _check.is_traced(epsilon) and epsilon > most:
            raise ValueError(f"epsilon must be at most {most:g}, 32 for each measurement, got {epsilon!r}")
        return epsilon

    def _problem(self, summary: Any) -> _Problem:
        epsilon = self._check()
        counts, queries = _check.pair(summary, "(counts, queries)")
        counts = _counts(counts)
        matrix, denominator, valid = _numerators(queries)
        if np.ndim(matrix) != 2 or np.shape(matrix)[0] == 0 or np.shape(matrix)[1] != np.shape(counts)[0]:
            raise ValueError(f"queries must have shape (|Q|, {np.shape(counts)[0]}), got {np.shape(matrix)}")
        if not _check.is_traced(epsilon):
            _, measure = _shares(epsilon, self.measure_share, self.rounds)
            try:
                Laplace(1.0, measure).law(np.int32(0) if denominator == 1 else np.float64(0.0))
            except ValueError as error:
                message = f"epsilon must be larger for {self.rounds} rounds, got {epsilon!r}; in each, {error}"
                raise ValueError(message) from error
        matrix = jnp.asarray(matrix)  # put on the device once
        steps = _prepare(counts, matrix, valid, epsilon, share=float(self.measure_share), rounds=self.rounds)
        return _Problem(matrix, *steps, denominator)


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True, eq=False)
class _Problem:
    """What the rounds compute with: queries (multiples of 1 / denominator), true answers and budgets of a step."""

    matrix: Any
    truth: Any  # (|Q|,) float64 whole numbers: n q(B) denominator
    n: Any
    select: Any
    measure: Any
    denominator: int = dataclasses.field(metadata={"static": True})


def _shares(epsilon: Any, measure_share: float, rounds: int) -> tuple[Any, Any]:
    """Budgets of one selection and of one measurement."""
    return epsilon * (1.0 - measure_share) / rounds, epsilon * measure_share / rounds


def _check_indices(name: str, value: Any, shape: tuple[int, ...], number: int) -> None:
    """Integers of a given shape that number queries."""
    kind = value.dtype if hasattr(value, "dtype") else np.asarray(value).dtype
    if np.shape(value) != shape or not lattice.is_integer(kind):
        raise ValueError(f"{name} must be integers of shape {shape}, got {kind} of shape {np.shape(value)}")
    if not _check.is_traced(value) and np.size(value) and (np.min(value) < 0 or np.max(value) >= number):
        raise ValueError(f"{name} must be in [0, {number}), got {value!r}")


def _counts(value: Any) -> Any:
    """The checked histogram."""
    counts = _check.vector("counts", value)
    if not _check.is_traced(counts):
        # n is public, so this error may tell it.
        n = float(np.sum(np.floor(np.fmax(np.asarray(counts, np.float64), 0.0))))
        if not 1 <= n <= _MAX_RECORDS:
            raise ValueError(f"counts must sum to 1 to 2^29 records, got {n:g}")
    return counts


def _numerators(queries: Any) -> tuple[Any, int, Any]:
    """Queries as integers (or booleans), their denominator, and whether they are in [0, 1]."""
    if isinstance(queries, workload.Workload):
        return queries.numerators, queries.denominator, True
    queries = _check.array("queries", queries)
    if queries.dtype == np.bool_:
        return queries, 1, True
    _check.real_dtype("queries", queries)
    xp = np if isinstance(queries, np.ndarray) else jnp
    valid = xp.all((queries >= 0) & (queries <= 1))
    if not _check.is_traced(valid) and not valid:
        raise ValueError(f"queries must be in [0, 1], got values from {xp.min(queries)} to {xp.max(queries)}")
    if lattice.is_integer(queries.dtype):
        return queries != 0, 1, valid
    return _on_grid(queries), workload.GRID, valid


@jax.jit
def _on_grid(queries: Any) -> jax.Array:
    return jnp.round(queries.astype(jnp.float32) * workload.GRID).astype(jnp.int32)


@float64(static_argnames=("share", "rounds"))
def _prepare(counts: Any, matrix: Any, valid: Any, epsilon: Any, *, share: float, rounds: int) -> tuple[jax.Array, ...]:
    """True answers in units of 1 / denominator, n, and the budgets, NaN for bad input."""
    counts = workload.clean_counts(counts)
    n = jnp.sum(counts)
    valid = valid & (n >= 1.0) & (n <= _MAX_RECORDS)
    epsilon = jnp.where(valid, epsilon.astype(jnp.float64), jnp.nan)
    return workload.apply(matrix, counts), n, *_shares(epsilon, share, rounds)


@float64(static_argnames=("fine",))
def _scores(matrix: Any, truth: Any, n: Any, log_weights: Any, *, fine: int) -> jax.Array:
    """|n q(A) - n q(B)| in units of 1 / (denominator fine): whole numbers below 2^53, so that nothing is rounded.

    The model's answers are public once the transcript is; single precision does for them.
    """
    weights = jax.nn.softmax(log_weights).astype(jnp.float32)
    model = jnp.rint(n * fine * workload.apply(matrix, weights).astype(jnp.float64))
    return jnp.abs(truth * fine - model)


@float64
def _fit(
    matrix: Any, log_weights: Any, queries: Any, answers: Any, last: Any, denominator: Any, replays: Any
) -> jax.Array:
    """Log-weights after the newest measurement, number `last`, and `replays` passes over all of them."""
    denominator = denominator.astype(jnp.float64)

    def update(i: jax.Array, log_weights: jax.Array) -> jax.Array:
        which = jnp.where(i == 0, last, (i - 1) % (last + 1))
        query = jax.lax.dynamic_index_in_dim(matrix, jnp.maximum(queries[which], 0), keepdims=False)
        query = query.astype(jnp.float64) / denominator
        weights = jnp.exp(log_weights - jnp.max(log_weights))
        model = jnp.sum(query * weights) / jnp.sum(weights)
        return log_weights + query * ((jnp.clip(answers[which], 0.0, 1.0) - model) / 2.0)

    return jax.lax.fori_loop(0, 1 + replays * (last + 1), update, log_weights)


def _selection(problem: _Problem, log_weights: Any) -> DiscreteLaw:
    fine = 1 if problem.denominator == workload.GRID else _FINE
    scores = _scores(problem.matrix, problem.truth, problem.n, log_weights, fine=fine)
    return ExponentialMechanism(float(problem.denominator * fine), problem.select).law(scores)


def _measurement(problem: _Problem, index: Any) -> LatticeLaw:
    count = _at(problem.truth, index, float(problem.denominator))
    return Laplace(1.0, problem.measure).law(count.astype(jnp.int32) if problem.denominator == 1 else count)


@float64
def _at(truth: Any, index: Any, denominator: Any) -> jax.Array:
    return truth[jnp.maximum(index, 0)] / denominator


@float64
def _average(count: Any, n: Any) -> jax.Array:
    failed = count == jnp.iinfo(jnp.int32).min
    return jnp.where(failed, jnp.nan, count.astype(jnp.float64) / n)


@float64
def _scaled(log_weights: Any, n: Any) -> jax.Array:
    return jax.nn.softmax(log_weights) * n


@functools.partial(jax.jit, static_argnames=("rounds", "replays"))
def _sample(key: jax.Array, problem: _Problem, *, rounds: int, replays: int) -> SyntheticData:
    def step(state: Any, t: jax.Array) -> tuple[Any, None]:
        log_weights, queries, answers = state
        index = _selection(problem, log_weights).sample(jax.random.fold_in(key, 2 * t))
        count = _measurement(problem, index).sample(jax.random.fold_in(key, 2 * t + 1))
        queries = queries.at[t].set(index)
        answers = answers.at[t].set(_average(count, problem.n).astype(jnp.float32))
        return (_after(problem, log_weights, queries, answers, t, replays), queries, answers), None

    start = _start(problem, jax.random.key_data(key), rounds)
    (log_weights, queries, answers), _ = jax.lax.scan(step, start, jnp.arange(rounds, dtype=jnp.int32))
    # The last weights, not the average over the rounds of the theorem: its errors were up to 40% larger.
    weights = _scaled(log_weights, problem.n).astype(jnp.float32)
    failed = jnp.any(queries < 0) | jnp.any(jnp.isnan(answers))
    bad = SyntheticData(jnp.float32(jnp.nan), jnp.int32(-1), jnp.float32(jnp.nan))
    return jax.tree.map(lambda *pair: jnp.where(failed, *pair), bad, SyntheticData(weights, queries, answers))


@functools.partial(jax.jit, static_argnames=("replays",))
def _replay(problem: _Problem, queries: Any, answers: Any, *, replays: int) -> jax.Array:
    """Log-weights after the rounds of a transcript."""

    def step(log_weights: jax.Array, t: jax.Array) -> tuple[jax.Array, None]:
        return _after(problem, log_weights, queries, answers, t, replays), None

    start, _, _ = _start(problem, answers, 0)
    if len(queries) == 0:
        return start
    return jax.lax.scan(step, start, jnp.arange(len(queries), dtype=jnp.int32))[0]


def _start(problem: _Problem, like: jax.Array, rounds: int) -> tuple[jax.Array, jax.Array, jax.Array]:
    """Log-weights of the uniform law and an empty transcript."""
    # Zeros that vary over the devices of a shard_map with whatever the rounds depend on.
    zero = sum(jnp.sum(jnp.zeros_like(part, jnp.float32)) for part in (like, problem.truth, problem.select))
    zeros = jnp.zeros_like(problem.matrix[0], jnp.float32) + zero
    transcript = jnp.zeros(rounds, jnp.float32) + jnp.sum(zeros)
    return zeros, transcript.astype(jnp.int32), transcript


def _after(problem: _Problem, log_weights: Any, queries: Any, answers: Any, t: Any, replays: int) -> jax.Array:
    log_weights = _fit(problem.matrix, log_weights, queries, answers, t, problem.denominator, replays)
    return log_weights.astype(jnp.float32)
