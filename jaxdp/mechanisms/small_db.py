"""SmallDB: the exponential mechanism over all databases of a given small size."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from scipy.special import gammaln

from jaxdp import _check
from jaxdp._float64 import float64
from jaxdp._mechanism import mechanism, static
from jaxdp.laws import DiscreteLaw
from jaxdp.mechanisms import _enumeration, _multisets
from jaxdp.types import Privacy
from jaxdp.workload import Workload, as_workload, clean_counts

MAX_LAW = 2**22
"""Numbers in all the outcomes of a law."""


def _examples(epsilon: float) -> dict[str, Any]:
    return {"SmallDB": SmallDB(epsilon, size=3)}


def _neighbours(record: Any, rng: np.random.Generator) -> tuple[Any, Any]:
    """Small databases that differ in one record; the last two elements share a profile in the first workload."""
    workload = (Workload([[0, 1, 1, 1], [1, 0, 1, 1]]), Workload([[0.0, 0.5, 1.0], [0.3, 0.9, 0.1]]))[rng.integers(2)]
    size = workload.universe_size
    records = rng.integers(size, size=rng.integers(1, 8))
    changed = records.copy()
    changed[0] = rng.integers(size)
    return tuple((np.bincount(part, minlength=size).astype(np.int32), workload) for part in (records, changed))


@mechanism(examples=_examples, neighbours=_neighbours)
class SmallDB:
    """Releases a synthetic database of m records that answers all queries of a workload at once.

    Among all S in X^m, one is chosen with probability proportional to exp(-epsilon n max_q |q(S) - q(U)| / 2), where
    U is the database of n records and q(S) the average of q over S. Exact: the tuples are summed up as multisets of
    profiles (elements that no query tells apart), with multinomial base measure.

    Args:
        epsilon: Total privacy budget of one release. The source's parameter is half of it.
        size: Static; m, the number of records of the release. See `size_for`, `best_accuracy` and
            `largest_size`. Each new size costs some seconds of compilation.

    Guarantee:
        epsilon-DP. Summary contract: the histograms of neighbours have the same number of records, of which one is
        replaced (two counts change by one); the workload is public. Source: Blum, Ligett, Roth (2008).

    Law:
        DiscreteLaw over the histograms of m records, if they have at most 2^22 numbers in all; `enumerate` has the
        normaliser and probabilities of single histograms for up to 2^32 multisets of profiles.

    Floating point:
        Scores are exact integers (queries as multiples of a common denominator, see Workload): int16 or int32 where
        the counts are concrete and m n denominator is below 2^15 or 2^31, else float64, exact below 2^53. Releases
        invert laws cut to 63-bit integers; a record's element within its profile is uniform to relative precision
        |X| 2^-64.

    Example:
        A synthetic database for a table of three yes/no attributes, and all pairs of them as queries:

        >>> rng = np.random.default_rng(0)
        >>> table = rng.random((5000, 3)) < np.array([0.2, 0.5, 0.7])
        >>> universe = jaxdp.binary_universe(3)
        >>> pairs = [lambda x, i=i, j=j: x[i] & x[j] for i, j in ((0, 1), (0, 2), (1, 2))]
        >>> workload = jaxdp.Workload.from_functions(pairs, universe)
        >>> counts = jaxdp.histogram(table, universe)
        >>> synthetic = jaxdp.SmallDB(1.0, size=20).sample(jax.random.key(0), (counts, workload))
        >>> synthetic.shape, int(synthetic.sum())
        ((8,), 20)
        >>> bool(jaxdp.max_error(synthetic, counts, workload) < 0.1)
        True
    """

    epsilon: Any
    size: int = static()

    def sample(self, key: jax.Array, summary: Any) -> jax.Array:
        """One release.

        Args:
            key: One typed key, consumed.
            summary: Pair of counts (|X|,), the histogram of the data, and a Workload (or a concrete matrix of
                queries). Counts are rounded down; NaN and negative ones count as 0.

        Returns:
            (|X|,) int32 counts that sum to `size`; -1 throughout for bad traced parameters.

        Raises:
            ValueError: For bad concrete parameters or shapes, and where there are too many candidates.
        """
        # A release by one of several processes must not wait for the others.
        return self.enumerate(summary, devices=jax.local_devices()).sample(key)

    def enumerate(
        self,
        summary: Any,
        *,
        progress: Callable[[float], Any] | None = None,
        devices: Sequence[Any] | None = None,
    ) -> _enumeration.Enumeration:
        """All candidates, summed up: `jax.vmap(enumeration.sample)(keys)` makes many releases for one enumeration.

        Memory grows with the number of halves of candidates, and time with the candidates times |Q|. Outside of jit
        and vmap the candidates are spread over devices, all of which have the halves; the result, and so every
        release, is the same bit for bit whatever their number, and bound to none of them: releases are made where
        their keys are. With several processes all have to make the same call, and all get the same result.

        Args:
            summary: As for `sample`.
            progress: Called with the share of the work done, from 0 to 1, outside of jit. By default a terminal shows
                a bar where it takes more than some seconds.
            devices: Devices that share the work outside of jit; by default all of `jax.devices()`.
        """
        self._check()
        counts, workload = _split(summary)
        return _enumeration.enumerate_candidates(counts, workload, self.epsilon, self.size, progress, devices)

    def law(self, summary: Any) -> DiscreteLaw:
        """The exact law of `sample(key, summary)`, outcome by outcome."""
        self._check()
        counts, workload = _split(summary)
        k = workload.universe_size
        numbers = _multisets.number(k, self.size) * k
        if numbers > MAX_LAW:
            raise ValueError(
                f"size must leave a law of at most {MAX_LAW:,} numbers, got {numbers:.4g} in all histograms of "
                f"{self.size} records over {k} elements: use enumerate(summary) instead"
            )
        _enumeration.largest_sum(counts, workload, self.size)
        outcomes = _multisets.counts_up_to(k, self.size)[-_multisets.number(k, self.size) :]
        log_base = -np.sum(gammaln(outcomes + 1.0), axis=1)
        numerators = np.asarray(workload.numerators)
        scale = dict(size=self.size, denominator=workload.denominator)
        log_p = _log_p(counts, outcomes, log_base, numerators, self.epsilon, **scale)
        return DiscreteLaw(log_p, outcomes)

    def privacy(self) -> Privacy:
        """The guarantee."""
        self._check()
        return Privacy(self.epsilon, 0.0, self.epsilon * self.epsilon / 8.0)

    def worst_case(self) -> tuple[Any, Any]:
        """Two elements and one query: n equal records, so many that a release that differs is rare, and one changed."""
        self._check()
        if _check.is_traced(self.epsilon):
            raise ValueError("epsilon must be concrete: the number of records depends on it")
        each = math.ceil(2.0 * (5.0 + self.epsilon + math.log(self.size)) / self.epsilon)
        n = min(self.size * each, 2**30)
        workload = Workload([[0, 1]])
        return (np.array([0, n], np.int32), workload), (np.array([1, n - 1], np.int32), workload)

    def error_bound(self, universe_size: int, num_queries: int, num_records: int, failure: float) -> float:
        """What the largest error of all queries exceeds with probability `failure` at most, on any database.

        sqrt(log(2 |Q|) / (2 m)) + (m log|X| + log(1 / failure)) / (n epsilon / 2). It holds for all data and all
        queries, and is often several times the error that occurs: see `Enumeration.expected_error`.

        Args:
            universe_size: |X|.
            num_queries: |Q|.
            num_records: n.
            failure: Probability in (0, 1).

        Example:
            >>> round(jaxdp.SmallDB(1.0, size=10).error_bound(16, 64, 10_000, 0.05), 3)
            0.499
        """
        self._check()
        return error_bound(self.epsilon, self.size, universe_size, num_queries, num_records, failure)

    @staticmethod
    def size_for(accuracy: float, num_queries: int, *, rule: str = "hoeffding") -> int:
        """A size at which some database answers all queries to within `accuracy`, whatever the data.

        Args:
            accuracy: In (0, 1).
            num_queries: |Q|.
            rule: "hoeffding", floor(log(2 |Q|) / (2 accuracy^2)) + 1; or the larger one of the source, "source",
                ceil(log|Q| / accuracy^2), which needs |Q| >= 3.

        Example:
            >>> jaxdp.SmallDB.size_for(0.1, 64), jaxdp.SmallDB.size_for(0.1, 64, rule="source")
            (243, 416)
        """
        accuracy = _check.positive("accuracy", accuracy)
        if not 1e-9 <= accuracy < 1.0:
            raise ValueError(f"accuracy must be in [1e-9, 1), got {accuracy!r}")
        _check.count("num_queries", num_queries)
        _check.choice("rule", rule, ("hoeffding", "source"))
        if rule == "hoeffding":
            return math.floor(math.log(2.0 * num_queries) / (2.0 * accuracy**2)) + 1
        if num_queries < 3:
            raise ValueError(f"num_queries must be at least 3 for the source's rule, got {num_queries!r}")
        return math.ceil(math.log(num_queries) / accuracy**2)

    @staticmethod
    def best_accuracy(
        epsilon: float, universe_size: int, num_queries: int, num_records: int, failure: float
    ) -> tuple[float, int]:
        """The least `error_bound` over all sizes, and the size that has it, which may be too large to enumerate.

        Args:
            epsilon: Total privacy budget.
            universe_size: |X|, at least 2.
            num_queries: |Q|.
            num_records: n.
            failure: Probability in (0, 1).

        Example:
            >>> bound, size = jaxdp.SmallDB.best_accuracy(1.0, 16, 64, 10_000, 0.05)
            >>> round(bound, 3), size
            (0.209, 125)
        """
        _check.positive("epsilon", epsilon)
        rest = universe_size, num_queries, num_records, failure
        error_bound(epsilon, 1, *rest)
        if universe_size < 2:
            raise ValueError(f"universe_size must be at least 2 for a best size, got {universe_size!r}")
        # The bound is a / sqrt(m) + b m + c.
        a, b = math.sqrt(math.log(2.0 * num_queries) / 2.0), 2.0 * math.log(universe_size) / (epsilon * num_records)
        size = max(1, math.floor(min((a / (2.0 * max(b, 1e-150))) ** (2.0 / 3.0), 2.0**61)))
        return min((error_bound(epsilon, m, *rest), m) for m in (size, size + 1))

    @staticmethod
    def largest_size(workload: Any) -> int:
        """The largest size whose candidates can be enumerated.

        Example:
            >>> jaxdp.SmallDB.largest_size(np.eye(16))
            20
        """
        workload, size = as_workload(workload), 0
        for step in (2**power for power in reversed(range(17))):
            try:
                _multisets.check_number(workload.num_profiles, size + step, workload.num_queries)
                size += step
            except ValueError:
                continue
        return size

    def _check(self) -> None:
        _check.positive("epsilon", self.epsilon)
        _check.count("size", self.size)


def error_bound(
    epsilon: float, size: int, universe_size: int, num_queries: int, num_records: int, failure: float
) -> float:
    """See `SmallDB.error_bound`."""
    for name, value in (("universe_size", universe_size), ("num_queries", num_queries), ("num_records", num_records)):
        _check.count(name, value)
    if not 0.0 < _check.scalar("failure", failure) < 1.0:
        raise ValueError(f"failure must be in (0, 1), got {failure!r}")
    chosen = (size * math.log(universe_size) - math.log(failure)) / (num_records * epsilon / 2.0)
    return math.sqrt(math.log(2.0 * num_queries) / (2.0 * size)) + chosen


def _split(summary: Any) -> tuple[Any, Workload]:
    """Counts and workload of a summary, checked."""
    counts, queries = _check.pair(summary, "(counts, workload)")
    counts, workload = _check.vector("counts", counts), as_workload(queries)
    if np.shape(counts)[0] != workload.universe_size:
        raise ValueError(f"counts must have shape ({workload.universe_size},), got {np.shape(counts)}")
    return counts, workload


@float64(static_argnames=("size", "denominator"))
def _log_p(
    counts: Any, outcomes: Any, log_base: Any, numerators: Any, epsilon: Any, *, size: int, denominator: int
) -> jax.Array:
    counts, outcomes = clean_counts(counts), outcomes.astype(jnp.float64)
    numerators = numerators.astype(jnp.float64)
    target, n = float(size) * (numerators @ counts), jnp.sum(counts)

    def query(i: jax.Array, worst: jax.Array) -> jax.Array:
        return jnp.maximum(worst, jnp.abs(target[i] - n * (outcomes @ numerators[i])))

    worst = jax.lax.fori_loop(0, len(target), query, jnp.zeros_like(outcomes[:, 0]))
    return jax.nn.log_softmax(log_base - _enumeration.factor(epsilon, float(size * denominator), n) * worst)
