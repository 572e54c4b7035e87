"""Slow truth about output bounds, and the checks of their contract, in NumPy. Nothing here allows a tolerance."""

import itertools

import numpy as np


def distance(lower, upper, points):
    """The least l with lower[l] <= t <= upper[l], radius + 1 if there is none, straight from the definition."""
    points = points[..., None, :]
    inside = (lower[..., None] <= points) & (points <= upper[..., None])
    return np.where(inside.any(axis=-2), inside.argmax(axis=-2), lower.shape[-1] - 1)


def signed_distance(lower, upper, points):
    d, value = distance(lower, upper, points), lower[..., :1]
    return np.where(points == value, 0.0, np.where(points > value, d - 0.5, 0.5 - d))


def not_bounds(lower, upper):
    """Rows (data sets) whose entries are no bounds at all."""
    nan = np.isnan(lower).any(axis=1) | np.isnan(upper).any(axis=1)
    order = (lower[:, 1:] > lower[:, :-1]).any(axis=1) | (upper[:, 1:] < upper[:, :-1]).any(axis=1)
    return np.flatnonzero(nan | order | (lower[:, 0] != upper[:, 0]))


def contract_violations(one, two):
    """Rows in which U^l(x') <= U^(l+1)(x) or L^(l+1)(x) <= L^l(x') fails, both ways, the last level included."""
    bad = np.zeros(len(one[0]), bool)
    for (lower, upper), (other_lower, other_upper) in ((one, two), (two, one)):
        bad |= ~(other_upper[:, :-1] <= upper[:, 1:]).all(axis=1)
        bad |= ~(lower[:, 1:] <= other_lower[:, :-1]).all(axis=1)
        # Beyond the radius both have the same, public, range.
        bad |= ~((other_upper[:, -1] == upper[:, -1]) & (lower[:, -1] == other_lower[:, -1]))
    return np.flatnonzero(bad)


def monotonicity_violations(one, two, raised):
    """Rows in which an entry falls although the second data set has a record raised (+1; -1: lowered, 0: left out)."""
    up, down = raised > 0, raised < 0
    bad = np.zeros(len(raised), bool)
    for first, second in zip(one, two, strict=True):
        bad |= up & ~(first <= second).all(axis=1)
        bad |= down & ~(first >= second).all(axis=1)
    return np.flatnonzero(bad)


def critical_points(*bounds, grid=41):
    """A fine grid over the range, 0, and the points where a score of a data set can jump, with their neighbours.

    Args:
        *bounds: Pairs (lower, upper) of arrays (rows, radius + 2).
        grid: Points of the fine grid.
    """
    entries = np.concatenate([part for pair in bounds for part in pair], axis=-1)
    around = [entries, np.nextafter(entries, np.inf), np.nextafter(entries, -np.inf), 0 * bounds[0][0][:, :1]]
    low = np.where(np.isfinite(entries), entries, np.inf).min(axis=-1)
    high = np.where(np.isfinite(entries), entries, -np.inf).max(axis=-1)
    margin = 0.1 * (high - low) + 1e-6
    fine = np.linspace(low - margin, high + margin, grid, axis=-1).astype(entries.dtype)
    return np.concatenate([*around, fine], axis=-1)


def score_violations(one, two, raised):
    """Rows in which a distance or signed distance moves by more than 1, or against the direction of the change."""
    t = critical_points(one, two)
    signed = signed_distance(*two, t) - signed_distance(*one, t)
    wrong = (np.abs(distance(*two, t) - distance(*one, t)) > 1) | (np.abs(signed) > 1.0)
    return np.flatnonzero((wrong | (signed * raised[:, None] > 0.0)).any(axis=-1))


def violations(one, two, raised):
    """Number of rows with any violation, by kind, for (lower, upper) arrays (rows, radius + 2) of neighbours."""
    # Scores at all points: rows of wide radius are sampled, they cost radius^2 each.
    some = slice(None) if one[0].shape[1] <= 10 else slice(100)
    x, y = (tuple(part[some] for part in bounds) for bounds in (one, two))
    return {
        "bounds": len(not_bounds(*one)) + len(not_bounds(*two)),
        "contract": len(contract_violations(one, two)),
        "monotonicity": len(monotonicity_violations(one, two, raised)),
        "scores": len(score_violations(x, y, raised[some])),
    }


