"""The weights of all pairs of halves, tile by tile: in one program, or spread over devices."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental import multihost_utils
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from jaxdp._float64 import float64
from jaxdp.mechanisms import _multisets

_UNROLL = 8
_STEPS = 50


def weigh(
    scores: Any, factor: Any, base: Any, plan: _multisets.Plan, *, mean: bool = False
) -> list[tuple[jax.Array, ...]]:
    """Total weight of each segment, for each group of tiles, where the arguments are.

    Args:
        scores: (halves, queries) and at least a tile's columns of padding below.
        factor: Weights are exp(base + other base - factor max_q |score - other score|).
        base: Log base measures, (halves and padding,).
        plan: The tiles.
        mean: Whether weights are multiplied by their scores.

    Returns:
        Weights (T, rows of segments, columns of segments) over exp(shift), logs of the total weights of tiles (T,),
        and shifts (T,). A segment has adjacent rows and, where it has several columns, every so many-th column.
    """
    run = functools.partial(_weigh, scores, scores.T, factor, base, block=plan.block, mean=mean)
    return [run(group.tiles, shape=(group.rows, group.columns)) for group in plan.groups]


def weigh_on(
    devices: tuple[Any, ...],
    progress: Callable[[float], Any] | None,
    scores: Any,
    factor: Any,
    base: Any,
    plan: _multisets.Plan,
) -> list[tuple[np.ndarray, ...]]:
    """What `weigh` gives, on the host, bit for bit the same whatever the devices: each has its share of the tiles.

    Other processes have to make the same call with the same values.
    """
    mesh = Mesh(np.array(devices), ("devices",))
    with jax.enable_x64(True):
        sides = jax.device_put((scores, scores.T, factor, base), NamedSharding(mesh, PartitionSpec()))
    weights, total, finished = [], sum(len(group.tiles) for group in plan.groups), 0
    for group in plan.groups:
        steps = _STEPS if progress else 1
        # At least two for each device, since XLA compiles a loop of one turn differently; the same for all steps.
        each = max(2, -(-len(group.tiles) // (steps * len(devices)))) * len(devices)
        # Tiles of no rows at the end.
        tiles = np.pad(group.tiles, ((0, -len(group.tiles) % each), (0, 0))).reshape(-1, each, 4)
        pieces = []
        for part in tiles:
            pieces.append(_spread(*sides, part, shape=(group.rows, group.columns), block=plan.block, mesh=mesh))
            if progress:
                pieces[-1] = _to_host(pieces[-1])
                finished += each
                progress(min(1.0, finished / total))
        weights.append((pieces, len(group.tiles)))
    return [
        tuple(np.concatenate(parts)[:number] for parts in zip(*map(_to_host, pieces), strict=True))
        for pieces, number in weights
    ]


def _to_host(arrays: Any) -> tuple[np.ndarray, ...]:
    """Arrays with the shares of all devices, those of other processes included."""
    if not all(getattr(array, "is_fully_addressable", True) for array in arrays):
        arrays = multihost_utils.process_allgather(arrays, tiled=True)
    return tuple(np.asarray(array) for array in arrays)


@float64(static_argnames=("shape", "block", "mean"))
def _weigh(
    scores: Any,
    transposed: Any,
    factor: Any,
    base: Any,
    tiles: Any,
    *,
    shape: tuple[int, int],
    block: tuple[int, int],
    mean: bool = False,
) -> tuple[jax.Array, ...]:
    (rows, columns), (high, wide) = shape, block
    queries = scores.shape[1]
    unroll = next(number for number in range(min(queries, _UNROLL), 0, -1) if queries % number == 0)

    def tile(place: jax.Array) -> tuple[jax.Array, ...]:
        row, height, column, length = place

        def difference(q: jax.Array) -> jax.Array:
            # Slices of the whole tables: those of a tile would be copied first.
            one = jax.lax.dynamic_slice(scores, (row, q), (rows, 1))
            return jnp.abs(one - jax.lax.dynamic_slice(transposed, (q, column), (1, columns)))

        def some(i: jax.Array, worst: jax.Array) -> jax.Array:
            for j in range(unroll):
                worst = jnp.maximum(worst, difference(i.astype(jnp.int32) * unroll + j))
            return worst

        worst = jax.lax.fori_loop(0, queries // unroll, some, difference(jnp.int32(0)))
        first, second = (
            jnp.where(jax.lax.iota(jnp.int32, size) < end, jax.lax.dynamic_slice(base, (start,), (size,)), -jnp.inf)
            for start, size, end in ((row, rows, height), (column, columns, length))
        )
        # One shift a tile: what is lost to underflow is e^-700 of the tile's largest weight. The score is negated, else
        # XLA would keep these log-weights for below, where new ones are faster: they spread over the cores of a CPU.
        shift = jnp.max(first[:, None] + second[None] + factor * (-worst).astype(jnp.float64))
        shift = jnp.where(shift == -jnp.inf, 0.0, shift)
        # Row by row of a segment: a CPU's reductions of doubles are not vectorised.
        worst, first = worst.reshape(rows // high, high, columns), first.reshape(rows // high, high, 1)
        scored = [worst[:, i].astype(jnp.float64) for i in range(high)]
        weights = [jnp.exp(first[:, i] + second[None] - factor * scored[i] - shift) for i in range(high)]
        if mean:
            weights = [weight * score for weight, score in zip(weights, scored, strict=True)]
        weight = functools.reduce(jnp.add, weights)
        if wide > 1:
            weight = jnp.sum(weight.reshape(rows // high, wide, columns // wide), axis=1)
        # With a second use, weights are a loop of their own, which XLA spreads over the cores of a CPU.
        return weight, jnp.log(jnp.sum(weight)) + shift, shift

    return jax.lax.map(tile, tiles)


@float64(static_argnames=("shape", "block", "mesh"))
def _spread(*arguments: Any, shape: tuple[int, int], block: tuple[int, int], mesh: Mesh) -> tuple[jax.Array, ...]:
    """`_weigh` with its last argument, the tiles, spread over the devices of a mesh."""
    everywhere, spread = PartitionSpec(), PartitionSpec("devices")
    share = jax.shard_map(
        functools.partial(_weigh, shape=shape, block=block),
        mesh=mesh,
        in_specs=(everywhere,) * (len(arguments) - 1) + (spread,),
        out_specs=spread,
    )
    return share(*arguments)
