"""The weights of all pairs of halves, tile by tile: in one program, or spread over devices."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, PartitionSpec

from jaxdp import _devices
from jaxdp._float64 import float64
from jaxdp.mechanisms import _multisets

_UNROLL = 8
_STEPS = 50
_SPREAD = 300.0
"""Base measures of a tile's rows within e^300 of each other: one shift does for all of them."""


class Sides(NamedTuple):
    """What a tile's rows and columns are made of. The first three are public, see `_enumeration`.

    Attributes:
        sums: (halves and padding, queries and padding) sums of the queries' numerators over all halves; at least a
            tile's columns of padding, and queries up to a multiple of 8.
        transposed: (queries and padding, halves and padding).
        base: (halves and padding,) log base measures.
        target: (queries,) m times the sums over the data.
        num_records: n.
        factor: Weights are exp(base + other base - factor max_q |target - n (sum + other sum)|).
    """

    sums: Any
    transposed: Any
    base: Any
    target: Any
    num_records: Any
    factor: Any


def weigh(sides: Sides, plan: _multisets.Plan, dtype: np.dtype, *, mean: bool = False) -> list[tuple[jax.Array, ...]]:
    """Total weight of each segment, for each group of tiles, where the arguments are.

    Args:
        sides: Rows and columns.
        plan: The tiles.
        dtype: Of the scores.
        mean: Whether weights are multiplied by their scores.

    Returns:
        Weights (T, rows of segments, columns of segments) over exp(shift), logs of the total weights of tiles (T,),
        and shifts (T,). A segment has adjacent rows and, where it has several columns, every so many-th column.
    """
    run = functools.partial(_weigh, sides, block=plan.block, dtype=dtype, mean=mean)
    return [run(group.tiles, shape=(group.rows, group.columns)) for group in plan.groups]


