"""Composition of privacy losses by convolution, on the host and in float64, with rounding in a chosen direction.

A loss is log P(outcome) / Q(outcome) for an outcome drawn from P; the losses of independent releases add up. Rounding
them up gives upper bounds on delta at every epsilon, rounding them down lower bounds.
"""

from __future__ import annotations

import dataclasses
import math
from typing import Any, NamedTuple

import numpy as np
from scipy import stats

from jaxdp import _check
from jaxdp import _lattice_law as closed_form
from jaxdp.laws import DiscreteLaw, LatticeLaw, MixedLaw

_CELLS = 2**13
"""Losses of a convolution lie on a grid of about so many points, unless there are few enough to keep them exactly."""

_EXACT = 2**16
"""Two laws of losses with at most so many pairs are added exactly."""

_SLACK = 1e-9
"""Relative error that sums of masses are allowed, several thousand times the true one."""

_ULPS = 1e-14
"""Error of an epsilon that is a difference of logarithms, relative above 1 and absolute below, generously."""

_CUT = 1e-7
"""Share of delta that may be cut from the ends of a composed loss."""


class ComposedLoss(NamedTuple):
    """Bounds on the smallest epsilon of a composition, on one pair of inputs, at a given delta.

    Attributes:
        lower: No epsilon below is true of this pair, nor therefore of the mechanism.
        upper: This epsilon is true of this pair; others may lose more.
    """

    lower: float
    upper: float


def composed_loss(law: Any, other: Any, times: int, delta: float = 0.0) -> ComposedLoss:
    """The privacy loss of independent releases on one pair of inputs, by convolution of the exact laws.

    The loss of one release, log P(y) / Q(y) for y drawn from P, is known from the laws; that of `times` releases is a
    sum of independent copies, computed on a grid, once rounded down and once up. Both directions count, and the larger
    epsilon with E (1 - e^(epsilon - loss))+ = delta is returned. It is the counterpart of `Ledger.get_epsilon`, which
    holds for every pair: a claim below `lower` is wrong.

    Args:
        law: Law of one input: DiscreteLaw, LatticeLaw or MixedLaw.
        other: Law of its neighbour, of the same mechanism.
        times: Number of releases.
        delta: The delta of the whole composition.

    Returns:
        ComposedLoss, two floats; inf if outcomes of more mass than delta are impossible for one of the inputs.

    Raises:
        ValueError: For laws that do not belong together, traced ones, and bad times or delta.

    Guarantee:
        None: an audit of one pair of inputs.

    Law:
        `law` and `other` to the power of `times`.

    Floating point:
        Losses are rounded in one direction each; masses are sums of nonnegative doubles, and delta makes room for their
        relative error of at most 1e-9.

    Source:
        Koskela, Jaelkoe, Honkela (2020), with exact laws in place of quadrature.

    Example:
        >>> mechanism = jaxdp.ExponentialMechanism(sensitivity=1.0, epsilon=0.1)
        >>> laws = [mechanism.law(scores) for scores in mechanism.worst_case()]
        >>> loss = jaxdp.composed_loss(*laws, times=100, delta=1e-6)
        >>> round(loss.lower, 3), round(loss.upper, 3)
        (0.957, 0.957)
    """
    _check.count("times", times)
    delta = _check.probability("delta", delta)
    pairs = of_laws(law, other), of_laws(other, law)
    lower, upper = (max(_composed(one, times, delta, up=up) for one in pairs) for up in (False, True))
    return ComposedLoss(lower, upper)


def _composed(one: Losses, times: int, delta: float, *, up: bool) -> float:
    if delta == 0.0:  # The largest loss adds up.
        return math.inf if one.infinite > 0.0 else max(0.0, times * float(np.max(one.values, initial=0.0)))
    return epsilon_at(repeat(one, times, up=up, tail=_CUT * delta / times), delta, up=up)


def optimal_epsilon(parts: dict[float, int], delta: float) -> float:
    """Optimal composition of calls[epsilon] pure releases of each epsilon, at delta > 0.

    Exact where all are equal; else the losses are rounded up. Source: Kairouz, Oh, Viswanath (2015).
    """
    losses, tail = [of_pure(epsilon, times) for epsilon, times in sorted(parts.items())], _CUT * delta / len(parts)
    # In pairs: what a sum is rounded by grows with its range.
    while len(losses) > 1:
        pairs = [losses[i : i + 2] for i in range(0, len(losses), 2)]
        losses = [add(*pair, up=True, tail=tail) if len(pair) == 2 else pair[0] for pair in pairs]
    return epsilon_at(losses[0], delta, up=True)


