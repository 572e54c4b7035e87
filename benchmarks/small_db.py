"""SmallDB by number of candidates: normaliser and releases, against NumPy with the same halves.

Both sum up exp(-epsilon score / 2) over all multisets of 12 records as pairs of a prefix over one half of the
universe and a suffix over the other, with integer scores, and then release by prefix and suffix. NumPy takes blocks
of prefixes that fit into its cache, and computes the rows of chosen prefixes once more, each once: fast where the law
sits on few prefixes (2,000 records at epsilon 1), slow where it is spread out (200 records).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import jax
import numpy as np

import jaxdp
from benchmarks.harness import Contestant, Size, agree, check, race
from jaxdp.mechanisms import _multisets

_SIZE, _EPSILON, _QUERIES = 12, 1.0, 64


def run(size: Size) -> Iterator[dict[str, Any]]:
    releases = size.of(100_000, 10_000)
    for universe, records in ((8, 200),) if size.quick else ((8, 2000), (12, 2000), (16, 2000), (16, 200)):
        rng = np.random.default_rng(universe)
        workload = jaxdp.Workload(rng.random((_QUERIES, universe)) < 0.5)
        counts = rng.multinomial(records, rng.dirichlet(np.ones(universe))).astype(np.int32)
        mechanism, keys = jaxdp.SmallDB(_EPSILON, size=_SIZE), jax.random.split(jax.random.key(0), releases)
        # Both integers that hold all scores: 12 times 2,000 fits into 16 bits.
        others = {dtype.__name__: _NumPy(counts, workload, dtype) for dtype in (np.int16, np.int32)}
        numpy = others["int16"]

        def ours(mechanism=mechanism, summary=(counts, workload), keys=keys) -> Any:
            return jax.vmap(mechanism.enumerate(summary).sample)(keys)

        candidates = _multisets.number(workload.num_profiles, _SIZE)
        contestants = [
            Contestant("jaxdp, enumerate and vmap(sample)", ours, at_least=4.0 if universe == 16 else None),
            *(
                Contestant(
                    f"NumPy, the same halves, {name}",
                    lambda numpy=numpy: numpy.releases(numpy.log_totals(), releases),
                    reference=True,
                )
                for name, numpy in others.items()
            ),
        ]
        title = f"SmallDB, {candidates:,} candidates, {_QUERIES} queries, {records:,} records, {releases:,} releases"
        facts = {"universe": universe, "candidates": candidates, "queries": _QUERIES, "dtype": "int16"}
        yield from race(title, contestants, size=size, turns=7, unit="enumeration", **facts)
        enumeration, totals = mechanism.enumerate((counts, workload)), numpy.log_totals()
        normalizer = np.logaddexp.reduce(totals) + numpy.log_constant
        yield agree(f"{title}: normaliser", enumeration.log_normalizer, normalizer, within=1e-10)
        if records == 200:  # Else all releases fall into one bin.
            yield from _checks(title, enumeration, numpy, totals, np.asarray(ours()), releases)


def _checks(
    title: str, enumeration: Any, numpy: Any, totals: np.ndarray, drawn: np.ndarray, releases: int
) -> Iterator[dict[str, Any]]:
    """Records in the first half of the profiles: its law from NumPy's totals."""
    p = np.exp(totals - np.logaddexp.reduce(totals))
    law = np.log(np.maximum(np.bincount(numpy.sizes[0], weights=p, minlength=_SIZE + 1), 1e-300))
    first = np.isin(enumeration.workload.profiles, np.arange(numpy.split))
    for name, histograms in (("jaxdp", drawn), ("NumPy", numpy.releases(totals, releases))):
        counts = np.bincount(histograms[:, first].sum(axis=1), minlength=_SIZE + 1)
        yield check(f"{title}: {name}", counts, law)
    yield check(f"{title}: jaxdp, shifted by one", np.roll(counts, 1), law, differ=True)


class _NumPy:
    """Prefixes and suffixes, scores by broadcasting one query at a time."""

    def __init__(self, counts: np.ndarray, workload: jaxdp.Workload, dtype: Any):
        k = workload.num_profiles
        self.split, self.workload, n = k // 2, workload, int(counts.sum())
        many = workload.multiplicities
        halves = [_multisets.half(tuple(part.tolist()), _SIZE, 1) for part in (many[: self.split], many[self.split :])]
        numerators = workload.profile_numerators.astype(np.int32)
        target = _SIZE * (numerators @ np.bincount(workload.profiles, weights=counts, minlength=k)).astype(np.int32)
        tables = [half.table for half in halves]
        self.target, self.n, self.dtype = target, n, dtype
        # What does not depend on the data is made ahead, as jaxdp keeps it from one enumeration to the next.
        sums = tables[0] @ numerators[:, : self.split].T, (tables[1] @ numerators[:, self.split :].T).T
        self.sums = tuple(np.ascontiguousarray(part, dtype) for part in sums)
        self._scores()
        self.base, self.tables = [half.log_base for half in halves], tables
        self.sizes = [table.sum(axis=1) for table in tables]
        self.factor = _EPSILON / (2.0 * _SIZE)
        self.log_constant = float(np.sum(np.log(np.arange(1, _SIZE + 1))) - _SIZE * np.log(workload.universe_size))
        self.rng = np.random.default_rng(0)

    def _scores(self) -> None:
        n = self.dtype(self.n)
        self.prefixes, self.suffixes = self.target.astype(self.dtype) - n * self.sums[0], n * self.sums[1]

    def _log_weights(self, rows: np.ndarray) -> np.ndarray:
        """(rows, suffixes) for prefixes of one size."""
        fitting = np.flatnonzero(self.sizes[1] == _SIZE - self.sizes[0][rows[0]])
        low, high = fitting[0], fitting[-1] + 1
        worst = np.zeros((len(rows), high - low), self.dtype)
        for q in range(len(self.suffixes)):
            difference = self.prefixes[rows, q][:, None] - self.suffixes[q, low:high][None]
            np.maximum(worst, np.abs(difference, out=difference), out=worst)
        return self.base[1][low:high] - self.factor * worst

    def log_totals(self) -> np.ndarray:
        self._scores()
        totals = np.empty(len(self.prefixes))
        for size in range(_SIZE + 1):
            rows = np.flatnonzero(self.sizes[0] == size)
            each = max(1, 2**16 // max(1, np.sum(self.sizes[1] == _SIZE - size)))
            for start in range(0, len(rows), each):
                block = rows[start : start + each]
                weights = self._log_weights(block)
                top = weights.max(axis=1, keepdims=True)
                totals[block] = np.log(np.exp(weights - top).sum(axis=1)) + top[:, 0] + self.base[0][block]
        return totals

    def releases(self, totals: np.ndarray, number: int) -> np.ndarray:
        p = np.exp(totals - totals.max())
        rows, times = np.unique(self.rng.choice(len(p), number, p=p / p.sum()), return_counts=True)
        parts = []
        for row, many in zip(rows, times, strict=True):
            weights = self._log_weights(np.array([row]))[0]
            q = np.exp(weights - weights.max())
            first = np.flatnonzero(self.sizes[1] == _SIZE - self.sizes[0][row])[0]
            suffix = first + self.rng.choice(len(q), many, p=q / q.sum())
            part = np.concatenate([np.tile(self.tables[0][row], (many, 1)), self.tables[1][suffix]], axis=1)
            parts.append(part)
        profiles = np.concatenate(parts)
        if len(self.workload.multiplicities) < self.workload.universe_size:
            raise NotImplementedError("the benchmark's universes have no profile of several elements")
        return profiles[:, self.workload.profiles]
