"""Streams of runs: one compiled step, counts that do not depend on devices or scheduling.

Keys. The key of a run depends on four logical numbers only: the part of the audit (0, 1: ordering; 2: scoring; 3:
certification), the side (0: summary, 1: neighbour), the block and the place in the block:

    block_key = fold_in(fold_in(fold_in(key, part), side), block)
    run_keys  = split(block_key, BLOCK)

A batched sampler makes all runs of a block from block_key. No key is both folded and split, and a block is a constant
of the library: 2^14 runs. So the counts are the same for any number of devices, of blocks in a call and of runs
evaluated at once. The last block of a part is masked, so that the number of runs is exact.
"""

from __future__ import annotations

import functools
import time
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.sharding import PartitionSpec

from jaxdp import _devices
from jaxdp.audit import _codes
from jaxdp.audit._outputs import Layout
from jaxdp.audit._summaries import Summary
from jaxdp.audit.targets import Batched, one_line

__all__ = ["BLOCK", "Choice", "Engine", "Totals", "part_keys"]

BLOCK = 2**14
"""Logical block: the runs whose keys are split from one key. Counts at a given seed depend on it."""
PARTS = 4
"""Parts of an audit, each on keys of its own."""
FIRST_SHARE = 16
"""Blocks for each device in the first call; later calls are sized to take about SECONDS_PER_CALL."""
SECONDS_PER_CALL = 0.25
_SHARE_OF_MANY = 2**8
# A call adds at most 2^28 runs of one device into uint32 counters.
_MAX_SHARE = 2**14
# Neighbouring runs count into separate copies of the histogram: the same counter twice in a row would stall.
_BANKS = 8
# Scalars evaluated at once: what fits the caches of a CPU, what fills an accelerator.
_SCALARS_AT_ONCE = {"cpu": 2**18, "other": 2**24}
_SCALARS_PER_DRAW = 2**22
# Pilots are often short: outputs are drawn in small chunks, as many as are wanted.
_RUNS_PER_DRAW = 2**11


class Choice(NamedTuple):
    """The feature whose cells are counted: kind (0 coordinate, 1 statistic, 2 table), column, edges and table."""

    kind: Any
    column: Any
    edges: Any
    table: Any


