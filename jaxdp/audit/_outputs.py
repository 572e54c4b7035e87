"""Any output of a mechanism as a few integer features.

A feature is one order-preserving integer per run: a coordinate of the output, a leaf's sum, maximum or minimum, the
lowest bit of a float, or the number of the whole output in a table of frequent outputs. All events are sets of codes
of one feature, so that certification counts integers, and no float comparison is made twice with different results.

Codes are int32; outputs with a 64-bit leaf use int64 throughout, in a scope of 64-bit types that never contains the
sampler itself.
"""

from __future__ import annotations

import contextlib
import dataclasses
import math
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from jaxdp.audit import _codes

__all__ = ["MAX_COORDINATES", "TABLE", "Feature", "Layout", "Table"]

MAX_COORDINATES = 16
"""Coordinates of an output that are features of their own; the pilot picks them from wider outputs."""
TABLE = 512
"""Rows in the table of frequent whole outputs."""
_WORD_BITS = 31


@dataclasses.dataclass(frozen=True)
class Feature:
    """One number that is read off each output. `dtype` is the type that its codes decode to."""

    name: str
    dtype: np.dtype
    table: bool = False
    bit: bool = False

    def spell(self, code: Any) -> str:
        """The value behind a code, as text."""
        return _codes.spell_bit(code) if self.bit else _codes.spell(code, self.dtype)


