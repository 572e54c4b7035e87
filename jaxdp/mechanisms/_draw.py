"""One release of SmallDB from its enumeration: a segment, a candidate in it, an element for each of its records."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp

from jaxdp import random
from jaxdp._float64 import float64


@float64(static_argnames=("shapes", "width", "counted", "split", "size"))
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
    width: int,
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
        width: Columns in a segment.
        counted: Whether the tables have counts.
        split: Profiles in the first half.
        size: m.
    """
    log_p, prefixes, suffixes, factor = law
    segment = random.invert(words[0], random.counts(log_p))
    row, column, step, length, swapped = _locate(segment, groups, shapes, width)
    lanes = step * jax.lax.iota(jnp.int32, width)
    (many, queries), others = prefixes.shape, suffixes.shape[1]
    # One flat table: gathering rows, or on both sides, is slow under vmap.
    flat, base = jnp.concatenate([prefixes.reshape(-1), suffixes.reshape(-1)]), jnp.concatenate(bases)
    places = jnp.minimum(column + lanes, jnp.where(swapped, many, others) - 1)
    start = jnp.where(swapped, many * queries + row, row * queries), jnp.where(swapped, others, 1)
    lane = jnp.where(swapped, places * queries, many * queries + places), jnp.where(swapped, 1, others)

    def query(q: jax.Array, worst: jax.Array) -> jax.Array:
        q = q.astype(jnp.int32)
        return jnp.maximum(worst, jnp.abs(flat[start[0] + q * start[1]] - flat[lane[0] + q * lane[1]]))

    worst = jax.lax.fori_loop(1, queries, query, jnp.abs(flat[start[0]] - flat[lane[0]]))
    log_base = base[jnp.where(swapped, 0, many) + places]
    log_weight = jnp.where(lanes < length, log_base - factor * worst.astype(jnp.float64), -jnp.inf)
    chosen = random.invert(words[1], random.counts(jax.nn.log_softmax(log_weight)))
    valid, column = (segment >= 0) & (chosen >= 0), column + step * chosen
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
    segment: jax.Array, groups: Any, shapes: tuple[tuple[int, int, bool], ...], width: int
) -> tuple[jax.Array, ...]:
    """Row, first column, step to the next one, end of the columns counted from the first, and whether swapped."""
    found = tuple(jnp.zeros_like(segment) for _ in range(5))
    for (rows, columns, swapped), tiles in zip(shapes, groups, strict=True):
        segments = columns // width
        place = jnp.clip(segment, 0, len(tiles) * rows * segments - 1)
        tile, rest = jnp.divmod(place, jnp.int32(rows * segments))
        row, skipped = jnp.divmod(rest, jnp.int32(segments))
        first, _, column, length = (tiles.reshape(-1)[tile * 4 + i] for i in range(4))
        step, swap = jnp.full_like(segment, segments), jnp.full_like(segment, swapped)
        here = first + row, column + skipped, step, length - skipped, swap
        found = tuple(jnp.where(place == segment, new, old) for new, old in zip(here, found, strict=True))
        segment = segment - len(tiles) * rows * segments
    return *found[:4], found[4] > 0


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
