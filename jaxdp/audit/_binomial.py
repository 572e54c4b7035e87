"""One-sided Clopper-Pearson limits, each verified by the binomial tail that it inverts.

The lower limit for x hits in n runs at level alpha is the largest p at which seeing x hits or more has probability
at most alpha; the upper limit is the smallest p at which seeing x hits or fewer has probability at most alpha. Both
are quantiles of beta laws. Quantile routines have been wrong at exactly the extremes that audits use (large n, tiny
alpha: scipy #12635, #13079), so no quantile is trusted here: a limit is returned only if the tail is at most alpha at
the limit and at least alpha a relative 1e-11 further in, and is found by bisection on the tail where that fails.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike
from scipy import special

# Relative half-width of the bracket around a limit. At 1e12 runs it moves the log tail by 1e-5, far above the rounding
# error of the incomplete beta function; a certified epsilon moves by 2e-11.
_BRACKET = 1e-11
_BISECTIONS = 160
_LOG_SMALLEST = -600.0


def upper_tail(hits: ArrayLike, runs: ArrayLike, p: ArrayLike) -> np.ndarray:
    """Probability of `hits` or more successes among `runs` trials of success probability `p` (hits >= 1)."""
    x, n = np.asarray(hits, np.float64), np.asarray(runs, np.float64)
    return special.betainc(x, n - x + 1.0, p)


def lower_tail(hits: ArrayLike, runs: ArrayLike, p: ArrayLike) -> np.ndarray:
    """Probability of `hits` or fewer successes among `runs` trials of success probability `p` (hits < runs)."""
    x, n = np.asarray(hits, np.float64), np.asarray(runs, np.float64)
    return special.betaincc(x + 1.0, n - x, p)


def lower_limit(hits: ArrayLike, runs: ArrayLike, alpha: float) -> np.ndarray:
    """Largest success probability that `hits` successes reject from below at level `alpha`.

    Args:
        hits: number of successes, integers from 0 to runs; any shape.
        runs: number of trials, integers from 1 to about 1e12; broadcasts with hits.
        alpha: level of the one-sided limit, between 0 and 1, down to 1e-12.

    Returns:
        float64 array L with P(Binomial(runs, L) >= hits) <= alpha; zero where hits is zero.

    Raises:
        ValueError: hits, runs or alpha is out of range or not integral.
        ArithmeticError: no limit passes its own check (not seen to happen).
    """
    x, n = _checked(hits, runs, alpha)
    some = x > 0
    safe = np.where(some, x, 1.0)
    guess = special.betaincinv(safe, n - safe + 1.0, alpha)
    # All trials succeeded: the tail is p^n, inverted in closed form.
    guess = np.where(x == n, np.exp(np.log(alpha) / n), guess)
    limit = guess * (1.0 - _BRACKET)
    good = is_lower_limit(limit, safe, n, alpha)
    if not np.all(good):
        limit = np.where(good, limit, _bisect(lambda p: upper_tail(safe, n, p) > alpha, limit) * (1.0 - _BRACKET))
        _require(is_lower_limit(limit, safe, n, alpha), "lower", x, n, alpha)
    return np.where(some, limit, 0.0)


def upper_limit(hits: ArrayLike, runs: ArrayLike, alpha: float) -> np.ndarray:
    """Smallest success probability that `hits` successes reject from above at level `alpha`.

    Args:
        hits: number of successes, integers from 0 to runs; any shape.
        runs: number of trials, integers from 1 to about 1e12; broadcasts with hits.
        alpha: level of the one-sided limit, between 0 and 1, down to 1e-12.

    Returns:
        float64 array U with P(Binomial(runs, U) <= hits) <= alpha; one where hits equals runs.

    Raises:
        ValueError: hits, runs or alpha is out of range or not integral.
        ArithmeticError: no limit passes its own check (not seen to happen).
    """
    x, n = _checked(hits, runs, alpha)
    some = x < n
    safe = np.where(some, x, n - 1.0)
    guess = special.betainccinv(safe + 1.0, n - safe, alpha)
    # No trial succeeded: the tail is (1 - p)^n, inverted in closed form.
    guess = np.where(x == 0, -np.expm1(np.log(alpha) / n), guess)
    limit = _outward(guess)
    good = is_upper_limit(limit, safe, n, alpha)
    if not np.all(good):
        limit = np.where(good, limit, _outward(_bisect(lambda p: lower_tail(safe, n, p) <= alpha, limit)))
        _require(is_upper_limit(limit, safe, n, alpha), "upper", x, n, alpha)
    return np.where(some, limit, 1.0)


def is_lower_limit(limit: ArrayLike, hits: ArrayLike, runs: ArrayLike, alpha: float) -> np.ndarray:
    """Whether `limit` is valid (tail at most alpha there) and tight (at least alpha a relative 4e-11 above it)."""
    p = np.asarray(limit, np.float64)
    above = np.minimum(p * (1.0 + 4.0 * _BRACKET), 1.0)
    return (upper_tail(hits, runs, p) <= alpha) & (upper_tail(hits, runs, above) >= alpha)


def is_upper_limit(limit: ArrayLike, hits: ArrayLike, runs: ArrayLike, alpha: float) -> np.ndarray:
    """Whether `limit` is valid (tail at most alpha there) and tight (at least alpha a relative 4e-11 below it)."""
    p = np.asarray(limit, np.float64)
    below = p * (1.0 - 4.0 * _BRACKET)
    return (lower_tail(hits, runs, p) <= alpha) & (lower_tail(hits, runs, below) >= alpha)


def _outward(p: np.ndarray) -> np.ndarray:
    return np.minimum(p * (1.0 + _BRACKET), 1.0)


def _bisect(reached, like: np.ndarray) -> np.ndarray:
    """Point in (0, 1] where the monotone condition `reached(p)` turns true, by bisection on log p."""
    low, high = np.full(like.shape, _LOG_SMALLEST), np.zeros(like.shape)
    for _ in range(_BISECTIONS):
        middle = 0.5 * (low + high)
        hit = reached(np.exp(middle))
        low, high = np.where(hit, low, middle), np.where(hit, middle, high)
    return np.exp(high)


def _checked(hits: ArrayLike, runs: ArrayLike, alpha: float) -> tuple[np.ndarray, np.ndarray]:
    """Both counts as float64 arrays of one shape (exact up to 2^53), or a ValueError."""
    if not 0.0 < float(alpha) < 1.0:
        raise ValueError(f"alpha must lie strictly between 0 and 1, got {alpha!r}")
    x, n = np.broadcast_arrays(np.asarray(hits, np.float64), np.asarray(runs, np.float64))
    if not np.all((n >= 1) & (n <= 2.0**53) & (n == np.floor(n))):
        raise ValueError(f"runs must be whole numbers from 1 to 2**53, got {runs!r}")
    if not np.all((x >= 0) & (x <= n) & (x == np.floor(x))):
        raise ValueError(f"hits must be whole numbers from 0 to runs, got {hits!r} of {runs!r}")
    return x, n


def _require(good: np.ndarray, side: str, x: np.ndarray, n: np.ndarray, alpha: float) -> None:
    """Refuse to hand out a limit that fails its own check: a wrong limit is a false certificate."""
    if not np.all(good):
        where = np.flatnonzero(~np.ravel(good))[0]
        raise ArithmeticError(
            f"no {side} Clopper-Pearson limit passes its check for {np.ravel(x)[where]:.0f} hits in "
            f"{np.ravel(n)[where]:.0f} runs at level {alpha!r}"
        )