@dataclasses.dataclass(frozen=True)
class Leaf:
    """One array of an output: its name in event descriptions, its shape and dtype."""

    name: str
    shape: tuple[int, ...]
    dtype: np.dtype

    @property
    def size(self) -> int:
        return math.prod(self.shape)

    @property
    def real(self) -> bool:
        return jnp.issubdtype(self.dtype, jnp.floating)

    @property
    def packed(self) -> bool:
        """Whether the leaf is a mask, whose bits are packed into words of the table."""
        return self.dtype == np.bool_ and self.size > 1

    @property
    def words(self) -> int:
        return -(-self.size // _WORD_BITS) if self.packed else self.size


class Table(NamedTuple):
    """Frequent whole outputs, found by a fingerprint and confirmed word by word: exact, collisions included.

    Attributes:
        multipliers: (words,) odd integers of the fingerprint.
        prints: (TABLE,) sorted fingerprints, padded with the largest integer.
        rows: (TABLE, words) the outputs, in the order of their fingerprints.
        used: number of rows in use.
    """

    multipliers: Any
    prints: Any
    rows: Any
    used: Any


@dataclasses.dataclass(frozen=True)
class Layout:
    """The structure of one output, and how it is read. Hashable: a static argument of compiled functions."""

    leaves: tuple[Leaf, ...]
    name: str = "output"
    bits: bool = False

    @classmethod
    def of(cls, output: Any, name: str = "output", bits: bool = False) -> Layout:
        """The layout of one output's abstract value.

        Args:
            output: A pytree of arrays or their shapes.
            name: What events call it.
            bits: Whether the lowest bits of floats are features too, where there are at most MAX_COORDINATES floats.
                They show how floats are computed, which is no property of the law that was meant.

        Raises:
            ValueError: The output has no scalar, or one that is not a boolean, an integer or a real number.
        """
        leaves = []
        for path, leaf in jax.tree_util.tree_flatten_with_path(output)[0]:
            place = name + jax.tree_util.keystr(path)
            kinds = (jnp.bool_, jnp.integer, jnp.floating)
            if not any(jnp.issubdtype(leaf.dtype, kind) for kind in kinds):
                raise ValueError(f"mechanism must return booleans, integers or floats, got {leaf.dtype} in {place}")
            if math.prod(leaf.shape):
                leaves.append(Leaf(place, tuple(leaf.shape), np.dtype(leaf.dtype)))
        if not leaves:
            raise ValueError(f"mechanism must return at least one scalar, got {output!r}")
        floats = sum(leaf.size for leaf in leaves if leaf.real)
        return cls(tuple(leaves), name, bits and 0 < floats <= MAX_COORDINATES)

    @property
    def size(self) -> int:
        """Scalars in an output."""
        return sum(leaf.size for leaf in self.leaves)

    @property
    def words(self) -> int:
        """Integers in a row of the table."""
        return sum(leaf.words for leaf in self.leaves)

    @property
    def wide(self) -> bool:
        """Whether codes need 64 bits."""
        return any(leaf.dtype.itemsize == 8 for leaf in self.leaves)

    @property
    def code(self) -> np.dtype:
        """Type of the codes."""
        return np.dtype(np.int64 if self.wide else np.int32)

    @property
    def statistics_count(self) -> int:
        """Columns of `statistics`."""
        bits = sum(leaf.size for leaf in self.leaves if leaf.real) if self.bits else 0
        return 3 * sum(leaf.size > 1 for leaf in self.leaves) + bits

    @property
    def tabled(self) -> bool:
        """Whether whole outputs are a feature; a single scalar is its own, and huge rows cost too much."""
        return 1 < self.size <= 4096

    def scope(self) -> Any:
        """Context in which codes are computed."""
        return jax.enable_x64(True) if self.wide else contextlib.nullcontext()

    # -- on the device ------------------------------------------------------------------------------------

    def coordinates(self, outputs: Any) -> jax.Array:
        """Codes (n, size) of a batch of outputs, a pytree of this layout with a leading axis of n runs."""
        return jnp.concatenate([_codes.encode(leaf, self.code) for leaf in _flat(outputs)], axis=1)

    def statistics(self, outputs: Any) -> jax.Array:
        """Codes (n, statistics_count): sum, maximum and minimum of each leaf of several scalars, then lowest bits."""
        leaves = _flat(outputs)
        columns = [code for leaf in leaves if leaf.shape[1] > 1 for code in _statistics(leaf, self.code)]
        if self.bits:
            real = [leaf for leaf in leaves if jnp.issubdtype(leaf.dtype, jnp.floating)]
            columns += [column for leaf in real for column in _codes.lowest_bit(leaf, self.code).T]
        return jnp.stack(columns, axis=1) if columns else jnp.zeros((leaves[0].shape[0], 0), self.code)

    def read(self, outputs: Any) -> tuple[jax.Array, ...]:
        """Coordinates, statistics and, where whole outputs are a feature, rows of a batch of outputs."""
        rows = (self.rows(outputs),) if self.tabled else ()
        return self.coordinates(outputs), self.statistics(outputs), *rows

    def rows(self, outputs: Any) -> jax.Array:
        """Whole outputs as integers (n, words); masks are packed."""
        codes = [_codes.encode(leaf, self.code) for leaf in _flat(outputs)]
        return jnp.concatenate(
            [_pack(code) if leaf.packed else code for leaf, code in zip(self.leaves, codes, strict=True)], axis=1
        )

    def look_up(self, outputs: Any, table: Table) -> jax.Array:
        """Number (n,) of each run's whole output in the table; TABLE for any other output."""
        rows = self.rows(outputs)
        prints = jnp.sum(rows * table.multipliers[None, :], axis=1, dtype=rows.dtype)
        number = _codes.cells(prints, table.prints)
        inside = jnp.minimum(number, np.int32(TABLE - 1))
        same = jnp.all(table.rows[inside] == rows, axis=1) & (number < table.used)
        return jnp.where(same, number, np.int32(TABLE)).astype(rows.dtype)

    # -- on the host --------------------------------------------------------------------------------------

    def features(self, coordinates: np.ndarray) -> tuple[Feature, ...]:
        """All features, in the order coordinates, statistics, table."""
        found = [self._coordinate(int(index)) for index in coordinates]
        for leaf in self.leaves:
            if leaf.size > 1:
                found.append(Feature(f"sum({leaf.name})", _codes.arithmetic_dtype(leaf.dtype)))
                found += [Feature(f"{name}({leaf.name})", leaf.dtype) for name in ("max", "min")]
        if self.bits:
            places = [self._coordinate(j) for j in range(self.size)]
            real = [place.name for place in places if jnp.issubdtype(place.dtype, jnp.floating)]
            found += [Feature(f"lowest bit of {name}", np.dtype(np.int32), bit=True) for name in real]
        return (*found, Feature(self.name, np.dtype(np.int32), table=True)) if self.tabled else tuple(found)

    def _coordinate(self, index: int) -> Feature:
        for leaf in self.leaves:
            if index < leaf.size:
                place = ", ".join(map(str, np.unravel_index(index, leaf.shape))) if leaf.shape else ""
                return Feature(f"{leaf.name}[{place}]" if place else leaf.name, leaf.dtype)
            index -= leaf.size
        raise IndexError(f"no coordinate {index}")

    def table(self, rows: np.ndarray) -> Table:
        """Table of the outputs among `rows` that are most frequent; those seen once only if few are distinct."""
        draw = np.random.default_rng(0).integers(-(2**31), 2**31, self.words, dtype=np.int64)
        multipliers = (draw | 1).astype(self.code)
        top = np.iinfo(self.code).max
        prints = (rows * multipliers[None, :]).sum(axis=1, dtype=self.code)
        # Of two outputs with one fingerprint the first is kept, and the other is "any other output".
        found, first, counts = np.unique(prints[prints != top], return_index=True, return_counts=True)
        rows = rows[prints != top][first]
        if len(found) > TABLE:
            frequent = np.argsort(-counts, kind="stable")[:TABLE]
            keep = np.sort(frequent[counts[frequent] > 1])
            found, rows = found[keep], rows[keep]
        padded = np.zeros((TABLE, self.words), self.code)
        padded[: len(rows)] = rows
        filled = np.full(TABLE, top, self.code)
        filled[: len(rows)] = found
        return Table(multipliers, filled, padded, np.int32(len(rows)))

    def find(self, rows: np.ndarray, table: Table) -> np.ndarray:
        """`look_up` on the host."""
        prints = (rows * table.multipliers[None, :]).sum(axis=1, dtype=self.code)
        number = np.searchsorted(table.prints, prints).astype(self.code)
        inside = np.minimum(number, TABLE - 1)
        same = np.all(table.rows[inside] == rows, axis=1) & (number < table.used)
        return np.where(same, number, TABLE).astype(self.code)

    def spell(self, row: np.ndarray) -> str:
        """A row of the table as the output that it stands for."""
        parts, start = [], 0
        for leaf in self.leaves:
            part = row[start : start + leaf.words]
            start += leaf.words
            values = _unpack(part, leaf.size) if leaf.packed else part
            shown = [_codes.spell(value, leaf.dtype) for value in values[:16]] + ["..."] * (leaf.size > 16)
            text = ", ".join(shown)
            parts.append(f"({text})" if leaf.shape else text)
        return parts[0] if len(parts) == 1 else f"({', '.join(parts)})"


def _pack(bits: jax.Array) -> jax.Array:
    """Zeros and ones (n, size) as words of 31 bits (n, words)."""
    n, size = bits.shape
    words = -(-size // _WORD_BITS)
    padded = jnp.pad(bits, ((0, 0), (0, words * _WORD_BITS - size))).reshape(n, words, _WORD_BITS)
    powers = np.asarray([1 << j for j in range(_WORD_BITS)], bits.dtype)
    return jnp.sum(padded * powers[None, None, :], axis=2, dtype=bits.dtype)


def _unpack(words: np.ndarray, size: int) -> np.ndarray:
    bits = (words[:, None].astype(np.int64) >> np.arange(_WORD_BITS)[None, :]) & 1
    return bits.reshape(-1)[:size]


def _flat(outputs: Any) -> list[jax.Array]:
    """Leaves as (n, size); empty ones are no part of a layout."""
    leaves = [leaf for leaf in jax.tree_util.tree_leaves(outputs) if leaf.size]
    return [leaf.reshape(leaf.shape[0], math.prod(leaf.shape[1:])) for leaf in leaves]


def _statistics(leaf: jax.Array, code: np.dtype) -> list[jax.Array]:
    """Sum (in the leaf's own arithmetic, integers wrap), maximum and minimum of each run."""
    values = _codes.arithmetic(leaf)
    codes = _codes.encode(leaf, code)
    total = jnp.sum(values, axis=1, dtype=values.dtype)
    return [_codes.encode(total, code), jnp.max(codes, axis=1), jnp.min(codes, axis=1)]
