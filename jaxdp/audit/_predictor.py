"""Which side did this output come from? Log odds of an output, learned online from the outputs before it.

A few small models each give a probability; they are mixed in proportion to what bets on each would have won so far.
They are: no idea at all; counts of whole outputs, for discrete ones; the upper against the lower tail of one column
(a coordinate, sum, maximum or minimum); values near its median against the others; its octiles; and Bayesian logistic
regressions on standardised columns, with their absolute values and squares, and flags for non-finite values. All
average over what the past leaves open, so that they stay modest after few runs.

The bets are valid whatever is predicted. All that matters is that a block is predicted from earlier blocks only.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from scipy import special

from jaxdp.audit import _codes
from jaxdp.audit._betting import UNIT, growth
from jaxdp.audit._outputs import Layout

__all__ = ["Predictor", "as_units"]

_MAX_COLUMNS = 16
_LARGEST = 5.0
_NEWTON_STEPS = 3
_NAN, _INFINITE = 1e30, 1e29
# Of more columns than this, those are kept that differ most in the mean of the first pairs, at these numbers of pairs.
_KEPT, _KEEP_AT = 64, (32, 512)
# Pretended runs of each side in every cell, for each model that counts.
_TABLES, _OCTILES = (0.5, 15.0), (8.0,)
# By how much log odds may exceed the claim.
_EXCESSES = np.geomspace(0.02, 5.0, 9)
# Share of the runs in each of the two tails that are told apart.
_TAIL_SHARES = (0.5, 0.4, 0.3, 0.2, 0.1)
# (absolute values?, squares?, prior variance of a weight)
_REGRESSIONS = ((False, False, 0.3), (True, False, 0.5), (True, True, 0.5))
# Prior weights: no idea; tables; tails; octiles; split by spread; regressions.
_PRIOR = np.array([0.02, 0.1, 0.05, *[0.05] * 5, 0.03, 0.05, 0.02, 0.24, 0.24])


def as_units(log_odds: np.ndarray, epsilon: float) -> np.ndarray:
    """Log odds as whole numbers of units; NaN counts as even. So large that more would win nothing is cut off."""
    limit = min(epsilon + 7.0, 30.0)
    return np.rint(np.clip(np.nan_to_num(log_odds, nan=0.0), -limit, limit) / UNIT).astype(np.int64)


class Predictor:
    """Predictions for one stream of pairs of outputs.

    Args:
        layout: Structure of the outputs.
        epsilon: The claim; models are weighted by what bets on them would have won against it.
        scored: Whether an output is its log likelihood ratio already, so that nothing is learned.
    """

    def __init__(self, layout: Layout, epsilon: float, scored: bool = False):
        self.layout, self.epsilon, self.scored = layout, epsilon, scored
        self.log_weight = np.log(_PRIOR)
        self.values = np.zeros((2, 0, layout.size + layout.statistics_count))
        self.whole = np.zeros((2, 0), np.int64)
        self.weights: dict[int, np.ndarray] = {}
        # The last columns are sums, maxima and minima.
        self.kept: Any = slice(-_KEPT, None)
        self.chosen_at = 0

    @property
    def size(self) -> int:
        """Pairs that can be predicted so far."""
        return self.values.shape[1]

    def extend(self, drawn: list[list[np.ndarray]]) -> None:
        """Adds outputs of both sides: coordinates, statistics and possibly rows, as `Engine.draw` gives them."""
        values = np.stack([_values(self.layout, *side[:2]) for side in drawn])
        whole = np.stack([_whole(side) for side in drawn])
        self.values = np.concatenate([self.values, values], axis=1)
        self.whole = np.concatenate([self.whole, whole], axis=1)

    def predict(self, start: int, stop: int) -> np.ndarray:
        """Log odds (2, stop - start) of the summary's side for the pairs of a block, from the pairs before it.

        Blocks must come in order: the models' weights are updated with the block's outcome.
        """
        if self.scored:
            return np.where(self.values[:, start:stop, 0] == _NAN, 0.0, self.values[:, start:stop, 0])
        if not start:
            return np.zeros((2, stop))
        self._keep(start)
        past, new = self.values[:, :start, self.kept], self.values[:, start:stop, self.kept]
        p = [np.full((2, stop - start), 0.5)]
        whole = _as_cells(self.whole[:, :start], self.whole[:, start:stop])
        p += [_share(*whole, pretended) for pretended in _TABLES]
        ordered = np.sort(past.reshape(-1, past.shape[2]), axis=0)
        shift, spread, columns = _columns(past, _quantile(ordered, 0.5))
        one, other, line = past[:, :, shift], new[:, :, shift], ordered[:, shift]
        p += [_agreement(*_tails(one, other, line, share), self.epsilon) for share in _TAIL_SHARES]
        cuts = line[[int(j * len(line) / 8) for j in range(1, 8)]]
        cells = np.searchsorted(cuts, one), np.searchsorted(cuts, other)
        p += [_share(*cells, pretended) for pretended in _OCTILES]
        one, other = (np.abs(each[:, :, spread] - _quantile(ordered[:, spread], 0.5)) for each in (past, new))
        p.append(_agreement(*_tails(one, other, np.sort(one.ravel()), 0.5), self.epsilon))
        basis = _Basis(ordered[:, columns])
        design, fresh = basis(past[:, :, columns]), basis(new[:, :, columns])
        sides = np.repeat([1.0, 0.0], start)
        for number, (absolute, square, variance) in enumerate(_REGRESSIONS):
            use = basis.pick(absolute, square)
            fit = _fit(design[..., use].reshape(2 * start, -1), sides, variance, self.weights.get(number))
            self.weights[number] = fit[0]
            p.append(_foretell(fresh[..., use], *fit))
        odds = np.stack(p)
        odds = np.log(np.maximum(odds, 1e-9)) - np.log(np.maximum(1.0 - odds, 1e-9))
        weight = np.exp(self.log_weight - np.max(self.log_weight))
        mixed = _mix(odds, weight / weight.sum(), self.epsilon)
        a, b = (growth(odds[:, side], np.float64(self.epsilon))[side] for side in (0, 1))
        self.log_weight += np.sum(a + b, axis=1)
        return mixed

    def _keep(self, start: int) -> None:
        if self.values.shape[2] > _KEPT and any(start >= each > self.chosen_at for each in _KEEP_AT):
            past = self.values[:, :start]
            with np.errstate(over="ignore"):
                spread = past.reshape(-1, past.shape[2]).std(axis=0) + 1e-300
            gap = np.abs(past[0].mean(axis=0) - past[1].mean(axis=0)) / spread
            self.kept, self.weights = np.sort(np.argsort(-gap, kind="stable")[:_KEPT]), {}
            self.chosen_at = start


def _mix(odds: np.ndarray, weight: np.ndarray, epsilon: float) -> np.ndarray:
    """Log odds (2, n) whose bets against the claim are the mixture of the models' bets, for odds (models, 2, n).

    Mixed probabilities would seldom pass the claim while the models disagree; mixed stakes lose at most about the
    logarithm of a model's prior weight against the bets on it. Stakes on both sides of one output are netted.
    """
    g, other, ratio = special.expit(odds), special.expit(-odds), np.exp(min(epsilon, 700.0))
    stakes = np.maximum(g / ratio - other, 0.0), np.maximum(other / ratio - g, 0.0)
    f, h = (np.tensordot(weight, each, (0, 0)) for each in stakes)
    f, h = f - ratio * h, h - ratio * f
    # A stake f at k = 0 is that of odds (1 + f) / (1 / ratio - f). Where nothing is staked, smaller claims still look.
    mean = np.tensordot(weight, g, (0, 0))
    idle = np.clip(np.log(mean) - np.log1p(-mean), -epsilon, epsilon)
    staked = np.log1p(np.maximum(f, h)) - np.log(np.maximum(1.0 / ratio - np.maximum(f, h), 1e-300))
    return np.where(f > 0.0, staked, np.where(h > 0.0, -staked, idle))


def _values(layout: Layout, coordinates: np.ndarray, statistics: np.ndarray) -> np.ndarray:
    """Coordinates and statistics (n, columns) as finite numbers: NaN is 1e30, infinities are 1e29."""
    codes = np.concatenate([coordinates, statistics], axis=1)
    types = [feature.dtype for feature in layout.features(np.arange(layout.size)) if not feature.table]
    values = np.empty(codes.shape, np.float64)
    for kind in set(types):
        mine = np.flatnonzero([each == kind for each in types])
        values[:, mine] = _codes.decode(codes[:, mine], kind)
    return np.clip(np.nan_to_num(values, nan=_NAN, posinf=_INFINITE, neginf=-_INFINITE), -_INFINITE, _NAN)


def _whole(side: list[np.ndarray]) -> np.ndarray:
    """One number for each output (n,); different outputs nearly always have different ones."""
    rows = (side[2] if len(side) > 2 else side[0]).astype(np.int64)
    multipliers = np.random.default_rng(0).integers(-(2**62), 2**62, rows.shape[1]) | 1
    return (rows * multipliers).sum(axis=1)


def _as_cells(past: np.ndarray, new: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Outputs as numbers of cells, one for each earlier output; what was never seen shares a last, empty one."""
    known, cells = np.unique(past, return_inverse=True)
    place = np.minimum(np.searchsorted(known, new), len(known) - 1)
    return cells.reshape(past.shape), np.where(known[place] == new, place, len(known))


