"""One audit under way: pilot, choice of the event and certification, on the engines of both sides."""

from __future__ import annotations

import inspect
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Hashable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxdp import _devices
from jaxdp.audit import _blocks, _certificates, _events
from jaxdp.audit._blocks import Choice, Engine, Totals
from jaxdp.audit._events import Event
from jaxdp.audit._foreign import ForeignEngine
from jaxdp.audit._outputs import Feature, Table
from jaxdp.audit._summaries import Summary
from jaxdp.audit.targets import Batched, Foreign

__all__ = ["Session", "sides"]

# Parts of an audit, each on keys of its own.
_ORDERING, _MORE_ORDERING, _SCORING, _CERTIFICATION, _COINS = range(5)
# A pilot half of at most this many runs and scalars is cut into cells on the host; the rest is counted on the device.
HOST_RUNS = 2**17
HOST_SCALARS = 2**23
# Cells are found on this many pilot runs of each side, those of a score on more: the log ratio's tail decides.
_EDGE_RUNS, _EDGE_RUNS_SCORE = 2**15, HOST_RUNS

_ENGINES: OrderedDict[Hashable, Engine] = OrderedDict()
_ENGINES_KEPT = 64
_LOCK = threading.Lock()


class Session:
    """State of one audit.

    Args:
        key: One typed key.
        run: The sampler, (key, summary) -> output.
        summaries: Summary and neighbour.
        devices: Devices of one platform.
        score: Reads a number off the output, whose thresholds are then the only events; or None.
        resolution: Scores are rounded to multiples of it.
        bits: Whether the lowest bits of floats are events too.
        total: Runs on each side, for the progress.
        progress: Called with the share done, or None.
    """

    def __init__(
        self,
        key: jax.Array,
        run: Callable,
        summaries: tuple,
        devices: tuple,
        *,
        total: int,
        progress: Any,
        score: Callable | None = None,
        resolution: float = 1e-4,
        bits: bool = False,
    ):
        mesh = _devices.mesh(devices)
        key = _devices.replicate(key, mesh)
        self.keys = _blocks.part_keys(key)
        if isinstance(run, Foreign):
            self.sides = [(summary,) for summary in summaries]
            self.engines = 2 * [ForeignEngine(run, summaries, key, bits=bits)]
        else:
            passed = [Summary.of(summary, lambda leaf: _devices.replicate(leaf, mesh)) for summary in summaries]
            self.sides = [side.arguments for side in passed]
            self.engines = [_engine(run, side, key, devices, score, resolution, bits) for side in passed]
        self.edge_runs = _EDGE_RUNS if score is None else _EDGE_RUNS_SCORE
        self.layout = self.engines[0].layout
        if self.engines[1].layout != self.layout:
            raise ValueError(
                "mechanism must return outputs of one structure on summary and neighbour, got "
                f"{self.layout.leaves} and {self.engines[1].layout.leaves}"
            )
        self.columns = np.zeros(0, np.int64)
        self.features: tuple[Feature, ...] = ()
        self.table: Table | None = None
        self.progress, self.done, self.total = progress, 0, total
        self.compiled_before = self._compiled()

    @property
    def seconds_compile(self) -> float:
        """Time spent so far in first calls of compiled programs."""
        return self._compiled() - self.compiled_before

    def select(self, pilot: int, runs: int, *, alpha: float, epsilon: float, delta: float, test: str) -> Event:
        """Chooses the event on `pilot` runs of each side, for `runs` certification runs."""
        first, second = pilot // 2, pilot - pilot // 2
        host = max(min(HOST_RUNS, HOST_SCALARS // self.layout.size), 64)
        codes = self._draw(_ORDERING, min(first, host))
        sample = [np.concatenate([side[j][: self.edge_runs] for side in codes]) for j in range(len(self.features))]
        edges = [_events.find_edges(values, feature) for values, feature in zip(sample, self.features, strict=True)]
        ordering = _on_host(codes, edges)
        if first > host:
            more = self._count_all(_MORE_ORDERING, first - host, edges)
            ordering = [one + other for one, other in zip(ordering, more, strict=True)]
        if second > host:
            scoring = self._count_all(_SCORING, second, edges)
        else:
            scoring = _on_host(self._draw(_SCORING, second), edges)
        return _events.choose(
            self.layout,
            self.features,
            edges,
            ordering,
            scoring,
            self.table,
            runs=runs,
            alpha=alpha,
            epsilon=epsilon,
            delta=delta,
            test=test,
        )

    def certify(self, event: Event, runs: tuple[int, int]) -> np.ndarray:
        """Counts (2, cells) of the event's cells on fresh runs of both sides."""
        statistics = self.layout.statistics_count
        kind, column = 0, event.feature
        if self.features[event.feature].table:
            kind, column = 1 + (statistics > 0), 0
        elif event.feature >= len(self.columns):
            kind, column = 1, event.feature - len(self.columns)
        else:
            column = self.columns[event.feature]
        edges = _events.pad([event.edges])[0]
        choice = Choice(np.int32(kind), np.int32(column), edges, self.table)
        return self._count(_CERTIFICATION, runs, choice, (len(edges) + 1,))

    def _draw(self, part: int, runs: int) -> list[list[np.ndarray]]:
        """Codes of all features on the host, for each side. The first call decides what the features are."""
        drawn = [
            engine.draw(self.keys, side, part, number, runs)
            for number, (engine, side) in enumerate(zip(self.engines, self.sides, strict=True))
        ]
        self._advance(runs)
        if not self.features:
            self.columns = _events.coordinates(drawn[0][0], drawn[1][0])
            self.features = self.layout.features(self.columns)
            if self.layout.tabled:
                self.table = self.layout.table(np.concatenate([side[2][: self.edge_runs] for side in drawn]))
        return [self._read(*side) for side in drawn]

    def _read(self, coordinates: np.ndarray, statistics: np.ndarray, *rows: np.ndarray) -> list[np.ndarray]:
        codes = [coordinates[:, column] for column in self.columns] + list(statistics.T)
        return codes + [self.layout.find(row, self.table) for row in rows]

    def _count_all(self, part: int, runs: int, edges: list[np.ndarray]) -> list[np.ndarray]:
        """Counts (2, cells) of the cells of each feature."""
        padded = _events.pad(edges)
        choice = (self.columns.astype(np.uint32), padded, self.table)
        counts = self._count(part, (runs, runs), choice, (len(edges), padded.shape[1] + 1))
        return [counts[:, j, : len(each) + 1] for j, each in enumerate(edges)]

    def _count(
        self, part: int, runs: tuple[int, int], choice: Any, shape: tuple[int, ...], first: int = 0
    ) -> np.ndarray:
        """Streams the runs of a part, from block `first` on, in calls of about a quarter second."""
        totals, blocks, mean = Totals(shape), -(-max(runs) // _blocks.BLOCK), sum(runs) // 2
        while first < blocks:
            share = min(self.engines[0].share, -(-(blocks - first) // len(self.engines[0].devices)))
            compiled, started = self._compiled(), time.perf_counter()
            pending = [
                engine.dispatch(self.keys, side, number, part, runs[number], first, share, choice)
                for number, (engine, side) in enumerate(zip(self.engines, self.sides, strict=True))
            ]
            for number, counters in enumerate(pending):
                totals.add(number, counters)
            seconds = time.perf_counter() - started - (self._compiled() - compiled)
            self.engines[0].resize(share, seconds)
            before, first = first, first + share * len(self.engines[0].devices)
            self._advance(min(first * _blocks.BLOCK, mean) - min(before * _blocks.BLOCK, mean))
        return totals.counts

    def _advance(self, runs: int) -> None:
        self.done += runs
        if self.progress is not None:
            self.progress(self.done / self.total)

    def _compiled(self) -> float:
        return sum(engine.seconds_compile for engine in {id(engine): engine for engine in self.engines}.values())


def _on_host(codes: list[list[np.ndarray]], edges: list[np.ndarray]) -> list[np.ndarray]:
    """Counts (2, cells) of the cells of each feature, from codes on the host."""
    return [np.stack([_events.count_cells(side[j], each) for side in codes]) for j, each in enumerate(edges)]


def sides(key: jax.Array, runs: int, test: str) -> tuple[int, int]:
    """Runs on each side: equal, or as `2 runs` fair coins fall, which is what the label test's law rests on."""
    if test != _certificates.LABEL:
        return runs, runs
    words = np.asarray(jax.random.key_data(jax.random.fold_in(key, _COINS))).ravel()
    heads = int(np.random.default_rng(words.tolist()).binomial(2 * runs, 0.5))
    return heads, 2 * runs - heads


def _engine(
    run: Callable,
    summary: Summary,
    key: jax.Array,
    devices: tuple,
    score: Callable | None,
    resolution: float,
    bits: bool,
) -> Engine:
    """The compiled programs for a sampler, kept for later audits of the same object on summaries of the same shape."""
    read = (bits,) if score is None else (_owner(score), resolution)
    name = (_owner(run), read, summary.signature, key.dtype, devices, bool(jax.config.jax_enable_x64))
    with _LOCK:
        engine = _ENGINES.pop(name, None)
        if engine is None:
            if score is None:
                engine = Engine(run, summary, key, devices, bits=bits)
            else:
                engine = Engine(_scored(run, score, resolution), summary, key, devices, name="score")
        # The engine holds the sampler and the score, so that their ids stay their own as long as it is kept.
        _ENGINES[name] = engine
        while len(_ENGINES) > _ENGINES_KEPT:
            _ENGINES.popitem(last=False)
    return engine


def _owner(function: Callable) -> Hashable:
    # A bound method is a new object each time it is read from its owner.
    return (id(function.__self__), function.__func__) if inspect.ismethod(function) else id(function)


def _scored(run: Callable, score: Callable, resolution: float) -> Callable:
    """The sampler followed by the score of its output, rounded to multiples of the resolution.

    Unrounded, the low bits of a float score would show those of the sampler's floats, which is another audit.
    """

    def read(output: Any) -> jax.Array:
        number = jnp.asarray(score(output))
        if number.shape or not jnp.issubdtype(number.dtype, jnp.floating):
            raise ValueError(f"score must return one real number, got {number.dtype} of shape {number.shape}")
        # Beyond 2^24 multiples float32 has gaps; an infinite score stays infinite.
        steps = jnp.round(number / np.asarray(resolution, number.dtype))
        steps = jnp.where(jnp.isfinite(steps), jnp.clip(steps, -(2.0**24), 2.0**24), steps)
        # The sign of a zero is one more low bit.
        steps = jnp.where(steps == 0.0, jnp.zeros_like(steps), steps)
        return steps.astype(jnp.float32) * np.float32(resolution)

    if isinstance(run, Batched):
        return Batched(lambda key, summary, n: jax.vmap(read)(run(key, summary, n)))
    return lambda key, summary: read(run(key, summary))