def weigh_on(
    devices: tuple[Any, ...],
    progress: Callable[[float], Any] | None,
    sides: Sides,
    plan: _multisets.Plan,
    dtype: np.dtype,
) -> list[tuple[np.ndarray, ...]]:
    """What `weigh` gives, on the host, bit for bit the same whatever the devices: each has its share of the tiles.

    Other processes have to make the same call with the same values.
    """
    mesh = _devices.mesh(devices)
    with jax.enable_x64(True):
        sides = Sides(*(_devices.replicate(side, mesh) for side in sides))
    run = functools.partial(_spread, sides, block=plan.block, dtype=dtype, mesh=mesh)
    weights, total, finished = [], sum(len(group.tiles) for group in plan.groups), 0
    for group in plan.groups:
        steps = _STEPS if progress else 1
        # At least two for each device, since XLA compiles a loop of one turn differently; the same for all steps.
        each = max(2, -(-len(group.tiles) // (steps * len(devices)))) * len(devices)
        # Tiles of no rows at the end.
        tiles = np.pad(group.tiles, ((0, -len(group.tiles) % each), (0, 0))).reshape(-1, each, 4)
        pieces = []
        for part in tiles:
            pieces.append(run(part, shape=(group.rows, group.columns)))
            if progress:
                pieces[-1] = tuple(map(_devices.to_host, pieces[-1]))
                finished += each
                progress(min(1.0, finished / total))
        weights.append((pieces, len(group.tiles)))
    return [tuple(_joined(parts)[:number] for parts in zip(*pieces, strict=True)) for pieces, number in weights]


def _joined(parts: tuple[Any, ...]) -> np.ndarray:
    """On the host; a single part is not copied."""
    parts = tuple(map(_devices.to_host, parts))
    return parts[0] if len(parts) == 1 else np.concatenate(parts)


@float64(static_argnames=("shape", "block", "dtype", "mean"))
def _weigh(
    sides: Sides,
    tiles: Any,
    *,
    shape: tuple[int, int],
    block: tuple[int, int],
    dtype: np.dtype,
    mean: bool = False,
) -> tuple[jax.Array, ...]:
    (rows, columns), (high, wide) = shape, block
    unroll = _UNROLL if len(sides.target) > 4 else 4
    target = jnp.pad(sides.target, (0, -len(sides.target) % unroll)).astype(dtype)
    queries, n, zero = len(target), sides.num_records.astype(dtype), jnp.int32(0)

    def tile(place: jax.Array) -> tuple[jax.Array, ...]:
        row, height, column, length = place
        # Scores of all halves would be as fast to use, but slow to write: they do not fit into caches.
        down = target[None] - n * jax.lax.dynamic_slice(sides.sums, (row, zero), (rows, queries)).astype(dtype)
        right = n * jax.lax.dynamic_slice(sides.transposed, (zero, column), (queries, columns)).astype(dtype)

        def difference(q: jax.Array) -> jax.Array:
            one = jax.lax.dynamic_slice(down, (zero, q), (rows, 1))
            return jnp.abs(one - jax.lax.dynamic_slice(right, (q, zero), (1, columns)))

        def some(i: jax.Array, worst: jax.Array) -> jax.Array:
            for j in range(unroll):
                worst = jnp.maximum(worst, difference(i.astype(jnp.int32) * unroll + j))
            return worst

        worst = jax.lax.fori_loop(0, queries // unroll, some, difference(zero))
        ends = (row, rows, height), (column, columns, length)
        first, second = (_inside(jax.lax.dynamic_slice(sides.base, (i,), (size,)), end) for i, size, end in ends)
        shift = _shift(first, second, worst, sides.factor)
        # Row by row of a segment: a CPU's reductions of doubles are not vectorised.
        worst, first = worst.reshape(rows // high, high, columns), first.reshape(rows // high, high, 1)
        scored = [worst[:, i].astype(jnp.float64) for i in range(high)]
        weights = [jnp.exp(first[:, i] + second[None] - sides.factor * scored[i] - shift) for i in range(high)]
        if mean:
            weights = [weight * score for weight, score in zip(weights, scored, strict=True)]
        weight = functools.reduce(jnp.add, weights)
        if wide > 1:
            weight = jnp.sum(weight.reshape(rows // high, wide, columns // wide), axis=1)
        # With a second use, weights are a loop of their own, which XLA spreads over the cores of a CPU.
        return weight, jnp.log(jnp.sum(weight)) + shift, shift

    return jax.lax.map(tile, tiles)


def _inside(base: jax.Array, end: jax.Array) -> jax.Array:
    return jnp.where(jax.lax.iota(jnp.int32, len(base)) < end, base, -jnp.inf)


def _shift(first: jax.Array, second: jax.Array, worst: jax.Array, factor: Any) -> jax.Array:
    """At least the largest log-weight of a tile, and at most _SPREAD more: what is lost to underflow is e^-400 of it.

    As if each column had its least score and its largest base measure in one row: integers are compared much faster.
    """
    largest = jnp.max(first)
    lowest = jnp.min(jnp.where(first == -jnp.inf, jnp.inf, first))

    def bound() -> jax.Array:
        return largest + jnp.max(second - factor * jnp.min(worst, axis=0).astype(jnp.float64))

    def exact() -> jax.Array:
        return jnp.max(first[:, None] + second[None] - factor * worst.astype(jnp.float64))

    shift = jax.lax.cond(largest - lowest < _SPREAD, bound, exact)
    return jnp.where(shift == -jnp.inf, 0.0, shift)


@float64(static_argnames=("shape", "block", "dtype", "mesh"))
def _spread(
    sides: Sides, tiles: Any, *, shape: tuple[int, int], block: tuple[int, int], dtype: np.dtype, mesh: Mesh
) -> tuple[jax.Array, ...]:
    """`_weigh` with the tiles spread over the devices of a mesh."""
    share = jax.shard_map(
        functools.partial(_weigh, shape=shape, block=block, dtype=dtype),
        mesh=mesh,
        in_specs=(PartitionSpec(), PartitionSpec(_devices.AXIS)),
        out_specs=PartitionSpec(_devices.AXIS),
    )
    return share(sides, tiles)
