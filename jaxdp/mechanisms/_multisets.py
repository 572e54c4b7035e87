"""Multisets over profiles, cut into pairs (prefix over the first profiles, suffix over the others) and into tiles.

Everything here is public, concrete and on the host: it depends on the number of profiles, the size and the
multiplicities only.
"""

from __future__ import annotations

import functools
import itertools
import math
from typing import NamedTuple

import numpy as np
from scipy.special import gammaln

from jaxdp.bounds.from_candidates import nondecreasing

MAX_SIZE = 2**16
"""Records of a release at most."""
MAX_CANDIDATES = 2**32
"""Multisets over profiles that are enumerated at most: about a minute for 64 queries on two cores."""
_MAX_TABLE = 2**27
_MAX_SEGMENTS = 2**22
_SEGMENTS = 2**18
"""Segments that are fast to make; beyond, they get more rows, up to _ROWS, which are slower to draw from."""
_ROWS = 16
_SHAPES = ((128, 256), (16, 2048))
_OVERHEAD = 4096.0
"""What a tile costs besides its cells, in cells."""


class Half(NamedTuple):
    """All multisets of 0 to `size` records over some profiles, smallest first; those of each size from `starts` on.

    Attributes:
        table: (N, w) int32; their counts (w profiles), or their members, padded with w' = the number of profiles.
        counted: Whether the table has counts.
        log_base: (N,) log of prod multiplicity^count / count!.
    """

    table: np.ndarray
    counted: bool
    log_base: np.ndarray

    def sums(self, numerators: np.ndarray) -> np.ndarray:
        """(N, |Q|) float64 sums of the queries (|Q|, profiles) over each multiset; exact for integers."""
        numerators = numerators.T.astype(np.float64)
        if self.counted:
            return self.table @ numerators
        padded = np.pad(numerators, ((0, 1), (0, 0)))
        return sum(padded[members] for members in self.table.T)


class Group(NamedTuple):
    """Tiles of one shape.

    Attributes:
        rows: Halves of one kind in a tile.
        columns: Halves of the other kind, of which there are more.
        tiles: (T, 4) int32: first row, number of rows, first column, number of columns; places among all halves.
    """

    rows: int
    columns: int
    tiles: np.ndarray


class Plan(NamedTuple):
    """How the multisets of `size` records over k profiles are enumerated.

    Halves are numbered: all prefixes, then all suffixes. Rows of a segment start at a multiple of their number.

    Attributes:
        split: The number of profiles in the first half.
        prefixes: The number of prefixes.
        block: Rows and columns of a segment, whose total weight is kept; powers of two that divide those of all tiles.
        groups: The tiles.
    """

    split: int
    prefixes: int
    block: tuple[int, int]
    groups: tuple[Group, ...]


def number(k: int, size: int) -> int:
    """Multisets of exactly `size` records over k profiles."""
    return math.comb(size + k - 1, size) if k else int(size == 0)


