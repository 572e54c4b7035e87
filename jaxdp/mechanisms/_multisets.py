"""Multisets over profiles, cut into pairs (prefix over the first profiles, suffix over the others) and into tiles.

Everything here is public, concrete and on the host: it depends on the number of profiles, the size and the
multiplicities only.
"""

from __future__ import annotations

import functools
import itertools
import math
from typing import Any, NamedTuple

import numpy as np
from scipy.special import gammaln

MAX_CANDIDATES = 2**32
"""Multisets over profiles that are enumerated at most: about a minute for 64 queries on two cores."""
_MAX_TABLE = 2**27
_ROWS, _TILE = 128, 2**15
_MAX_SEGMENTS = 2**22


class Half(NamedTuple):
    """All multisets of 0 to `size` records over some profiles, smallest first.

    Attributes:
        table: (N, w) int32; their counts (w profiles), or their members, padded with w' = the number of profiles.
        counted: Whether the table has counts.
        log_base: (N,) log of prod multiplicity^count / count!.
    """

    table: np.ndarray
    counted: bool
    log_base: np.ndarray


class Plan(NamedTuple):
    """How the multisets of `size` records over k profiles are enumerated.

    Attributes:
        split: The number of profiles in the first half.
        rows: Prefixes in a tile.
        columns: Suffixes in a tile.
        width: Suffixes in a segment, whose total weight is kept; a power of two that divides columns.
        tiles: (T, 4) int32: first prefix, number of prefixes, first suffix, number of suffixes.
    """

    split: int
    rows: int
    columns: int
    width: int
    tiles: np.ndarray

    @property
    def shape(self) -> tuple[int, int, int]:
        """Rows, columns and width."""
        return self.rows, self.columns, self.width


def number(k: int, size: int) -> int:
    """Multisets of exactly `size` records over k profiles."""
    return math.comb(size + k - 1, size) if k else int(size == 0)


def check_number(k: int, size: int, queries: int) -> None:
    """Refuses an enumeration that is too long or too large, before anything is computed."""
    count = number(k, size)
    if count > MAX_CANDIDATES:
        raise ValueError(
            f"size must leave at most {MAX_CANDIDATES:,} candidates, got {count:.4g} multisets of {size} records over "
            f"{k} profiles (distinct columns of queries): use a smaller size, fewer or coarser queries, or "
            f"MultiplicativeWeights"
        )
    split = _best(k, size)[0]
    numbers = sum(math.comb(size + part, part) * max(queries, min(part, size)) for part in (split, k - split))
    if numbers > _MAX_TABLE:
        raise ValueError(
            f"size must leave tables of at most {_MAX_TABLE:,} numbers, got {numbers:.4g} for {queries} queries "
            f"and multisets of {size} records over {k} profiles (distinct columns of queries): use a smaller size, fewer or coarser queries, "
            f"or MultiplicativeWeights"
        )


@functools.lru_cache(maxsize=64)
def _best(k: int, size: int) -> tuple[int, int, int]:
    """The split with the cheaper tiles, and their shape."""

    def cost(choice: tuple[int, int, int]) -> float:
        split, rows, columns = choice
        pairs = ((number(split, s), number(k - split, size - s)) for s in range(size + 1))
        tiles = sum(-(-a // rows) * -(-b // columns) for a, b in pairs)
        return tiles * (rows * columns + 4096.0) + 64.0 * (
            math.comb(size + k - split, size) + math.comb(size + split, size)
        )

    choices = []
    for split in {0, k // 2}:
        most = max(number(split, s) for s in range(size + 1))
        widest = max(number(k - split, s) for s in range(size + 1) if number(split, size - s))
        rows = min(_ROWS, _power(most))
        columns = min(_TILE // rows, _power(widest))
        choices.append((split, min(_TILE // columns, _power(most)), columns))
    return min(choices, key=cost)


def _power(count: int) -> int:
    return 1 << (count - 1).bit_length()


@functools.lru_cache(maxsize=16)
def plan(k: int, size: int) -> Plan:
    """The tiles of all pairs of a prefix of s and a suffix of size - s records."""
    split, rows, columns = _best(k, size)
    tiles = []
    for s in range(size + 1):
        first, second = number(split, s), number(k - split, size - s)
        # Smaller multisets come first: those of fewer than s records number C(s - 1 + split, split).
        row = math.comb(s - 1 + split, split) if s else 0
        column = math.comb(size - s - 1 + k - split, k - split) if size - s else 0
        if not first or not second:
            continue
        r, c = np.arange(0, first, rows), np.arange(0, second, columns)
        grid = np.stack(np.meshgrid(r, c, indexing="ij"), axis=-1).reshape(-1, 2)
        most = np.minimum(np.array([rows, columns]), np.array([first, second]) - grid)
        tiles.append(np.stack([grid[:, 0] + row, most[:, 0], grid[:, 1] + column, most[:, 1]], axis=1))
    tiles = np.concatenate(tiles).astype(np.int32)
    width = min(32, columns)
    while len(tiles) * rows * (columns // width) > _MAX_SEGMENTS and width < columns:
        width *= 2
    return Plan(split, rows, columns, width, tiles)


@functools.lru_cache(maxsize=8)
def half(multiplicities: tuple[int, ...], size: int) -> Half:
    """The multisets of 0 to `size` records over profiles with these multiplicities."""
    k = len(multiplicities)
    log_multiplicity = np.log(np.array(multiplicities, np.float64))
    if k <= size:
        table = counts_up_to(k, size)
        return Half(table, True, table @ log_multiplicity - np.sum(gammaln(table + 1.0), axis=1))
    parts = []
    for s in range(size + 1):
        members = np.fromiter(
            itertools.chain.from_iterable(itertools.combinations_with_replacement(range(k), s)),
            np.int32,
            number(k, s) * s,
        )
        parts.append(np.pad(members.reshape(number(k, s), s), ((0, 0), (0, size - s)), constant_values=k))
    table = np.concatenate(parts)
    # The product over members of their rank among equals is the product of the factorials.
    rank, log_base = np.zeros(len(table)), np.zeros(len(table))
    for i in range(size):
        same = table[:, i] == table[:, i - 1] if i else np.zeros(len(table), bool)
        rank = np.where(same, rank, 0.0) + 1.0
        real = table[:, i] < k
        log_base += np.where(real, np.append(log_multiplicity, 0.0)[table[:, i]] - np.log(rank), 0.0)
    return Half(table, False, log_base)


def counts_up_to(k: int, size: int) -> np.ndarray:
    """(C(size + k, k), k) int32 counts of all multisets of 0 to `size` records over k profiles, smallest first."""
    parts: list[Any] = [np.zeros((int(s == 0), 0), np.int32) for s in range(size + 1)]
    for _ in range(k):
        parts = [
            np.concatenate([np.pad(parts[s - c], ((0, 0), (0, 1)), constant_values=c) for c in range(s + 1)])
            for s in range(size + 1)
        ]
    return np.concatenate(parts)
