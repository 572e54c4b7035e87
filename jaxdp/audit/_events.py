"""The choice of the event, on pilot runs: by predicted certificate, frozen before certification.

The codes of a feature are cut into cells at values that the pilot shows (each frequent value is a cell of its own). The
first half of the pilot orders the cells; an event is a prefix of an order, or a half-line. The second half scores all
of them, on all features and in both directions, by the epsilon that the planned number of certification runs would
certify (a ratio at a fixed mass would waste runs: an event with twice the mass needs half as many).
"""

from __future__ import annotations

import dataclasses

import jax.numpy as jnp
import numpy as np
from scipy import special

from jaxdp.audit import _certificates, _codes, _scores
from jaxdp.audit._describe import describe
from jaxdp.audit._outputs import MAX_COORDINATES, TABLE, Feature, Layout, Table

__all__ = ["SIZES", "Event", "choose", "coordinates", "count_cells", "find_edges", "pad"]

SIZES = (32, 256, 1024)
"""Lengths of lists of edges: padded to one of these, they share compiled programs."""
MAX_NESTED = 31
_MAX_VALUES = 500
_QUANTILES = 250
_SMOOTHINGS = (1, 9, 33)


@dataclasses.dataclass(frozen=True)
class Event:
    """An event and the nested family around it, as a table over the cells of one feature.

    Attributes:
        feature: Number of the feature.
        reverse: Whether the event is more likely on the neighbour.
        edges: Edges of the cells, in the codes of the feature.
        levels: (cells,) the nested event j holds in the cells of level at most j.
        nested: Number of nested events.
        main: Which of them is the event.
        text: The event in words.
        predicted: The certificate that the pilot predicts; about -1e6 if none.
    """

    feature: int
    reverse: bool
    edges: np.ndarray
    levels: np.ndarray
    nested: int
    main: int
    text: str
    predicted: float

    def hits(self, cells: np.ndarray) -> np.ndarray:
        """(sides, nested) hits of the nested events, from the counts (sides, cells or more)."""
        counts = np.zeros((len(cells), self.nested + 1), np.int64)
        np.add.at(counts, (slice(None), self.levels), cells[:, : len(self.levels)])
        return np.cumsum(counts, axis=1)[:, : self.nested]


def coordinates(one: np.ndarray, other: np.ndarray) -> np.ndarray:
    """The coordinates that become features: all, or those whose distributions differ most (Kolmogorov distance)."""
    if one.shape[1] <= MAX_COORDINATES:
        return np.arange(one.shape[1])
    one, other = one[:1000], other[:1000]
    cuts = np.quantile(np.concatenate([one, other]), np.linspace(0.0, 0.97, 32), axis=0, method="lower")
    distance = [
        np.max(
            np.abs((one[:, [j]] <= cuts[None, :, j]).mean(axis=0) - (other[:, [j]] <= cuts[None, :, j]).mean(axis=0))
        )
        for j in range(one.shape[1])
    ]
    return np.sort(np.argsort(-np.array(distance), kind="stable")[:MAX_COORDINATES])