def starts(k: int, size: int, align: int) -> list[int]:
    """Where the multisets of 0, 1, .., `size` records start, at multiples of `align`, and where they end."""
    return list(itertools.accumulate((-(-number(k, s) // align) * align for s in range(size + 1)), initial=0))


def check_number(k: int, size: int, queries: int) -> None:
    """Refuses an enumeration that is too long or too large, before anything is computed."""
    if size > MAX_SIZE:
        raise ValueError(f"size must be at most {MAX_SIZE:,} records, got {size}")
    count = number(k, size)
    what = f"multisets of {size} records over {k} profiles (distinct columns of queries)"
    advice = "use a smaller size, fewer or coarser queries, or MultiplicativeWeights"
    if count > MAX_CANDIDATES:
        raise ValueError(f"size must leave at most {MAX_CANDIDATES:,} candidates, got {_short(count)} {what}: {advice}")
    split = _best(k, size)[0]
    numbers = sum(math.comb(size + part, part) * max(queries, min(part, size)) for part in (split, k - split))
    if numbers > _MAX_TABLE:
        raise ValueError(
            f"size must leave tables of at most {_MAX_TABLE:,} numbers, got {_short(numbers)} for {queries} queries "
            f"and halves of {what}: {advice}"
        )


@functools.lru_cache(maxsize=64)
def _best(k: int, size: int) -> tuple[int, tuple[tuple[int, int], ...]]:
    """The split with the cheaper tiles; rows and columns of a tile for each size of the prefix."""
    choices = []
    for split in {0, k // 2}:
        pairs = [(number(split, s), number(k - split, size - s)) for s in range(size + 1)]
        pairs = [(first, second) if first else (0, 0) for first, second in pairs]
        least, most = (_power(max(choose(pair) for pair in pairs)) for choose in (min, max))
        shapes = sorted({(min(rows, least), min(columns, most)) for rows, columns in _SHAPES})

        def cost(shape: tuple[int, int], pair: tuple[int, int]) -> float:
            rows, columns = shape
            return -(-min(pair) // rows) * -(-max(pair) // columns) * (rows * columns + _OVERHEAD)

        chosen = [min(shapes, key=lambda shape, pair=pair: cost(shape, pair)) for pair in pairs]
        total = sum(cost(shape, pair) for shape, pair in zip(chosen, pairs, strict=True))
        tables = math.comb(size + k - split, size) + math.comb(size + split, size)
        choices.append((total + 64.0 * tables, split, tuple(chosen)))
    return min(choices)[1:]


def _short(count: int) -> str:
    return f"{count:.4g}" if count < 10**300 else "more than 1e+300"


def _power(count: int) -> int:
    return 1 << (count - 1).bit_length()


@functools.lru_cache(maxsize=16)
def plan(k: int, size: int) -> Plan:
    """The tiles of all pairs of a prefix of s and a suffix of size - s records."""
    split, shapes = _best(k, size)
    high = min(_ROWS, _power(-(-number(k, size) // _SEGMENTS)), *(rows for rows, _ in shapes))
    prefixes, suffixes = starts(split, size, high), starts(k - split, size, high)
    groups: dict[tuple[int, int], list[np.ndarray]] = {}
    for s, (rows, columns) in enumerate(shapes):
        one = number(split, s), prefixes[s]
        other = number(k - split, size - s), prefixes[-1] + suffixes[size - s]
        # Columns are what there is more of.
        (first, row), (second, column) = sorted((one, other))
        if not first:
            continue
        r, c = np.arange(0, first, rows), np.arange(0, second, columns)
        grid = np.stack(np.meshgrid(r, c, indexing="ij"), axis=-1).reshape(-1, 2)
        most = np.minimum(np.array([rows, columns]), np.array([first, second]) - grid)
        tiles = np.stack([grid[:, 0] + row, most[:, 0], grid[:, 1] + column, most[:, 1]], axis=1)
        groups.setdefault((rows, columns), []).append(tiles.astype(np.int32))
    parts = tuple(Group(*shape, np.concatenate(tiles)) for shape, tiles in groups.items())
    cells = sum(len(part.tiles) * part.rows * part.columns for part in parts)
    # Sums over rows vectorise; columns come in where there are no rows to sum over.
    wide = 1
    while cells // (high * wide) > _MAX_SEGMENTS and wide < min(part.columns for part in parts):
        wide *= 2
    return Plan(split, prefixes[-1], (high, wide), parts)


@functools.lru_cache(maxsize=8)
def half(multiplicities: tuple[int, ...], size: int, align: int) -> Half:
    """The multisets of 0 to `size` records over profiles with these multiplicities."""
    k = len(multiplicities)
    log_multiplicity = np.log(np.array(multiplicities, np.float64))
    if k <= size:
        table = counts_up_to(k, size)
        log_base = table @ log_multiplicity - np.sum(gammaln(table + 1.0), axis=1)
    else:
        parts = []
        for s in range(size + 1):
            parts.append(np.pad(nondecreasing(s, k), ((0, 0), (0, size - s)), constant_values=k))
        table = np.concatenate(parts)
        # The product over members of their rank among equals is the product of the factorials.
        rank, log_base = np.zeros(len(table)), np.zeros(len(table))
        for i in range(size):
            same = table[:, i] == table[:, i - 1] if i else np.zeros(len(table), bool)
            rank = np.where(same, rank, 0.0) + 1.0
            real = table[:, i] < k
            log_base += np.where(real, np.append(log_multiplicity, 0.0)[table[:, i]] - np.log(rank), 0.0)
    first = starts(k, size, align)
    places = np.concatenate([first[s] + np.arange(number(k, s)) for s in range(size + 1)])
    spaced = np.zeros((first[-1], table.shape[1]), np.int32), np.zeros(first[-1])
    spaced[0][places], spaced[1][places] = table, log_base
    return Half(spaced[0], k <= size, spaced[1])


def counts_up_to(k: int, size: int) -> np.ndarray:
    """(C(size + k, k), k) int32 counts of all multisets of 0 to `size` records over k profiles, smallest first."""
    table, left = np.zeros((1, 0), np.int32), np.array([size])
    for _ in range(k):
        # Each row again for every count that fits.
        times = left + 1
        count = np.arange(np.sum(times)) - np.repeat(np.cumsum(times) - times, times)
        table = np.column_stack([np.repeat(table, times, axis=0), count.astype(np.int32)])
        left = np.repeat(left, times) - count
    return table[np.argsort(size - left, kind="stable")]
