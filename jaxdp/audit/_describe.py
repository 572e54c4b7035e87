"""Events in words, such as "output <= 0.53", "output.index in {1, 2}" or "output in {(True, False)}"."""

from __future__ import annotations

import jax.numpy as jnp
import numpy as np

from jaxdp.audit import _codes
from jaxdp.audit._outputs import TABLE, Feature, Layout, Table

__all__ = ["describe"]

_MOST = 8


def describe(layout: Layout, feature: Feature, edges: np.ndarray, inside: np.ndarray, table: Table | None) -> str:
    """An event in words.

    Args:
        layout: Structure of the outputs.
        feature: The feature whose cells make up the event.
        edges: Edges of the cells.
        inside: (cells,) whether a cell is part of the event.
        table: The outputs behind the cells of a table.

    Returns:
        A threshold, an interval, or a list of values and intervals; long lists are cut short.
    """
    if table is not None and feature.table:
        pieces = [layout.spell(table.rows[cell]) for cell in np.flatnonzero(inside[: int(table.used)])]
        listed = [f"{feature.name} in {{{_shorten(pieces, 4)}}}"] if pieces else []
        return " or ".join(listed + ["any other output"] * bool(inside[TABLE]))
    real = jnp.issubdtype(feature.dtype, jnp.floating)
    # The last cell of a float is NaN; the one before it is infinity, where "(1, inf]" is "> 1".
    last = len(inside) - (2 if real else 1)
    ends = np.flatnonzero(np.diff(np.concatenate([[False], inside[: last + 1], [False]]))).reshape(-1, 2)
    ranges = [_range(start, stop, edges, last, feature) for start, stop in ends]
    nan = bool(real and inside[-1])
    if len(ranges) == 1 and not nan and not _single(*ranges[0]):
        return _interval(*ranges[0], feature)
    pieces = [_piece(low, high, feature) for low, high in ranges] + ["nan"] * nan
    return f"{feature.name} in {{{_shorten(pieces, _MOST)}}}"


def _range(start: int, stop: int, edges: np.ndarray, last: int, feature: Feature) -> tuple[int | None, int | None]:
    """The cells start to stop - 1 as the codes above a low and up to a high one; None where nothing lies beyond."""
    low = edges[start - 1] if start else None
    high = edges[stop - 1] if stop <= last else None
    infinities = _codes.float_edges(feature.dtype)
    if feature.dtype == np.bool_:
        return (-1 if low is None else low), (1 if high is None else high)
    if infinities and high == infinities[0]:
        return high - 1, high
    if infinities and high is None and low == infinities[1]:
        return low, low + 1
    return low, high


def _interval(low: int | None, high: int | None, feature: Feature) -> str:
    """The codes above low and up to high, as inequalities."""
    left, right, name = _above(low, feature), _spell(high, feature), feature.name
    if low is None:
        return f"{name} <= {right}"
    real = jnp.issubdtype(feature.dtype, jnp.floating)
    if high is None:
        return f"{name} {'>' if real else '>='} {left}"
    return f"{left} {'<' if real else '<='} {name} <= {right}"


def _piece(low: int | None, high: int | None, feature: Feature) -> str:
    """The codes above low and up to high, as an item of a list."""
    if high is not None and _single(low, high):
        return _spell(high, feature)
    left, right = _above(low, feature), _spell(high, feature)
    return f"({left}, {right}]" if jnp.issubdtype(feature.dtype, jnp.floating) else f"{left} to {right}"


def _above(low: int | None, feature: Feature) -> str:
    """The lower end: exclusive for floats, the next integer for integers."""
    if low is None:
        return "..."
    return _spell(low if jnp.issubdtype(feature.dtype, jnp.floating) else int(low) + 1, feature)


def _spell(code: int | None, feature: Feature) -> str:
    return "..." if code is None else feature.spell(code)


def _single(low: int | None, high: int | None) -> bool:
    return low is not None and high is not None and int(high) - int(low) == 1


def _shorten(pieces: list[str], most: int) -> str:
    more = len(pieces) - most
    return ", ".join(pieces[:most]) + (f", ... {more} more" if more > 0 else "")
