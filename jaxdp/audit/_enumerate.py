"""Two exact output distributions as counts of random words, compared: in sorted ranges of codes, in bounded memory."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import numpy as np

from jaxdp.audit import _codes

__all__ = ["Comparison", "compare"]

_NAN, _INFINITE = np.iinfo(np.int64).max, np.iinfo(np.int64).max - 1
# Whole numbers up to this are doubles, so that cells are not merged.
_LARGEST = 2.0**62
_SMALL = 2**22

Counted = tuple[np.ndarray, np.ndarray]


class Comparison:
    """How often two samplers give each output, kept as the pairs of counts that occur and how many outputs have them.

    With it every divergence of the two distributions is known, and it stays small however many outputs there are.
    """

    def __init__(self) -> None:
        self.pairs = np.zeros((0, 3), np.int64)

    def add(self, one: Counted, other: Counted) -> None:
        """Adds the outputs (sorted codes, counts) of a range, on both sides."""
        there = np.searchsorted(other[0], one[0])
        inside = np.minimum(there, max(len(other[0]) - 1, 0))
        same = (there < len(other[0])) & (other[0][inside] == one[0] if len(other[0]) else False)
        matched = np.zeros(len(one[0]), np.int64)
        matched[same] = other[1][there[same]]
        alone = np.ones(len(other[0]), bool)
        alone[there[same]] = False
        left = np.concatenate([one[1], np.zeros(int(alone.sum()), np.int64)])
        right = np.concatenate([matched, other[1][alone]])
        found = _pairs(left, right, np.ones(len(left), np.int64))
        self.pairs = _pairs(*np.concatenate([self.pairs, found]).T)


def compare(
    streams: tuple[Callable[[], Iterable[np.ndarray]], Callable[[], Iterable[np.ndarray]]],
    dtype: np.dtype,
    granularities: tuple[float, ...],
    limit: int,
) -> list[Comparison]:
    """Compares the codes that two streams yield, as they are and rounded to lattices.

    Each pass over the streams keeps the `limit` smallest different codes that have not been dealt with, so that memory
    is about 100 bytes times `limit`. One pass is enough for samplers with fewer different outputs.

    Args:
        streams: Functions that yield all codes of one side in chunks; called once a pass.
        dtype: What the codes decode to.
        granularities: Steps of the lattices.
        limit: Different codes of a side in memory.

    Returns:
        Comparisons of the codes themselves, then of the multiples of each granularity.
    """
    bottom, top = np.iinfo(np.int64).min, np.iinfo(np.int64).max
    plain, lattices = Comparison(), [_Lattice(step, dtype) for step in granularities]
    low = bottom
    while True:
        one, high = _tally(streams[0](), low, top, limit)
        other, high = _tally(streams[1](), low, high, limit)
        one = tuple(part[one[0] <= high] for part in one)
        plain.add(one, other)
        for lattice in lattices:
            lattice.add(one, other, last=high == top)
        if high == top:
            return [plain, *(lattice.comparison for lattice in lattices)]
        low = high + 1


class _Lattice:
    """Comparison of rounded outputs: the order is kept, so only the last cell of a range may go on in the next."""

    def __init__(self, step: float, dtype: np.dtype):
        self.step, self.dtype, self.comparison = step, dtype, Comparison()
        self.rest = [(np.zeros(0, np.int64), np.zeros(0, np.int64))] * 2

    def add(self, one: Counted, other: Counted, last: bool) -> None:
        sides = []
        for (cells, counts), (codes, more) in zip(self.rest, (one, other), strict=True):
            cells = np.concatenate([cells, self._cells(codes)])
            sides.append(_sum_equal(cells, np.concatenate([counts, more])))
        ends = [cells[-1] for cells, _ in sides if len(cells)]
        final = max(ends, default=0)
        done = [cells <= final if last else cells < final for cells, _ in sides]
        self.rest = [(cells[~keep], counts[~keep]) for (cells, counts), keep in zip(sides, done, strict=True)]
        self.comparison.add(*((cells[keep], counts[keep]) for (cells, counts), keep in zip(sides, done, strict=True)))

    def _cells(self, codes: np.ndarray) -> np.ndarray:
        """The nearest multiple of the step, ties to even, as a whole number; infinities and NaN apart."""
        values = _codes.decode(codes, self.dtype).astype(np.float64)
        steps = np.rint(np.where(np.isfinite(values), values, 0.0) / self.step)
        cells = np.clip(steps, -_LARGEST, _LARGEST).astype(np.int64)
        cells = np.where(np.isinf(values), np.where(values > 0.0, _INFINITE, -_INFINITE), cells)
        return np.where(np.isnan(values), _NAN, cells)


def _tally(stream: Iterable[np.ndarray], low: int, high: int, limit: int) -> tuple[Counted, int]:
    """The smallest different codes from low on, at most `limit`, with their counts; and up to where they are all."""
    held: Counted = (np.zeros(0, np.int64), np.zeros(0, np.int64))
    waiting: list[Any] = []

    def merge() -> tuple[Counted, int]:
        counted = [_count(np.concatenate(waiting))] if waiting else []
        values, counts = (np.concatenate(parts) for parts in zip(held, *counted, strict=True))
        order = np.argsort(values, kind="stable")  # merges sorted runs
        values, counts = _sum_equal(values[order], counts[order])
        if len(values) <= limit:
            return (values, counts), high
        return (values[:limit], counts[:limit]), int(values[limit - 1])

    for codes in stream:
        if low > np.iinfo(np.int64).min or high < np.iinfo(np.int64).max:
            codes = codes[(codes >= low) & (codes <= high)]
        waiting.append(codes)
        if sum(map(len, waiting)) >= limit:
            held, high = merge()
            waiting.clear()
    return merge()


def _count(codes: np.ndarray) -> Counted:
    """Sorted different codes and their counts."""
    if not len(codes):
        return np.zeros(0, np.int64), np.zeros(0, np.int64)
    lowest, highest = int(codes.min()), int(codes.max())
    if highest - lowest < len(codes):  # few outputs: much faster than sorting
        counts = np.bincount(codes - codes.dtype.type(lowest))
        places = np.flatnonzero(counts)
        return places + lowest, counts[places]
    values, counts = np.unique(codes, return_counts=True)
    return values.astype(np.int64), counts.astype(np.int64)


def _sum_equal(values: np.ndarray, counts: np.ndarray) -> Counted:
    """Sorted values, each once, and the sums of their counts."""
    if not len(values):
        return values, counts
    starts = np.flatnonzero(np.concatenate([[True], values[1:] != values[:-1]]))
    return values[starts], np.add.reduceat(counts, starts)


def _pairs(one: np.ndarray, other: np.ndarray, times: np.ndarray) -> np.ndarray:
    """Rows (count, other count, how often), each pair of counts once."""
    rows, columns = int(one.max(initial=0)) + 1, int(other.max(initial=0)) + 1
    if rows * columns <= _SMALL:  # far faster than sorting
        total = np.bincount(one * columns + other, weights=times, minlength=rows * columns)
        index = np.flatnonzero(total)
        return np.stack([index // columns, index % columns, total[index].astype(np.int64)], axis=1)
    first, at = np.unique(one, return_inverse=True)
    second, across = np.unique(other, return_inverse=True)
    index, place = np.unique(at * len(second) + across, return_inverse=True)
    total = np.zeros(len(index), np.int64)
    np.add.at(total, place, times)
    return np.stack([first[index // len(second)], second[index % len(second)], total], axis=1)
