"""What a mechanism claims, and what follows from it: its privacy profile and its trade-off curve."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import ArrayLike
from scipy import optimize, special

from jaxdp.audit.targets import one_line

__all__ = ["Claim"]

_GRID = np.concatenate([np.geomspace(1e-12, 1e-3, 400), np.linspace(1e-3, 1.0, 2000)[1:]])


@dataclasses.dataclass(frozen=True)
class Claim:
    """A privacy claim: its kind, its parameters and the neighbours that it speaks of.

    Made by `pure`, `approximate`, `gaussian`, `f_dp` or `of`.

    Attributes:
        kind: "pure", "approximate", "gaussian" or "f-dp".
        neighbours: Which inputs are neighbours, in words. A claim without it says nothing.
        epsilon: The epsilon at which audits aim; that of the claim where it has one.
        delta: The claimed delta at that epsilon.
        mu: The parameter of a Gaussian claim, else None.
        curve: The trade-off function of an f-DP claim, else None.

    Example:
        >>> claim = jaxdp.audit.Claim.gaussian(1.0, neighbours="add or remove one record")
        >>> claim.profile(1.0).round(4).item(), claim.trade_off(0.05).round(4).item()
        (0.1269, 0.7405)
    """

    kind: str
    neighbours: str
    epsilon: float
    delta: float = 0.0
    mu: float | None = None
    curve: Callable[[np.ndarray], np.ndarray] | None = None

    @classmethod
    def pure(cls, epsilon: float, *, neighbours: str) -> Claim:
        """Epsilon-DP."""
        return cls("pure", _words(neighbours), _real("epsilon", epsilon, 0.0, math.inf))

    @classmethod
    def approximate(cls, epsilon: float, delta: float, *, neighbours: str) -> Claim:
        """(epsilon, delta)-DP."""
        epsilon, delta = _real("epsilon", epsilon, 0.0, math.inf), _real("delta", delta, 0.0, 1.0)
        return cls("approximate" if delta else "pure", _words(neighbours), epsilon, delta)

    @classmethod
    def gaussian(cls, mu: float, *, neighbours: str) -> Claim:
        """Gaussian DP: no easier to tell apart than N(0, 1) and N(mu, 1) (Dong, Roth and Su, 2022)."""
        mu = _real("mu", mu, 0.0, math.inf)
        return cls("gaussian", _words(neighbours), mu, float(_gaussian_profile(mu, np.asarray(mu))), mu=mu)

    @classmethod
    def f_dp(cls, curve: Callable[[np.ndarray], np.ndarray], *, neighbours: str, epsilon: float = 1.0) -> Claim:
        """f-DP: every test of level a has a type-II error of at least curve(a).

        Args:
            curve: A convex, nonincreasing function of arrays in [0, 1] with curve(a) <= 1 - a.
            neighbours: Which inputs are neighbours, in words.
            epsilon: The epsilon at which audits aim.
        """
        if not callable(curve):
            raise ValueError(f"curve must be a function of an array, got {curve!r}")
        try:
            values = np.asarray(curve(_GRID), np.float64)
        except Exception as error:
            raise ValueError(f"curve must map an array in [0, 1] to one of its shape ({one_line(error)})") from error
        if values.shape != _GRID.shape:
            raise ValueError(f"curve must map an array to one of its shape {_GRID.shape}, got {values.shape}")
        slopes = np.diff(values) / np.diff(_GRID)
        inside = np.all(values >= 0.0) and np.all(values <= 1.0 - _GRID + 1e-12)
        # Rounding of the values, over steps as small as 1e-13.
        rounding = 1e-13 / np.diff(_GRID)[1:] + 1e-13 / np.diff(_GRID)[:-1]
        if not inside or not np.all(slopes <= 1e-12) or not np.all(np.diff(slopes) >= -rounding - 1e-9):
            raise ValueError(
                "curve must be convex, nonincreasing and in [0, 1 - a] at every a in [0, 1], got one that is not"
            )
        epsilon = _real("epsilon", epsilon, 0.0, math.inf)
        claim = cls("f-dp", _words(neighbours), epsilon, curve=curve)
        return dataclasses.replace(claim, delta=float(claim.profile(epsilon)))

    @classmethod
    def of(cls, mechanism: Any) -> Claim:
        """What `mechanism.privacy()` states."""
        stated = mechanism.privacy()
        neighbours = getattr(stated, "neighbours", "those of the mechanism")
        return cls.approximate(stated.epsilon, stated.delta, neighbours=neighbours)

    def profile(self, epsilons: ArrayLike) -> np.ndarray:
        """The largest delta that the claim allows at each epsilon; float64 of the same shape."""
        epsilons = np.asarray(epsilons, np.float64)
        if self.mu is not None:
            return _gaussian_profile(self.mu, epsilons)
        if self.curve is not None:
            best = [_steepest(self.curve, epsilon) for epsilon in epsilons.ravel()]
            return np.array(best, np.float64).reshape(epsilons.shape)
        # That of randomised response, the extreme point of all (epsilon, delta)-DP mechanisms.
        tail = -np.expm1(np.minimum(epsilons - self.epsilon, 0.0)) / (1.0 + math.exp(-self.epsilon))
        return self.delta + (1.0 - self.delta) * tail

    def trade_off(self, levels: ArrayLike) -> np.ndarray:
        """The least type-II error that the claim allows a test of each level; float64 of the same shape."""
        levels = np.asarray(levels, np.float64)
        if self.mu is not None:
            return special.ndtr(-special.ndtri(levels) - self.mu)
        if self.curve is not None:
            return np.asarray(self.curve(levels), np.float64)
        steep = 1.0 - self.delta - math.exp(min(self.epsilon, 700.0)) * levels
        flat = math.exp(-self.epsilon) * (1.0 - self.delta - levels)
        return np.maximum(np.maximum(steep, flat), 0.0)

    def refuted_by(self, report: Any) -> bool:
        """Whether the counts of an AuditReport refute the claim, whatever its kind, at the report's confidence.

        Each of the K nested events has limits L <= p and q <= U at level alpha / (2 K): a test that rejects on the
        event has level at most U and a type-II error of at most 1 - L, which the claim keeps at or above
        trade_off(U).
        """
        lower, upper = report.band
        return bool(report.refuted and self.kind in ("pure", "approximate")) or bool(
            np.any(1.0 - lower < self.trade_off(upper))
        )

    def __str__(self) -> str:
        values = {"pure": f"epsilon {self.epsilon:.6g}", "gaussian": f"mu {self.mu}", "f-dp": "a trade-off curve"}
        text = values.get(self.kind, f"epsilon {self.epsilon:.6g}, delta {self.delta:.6g}")
        return f"{self.kind} DP, {text}; neighbours: {self.neighbours}"


def _gaussian_profile(mu: float, epsilons: np.ndarray) -> np.ndarray:
    if mu == 0.0:
        return np.zeros(epsilons.shape)
    with np.errstate(over="ignore", under="ignore"):
        second = np.exp(epsilons + special.log_ndtr(-epsilons / mu - mu / 2.0))
    return np.maximum(special.ndtr(-epsilons / mu + mu / 2.0) - second, 0.0)


def _steepest(curve: Callable[[np.ndarray], np.ndarray], epsilon: float) -> float:
    """Maximum over a of 1 - curve(a) - e^epsilon a, concave in a."""

    def gain(a: float) -> float:
        return 1.0 - float(np.asarray(curve(np.asarray(a)))) - math.exp(min(epsilon, 700.0)) * a

    grid = np.concatenate([[0.0], _GRID])
    best = int(np.argmax([gain(a) for a in grid]))
    low, high = grid[max(best - 1, 0)], grid[min(best + 1, len(grid) - 1)]
    found = optimize.minimize_scalar(lambda a: -gain(a), bounds=(low, high), method="bounded", options={"xatol": 1e-14})
    return max(gain(grid[best]), -float(found.fun), 0.0)


def _real(name: str, value: Any, low: float, high: float) -> float:
    try:
        number = float(value)
    except (TypeError, ValueError):
        number = math.nan
    if not low <= number < high:
        raise ValueError(f"{name} must lie in [{low:g}, {high:g}), got {value!r}")
    return number


def _words(neighbours: Any) -> str:
    if not isinstance(neighbours, str) or not neighbours:
        raise ValueError(f"neighbours must say in words which inputs are neighbours, got {neighbours!r}")
    return neighbours