class Engine:
    """The compiled programs of one mechanism on summaries of one shape.

    `seconds_compile` grows by the time of each program's first call.
    """

    def __init__(
        self,
        run: Callable,
        summary: Summary,
        key: jax.Array,
        devices: tuple[Any, ...],
        *,
        name: str = "output",
        bits: bool = False,
    ):
        self.run, self.summary, self.devices, self.batched = run, summary, devices, isinstance(run, Batched)
        self.mesh = _devices.mesh(devices)
        try:
            one = jax.eval_shape(self._one, key, summary.arguments)
        except (TypeError, OverflowError, jax.errors.JAXTypeError, jax.errors.JAXIndexError) as error:
            wanted = "a pure JAX function (key, summary) -> arrays that vmaps over keys, or a Foreign function"
            raise ValueError(f"mechanism must be {wanted} ({one_line(error)})") from error
        self.layout = Layout.of(one, name, bits)
        width = max(self.layout.size, summary.size)
        cpu = devices[0].platform == "cpu"
        room = _power_of_two(_SCALARS_AT_ONCE["cpu" if cpu else "other"] // width)
        self.lanes = 1 if cpu else max(room // BLOCK, 1)
        self.chunk = min(max(room, 64), self.lanes * BLOCK)
        drawn = 3 * self.layout.size + self.layout.words
        self.batch = BLOCK if self.batched else min(max(_power_of_two(_SCALARS_PER_DRAW // drawn), 64), BLOCK)
        self.share = FIRST_SHARE
        self.seconds_compile = 0.0
        self._called: set[Any] = set()
        self._draw = self._compile(self._draw_local)
        self._count = self._compile(self._count_local)
        self._count_all = self._compile(self._count_all_local)

    def draw(self, keys: jax.Array, arguments: tuple, part: int, side: int, runs: int) -> list[np.ndarray]:
        """The first `runs` outputs of a part: coordinates, statistics and rows, as codes on the host."""
        pending = []
        for first in range(0, -(-runs // self.batch), len(self.devices)):
            call = functools.partial(self._draw, keys, arguments, np.uint32([part, side, first, runs]))
            pending.append(self._first_call_apart("draw", call, call))
        pieces = [[np.concatenate(_devices.to_host(array)) for array in found] for found in pending]
        return [np.concatenate(columns)[:runs] for columns in zip(*pieces, strict=True)]

    def dispatch(
        self, keys: jax.Array, arguments: tuple, side: int, part: int, runs: int, first: int, share: int, choice: Any
    ) -> jax.Array:
        """Starts counting `share` blocks of a part on each device; returns the counters, one row per device.

        `choice` is a Choice, or (coordinates, edges (features, E), table) to count the cells of all features.
        """
        one = isinstance(choice, Choice)
        program = self._count if one else self._count_all
        call = functools.partial(program, keys, arguments, self._send(choice), np.uint32([part, side]))
        plan = (first, share, runs // BLOCK, runs % BLOCK)
        edges = choice.edges if one else choice[1]
        # A call without runs compiles the program.
        return self._first_call_apart(
            ("count", one, edges.shape), lambda: call(np.zeros(4, np.uint32)), lambda: call(np.uint32(plan))
        )

    def resize(self, share: int, seconds: float) -> None:
        """Sets the blocks of later calls by the time that a call of `share` blocks took."""
        if jax.process_count() > 1:
            # All processes have to make the same calls, whatever their clocks say.
            seconds = 0.0 if self.share < _SHARE_OF_MANY else SECONDS_PER_CALL
        if seconds < SECONDS_PER_CALL / 2.0 and share == self.share:
            self.share = min(2 * self.share, _MAX_SHARE)
        elif seconds > 2.0 * SECONDS_PER_CALL:
            self.share = max(self.share // 2, 1)

    # -- on the device ------------------------------------------------------------------------------------

    def _one(self, key: jax.Array, arguments: tuple) -> Any:
        if not self.batched:
            return self.run(key, self.summary.join(arguments))
        # More than one run, so that an output without the axis of runs is seen.
        outputs = self.run(key, self.summary.join(arguments), 3)
        return jax.tree_util.tree_map(lambda leaf: leaf[0], outputs)

    def _many(self, keys: jax.Array, arguments: tuple) -> Any:
        return jax.vmap(lambda key: self._one(key, arguments))(keys)

    def _whole(self, part_key: jax.Array, blocks: jax.Array, arguments: tuple) -> Any:
        """Outputs (blocks * BLOCK, ...) of a batched sampler."""
        summary = self.summary.join(arguments)
        outputs = jax.vmap(lambda block: self.run(jax.random.fold_in(part_key, block), summary, BLOCK))(blocks)
        return jax.tree_util.tree_map(lambda leaf: leaf.reshape(-1, *leaf.shape[2:]), outputs)

    def _compile(self, local: Callable) -> Callable:
        # The body has no collective. A mechanism's own loop may start from constants, which the check would reject.
        spread = jax.shard_map(
            local, mesh=self.mesh, in_specs=PartitionSpec(), out_specs=PartitionSpec(_devices.AXIS), check_vma=False
        )
        return jax.jit(spread)

    def _draw_local(self, keys: jax.Array, arguments: tuple, plan: jax.Array) -> tuple:
        """One batch of outputs, a part of a block; only the runs that are wanted are evaluated."""
        part, side, first, wanted = plan[0], plan[1], plan[2], plan[3]
        batch = first + lax.axis_index(_devices.AXIS).astype(jnp.uint32)
        if self.batched:
            return tuple(each[None] for each in self._read(self._whole(keys[part, side], batch[None], arguments)))
        batches, chunk = np.uint32(BLOCK // self.batch), min(self.chunk, self.batch, _RUNS_PER_DRAW)
        block = _run_keys(keys[part, side], (batch // batches)[None]).reshape(-1, self.batch // chunk, chunk)
        start = batch * np.uint32(self.batch) + np.uint32(chunk) * lax.iota(jnp.uint32, self.batch // chunk)

        def read(keys: jax.Array) -> tuple:
            return self._read(self._many(keys, arguments))

        def skip(keys: jax.Array) -> tuple:
            with self.layout.scope():
                return tuple(jnp.zeros(each.shape, each.dtype) for each in jax.eval_shape(read, keys))

        mine = block[(batch % batches).astype(jnp.int32)]
        found = lax.map(lambda pair: lax.cond(pair[0] < wanted, read, skip, pair[1]), (start, mine))
        return tuple(each.reshape(1, self.batch, each.shape[-1]) for each in found)

    def _read(self, outputs: Any) -> tuple:
        """Coordinates, statistics and rows of a batch of outputs."""
        with self.layout.scope():
            return self.layout.read(outputs)

    def _count_local(self, keys: jax.Array, arguments: tuple, choice: Choice, ids: jax.Array, plan: jax.Array):
        def codes(outputs: Any, choice: Choice) -> jax.Array:
            readers = [lambda: lax.dynamic_index_in_dim(self.layout.coordinates(outputs), choice.column, 1, False)]
            if self.layout.statistics_count:
                readers.append(
                    lambda: lax.dynamic_index_in_dim(self.layout.statistics(outputs), choice.column, 1, False)
                )
            if self.layout.tabled:
                readers.append(lambda: self.layout.look_up(outputs, choice.table))
            # One program whatever feature the pilot picks; only the branch taken is evaluated.
            return readers[0]() if len(readers) == 1 else lax.switch(choice.kind, readers)

        def tally(outputs: Any, live: jax.Array) -> jax.Array:
            with self.layout.scope():
                received = self._receive(choice)
                found = _codes.cells(lax.optimization_barrier(codes(outputs, received)), received.edges)
                return _histogram(found, live, received.edges.shape[0] + 1)

        return self._stream(keys, arguments, ids, plan, tally, (choice.edges.shape[0] + 1,))

    def _count_all_local(self, keys: jax.Array, arguments: tuple, choice: tuple, ids: jax.Array, plan: jax.Array):
        features, size = choice[1].shape[:2]

        def tally(outputs: Any, live: jax.Array) -> jax.Array:
            with self.layout.scope():
                coordinates, edges, table = self._receive(choice)
                columns = [self.layout.coordinates(outputs)[:, coordinates].T, self.layout.statistics(outputs).T]
                if self.layout.tabled:
                    columns.append(self.layout.look_up(outputs, table)[None])
                codes = lax.optimization_barrier(jnp.concatenate(columns))
                return lax.map(lambda pair: _histogram(_codes.cells(*pair), live, size + 1), (codes, edges))

        return self._stream(keys, arguments, ids, plan, tally, (features, size + 1))

    def _stream(self, keys: jax.Array, arguments: tuple, ids: jax.Array, plan: jax.Array, tally: Callable, shape):
        """Sums tally(outputs, live) over this device's share of the blocks of a part."""
        first, share, full, rest = plan[0], plan[1], plan[2], plan[3]
        part_key = keys[ids[0], ids[1]]
        blocks = full + (rest > 0).astype(jnp.uint32)
        start = first + lax.axis_index(_devices.AXIS).astype(jnp.uint32) * share
        mine = jnp.where(start < blocks, jnp.minimum(share, blocks - start), np.uint32(0))
        lanes = np.uint32(self.lanes)

        def group(number: jax.Array, total: jax.Array) -> jax.Array:
            index = number * lanes + lax.iota(jnp.uint32, self.lanes)
            block = start + index
            limit = jnp.where(block < full, np.uint32(BLOCK), jnp.where(block == full, rest, np.uint32(0)))
            limit = jnp.where(index < mine, limit, np.uint32(0))
            live = lax.iota(jnp.uint32, BLOCK)[None, :] < limit[:, None]
            if self.batched:
                return total + tally(self._whole(part_key, block, arguments), live.reshape(-1))
            pieces = self.lanes * BLOCK // self.chunk
            runs = _run_keys(part_key, block).reshape(pieces, self.chunk)
            live = live.reshape(pieces, self.chunk)
            if pieces == 1:
                return total + tally(self._many(runs[0], arguments), live[0])

            def piece(total: jax.Array, pair: tuple) -> tuple:
                return total + tally(self._many(pair[0], arguments), pair[1]), None

            return lax.scan(piece, total, (runs, live))[0]

        groups = (mine + (lanes - np.uint32(1))) // lanes
        return lax.fori_loop(np.uint32(0), groups, group, jnp.zeros(shape, jnp.uint32))[None]

    # -- helpers ------------------------------------------------------------------------------------------

    def _send(self, choice: Any) -> Any:
        """Arrays for a call: 64-bit integers as pairs of words, which no JAX mode rounds."""
        return jax.tree_util.tree_map(_as_words, choice)

    def _receive(self, choice: Any) -> Any:
        return jax.tree_util.tree_map(_from_words, choice) if self.layout.wide else choice

    def _first_call_apart(self, name: Any, compiling: Callable, call: Callable) -> Any:
        if name not in self._called:
            started = time.perf_counter()
            jax.block_until_ready(compiling())
            self.seconds_compile += time.perf_counter() - started
            self._called.add(name)
        return call()


class Totals:
    """Counters of both sides on the host, where they cannot overflow: uint32 comes in, int64 adds up."""

    def __init__(self, shape: tuple[int, ...]):
        self.counts = np.zeros((2, *shape), np.int64)

    def add(self, side: int, counters: Any) -> None:
        """Adds the counters of one call, one row per device."""
        self.counts[side] += _devices.to_host(counters).sum(axis=0, dtype=np.int64)


@jax.jit
def part_keys(key: jax.Array) -> jax.Array:
    """Keys (PARTS, 2) of the parts and sides of an audit."""
    number = lax.iota(jnp.uint32, PARTS)
    parts = jax.vmap(lambda part: jax.random.fold_in(key, part))(number)
    return jax.vmap(lambda part: jax.vmap(lambda side: jax.random.fold_in(part, side))(number[:2]))(parts)


def _run_keys(part_key: jax.Array, blocks: jax.Array) -> jax.Array:
    """Keys (blocks * BLOCK,) of all runs of some blocks."""
    split = jax.vmap(lambda block: jax.random.split(jax.random.fold_in(part_key, block), BLOCK))
    return split(blocks).reshape(-1)


def _histogram(cell: jax.Array, live: jax.Array, size: int) -> jax.Array:
    """Counts of the cells 0 to size - 1 over the runs that are live."""
    bank = lax.iota(jnp.int32, cell.shape[0]) % np.int32(_BANKS)
    counters = jnp.zeros(size * _BANKS, jnp.uint32)
    counters = counters.at[cell * np.int32(_BANKS) + bank].add(live.astype(jnp.uint32), mode="promise_in_bounds")
    return jnp.sum(counters.reshape(size, _BANKS), axis=1, dtype=jnp.uint32)


def _as_words(array: Any) -> Any:
    array = np.asarray(array, order="C")
    return array[..., None].view(np.int32) if array.dtype == np.int64 else array


def _from_words(array: Any) -> Any:
    # Everything that is not a pair of words is a scalar or unsigned.
    pairs = array.dtype == jnp.int32 and array.ndim and array.shape[-1] == 2
    return lax.bitcast_convert_type(array, jnp.int64) if pairs else array


def _power_of_two(number: int) -> int:
    """Largest power of two up to the number, at least one."""
    return 1 << max(int(number).bit_length() - 1, 0)
