"""Audits of any Python callable: outputs made on the host, block by block, and read as those of JAX samplers are."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import jax
import numpy as np

from jaxdp.audit import _events
from jaxdp.audit._blocks import BLOCK, SECONDS_PER_CALL, Choice
from jaxdp.audit._outputs import Layout
from jaxdp.audit.targets import Foreign

__all__ = ["ForeignEngine"]

_PROBE = 256
_MAX_LENGTH = 4096
_ABSENT, _NUMBER, _NONE, _TEXT = range(4)


@dataclasses.dataclass(frozen=True)
class _Form:
    """How outputs become arrays: as numbers of one shape, or item by item with tags.

    A tagged output has its number of items, and for each of the first `length` items a tag (0 absent, 1 a number,
    2 None, 3 and up the texts in their order, one more for any other text) and a value, zero where it is no number.
    """

    tagged: bool
    length: int = 0
    texts: tuple[str, ...] = ()

    @classmethod
    def of(cls, outputs: list[Any]) -> _Form:
        if _plain(outputs) is not None:
            return cls(False)
        items = [_items(output) for output in outputs]
        texts = sorted({item for each in items for item in each if isinstance(item, str)})
        return cls(True, min(max(1, *map(len, items)), _MAX_LENGTH), tuple(texts))

    def arrays(self, outputs: list[Any]) -> Any:
        """The outputs as arrays with a leading axis."""
        if not self.tagged:
            array = _plain(outputs)
            if array is None:
                raise ValueError(
                    "the audited function returned numbers of one shape first, and something else in a later run, got "
                    f"{next((each for each in outputs if _plain([outputs[0], each]) is None), outputs[0])!r}"
                )
            return array
        numbers = {text: _TEXT + index for index, text in enumerate(self.texts)}
        tags = np.zeros((len(outputs), self.length), np.int32)
        values = np.zeros((len(outputs), self.length), np.float64)
        lengths = np.zeros(len(outputs), np.int32)
        for row, output in enumerate(outputs):
            items = _items(output)
            lengths[row] = len(items)
            for column, item in enumerate(items[: self.length]):
                if item is None:
                    tags[row, column] = _NONE
                elif isinstance(item, str):
                    tags[row, column] = numbers.get(item, _TEXT + len(numbers))
                else:
                    tags[row, column], values[row, column] = _NUMBER, _number(item)
        return {"length": lengths, "tag": tags, "value": values}


class ForeignEngine:
    """What `_blocks.Engine` is to JAX samplers; both sides share one, so that their outputs have one form."""

    def __init__(self, run: Foreign, summaries: tuple[Any, Any], key: jax.Array, *, bits: bool = False):
        self.run = run
        self.words = np.asarray(jax.random.key_data(key)).ravel().tolist()
        self.devices = (jax.local_devices(backend="cpu")[0],)
        self.share, self.seconds_compile = 1, 0.0
        # The probe is a part of its own: no run of it is counted.
        probes = [self._call(summary, (side, 2**31, 0), _PROBE) for side, summary in enumerate(summaries)]
        self.form = None if run.batched else _Form.of([output for probe in probes for output in probe])
        trees = [self._arrays(probe, _PROBE) for probe in probes]
        layouts = [Layout.of(jax.tree_util.tree_map(_shape, tree), bits=bits) for tree in trees]
        if layouts[0] != layouts[1]:
            raise ValueError(
                f"the audited function must return outputs of one structure on both inputs, got {layouts[0].leaves} "
                f"and {layouts[1].leaves}"
            )
        self.layout = layouts[0]
        self._coded = jax.jit(self.layout.read)

    def outputs(self, summary: Any, side: int, runs: int) -> Any:
        """Outputs of runs that no audit counts, as arrays."""
        return self._arrays(self._call(summary, (side, 2**31, 1), runs), runs)

    def draw(self, keys: Any, arguments: tuple, part: int, side: int, runs: int) -> list[np.ndarray]:
        """The first `runs` outputs of a part: coordinates, statistics and rows, as codes."""
        blocks = [
            self._block(arguments, side, part, block, min(BLOCK, runs - block * BLOCK))
            for block in range(-(-runs // BLOCK))
        ]
        return [np.concatenate(columns) for columns in zip(*blocks, strict=True)]

    def dispatch(
        self, keys: Any, arguments: tuple, side: int, part: int, runs: int, first: int, share: int, choice: Any
    ) -> np.ndarray:
        """Counts `share` blocks of a part; one row of counters."""
        counters = 0
        for block in range(first, first + share):
            live = min(BLOCK, runs - block * BLOCK)
            if live > 0:
                counters = counters + self._tally(choice, *self._block(arguments, side, part, block, live))
        edges = choice.edges if isinstance(choice, Choice) else choice[1]
        return np.zeros((1, *edges.shape[:-1], edges.shape[-1] + 1), np.int64) + counters

    def resize(self, share: int, seconds: float) -> None:
        """Sets the blocks of later calls by the time that a call of `share` blocks took."""
        if seconds < SECONDS_PER_CALL / 2.0 and share == self.share:
            self.share *= 2
        elif seconds > 2.0 * SECONDS_PER_CALL:
            self.share = max(self.share // 2, 1)

    def _tally(self, choice: Any, coordinates: np.ndarray, statistics: np.ndarray, *rows: np.ndarray) -> np.ndarray:
        if isinstance(choice, Choice):
            readers: list[Callable] = [lambda: coordinates[:, choice.column]]
            if self.layout.statistics_count:
                readers.append(lambda: statistics[:, choice.column])
            readers += [lambda row=row: self.layout.find(row, choice.table) for row in rows]
            return _events.count_cells(readers[int(choice.kind)](), choice.edges)
        columns, edges, table = choice
        codes = [coordinates[:, column] for column in columns] + list(statistics.T)
        codes += [self.layout.find(row, table) for row in rows]
        return np.stack([_events.count_cells(*pair) for pair in zip(codes, edges, strict=True)])

    def _block(self, arguments: tuple, side: int, part: int, block: int, runs: int) -> tuple[np.ndarray, ...]:
        """Codes of a block's first `runs` outputs."""
        tree = self._arrays(self._call(arguments[0], (side, part, block), runs), runs)
        first = [(leaf.shape, leaf.dtype) for leaf in self.layout.leaves]
        found = [(leaf.shape[1:], leaf.dtype) for leaf in jax.tree_util.tree_leaves(tree) if leaf.size]
        if found != first:
            raise ValueError(f"the audited function must keep to one structure of outputs, got {found} after {first}")
        # Of one length, so that they share one program.
        padded = jax.tree_util.tree_map(lambda leaf: np.resize(leaf, (BLOCK, *leaf.shape[1:])), tree)
        with jax.default_device(self.devices[0]), self.layout.scope():
            return tuple(np.asarray(codes)[:runs] for codes in self._coded(padded))

    def _call(self, summary: Any, place: tuple[int, int, int], runs: int) -> Any:
        """Outputs of `runs` calls, or of one batched call."""
        before = (np.random.default_rng([*self.words, *place]),) if self.run.seeded else ()
        try:
            if self.run.batched:
                return self.run.function(*before, summary, runs)
            return [self.run.function(*before, summary) for _ in range(runs)]
        except Exception as error:
            raise ValueError(f"the audited function raised {type(error).__name__}: {error}") from error

    def _arrays(self, outputs: Any, runs: int) -> Any:
        if self.form is not None:
            return self.form.arrays(outputs)
        tree = jax.tree_util.tree_map(np.asarray, outputs)
        for leaf in jax.tree_util.tree_leaves(tree):
            if leaf.ndim == 0 or len(leaf) != runs or leaf.dtype.kind not in "biuf":
                raise ValueError(
                    f"a batched function must return arrays of numbers with a leading axis of {runs}, got "
                    f"{leaf.dtype} of shape {leaf.shape}"
                )
        return tree


def _shape(leaf: np.ndarray) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(leaf.shape[1:], leaf.dtype)


def _plain(outputs: list[Any]) -> np.ndarray | None:
    """Outputs as one array of numbers, if they are numbers of one shape."""
    try:
        array = np.asarray(outputs)
    except (ValueError, TypeError, OverflowError):
        return None
    return array if array.dtype.kind in "biuf" else None


def _items(output: Any) -> list[Any]:
    """The numbers, texts and Nones in an output, in order."""
    if isinstance(output, np.ndarray):
        return output.ravel().tolist()
    if isinstance(output, dict):
        output = list(output.values())
    if isinstance(output, list | tuple):
        return [item for each in output for item in _items(each)]
    return [output]


def _number(item: Any) -> float:
    try:
        return float(item)
    except (TypeError, ValueError) as error:
        text = f"the audited function must return numbers, texts, None and sequences of them, got {item!r}"
        raise ValueError(text) from error
