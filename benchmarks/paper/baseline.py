"""The study's variance part in NumPy, as one would write it: one data set and one release after another."""

from __future__ import annotations

import math

import numpy as np


def variance_bounds(x: np.ndarray, lower: float, upper: float) -> tuple[np.ndarray, np.ndarray]:
    """(n + 1,) exact bounds for 0, .., n replaced records, by prefix sums and all windows of each level."""
    n, width = len(x), upper - lower
    y = (np.sort(np.clip(x, lower, upper)).astype(np.float64) - lower) / width
    sums, squares = (np.concatenate([[0.0], np.cumsum(part)]) for part in (y, y * y))
    low, high = np.zeros(n + 1), np.empty(n + 1)
    high[0] = low[0] = y.var()
    for level in range(1, n + 1):
        kept, starts = n - level, np.arange(level + 1)
        if kept > 0:
            total, total_squares = sums[starts + kept] - sums[starts], squares[starts + kept] - squares[starts]
            low[level] = max(np.min(total_squares - total**2 / kept) / n, 0.0)
        starts = np.arange(kept + 1)  # Of the removed window.
        total = sums[-1] - (sums[starts + level] - sums[starts])
        total_squares = squares[-1] - (squares[starts + level] - squares[starts])
        ones = np.clip(np.round(n / 2.0 - total), 0, level)
        high[level] = np.max(n * (total_squares + ones) - (total + ones) ** 2) / n**2
    return np.minimum.accumulate(low) * width**2, np.maximum.accumulate(high) * width**2


def signed_scores(low: np.ndarray, high: np.ndarray, grid: np.ndarray) -> np.ndarray:
    """Floor of the signed distance of each candidate."""
    up = np.searchsorted(high, grid, side="left")
    down = np.searchsorted(-low, -grid, side="left")
    return np.where(grid > high[0], up - 1, np.where(grid < low[0], -down, 0))


def asymmetric_loop(rng: np.random.Generator, scores: np.ndarray, grid: np.ndarray, e1: float, e2: float) -> float:
    """One release, query after query, as the algorithm is stated."""
    threshold = math.floor(rng.exponential(1.0 / e1))
    for score, candidate in zip(scores, grid, strict=True):
        if score + rng.exponential(1.0 / e2) >= threshold:
            return candidate
    return grid[-1]


def asymmetric(rng: np.random.Generator, scores: np.ndarray, grid: np.ndarray, e1: float, e2: float) -> float:
    """One release, with the noise of the whole stream at once."""
    threshold = math.floor(rng.exponential(1.0 / e1))
    crossed = scores + rng.standard_exponential(len(scores)) / e2 >= threshold
    first = crossed.argmax()
    return grid[first] if crossed[first] else grid[-1]


def bands(low: np.ndarray, high: np.ndarray, epsilon: float) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Ends and probabilities of the bands of constant density of the inverse sensitivity mechanism."""
    starts, ends = np.concatenate([low[1:], high[:-1]]), np.concatenate([low[:-1], high[1:]])
    weights = (ends - starts) * np.tile(np.exp(-epsilon / 2.0 * np.arange(1, len(low))), 2)
    return starts, ends, weights / weights.sum()


def inverse(rng: np.random.Generator, low: np.ndarray, high: np.ndarray, epsilon: float, count: int) -> np.ndarray:
    """Releases of the inverse sensitivity mechanism in its continuous form: a band, then a point of it."""
    starts, ends, p = bands(low, high, epsilon)
    band = rng.choice(len(p), count, p=p)
    return rng.uniform(starts[band], ends[band])


def smooth_sensitivity(low: np.ndarray, high: np.ndarray, sensitivity: float, b: float) -> float:
    """Max over l of e^(-b l) A^l."""
    local = np.minimum(np.maximum(high[1:] - low[:-1], high[:-1] - low[1:]), sensitivity)
    return float(np.max(np.append(local, sensitivity) * np.exp(-b * np.arange(len(local) + 1))))


def heavy_noise(rng: np.random.Generator, count: int) -> np.ndarray:
    """Of density ~ 1 / (1 + z^4), by rejection from a Cauchy law."""
    found = np.empty(0)
    while len(found) < count:
        z = rng.standard_cauchy(2 * count)
        # (1 + z^2) / (1 + z^4) is at most (1 + sqrt 2) / 2.
        accept = rng.random(2 * count) * (1.0 + math.sqrt(2.0)) / 2.0 <= (1.0 + z * z) / (1.0 + z**4)
        found = np.append(found, z[accept])
    return found[:count]


def smooth(
    rng: np.random.Generator, low: np.ndarray, high: np.ndarray, sensitivity: float, epsilon: float, count: int
) -> np.ndarray:
    """Releases of smooth sensitivity, g = 4, moved into the range."""
    scale = 2.0 * 3.0**0.75 / epsilon * smooth_sensitivity(low, high, sensitivity, epsilon / 6.0)
    return np.clip(low[0] + scale * heavy_noise(rng, count), low[-1], high[-1])
