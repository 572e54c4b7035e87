"""From counts of one event to a certified epsilon: two exact tests, their limits and their power.

Both start from an event S that was fixed before the counted runs, with x hits in n runs on the one input and y hits in
m runs on the other; p and q are the event's probabilities.

`clopper-pearson`: (epsilon, delta)-DP implies p <= e^epsilon q + delta. One-sided limits at alpha / 2 each,

    epsilon >= log((L(x, n) - delta) / U(y, m)).

`label`: every run picks its side by a fair coin, so that n is binomial. A run that hits S was on the other input with
probability q / (p + q), which pure epsilon-DP keeps at or above 1 / (1 + e^epsilon). One exact binomial test among the
x + y hits, without a union bound:

    epsilon >= log((1 - U) / U),  U = U(y, x + y) at level alpha.

It needs a half to a third of the runs of the other (2.8 times fewer for rare events). Of a delta it knows this: two
laws that are (epsilon, delta)-close lie within delta, in total variation, of two that are epsilon-close (Dwork and
Roth, Lemma 3.17), so that n + m runs tell them apart with probability (n + m) delta at most, which comes off alpha.
"""

from __future__ import annotations

import math

import numpy as np
from scipy import special

from jaxdp.audit import _binomial

__all__ = ["CLOPPER_PEARSON", "LABEL", "TESTS", "certified", "detectable", "limits", "predicted", "score_limit"]

CLOPPER_PEARSON, LABEL = TESTS = ("clopper-pearson", "label")


def limits(x: int, n: int, y: int, m: int, alpha: float) -> tuple[float, float]:
    """Lower limit of p and upper limit of q, which hold together at level alpha."""
    return float(_binomial.lower_limit(x, n, alpha / 2.0)), float(_binomial.upper_limit(y, m, alpha / 2.0))


def certified(test: str, x: int, n: int, y: int, m: int, *, alpha: float, delta: float) -> float:
    """The certified epsilon, nonnegative."""
    if test == LABEL:
        alpha -= (n + m) * delta
        return max(0.0, _logit_of_rest(float(_binomial.upper_limit(y, x + y, alpha)))) if x and alpha > 0.0 else 0.0
    lower, upper = limits(x, n, y, m, alpha)
    return max(0.0, math.log((lower - delta) / upper)) if lower > delta else 0.0


def detectable(
    test: str, x: int, n: int, y: int, m: int, *, alpha: float, delta: float, epsilon: float, power: float = 0.9
) -> float:
    """The loss from which on such an audit refutes the claim epsilon with probability `power` or more.

    The other input's share of the hits (label) or its probability of a hit (Clopper-Pearson) is varied, the number
    of all hits, or of those on the one input, is as observed. inf if no count would refute.
    """
    if test == LABEL:
        trials, claim = x + y, 1.0 / (1.0 + _exp(epsilon))
        alpha -= (n + m) * delta
        if trials == 0 or alpha <= 0.0:
            return math.inf
        most = _most(lambda k: bool(_binomial.upper_limit(k, trials, alpha) < claim), trials)
        return _logit_of_rest(_share(most, trials, power)) if most >= 0 else math.inf
    lower, _ = limits(x, n, y, m, alpha)
    if lower <= delta:
        return math.inf
    claim = (lower - delta) / _exp(epsilon)
    most = _most(lambda k: bool(_binomial.upper_limit(k, m, alpha / 2.0) < claim), m)
    share = _share(most, m, power) if most >= 0 else 0.0
    return math.log((x / n - delta) / share) if share > 0.0 else math.inf


def predicted(test: str, p: np.ndarray, q: np.ndarray, runs: int, *, alpha: float, delta: float) -> np.ndarray:
    """The certificates that events of probabilities p and q would give after `runs` runs on each input.

    Score limits stand for the exact ones, which are a thousand times slower. Where nothing can be certified the
    value is about -1e6, larger for more promising events.
    """
    if test == LABEL:
        trials = np.maximum(runs * (p + q), 1e-9)
        share = score_limit(q / np.maximum(p + q, 1e-300), trials, -float(special.ndtri(alpha)))
        possible, ratio = p > 0.0, np.log1p(-np.minimum(share, 1.0 - 1e-16)) - np.log(np.maximum(share, 1e-300))
    else:
        z = -float(special.ndtri(alpha / 2.0))
        lower, upper = score_limit(p, runs, -z), score_limit(q, runs, z)
        possible, p = lower > delta, lower
        ratio = np.log(np.where(possible, lower - delta, 1.0) / upper)
    return np.where(possible, ratio, p - delta - 1e6)


def score_limit(p: np.ndarray, n: float | np.ndarray, z: float | np.ndarray) -> np.ndarray:
    """Wilson's score limit on the side of the sign of z."""
    centre = p + z * z / (2.0 * n)
    spread = z * np.sqrt(np.maximum(p * (1.0 - p), 0.0) / n + z * z / (4.0 * n * n))
    return np.clip((centre + spread) / (1.0 + z * z / n), 0.0, 1.0)


def _logit_of_rest(share: float) -> float:
    """log((1 - share) / share), exact for small shares."""
    return math.inf if share <= 0.0 else math.log1p(-share) - math.log(share) if share < 1.0 else -math.inf


def _most(refutes, trials: int) -> int:
    """The largest count that refutes, by bisection (refutation is monotone in the count); -1 if none does."""
    low, high = -1, trials
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if refutes(middle) else (low, middle)
    return low


def _share(most: int, trials: int, power: float) -> float:
    """The success probability at which a count of at most `most` has probability `power`."""
    return float(special.betainccinv(most + 1.0, trials - most, power))


def _exp(number: float) -> float:
    return math.exp(min(number, 700.0))