def _share(past: np.ndarray, new: np.ndarray, pretended: float) -> np.ndarray:
    """Share of the summary's side in each new output's cell."""
    size = max(int(past.max()), int(new.max())) + 1
    counts = np.stack([np.bincount(side, minlength=size) for side in past]) + pretended
    return (counts[0] / counts.sum(axis=0))[new]


def _agreement(past: np.ndarray, new: np.ndarray, epsilon: float) -> np.ndarray:
    """The same for two cells, +1 and -1, of which one tells as much for the summary as the other against it.

    The log odds are taken to exceed the claim, in one direction or the other: what matters is by how much.
    """
    agreed = float((past[0] == 1).sum() + (past[1] == -1).sum())
    other = float((past != 0).sum()) - agreed
    odds = epsilon + _EXCESSES
    odds = np.concatenate([odds, -odds])
    weight = agreed * special.log_expit(odds) + other * special.log_expit(-odds)
    weight = np.exp(weight - weight.max())
    share = float(weight @ special.expit(odds) / weight.sum())
    return np.where(new == 0, 0.5, np.where(new == 1, share, 1.0 - share))


def _tails(past: np.ndarray, new: np.ndarray, ordered: np.ndarray, share: float) -> tuple[np.ndarray, ...]:
    """The highest share of a column as +1, the lowest as -1, the rest as 0. Atoms at the median stay in one piece."""
    low, high = _quantile(ordered, share), _quantile(ordered, 1.0 - share)
    if low < high:
        return tuple((side >= high) * 1 - (side <= low) * 1 for side in (past, new))
    if len(ordered) - np.searchsorted(ordered, high, "right") >= np.searchsorted(ordered, low):
        return tuple(np.where(side > high, 1, -1) for side in (past, new))
    return tuple(np.where(side < low, -1, 1) for side in (past, new))


