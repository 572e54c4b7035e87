"""Exact laws of the log likelihood ratio of an output, on which every audit event is a threshold.

A continuous output is cut into cells, and the law is that of its cell. Cutting is a function of the output: the law is
exact for the cell, so that nothing read off it exceeds the value for the output itself. It falls short by the spread
of the log ratio inside the cells, which each function states.
"""

from __future__ import annotations

import dataclasses
import math

import numpy as np
from scipy import special

__all__ = ["LossLaw", "binned", "combine", "laplace", "mixture"]

BINS = 8192
"""Cells of a sum of log ratios."""
_CELLS = 256
_EVENTS = 512
_TINY = 1e-290


@dataclasses.dataclass(frozen=True)
class LossLaw:
    """The law of log p(output | summary) - log p(output | neighbour) under both inputs.

    Attributes:
        values: (atoms,) log ratios, descending; infinite where one input never gives the output.
        masses: (atoms,) their probabilities under the summary.
        other_masses: (atoms,) their probabilities under the neighbour.

    Example:
        Randomised response that tells the truth with probability 3/4:

        >>> law = LossLaw.of([0.75, 0.25], [0.25, 0.75])
        >>> round(law.epsilon, 4), round(law.hockey_stick(0.5), 4), round(law.at_size(0.25), 4)
        (1.0986, 0.3378, 1.0986)
        >>> 1.05 < law.certificate(10**5, alpha=0.1) < law.epsilon
        True
    """

    values: np.ndarray
    masses: np.ndarray
    other_masses: np.ndarray

    @classmethod
    def of(cls, masses: np.ndarray, other_masses: np.ndarray) -> LossLaw:
        """The law over cells with these probabilities (any shape) under both inputs."""
        p, q = np.ravel(np.asarray(masses, np.float64)), np.ravel(np.asarray(other_masses, np.float64))
        # Masses near underflow have few digits, and nobody will see them.
        some = np.maximum(p, q) > _TINY
        p, q = p[some], q[some]
        with np.errstate(divide="ignore"):
            values = np.log(p) - np.log(q)
        order = np.argsort(-values, kind="stable")
        return cls(values[order], p[order], q[order])

    @property
    def epsilon(self) -> float:
        """The largest log ratio: the privacy loss at delta 0, in this direction."""
        return float(self.values[0])

    def hockey_stick(self, epsilon: float) -> float:
        """The largest P(S | summary) - e^epsilon P(S | neighbour) over events S: delta at epsilon."""
        return float(np.sum(np.maximum(self.masses - math.exp(epsilon) * self.other_masses, 0.0)))

    def at_size(self, size: float) -> float:
        """The log of power over size of the best test of a given size, randomised at an atom.

        Args:
            size: Probability of rejection under the neighbour, in (0, 1].

        Returns:
            ln(P(reject | summary) / size), the objective of DP-Sniper at its c = size.

        Raises:
            ValueError: size is not in (0, 1].
        """
        if not 0.0 < size <= 1.0:
            raise ValueError(f"size must be in (0, 1], got {size!r}")
        other = np.cumsum(self.other_masses)
        whole = int(np.searchsorted(other, size, side="right"))
        power = float(np.sum(self.masses[:whole]))
        if whole < len(other):
            left = size - (other[whole - 1] if whole else 0.0)
            power += float(self.masses[whole] * left / self.other_masses[whole])
        return math.log(power / size)

    def best_event(self, runs: int, alpha: float) -> tuple[float, float]:
        """The event {log ratio >= t} that certifies most if it occurs as often as expected.

            max over t of ln(L / U),   L, U: Clopper-Pearson limits at alpha / 2 each

        Args:
            runs: Runs on each input.
            alpha: Error probability of the certificate, in (0, 1).

        Returns:
            The threshold t, an atom of the law, and the certified epsilon, at least 0.
        """
        p, q = np.minimum(np.cumsum(self.masses), 1.0), np.minimum(np.cumsum(self.other_masses), 1.0)
        # Beta quantiles are slow: some of the events first, then all between the neighbours of the best of these.
        some = np.unique(np.linspace(0, len(p) - 1, _EVENTS).astype(np.int64))
        best = int(np.argmax(_certified(p[some], q[some], runs, alpha)))
        near = np.arange(some[max(best - 1, 0)], some[min(best + 1, len(some) - 1)] + 1)
        certified = _certified(p[near], q[near], runs, alpha)
        best = int(np.argmax(certified))
        return float(self.values[near[best]]), float(max(certified[best], 0.0))

    def certificate(self, runs: int, alpha: float) -> float:
        """What `best_event` certifies."""
        return self.best_event(runs, alpha)[1]


def laplace(epsilon: float) -> LossLaw:
    """The law for Laplace noise on a number that changes by `epsilon` scales.

    Cells of the log ratio are epsilon/128 wide; the outer ones hold the atoms, half the mass, at +-epsilon.
    """
    if epsilon == 0.0:
        return LossLaw.of(np.ones(1), np.ones(1))
    cuts = np.linspace(0.0, 1.0, _CELLS + 1)[1:-1] * epsilon
    # Noise of scale 1 on 0, against epsilon: below 0, between, above epsilon.
    below = np.concatenate([0.5 * -np.expm1(-cuts), [0.5 * -math.expm1(-epsilon)]])
    masses = np.concatenate([[0.5], np.diff(below, prepend=0.0), [0.5 * math.exp(-epsilon)]])
    return LossLaw.of(masses, masses[::-1])


def combine(one: LossLaw, other: LossLaw) -> LossLaw:
    """The law for a pair of independent outputs; all values must be finite. Cells are 1/8192 of the range wide."""
    return binned(
        np.add.outer(one.values, other.values),
        np.multiply.outer(one.masses, other.masses),
        np.multiply.outer(one.other_masses, other.other_masses),
    )


def binned(values: np.ndarray, masses: np.ndarray, other_masses: np.ndarray) -> LossLaw:
    """The law over cells joined where their finite log ratios agree to 1/8192 of the range."""
    values = np.ravel(values)
    low = values.min()
    step = max(values.max() - low, 1e-12) / (BINS - 1)
    bins = np.rint((values - low) / step).astype(np.int64)
    return LossLaw.of(np.bincount(bins, np.ravel(masses)), np.bincount(bins, np.ravel(other_masses)))


def mixture(*laws: LossLaw) -> LossLaw:
    """The law for outputs that tell which of the laws they come from; their masses sum to one together."""
    return LossLaw.of(np.concatenate([law.masses for law in laws]), np.concatenate([law.other_masses for law in laws]))


def _certified(p: np.ndarray, q: np.ndarray, runs: int, alpha: float) -> np.ndarray:
    """Certificates of events of these probabilities, at the expected counts; minus infinity where there is none.

    Expected counts are no integers: the beta quantiles interpolate the limits between them.
    """
    hits, other_hits = runs * p, runs * q
    lower = special.betaincinv(hits, runs - hits + 1.0, alpha / 2.0)
    upper = special.betainccinv(other_hits + 1.0, runs - other_hits, alpha / 2.0)
    some = (lower > 0.0) & (hits < runs) & (other_hits < runs)
    return np.log(np.where(some, lower, 0.0) / np.where(some, upper, 1.0), where=some, out=np.full(len(p), -np.inf))
