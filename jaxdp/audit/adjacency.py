"""Which inputs are neighbours: relations between data sets, counts and query vectors, as sets of pairs to search.

Each relation draws random pairs, varies one entry of a pair, and moves any pair to one that is in the relation. Entries
lie in a domain [lower, upper]; arrays are float64, or int32 where `integer` is set. Drawn numbers are whole multiples
of a power of two, so that they survive float32: Monte-Carlo audits compile in what does not, anew for each pair.
"""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import numpy as np

__all__ = ["AddRemove", "Adjacency", "ChangeEvery", "ChangeOne", "ReplaceOne", "patterns"]

Pair = tuple[np.ndarray, np.ndarray]


@dataclasses.dataclass(frozen=True)
class Adjacency:
    """What all relations share; use one of the subclasses.

    Attributes:
        size: Entries of an input.
        lower: Smallest entry.
        upper: Largest entry.
        integer: Whether entries are whole numbers.

    Raises:
        ValueError: size is not a positive integer, or the domain is empty or infinite.
    """

    size: int
    lower: float
    upper: float
    integer: bool = False

    def __post_init__(self) -> None:
        if isinstance(self.size, bool) or not isinstance(self.size, int | np.integer) or self.size < 1:
            raise ValueError(f"size must be a positive integer, got {self.size!r}")
        if not (math.isfinite(self.lower) and math.isfinite(self.upper) and self.lower < self.upper):
            raise ValueError(f"lower and upper must be finite and lower < upper, got {self.lower!r} and {self.upper!r}")

    def random(self, rng: np.random.Generator) -> Pair:
        """A random pair in the relation; each entry is an end of the domain with probability 1/2."""
        one, other = (self._values(rng, self.size) for _ in range(2))
        # Sparse differences as well as dense ones.
        same = rng.random(self.size) < rng.random()
        return self.project(one, np.where(same, one, other), int(rng.integers(self.size)))

    def vary(self, one: np.ndarray, other: np.ndarray, rng: np.random.Generator) -> Pair:
        """The pair with one entry changed on one side or on both, and moved into the relation."""
        pair, place = [one.copy(), other.copy()], int(rng.integers(self.size))
        if rng.random() < 0.5:
            new = self._values(rng, 2)
        else:
            new = np.array([one[place], other[place]]) + rng.choice([-1.0, 0.0, 1.0], 2) * self._step(rng)
        choice = rng.integers(4)
        if choice == 3:  # as neighbours of each other
            new[1] = new[0]
        for side in range(2):
            if choice in (side, 2, 3):
                pair[side][place] = np.clip(new[side], self.lower, self.upper)
        if rng.random() < 0.1:
            pair.reverse()
        return self.project(*pair, place if choice < 3 else None)

    def project(self, one: np.ndarray, other: np.ndarray, place: int | None = None) -> Pair:
        """A pair in the relation close to the given one.

        Args:
            one: (size,) entries.
            other: (size,) entries of the neighbour.
            place: The entry that may differ where only one may; by default the one that differs most.
        """
        one, other = (np.clip(np.asarray(each, np.float64), self.lower, self.upper) for each in (one, other))
        if self.integer:
            one, other = np.rint(one), np.rint(other)
        other = self._relate(one, other, place)
        dtype = np.int32 if self.integer else np.float64
        return one.astype(dtype), other.astype(dtype)

    def snap(self, values: np.ndarray) -> np.ndarray:
        """The nearest multiples of the unit, 2^-16 of the domain or less; whole numbers where entries are."""
        unit = 1.0 if self.integer else 2.0 ** min(math.floor(math.log2(self.upper - self.lower)) - 16, 0)
        return np.rint(values / unit) * unit

    def holds(self, one: np.ndarray, other: np.ndarray) -> bool:
        """Whether a pair is in the relation."""
        return all(np.array_equal(a, b) for a, b in zip((one, other), self.project(one, other), strict=True))

    def _relate(self, one: np.ndarray, other: np.ndarray, place: int | None) -> np.ndarray:
        raise NotImplementedError

    def _only(self, one: np.ndarray, other: np.ndarray, place: int | None) -> np.ndarray:
        place = int(np.argmax(np.abs(one - other))) if place is None else place
        return np.where(np.arange(self.size) == place, other, one)

    def _step(self, rng: np.random.Generator) -> float:
        size = 10.0 ** rng.uniform(-2.0, 0.0) * (self.upper - self.lower)
        return max(float(self.snap(size)), float(self.integer))

    def _values(self, rng: np.random.Generator, n: int) -> np.ndarray:
        inside, end = self.snap(rng.uniform(self.lower, self.upper, n)), rng.choice([self.lower, self.upper], n)
        return np.where(rng.random(n) < 0.5, inside, end)