def _quantile(ordered: np.ndarray, share: float) -> Any:
    return ordered[min(int(share * len(ordered)), len(ordered) - 1)]


def _columns(past: np.ndarray, centre: np.ndarray) -> tuple[int, int, np.ndarray]:
    """The columns in which the sides differ most so far: by location, by spread, and several by either."""
    if past.shape[2] == 1:
        return 0, 0, np.zeros(1, int)
    away = np.abs(past - centre)
    signs = np.sign(past - centre), np.sign(away - np.median(away.reshape(-1, past.shape[2]), axis=0))
    shift, spread = (np.abs(sign[0].mean(axis=0) - sign[1].mean(axis=0)) for sign in signs)
    most = np.argsort(-np.maximum(shift, spread), kind="stable")[:_MAX_COLUMNS]
    return int(np.argmax(shift)), int(np.argmax(spread)), np.sort(most)


class _Basis:
    """Standardised features of columns: constant, value, flag of a non-finite value; absolute value; square."""

    def __init__(self, ordered: np.ndarray):
        self.centre, lowest, highest = _quantile(ordered, 0.5), ordered[0], ordered[-1]
        spread = 0.4 * (_quantile(ordered, 0.9) - _quantile(ordered, 0.1))
        spread = np.where(spread > 0.0, spread, ordered.std(axis=0))
        self.spread = np.where(spread > 0.0, spread, 1.0)
        self.flagged = (lowest <= -_INFINITE) | (highest >= _INFINITE)
        # A column of two values needs no other shape than a line.
        self.curved = np.any((ordered != lowest) & (ordered != highest), axis=0)

    def __call__(self, values: np.ndarray) -> np.ndarray:
        """(..., features) of values (..., columns)."""
        odd = np.abs(values) >= _INFINITE
        u = np.clip((np.where(odd, self.centre, values) - self.centre) / self.spread, -_LARGEST, _LARGEST)
        one = np.ones((*values.shape[:-1], 1))
        bent = u[..., self.curved]
        flags = odd[..., self.flagged].astype(np.float64)
        return np.concatenate([one, u, flags, np.abs(bent) - 0.8, 0.5 * bent**2 - 0.5], axis=-1)

    def pick(self, absolute: bool, square: bool) -> np.ndarray:
        """Numbers of the features of a model."""
        curved = int(self.curved.sum())
        sizes = [1 + len(self.curved) + int(self.flagged.sum()), curved * absolute, curved * square]
        starts = np.cumsum([0, sizes[0], curved])
        return np.concatenate([start + np.arange(size) for start, size in zip(starts, sizes, strict=True)]).astype(int)


def _fit(design: np.ndarray, sides: np.ndarray, variance: float, start: Any) -> tuple[np.ndarray, np.ndarray]:
    """Most likely weights of a logistic regression and their covariance, normal prior of that variance."""
    weights = start if start is not None and len(start) == design.shape[1] else np.zeros(design.shape[1])
    prior = np.eye(design.shape[1]) / variance
    for _ in range(_NEWTON_STEPS):
        mean = design @ weights
        p = special.expit(mean)
        # Never below p (1 - p), by which Newton's method may diverge; with this bound every step is an ascent.
        bound = 0.5 * np.tanh(0.5 * mean) / np.where(mean == 0.0, 1.0, mean)
        curvature = (design * np.where(np.abs(mean) < 1e-4, 0.25, bound)[:, None]).T @ design + prior
        weights = weights + np.linalg.solve(curvature, design.T @ (sides - p) - weights / variance)
    return weights, np.linalg.inv(curvature)


def _foretell(fresh: np.ndarray, weights: np.ndarray, covariance: np.ndarray) -> np.ndarray:
    """Probability of the summary's side, averaged over the weights (MacKay's approximation)."""
    mean, spread = fresh @ weights, np.sum((fresh @ covariance) * fresh, axis=-1)
    return special.expit(mean / np.sqrt(1.0 + np.pi / 8.0 * spread))