@dataclasses.dataclass(frozen=True)
class Losses:
    """The law of a privacy loss: increasing values, their masses under P, and the mass where Q is zero.

    Masses may add up to less than one where values were rounded down to -inf.
    """

    values: np.ndarray
    masses: np.ndarray
    infinite: float = 0.0

    @classmethod
    def of(cls, values: Any, masses: Any, infinite: float = 0.0) -> Losses:
        """Sorts, and merges equal values."""
        values, masses = np.asarray(values, np.float64), np.asarray(masses, np.float64)
        values, place = np.unique(values[masses > 0.0], return_inverse=True)
        return cls(values, np.bincount(place, masses[masses > 0.0], len(values)), float(infinite))


def of_laws(law: Any, other: Any) -> Losses:
    """The exact law of the privacy loss from one law to another of the same mechanism."""
    if isinstance(law, MixedLaw):
        accept, refuse, other_accept, other_refuse, shift, rate = (_host(x) for x in law._compare(other))
        values, masses, infinite = closed_form._losses(shift, rate)
        decision = _of_logs(np.array([refuse, accept]), np.array([other_refuse, other_accept]))
        values = np.append(values + _ratio(accept, other_accept), _ratio(refuse, other_refuse))
        masses = np.append(masses * np.exp(accept), np.exp(refuse))
        kept = np.isfinite(values)
        return Losses.of(values[kept], masses[kept], decision.infinite + _finite(accept, other_accept) * infinite)
    if isinstance(law, LatticeLaw):
        return Losses.of(*closed_form._losses(_host(law.shift(other)), _host(law.rate)))
    if isinstance(law, DiscreteLaw):
        return _of_logs(_host(law.log_p), _host(law._same(other).log_p))
    raise ValueError(f"law must be a DiscreteLaw, LatticeLaw or MixedLaw, got {type(law).__name__}")


def of_pure(epsilon: float, times: int) -> Losses:
    """The loss of `times` binary randomised responses, which dominate as many epsilon-DP releases.

    With w wrong answers, of probability p = 1 / (1 + e^epsilon) each, it is (times - 2 w) epsilon. Both directions
    are the same.
    """
    p = 1.0 / (1.0 + math.exp(min(epsilon, 700.0)))
    # Hoeffding: what is further from the mean than 8 sqrt(times) has mass 2 e^-128 at most.
    first = max(0, math.floor(times * p - 8.0 * math.sqrt(times)))
    last = min(times, math.ceil(times * p + 8.0 * math.sqrt(times)))
    wrong = np.arange(first, last + 1)
    return Losses.of((times - 2.0 * wrong) * epsilon, stats.binom.pmf(wrong, times, p), 1e-55 if first > 0 else 0.0)


def add(one: Losses, two: Losses, *, up: bool, tail: float) -> Losses:
    """The law of the sum of independent losses, rounded up or down; `tail` is the mass that may be cut at each end."""
    infinite = one.infinite * (two.infinite + two.masses.sum()) + two.infinite * one.masses.sum()
    if not len(one.values) or not len(two.values):
        return Losses(np.zeros(0), np.zeros(0), infinite)
    if len(one.values) * len(two.values) <= _EXACT:
        values = np.add.outer(one.values, two.values).ravel()
        return Losses.of(values, np.multiply.outer(one.masses, two.masses).ravel(), infinite)
    step = (np.ptp(one.values) + np.ptp(two.values)) / _CELLS
    (a, start), (b, other_start) = (_on_grid(part, step, up) for part in (one, two))
    values = (np.arange(len(a) + len(b) - 1) + (start + other_start)) * step
    return _trim(Losses(values, np.convolve(a, b), infinite), up, tail)


def repeat(one: Losses, times: int, *, up: bool, tail: float) -> Losses:
    """The sum of `times` independent copies, by repeated doubling."""
    total, power = None, one
    while True:
        if times % 2:
            total = power if total is None else add(total, power, up=up, tail=tail)
        times //= 2
        if times == 0:
            return total
        power = add(power, power, up=up, tail=tail)