def neighbours(draw, rng, n, pairs):
    """Neighbouring data sets: tuples of arrays (pairs, n, ..), and the index (pairs,) of the replaced record."""
    drawn = [draw(rng, n) for _ in range(pairs + 1)]
    x = tuple(np.stack(arrays[:-1]) for arrays in zip(*drawn, strict=True))
    donor = tuple(np.stack(arrays[1:]) for arrays in zip(*drawn, strict=True))
    rows, index = np.arange(pairs), rng.integers(n, size=pairs)
    y = tuple(part.copy() for part in x)
    for mine, other in zip(y, donor, strict=True):
        mine[rows, index] = other[rows, index]
    return x, y, index


def cast(records, dtype):
    """Floating arrays in another dtype."""
    with np.errstate(over="ignore"):
        return tuple(part.astype(dtype) if part.dtype.kind == "f" else part for part in records)


def raised_by(contribution, x, y, index):
    """Signs: whether the second data set's replaced record contributes more."""
    if contribution is None:
        return np.zeros(len(index), int)
    rows = np.arange(len(index))
    one, two = (contribution(tuple(part[rows, index] for part in records)) for records in (x, y))
    return np.sign(two - one).astype(int)


def extremes(value, records, candidates):
    """Least and largest value(x') over all x' that differ from x in at most l records, l = 0, .., n.

    Args:
        value: {tuple of candidate indices: f} for every data set over the candidates.
        records: Tuple of candidate indices, the data set x.
        candidates: Their number.
    """
    n = len(records)
    lower, upper = np.full(n + 1, np.inf), np.full(n + 1, -np.inf)
    for other in itertools.product(range(candidates), repeat=n):
        changed = sum(a != b for a, b in zip(records, other, strict=True))
        lower[changed] = min(lower[changed], value[other])
        upper[changed] = max(upper[changed], value[other])
    return np.minimum.accumulate(lower), np.maximum.accumulate(upper)


def sloppy_mean(x, low, high, radius):
    """Textbook float32 code, wrong by rounding alone: the level is the total minus a prefix sum."""
    x = np.sort(np.clip(x, low, high).astype(np.float32), axis=1)
    n, levels = x.shape[1], np.arange(radius + 1)
    zero = np.zeros((len(x), 1), np.float32)
    prefix = np.concatenate([zero, np.cumsum(x, axis=1, dtype=np.float32)], axis=1)
    suffix = np.concatenate([zero, np.cumsum(x[:, ::-1], axis=1, dtype=np.float32)], axis=1)
    total = prefix[:, -1:]
    scale, high, low = np.float32(n), np.float32(high), np.float32(low)
    upper = (total - prefix[:, : radius + 1] + levels.astype(np.float32) * high) / scale
    lower = (total - suffix[:, : radius + 1] + levels.astype(np.float32) * low) / scale
    return _finish(lower, upper, low, high)


def fixed_centre_variance(x, low, high, radius):
    """Variance bounds around the data set's own mean: valid bounds, yet not under the contract."""
    n = x.shape[1]
    x = np.clip(x, low, high)
    mean = x.mean(axis=1, keepdims=True)
    squares = np.sort((x - mean) ** 2, axis=1)
    farthest = np.maximum((mean - low) ** 2, (high - mean) ** 2)
    levels = np.arange(min(radius, n) + 1)
    zero = np.zeros((len(x), 1))
    ascending = np.concatenate([zero, np.cumsum(squares, axis=1)], axis=1)
    upper = (ascending[:, -1:] - ascending[:, levels] + levels * farthest) / n
    lower = np.concatenate([upper[:, :1], np.zeros((len(x), radius))], axis=1)
    return _finish(lower, upper, 0.0, (high - low) ** 2 / 4.0)


def _finish(lower, upper, low, high):
    lower, upper = (np.clip(part, low, high) for part in (lower, upper))
    lower, upper = np.minimum.accumulate(lower, axis=1), np.maximum.accumulate(upper, axis=1)
    end = np.ones((len(lower), 1), lower.dtype)
    return np.concatenate([lower, low * end], axis=1), np.concatenate([upper, high * end], axis=1)
