"""One release of SmallDB from its enumeration: a segment, a candidate in it, an element for each of its records."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp

from jaxdp import random
from jaxdp._float64 import float64


@float64(static_argnames=("shapes", "block", "counted", "split", "size"))
def draw(
    words: Any,
    law: Any,
    bases: Any,
    groups: Any,
    tables: Any,
    elements: Any,
    multiplicities: Any,
    *,
    shapes: tuple[tuple[int, int, bool], ...],
    block: tuple[int, int],
    counted: tuple[bool, bool],
    split: int,
    size: int,
) -> jax.Array:
    """(|X|,) int32 counts that sum to `size`; -1 throughout where the law is NaN.

    Args:
        words: uint32 words of shape (2,), (2,) and (2, size).
        law: Log-probabilities of the segments, scores of prefixes (N, |Q|) and suffixes (|Q|, N'), and their factor.
        bases: Log base measures of the prefixes and suffixes.
        groups: Tiles of each group (T, 4).
        tables: Multisets of both halves.
        elements: (|X|,) elements sorted by profile.
        multiplicities: (k,) elements of each profile.
        shapes: Rows, columns and whether they are swapped, of each group.
        block: Rows and columns of a segment.
        counted: Whether the tables have counts.
        split: Profiles in the first half.
        size: m.
    """
    log_p, prefixes, suffixes, factor = law
    segment = random.invert(words[0], random.counts(log_p))
    row, column, step, height, length, swapped = _locate(segment, groups, shapes, block)
    down, right = jax.lax.iota(jnp.int32, block[0]), step * jax.lax.iota(jnp.int32, block[1])
    (many, queries), others = prefixes.shape, suffixes.shape[1]
    # One flat table: gathering rows, or from two tables, is slow under vmap.
    flat, base = jnp.concatenate([prefixes.reshape(-1), suffixes.reshape(-1)]), jnp.concatenate(bases)
    rows = jnp.minimum(row + down, jnp.where(swapped, others, many) - 1)
    columns = jnp.minimum(column + right, jnp.where(swapped, many, others) - 1)

    def address(places: jax.Array, suffix: jax.Array) -> tuple[jax.Array, jax.Array]:
        start = jnp.where(suffix, many * queries + places, places * queries)
        return start, jnp.where(suffix, others, jnp.ones_like(row))

    first, second = address(rows, swapped), address(columns, ~swapped)

    def query(q: jax.Array, worst: jax.Array) -> jax.Array:
        one, other = (flat[start + q.astype(jnp.int32) * stride] for start, stride in (first, second))
        return jnp.maximum(worst, jnp.abs(one[:, None] - other[None]))

    worst = jax.lax.fori_loop(1, queries, query, jnp.abs(flat[first[0]][:, None] - flat[second[0]][None]))
    log_base = base[jnp.where(swapped, many, 0) + rows][:, None] + base[jnp.where(swapped, 0, many) + columns][None]
    log_weight = log_base - factor * worst.astype(jnp.float64)
    inside = (down < height)[:, None] & (right < length)[None]
    log_weight = jnp.where(inside, log_weight, -jnp.inf).reshape(-1)
    chosen = random.invert(words[1], random.counts(jax.nn.log_softmax(log_weight)))
    valid, place = (segment >= 0) & (chosen >= 0), jnp.maximum(chosen, 0)
    row, column = rows[place // block[1]], columns[place % block[1]]
    members, number = _members(tables[0], jnp.where(swapped, column, row), split, counted[0], size)
    suffix = jnp.where(swapped, row, column)
    others, _ = _members(tables[1], suffix, len(multiplicities) - split, counted[1], size)
    slots = jax.lax.iota(jnp.int32, size)
    profile = jnp.where(slots < number, members, split + others[jnp.maximum(slots - number, 0)])
    # A uniform element of the profile: the high word of 64 random bits times the multiplicity.
    many = multiplicities.astype(jnp.uint64)[profile]
    low = (words[2][1].astype(jnp.uint64) * many) >> jnp.uint64(32)
    rank = (words[2][0].astype(jnp.uint64) * many + low) >> jnp.uint64(32)
    first = jnp.cumsum(multiplicities) - multiplicities
    chosen = elements[first[profile] + rank.astype(first.dtype)]
    histogram = jnp.zeros_like(elements).at[chosen].add(jnp.int32(1))
    return jnp.where(valid, histogram, jnp.int32(-1))


def _locate(
    segment: jax.Array, groups: Any, shapes: tuple[tuple[int, int, bool], ...], block: tuple[int, int]
) -> tuple[jax.Array, ...]:
    """First row and column of a segment, step to the next column, rows and columns up to its ends, whether swapped."""
    found = tuple(jnp.zeros_like(segment) for _ in range(6))
    for (rows, columns, swapped), tiles in zip(shapes, groups, strict=True):
        across, number = columns // block[1], (rows // block[0]) * (columns // block[1])
        place = jnp.clip(segment, 0, len(tiles) * number - 1)
        tile, rest = jnp.divmod(place, jnp.int32(number))
        down, right = jnp.divmod(rest, jnp.int32(across))
        down = down * block[0]
        row, height, column, length = (tiles.reshape(-1)[tile * 4 + i] for i in range(4))
        step, swap = jnp.full_like(segment, across), jnp.full_like(segment, swapped)
        here = row + down, column + right, step, height - down, length - right, swap
        found = tuple(jnp.where(place == segment, new, old) for new, old in zip(here, found, strict=True))
        segment = segment - len(tiles) * number
    return *found[:5], found[5] > 0


def _members(table: Any, row: jax.Array, k: int, counted: bool, size: int) -> tuple[jax.Array, jax.Array]:
    """(size,) profiles of the members of one multiset, the first `number` of which count."""
    slots = jax.lax.iota(jnp.int32, size)
    if table.shape[1] == 0:
        return jnp.zeros_like(slots), jnp.zeros_like(row)
    entries = table.reshape(-1)[row * table.shape[1] + jax.lax.iota(jnp.int32, table.shape[1])]
    if not counted:
        return entries, jnp.sum(entries < k, dtype=jnp.int32)
    cumulative = jnp.cumsum(entries, dtype=jnp.int32)
    members = jnp.searchsorted(cumulative, slots, side="right").astype(jnp.int32)
    return jnp.minimum(members, k - 1), cumulative[-1]
