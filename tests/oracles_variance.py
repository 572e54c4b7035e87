"""Slow truth about the variance's bounds, in exact integers: of records in 0, .., width, as n^2 Var."""

import itertools

import numpy as np


def scaled_variance(x):
    """n^2 Var, exact for Python integers."""
    return len(x) * sum(v * v for v in x) - sum(x) ** 2


def multisets(n, points):
    return list(itertools.combinations_with_replacement(range(points), n))


def brute_force(n, points):
    """(least, most)[data set, r] of n^2 Var over all data sets on the grid that differ in at most r records."""
    sets = multisets(n, points)
    value = np.array([scaled_variance(x) for x in sets])
    counts = np.array([np.bincount(x, minlength=points) for x in sets])
    distance = n - np.minimum(counts[:, None], counts[None]).sum(axis=2)
    least = [[value[row <= r].min() for r in range(n + 1)] for row in distance]
    most = [[value[row <= r].max() for r in range(n + 1)] for row in distance]
    return np.array(least), np.array(most)


def least_over_subsets(x, r):
    """n^2 Var at its least when r records join the mean of the others, over all choices; a fraction (p, q)."""
    n, m = len(x), len(x) - r
    if m == 0:
        return 0, 1
    return n * min(scaled_variance(kept) for kept in itertools.combinations(x, m)), m


def least_windowed(x, radius):
    """The same over neighbours in order only: fractions (p, q) for r = 0, .., radius (less than n)."""
    x = sorted(int(v) for v in x)
    n, sums, squares = len(x), *_sums(x)

    def window(start, m):
        return m * (squares[start + m] - squares[start]) - (sums[start + m] - sums[start]) ** 2

    return [(n * min(window(s, n - r) for s in range(r + 1)), n - r) for r in range(radius + 1)]


def most_windowed(x, width, radius):
    """The exact upper form: for every window of r removed neighbours the best number m of records at the upper end."""
    x = sorted(int(v) for v in x)
    n, sums, squares = len(x), *_sums(x)
    most = [scaled_variance(x)]
    for r in range(1, min(radius, n) + 1):
        best = 0
        for w in range(n - r + 1):
            s1 = sums[n] - sums[w + r] + sums[w]
            s2 = squares[n] - squares[w + r] + squares[w]
            # Half up; a tie has two best m.
            m = min(max((n * width - 2 * s1 + width) // (2 * width), 0), r)
            best = max(best, n * (s2 + m * width * width) - (s1 + m * width) ** 2)
        most.append(best)
    return most


def most_relaxed(x, width, radius):
    """4 n^2 Var of what the library computes, a real m, by trying every window."""
    x = sorted(int(v) for v in x)
    n, sums, squares = len(x), *_sums([2 * v - width for v in x])
    most = [4 * scaled_variance(x)]
    for r in range(1, min(radius, n) + 1):
        best = 0
        for w in range(n - r + 1):
            s1 = sums[n] - sums[w + r] + sums[w]
            s2 = squares[n] - squares[w + r] + squares[w]
            best = max(best, n * (s2 + r * width * width) - max(abs(s1) - r * width, 0) ** 2)
        most.append(best)
    return most


def _sums(x):
    return [0, *itertools.accumulate(x)], [0, *itertools.accumulate(v * v for v in x)]


def adversarial(rng, n, width):
    """Integer records: ties, constants, the ends, clusters, heavy tails, one outlier."""
    kinds = [
        lambda: rng.integers(0, width + 1, n),
        lambda: rng.choice([0, width], n),
        lambda: np.full(n, rng.integers(0, width + 1)),
        lambda: rng.choice(rng.integers(0, width + 1, 3), n),
        lambda: np.clip(rng.standard_cauchy(n) * width / 1000 + width / 3, 0, width).astype(int),
        lambda: np.append(np.full(n - 1, rng.choice([0, 1, width // 2, width])), rng.integers(0, width + 1)),
        lambda: np.clip(width // 2 + rng.integers(-2, 3, n), 0, width),
        lambda: np.arange(n) * width // max(n - 1, 1),
    ]
    return kinds[rng.integers(len(kinds))]()
