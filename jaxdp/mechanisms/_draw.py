"""One release of SmallDB from its enumeration: a segment, a candidate in it, an element for each of its records."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxdp import random
from jaxdp._float64 import float64

FAN = 16
"""Segments whose total has one cumulative sum."""


@float64(static_argnames=("plan", "dtypes", "counted", "size"))
def draw(
    words: Any,
    law: Any,
    sums: Any,
    base: Any,
    groups: Any,
    tables: Any,
    profiles: Any,
    elements: Any,
    multiplicities: Any,
    *,
    plan: tuple[int, int, tuple[int, int], tuple[tuple[int, int], ...]],
    dtypes: tuple[np.dtype, np.dtype],
    counted: tuple[bool, bool],
    size: int,
) -> jax.Array:
    """(|X|,) int32 counts that sum to `size`; -1 throughout where the law is NaN.

    Args:
        words: uint32 words of shape (2,), (2,) and (2, size). Without the last ones the tables must have counts and
            profiles one element each.
        law: Integer weights of the segments, cumulative sums of every FAN of them.
        sums: Words of rows and of columns as in `Enumeration`, target, number of records and factor of the scores.
        base: Log base measures of the halves.
        groups: Tiles of each group (T, 4).
        tables: Multisets of both halves.
        profiles: (|X|,) profile of each element.
        elements: (|X|,) elements sorted by profile.
        multiplicities: (k,) elements of each profile.
        plan: Profiles in the first half, number of prefixes, rows and columns of a segment and of each group's tiles.
        dtypes: Of the sums and of the scores.
        counted: Whether the tables have counts.
        size: m.
    """
    (weights, cumulative), (split, prefixes, block, shapes) = law, plan
    segment = _segment(words[0], weights, cumulative)
    row, column, step, height, length = _locate(segment, groups, shapes, block)
    down, right = jax.lax.iota(jnp.int32, block[0]), jax.lax.iota(jnp.int32, block[1])
    rows, columns = row + down, column + step * right
    worst = _largest_differences(*sums[:4], row // block[0], columns, dtypes).astype(jnp.float64)
    log_weight = base[rows][:, None] + base[columns][None] - sums[4] * worst
    inside = (down < height)[:, None] & (step * right < length)[None]
    log_weight = jnp.where(inside, log_weight, -jnp.inf).reshape(-1)
    chosen = random.invert_once(words[1], random.cut(jax.nn.softmax(log_weight)))
    valid, place = (segment >= 0) & (chosen >= 0), jnp.maximum(chosen, 0)
    row, column = rows[place // block[1]], columns[place % block[1]]
    prefix, suffix = jnp.minimum(row, column), jnp.maximum(row, column) - prefixes
    if len(words) == 2:
        counts = jnp.concatenate([tables[0][prefix], tables[1][suffix]])[profiles]
        return jnp.where(valid, counts, jnp.int32(-1))
    members, number = _members(tables[0], prefix, split, counted[0], size)
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


def _segment(pair: jax.Array, weights: Any, cumulative: Any) -> jax.Array:
    """What `random.invert` finds, -1 for weights of zero: the FAN segments first, then one among them."""
    place = random.place(pair)
    group = jnp.minimum(random.search(cumulative, place), len(cumulative) - 1)
    before = jnp.where(group > 0, cumulative[jnp.maximum(group - 1, 0)], jnp.zeros_like(place))

    def step(i: jax.Array, state: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, jax.Array]:
        index, sum_ = state
        sum_ = sum_ + weights[group * FAN + i.astype(jnp.int32)]
        return index + (sum_ <= place).astype(jnp.int32), sum_

    index, _ = jax.lax.fori_loop(0, FAN, step, (group * FAN, before))
    return jnp.where(cumulative[-1] > 0, index, -1)


def _largest_differences(
    of_rows: Any,
    of_columns: Any,
    target: Any,
    n: Any,
    block: jax.Array,
    columns: jax.Array,
    dtypes: tuple[np.dtype, np.dtype],
) -> jax.Array:
    """(rows, columns) max_q |target - n (sum of row + sum of column)|, as many queries at once as fit into a word."""
    (sums, scores), number, high = dtypes, *of_rows.shape[1:]
    per = 8 // sums.itemsize
    # Queries without effect fill the words.
    targets = jnp.pad(target, (0, number * per - len(target))).astype(scores).reshape(number, per)
    n, of_rows, of_columns = n.astype(scores), of_rows.reshape(-1, high), of_columns.reshape(-1)

    def some(i: jax.Array) -> jax.Array:
        down = jax.lax.bitcast_convert_type(of_rows[block * number + i], sums).reshape(per, high, 1)
        right = jax.lax.bitcast_convert_type(of_columns[columns * number + i], sums).reshape(-1, per)
        right = targets[i][:, None] - n * right.T.astype(scores)
        return jnp.max(jnp.abs(right[:, None] - n * down.astype(scores)), axis=0)

    def further(i: jax.Array, worst: jax.Array) -> jax.Array:
        return jnp.maximum(worst, some(i.astype(jnp.int32)))

    return jax.lax.fori_loop(1, number, further, some(jnp.int32(0)))


def _locate(
    segment: jax.Array, groups: Any, shapes: tuple[tuple[int, int], ...], block: tuple[int, int]
) -> tuple[jax.Array, ...]:
    """First row and column of a segment, step to the next column, rows and columns up to its ends."""
    found = tuple(jnp.zeros_like(segment) for _ in range(5))
    for (rows, columns), tiles in zip(shapes, groups, strict=True):
        across, number = columns // block[1], (rows // block[0]) * (columns // block[1])
        place = jnp.clip(segment, 0, len(tiles) * number - 1)
        tile, rest = jnp.divmod(place, jnp.int32(number))
        down, right = jnp.divmod(rest, jnp.int32(across))
        down = down * block[0]
        row, height, column, length = (tiles.reshape(-1)[tile * 4 + i] for i in range(4))
        here = row + down, column + right, jnp.full_like(segment, across), height - down, length - right
        found = tuple(jnp.where(place == segment, new, old) for new, old in zip(here, found, strict=True))
        segment = segment - len(tiles) * number
    return found


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