def epsilon_at(losses: Losses, delta: float, *, up: bool) -> float:
    """The smallest epsilon >= 0 with E (1 - e^(epsilon - loss))+ <= delta, a little more (up) or less."""
    delta = delta * (1.0 - _SLACK if up else 1.0 + _SLACK)
    if losses.infinite > delta:
        return math.inf
    # The best event is an upper set of the loss, so the largest bound over those is exact. Only losses > 0 matter.
    positive = (losses.values > 0.0) & (losses.masses > 0.0)
    values, masses = losses.values[positive][::-1], losses.masses[positive][::-1]
    p, log_q = losses.infinite + np.cumsum(masses), np.logaddexp.accumulate(np.log(masses) - values)
    above = p > delta
    epsilon = float(max(0.0, np.max(np.log(p[above] - delta) - log_q[above], initial=0.0)))
    return max(0.0, epsilon + (_ULPS if up else -_ULPS) * max(1.0, epsilon))


def epsilon_of_rho(rho: float, delta: float) -> float:
    """An epsilon for which rho-zCDP implies (epsilon, delta)-DP; delta > 0.

    The least over orders a > 1 of rho a + (log(1 / delta) + (a - 1) log(1 - 1 / a) - log a) / (a - 1); each order is
    valid. Source: Canonne, Kamath, Steinke (2020), proposition 12.
    """
    if rho == 0.0:
        return 0.0
    center = 1.0 + math.sqrt(-math.log(delta) / rho)
    order = np.unique(np.append(1.0 + (center - 1.0) * np.geomspace(0.05, 2.0, 20_001), center))
    order = order[order > 1.0]
    epsilon = rho * order + (-math.log(delta) - np.log(order)) / (order - 1.0) + np.log1p(-1.0 / order)
    return float(max(0.0, np.min(epsilon)))


def _of_logs(log_p: np.ndarray, log_q: np.ndarray) -> Losses:
    if np.isnan(log_p).any() or np.isnan(log_q).any():
        raise ValueError("law must have no NaN (bad traced parameters)")
    possible = log_p > -np.inf
    log_p, log_q = log_p[possible], log_q[possible]
    finite = log_q > -np.inf
    infinite = np.sum(np.exp(log_p[~finite]))
    return Losses.of(log_p[finite] - log_q[finite], np.exp(log_p[finite]), infinite)


def _ratio(log_p: float, log_q: float) -> float:
    return float(log_p - log_q) if log_q > -np.inf else math.inf


def _finite(log_p: float, log_q: float) -> float:
    """The mass of a side that both laws have."""
    return math.exp(log_p) if log_q > -np.inf else 0.0


def _host(value: Any) -> np.ndarray:
    if _check.is_traced(value):
        raise ValueError("privacy losses are composed on the host: call this outside jit and vmap")
    return np.asarray(value, np.float64)


def _on_grid(part: Losses, step: float, up: bool) -> tuple[np.ndarray, int]:
    """Masses on whole numbers of steps, and the first of these."""
    place = part.values / step
    # A value that lies on the grid stays there: the quotient is off by a few of its last places.
    near = np.rint(place)
    on = np.abs(place - near) <= 1e-12 * np.maximum(1.0, np.abs(near))
    place = np.where(on, near, np.ceil(place) if up else np.floor(place)).astype(np.int64)
    return np.bincount(place - place[0], part.masses), int(place[0])


def _trim(losses: Losses, up: bool, tail: float) -> Losses:
    """Cuts at most `tail` at each end, and moves it up (to the lowest kept, to inf) or down (to -inf, the highest)."""
    masses, infinite = losses.masses, losses.infinite
    low = int(np.searchsorted(np.cumsum(masses), tail, side="right"))
    high = len(masses) - int(np.searchsorted(np.cumsum(masses[::-1]), tail, side="right"))
    if low >= high:
        return losses
    kept, below, above = masses[low:high].copy(), masses[:low].sum(), masses[high:].sum()
    if up:
        kept[0], infinite = kept[0] + below, infinite + above
    else:
        kept[-1] += above
    return Losses(losses.values[low:high], kept, infinite)