def find_edges(codes: np.ndarray, feature: Feature) -> np.ndarray:
    """Sorted edges between the cells of a feature, from pilot codes of both sides."""
    if feature.table:
        return np.arange(TABLE, dtype=codes.dtype)
    values, counts = np.unique(codes, return_counts=True)
    if len(values) > _MAX_VALUES:
        # Rare events certify most where supports differ: the tails are cut at the ranks 1, 2, 4, ... too.
        tail = 2 ** np.arange(max(len(codes) // _QUANTILES, 1).bit_length())
        ranks = np.concatenate([np.arange(1, _QUANTILES) * (len(codes) / _QUANTILES), tail, len(codes) - tail])
        quantiles = values[np.searchsorted(np.cumsum(counts), ranks)]
        values = values[counts * _QUANTILES >= len(codes)]
    else:
        quantiles = values[:0]
    if feature.name == "score":
        quantiles = np.concatenate([quantiles, _scores.ruler(codes)])
    limits = np.iinfo(codes.dtype)
    # A frequent value is cut off on both sides; below the smallest integer there is nothing to cut.
    below = values[values > limits.min] - 1
    apart = np.array(_codes.float_edges(feature.dtype), codes.dtype)
    edges = np.unique(np.concatenate([values, below, quantiles, apart]))
    return edges[edges < limits.max]


def count_cells(codes: np.ndarray, edges: np.ndarray) -> np.ndarray:
    """Counts of the cells of one side; cell i holds the codes above edges[i - 1] and up to edges[i]."""
    # Sorting the codes is several times faster than searching for each of them.
    below = np.searchsorted(np.sort(codes), edges, side="right")
    return np.diff(below, prepend=0, append=len(codes))


def pad(lists: list[np.ndarray]) -> np.ndarray:
    """Lists of edges, all followed by the largest integer, which no code exceeds, up to a common length."""
    size = next(size for size in SIZES if size >= max(len(edges) for edges in lists))
    top = np.iinfo(lists[0].dtype).max
    return np.stack([np.pad(edges, (0, size - len(edges)), constant_values=top) for edges in lists])


def choose(
    layout: Layout,
    features: tuple[Feature, ...],
    edges: list[np.ndarray],
    ordering: list[np.ndarray],
    scoring: list[np.ndarray],
    table: Table | None,
    *,
    runs: int,
    alpha: float,
    epsilon: float,
    delta: float,
    test: str,
) -> Event:
    """The event with the best predicted certificate.

    Args:
        layout: Structure of the outputs.
        features: The features.
        edges: Edges of each feature.
        ordering: Counts (2, cells) of each feature on the first half of the pilot, summary first.
        scoring: The same on the second half.
        table: The table of whole outputs, if it is a feature.
        runs: Planned certification runs on each side.
        alpha: Planned error probability.
        epsilon: Claimed epsilon (only the nested events depend on it).
        delta: Claimed delta.
        test: The test of the certification.

    Returns:
        The event, with up to MAX_NESTED nested events around it.
    """
    families = []
    for index, feature in enumerate(features):
        for reverse in (False, True):
            first, second = (half[index][::-1] if reverse else half[index] for half in (ordering, scoring))
            for order, independent in _orders(first, feature):
                # Half-lines owe nothing to the first half, which therefore scores them too.
                counts = first + second if independent else second
                smooth = None
                if feature.name == "score":
                    smooth = _scores.expected_counts(counts[::-1] if reverse else counts, edges[index])
                caution = _caution(order, feature)
                if smooth is not None:
                    counts, caution = smooth[::-1] if reverse else smooth, None
                hits = np.cumsum(counts[:, order], axis=1)
                families.append((index, reverse, order, hits, counts.sum(axis=1), caution))
    for share in (1.0, 0.5, 0.0):
        predicted = [_predict(*family[3:], share, runs, alpha, delta, test) for family in families]
        winner = int(np.argmax([np.max(values) for values in predicted]))
        best, length = float(np.max(predicted[winner])), int(np.argmax(predicted[winner])) + 1
        # Caution costs power where little can be certified: there, a guess is better than nothing.
        if best > 0.0:
            break
    index, reverse, order = families[winner][:3]
    both = ordering[index] + scoring[index]
    both = both[::-1] if reverse else both
    if len(order) <= SIZES[0] + 1:
        # Few cells: the nested events, within the event and around it, follow the likelihood ratio.
        order = _by_ratio(both, np.isin(np.arange(len(order)), order[:length], invert=True))
    starts = _nested(both, order, length, max(epsilon, best, 0.1), runs, alpha)
    levels = np.empty(len(order), np.int64)
    levels[order] = np.searchsorted(starts, np.arange(len(order)), side="right")
    inside = np.zeros(len(order), bool)
    inside[order[:length]] = True
    changes = np.flatnonzero(levels[1:] != levels[:-1])
    return Event(
        feature=index,
        reverse=reverse,
        edges=edges[index][changes],
        levels=np.append(levels[changes], levels[-1]),
        nested=len(starts),
        main=int(np.searchsorted(starts, length)),
        text=describe(layout, features[index], edges[index], inside, table),
        predicted=best,
    )


def _orders(counts: np.ndarray, feature: Feature) -> list[tuple[np.ndarray, bool]]:
    """Orders of the cells, most suspicious first: by shrunk and smoothed likelihood ratio, up and down.

    The flag says whether the order is independent of the counts.
    """
    cells = counts.shape[1]
    natural = np.arange(cells)
    empty = counts.sum(axis=0) == 0
    orders = []
    for width in () if feature.name == "score" else _SMOOTHINGS:
        if width > 1 and (feature.table or cells < 2 * width):
            continue
        one, other = _smooth(counts, width)
        # Empty cells come last, so that an event is described by outputs that occur.
        orders.append((_by_ratio(np.stack([one, other]), empty), False))
    if not feature.table:
        # No NaN is on either side of a threshold.
        nan = natural == cells - 1 if jnp.issubdtype(feature.dtype, jnp.floating) else np.zeros(cells, bool)
        orders += [(np.lexsort((natural, nan)), True), (np.lexsort((-natural, nan)), True)]
    return orders


def _by_ratio(counts: np.ndarray, later: np.ndarray) -> np.ndarray:
    """Cells by descending likelihood ratio, shrunk by one count on each side; those marked `later` after the others."""
    return np.lexsort((-np.log((counts[0] + 1.0) / (counts[1] + 1.0)), later))


def _smooth(counts: np.ndarray, width: int) -> np.ndarray:
    """Sums over windows of cells, cut off at the ends."""
    total = np.cumsum(np.pad(counts, ((0, 0), (1, 0))), axis=1)
    place = np.arange(counts.shape[1])
    low, high = np.maximum(place - width // 2, 0), np.minimum(place + width // 2 + 1, counts.shape[1])
    return (total[:, high] - total[:, low]).astype(np.float64)


def _caution(order: np.ndarray, feature: Feature) -> np.ndarray:
    """Standard errors by which the pilot's frequencies of each prefix are distrusted.

    The best of many events is partly the luckiest. There are few half-lines and many unions of cells: an event in
    many pieces has to show more. (The numbers were tried out on ten mechanisms; validity does not depend on them.)
    """
    if feature.table or len(order) <= SIZES[0] + 1:
        return np.full(len(order), 1.5)
    position = np.empty(len(order), np.int64)
    position[order] = np.arange(len(order))
    # Two neighbouring cells become one piece when the later of them joins the event.
    joined = np.bincount(np.maximum(position[1:], position[:-1]), minlength=len(order))
    pieces = np.arange(1, len(order) + 1) - np.cumsum(joined)
    return np.minimum(2.0 + 0.5 * np.log2(pieces), 3.0)


def _predict(
    hits: np.ndarray,
    pilot: np.ndarray,
    caution: np.ndarray | None,
    share: float,
    runs: int,
    alpha: float,
    delta: float,
    test: str,
) -> np.ndarray:
    """Predicted certificates of events with pilot hits (2, events) among `pilot` (2,) runs."""
    pilot = np.maximum(pilot, 1).astype(np.float64)
    one, other = hits / pilot[:, None]
    if caution is None:
        # The ratio is known, the mass is not.
        both = one + other
        shrunk = _certificates.score_limit(both, float(np.min(pilot)), -share) / np.maximum(both, 1e-300)
        one, other = one * shrunk, other * shrunk
    else:
        one = _certificates.score_limit(one, pilot[0], -share * caution)
        other = _certificates.score_limit(other, pilot[1], share * caution)
    ratio = _certificates.predicted(test, one, other, runs, alpha=alpha, delta=delta)
    # Where nothing can be certified, at least the most promising event is taken; the sure event never is.
    ratio[-1] = -1e7
    return ratio


def _nested(counts: np.ndarray, order: np.ndarray, length: int, epsilon: float, runs: int, alpha: float) -> np.ndarray:
    """Lengths of up to MAX_NESTED prefixes: the event, those that certify most delta at some epsilon, even masses."""
    one, other = np.cumsum(counts[:, order], axis=1) / np.maximum(counts.sum(axis=1, keepdims=True), 1)
    quantile = -float(special.ndtri(alpha / (2.0 * MAX_NESTED)))
    lower, upper = (
        _certificates.score_limit(one, runs, -quantile),
        _certificates.score_limit(other, runs, quantile),
    )
    grid = np.exp(np.minimum(np.linspace(0.0, 2.0 * epsilon, MAX_NESTED), 700.0))
    best = np.argmax(lower[None, :] - grid[:, None] * upper[None, :], axis=1) + 1
    even = np.searchsorted(one + other, np.arange(1, MAX_NESTED) * (2.0 / MAX_NESTED)) + 1
    lengths = dict.fromkeys([length, *best.tolist(), *even[even < len(order)].tolist()])
    return np.sort(np.array(list(lengths)[:MAX_NESTED]))