@dataclasses.dataclass(frozen=True)
class ReplaceOne(Adjacency):
    """Data sets of which one record is another.

    Attributes:
        width: Numbers in a record; entries width i to width (i + 1) - 1 are those of record i.

    Example:
        >>> ReplaceOne(3, 0.0, 1.0).holds(np.array([0.0, 1.0, 0.5]), np.array([1.0, 1.0, 0.5]))
        True
    """

    width: int = 1

    def __post_init__(self) -> None:
        super().__post_init__()
        if isinstance(self.width, bool) or not isinstance(self.width, int | np.integer) or self.width < 1:
            raise ValueError(f"width must be a positive integer, got {self.width!r}")
        if self.size % self.width:
            raise ValueError(f"size must be a multiple of width {self.width}, got {self.size!r}")

    def _relate(self, one: np.ndarray, other: np.ndarray, place: int | None) -> np.ndarray:
        record = np.arange(self.size) // self.width
        distance = np.bincount(record, np.abs(one - other))
        which = int(np.argmax(distance)) if place is None else place // self.width
        return np.where(record == which, other, one)


class ChangeOne(Adjacency):
    """Vectors of which one entry changes by at most 1: query answers of which one is touched."""

    def _relate(self, one: np.ndarray, other: np.ndarray, place: int | None) -> np.ndarray:
        return self._only(one, np.clip(other, one - 1.0, one + 1.0), place)


class ChangeEvery(Adjacency):
    """Vectors of which every entry changes by at most 1: answers to queries of sensitivity 1."""

    def _relate(self, one: np.ndarray, other: np.ndarray, place: int | None) -> np.ndarray:
        return np.clip(other, one - 1.0, one + 1.0)


class AddRemove(Adjacency):
    """Histograms (counts from 0 to upper) from which one record is removed, or to which one is added.

    Args:
        size: Number of cells.
        upper: Largest count.
    """

    def __init__(self, size: int, upper: int = 10):
        super().__init__(size, 0, upper, True)

    def _relate(self, one: np.ndarray, other: np.ndarray, place: int | None) -> np.ndarray:
        return self._only(one, np.clip(other, one - 1.0, one + 1.0), place)


def patterns(n: int, *, neighbours: str = "one entry", lower: Any = None, upper: Any = None) -> tuple[Pair, ...]:
    """The pairs of query answers that audits try first: those of StatDP and DP-Sniper, in both orders.

    Args:
        n: Number of entries.
        neighbours: "one entry" changes by 1 (4 pairs), or "every entry" by at most 1 (16 pairs).
        lower: Values are clipped to the input domain from this
        upper: to this; by default not at all.

    Returns:
        Pairs of (n,) int32 arrays. Clipping may make some equal; these are left out, and so are repetitions.

    Raises:
        ValueError: n is not a positive integer, or the relation is unknown.

    Source:
        Ding, Wang, Wang, Zhang, Kifer (2018), table 1.

    Example:
        >>> patterns(3)[0]
        (array([1, 1, 1], dtype=int32), array([0, 1, 1], dtype=int32))
    """
    if isinstance(n, bool) or not isinstance(n, int | np.integer) or n < 1:
        raise ValueError(f"n must be a positive integer, got {n!r}")
    if neighbours not in ("one entry", "every entry"):
        raise ValueError(f"neighbours must be 'one entry' or 'every entry', got {neighbours!r}")
    ones, first, half = np.ones(n, np.int32), np.arange(n) == 0, np.arange(n) < n // 2
    found = [(ones, np.where(first, value, 1)) for value in (0, 2)]
    if neighbours == "every entry":
        found += [(ones, np.where(first, *values)) for values in ((2, 0), (0, 2))]
        found += [(ones, np.where(half, 2, 0)), (ones, 2 * ones), (ones, 0 * ones), (np.where(half, 1, 0), half == 0)]
    kept = {}
    for pair in (ordered for one, other in found for ordered in ((one, other), (other, one))):
        one, other = (np.clip(np.asarray(each, np.int32), lower, upper) for each in pair)
        if not np.array_equal(one, other):
            kept.setdefault((one.tobytes(), other.tobytes()), (one, other))
    return tuple(kept.values())
