"""Thresholds on a score: where to cut it, and what is known of its cells if it is the log-likelihood ratio."""

from __future__ import annotations

import numpy as np
from scipy import special

from jaxdp.audit import _codes

__all__ = ["expected_counts", "ruler"]

_BINS = 32
_CODE = np.dtype(np.float32)


def ruler(codes: np.ndarray) -> np.ndarray:
    """Codes of evenly spaced scores, and of some far out: the best event may be too rare for the runs that find edges.

    Where two laws differ most, the log ratio is largest, and a billion runs certify what 2^17 have not seen.
    """
    scores = _codes.decode(codes, _CODE)
    scores = scores[np.isfinite(scores)].astype(np.float64)
    if not len(scores):
        return codes[:0]
    low, high = scores.min(), scores.max()
    beyond = np.concatenate([np.arange(1, 33) / 32.0, 2.0 ** np.arange(0.25, 3.25, 0.25)]) * (high - low)
    places = np.concatenate([np.linspace(low, high, 128), high + beyond, low - beyond])
    bits = places.astype(np.float32).view(np.int32)
    return np.where(bits < 0, bits ^ np.iinfo(np.int32).max, bits).astype(codes.dtype)


def expected_counts(counts: np.ndarray, edges: np.ndarray) -> np.ndarray | None:
    """Counts of the cells of a score on equally many runs of both sides, smoothed by its meaning; None if it has none.

    A run in a cell of log ratio s is one of the summary with probability 1 / (1 + e^-s). If the counts agree with
    that, the total of each cell is divided so: the ratio of a rare event is then known much better than from its few
    hits, and the luckiest of many events is not preferred.

    Args:
        counts: (2, cells), summary first.
        edges: (cells - 1,) codes of the edges.
    """
    # The lowest cell holds -inf, the last but one +inf, the last NaN, of which the score says nothing.
    values = _codes.decode(edges, _CODE).astype(np.float64)
    middle = np.where(edges[1:] == edges[:-1] + 1, values[1:], 0.5 * values[1:] + 0.5 * values[:-1])
    scores = np.concatenate([values[:1], middle, [0.0]])
    width = np.concatenate([[0.0], np.where(edges[1:] == edges[:-1] + 1, 0.0, values[1:] - values[:-1]), [0.0]])
    with np.errstate(over="ignore"):
        share = special.expit(scores)
    total = counts.sum(axis=0)
    if not _agree(counts[0], total, share, np.minimum(width, 1.0)):
        return None
    return np.stack([total * share, total * (1.0 - share)])


def _agree(hits: np.ndarray, total: np.ndarray, share: np.ndarray, width: np.ndarray) -> bool:
    """Whether shares of hits are as expected, up to chance (five standard deviations) and the width of the cells."""
    bins = np.minimum(np.cumsum(total) * _BINS // max(int(total.sum()), 1), _BINS - 1)
    spread = total * share * (1.0 - share)
    gap, variance, slack = (
        np.bincount(bins, each, _BINS) for each in (hits - total * share, spread, spread * width + 1e-3 * total)
    )
    return bool(np.all(np.abs(gap) <= 5.0 * np.sqrt(variance + 1.0) + slack))
