"""The result of a finite-precision audit: counts of random words, and everything that follows from them."""

from __future__ import annotations

import dataclasses
import json
import math

import numpy as np

__all__ = ["FinitePrecisionReport", "Resolution"]


@dataclasses.dataclass(frozen=True)
class Resolution:
    """The exact output distributions on both inputs, at one resolution of the outputs.

    Attributes:
        granularity: Outputs are rounded to the nearest multiple of this; 0: the outputs themselves, bit by bit.
        words: Number of equally likely random words.
        counts: Triples (words that give an output on the summary, words that give it on the neighbour, number of
            outputs with these two counts).
    """

    granularity: float
    words: int
    counts: tuple[tuple[int, int, int], ...]

    @property
    def impossible(self) -> float:
        """Probability of outputs that cannot occur under the other input; the larger of both inputs."""
        one, other, times = self._masses
        return float(max(np.sum((one * times)[other == 0.0]), np.sum((other * times)[one == 0.0])))

    def delta(self, epsilon: float) -> float:
        """Exact delta at epsilon: the larger hockey-stick divergence of the two directions."""
        one, other, times = self._masses
        factor = math.exp(min(epsilon, 700.0))
        return float(max(np.sum(times * np.maximum(p - factor * q, 0.0)) for p, q in ((one, other), (other, one))))

    def epsilon(self, delta: float = 0.0) -> float:
        """Exact privacy loss: the smallest epsilon with delta(epsilon) <= delta; inf if there is none."""
        one, other, times = self._masses
        return max(_loss(one, other, times, delta), _loss(other, one, times, delta), 0.0)

    @property
    def _masses(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        one, other, times = np.array(self.counts, np.float64).reshape(-1, 3).T
        return one / self.words, other / self.words, times


@dataclasses.dataclass(frozen=True)
class FinitePrecisionReport:
    """What `finite_precision` found on one pair of inputs: no estimate, every random word was tried.

    Attributes:
        mechanism: Name of the sampler.
        epsilon: The claimed epsilon.
        delta: The claimed delta.
        width: Bits of the word that the sampler draws.
        bits: Bits of it that were enumerated; the others are provably ignored.
        resolutions: The outputs themselves, then rounded to each granularity asked for.
    """

    mechanism: str
    epsilon: float
    delta: float
    width: int
    bits: int
    resolutions: tuple[Resolution, ...]

    @property
    def loss(self) -> float:
        """Exact privacy loss of the outputs themselves, at the claimed delta."""
        return self.resolutions[0].epsilon(self.delta)

    @property
    def refuted(self) -> bool:
        """Whether the outputs themselves lose more than claimed (beyond 1e-12, the arithmetic)."""
        return self.loss > self.epsilon + 1e-12

    @property
    def verdict(self) -> str:
        """One sentence; it speaks of this pair of inputs only."""
        exact = self.resolutions[0]
        at = f" at delta {self.delta:.6g}" if self.delta else ""
        found = f"exact epsilon {self.loss:.9g}{at}, claimed {self.epsilon:.9g}"
        if not self.refuted:
            return f"exactly verified for these inputs: {found}"
        return (
            f"refuted: {found}; exact delta at the claimed epsilon {exact.delta(self.epsilon):.4g}, "
            f"{exact.impossible:.2%} of the outputs are impossible under the other input"
        )

    def to_json(self) -> str:
        """The report as a JSON object; everything else follows from the counts."""
        return json.dumps(dataclasses.asdict(self) | {"verdict": self.verdict}, allow_nan=False)

    @classmethod
    def from_json(cls, text: str) -> FinitePrecisionReport:
        """The report that `to_json` wrote; what it derived is computed again."""
        found = json.loads(text)
        names = [field.name for field in dataclasses.fields(cls)]
        missing = [name for name in names if not isinstance(found, dict) or name not in found]
        if missing:
            raise ValueError(f"the report lacks {', '.join(missing)}")
        resolutions = [each | {"counts": tuple(map(tuple, each["counts"]))} for each in found["resolutions"]]
        stored = {name: found[name] for name in names}
        return cls(**stored | {"resolutions": tuple(Resolution(**each) for each in resolutions)})

    def __str__(self) -> str:
        lines = [f"{self.mechanism}: all {2**self.bits:,} words of {self.bits} bits"]
        for each in self.resolutions:
            name = f"rounded to {each.granularity:g}" if each.granularity else "all bits"
            loss, delta = each.epsilon(self.delta), each.delta(self.epsilon)
            lines.append(f"{name:24} epsilon {loss:<12.6g} delta {delta:<12.4g} impossible {each.impossible:.4g}")
        return "\n".join([*lines, self.verdict])


def _loss(one: np.ndarray, other: np.ndarray, times: np.ndarray, delta: float) -> float:
    """The smallest epsilon at which the hockey-stick divergence from one to other is at most delta."""
    with np.errstate(divide="ignore"):
        ratio = np.where(one > 0.0, one / np.where(one > 0.0, other, 1.0), 0.0)
        order = np.argsort(-ratio, kind="stable")
        p, q = np.cumsum((one * times)[order]), np.cumsum((other * times)[order])
        if delta == 0.0:
            return float(np.log(ratio[order[0]]))
        inside = p > delta
        return float(np.max(np.log((p - delta)[inside]) - np.log(q[inside]), initial=-np.inf))
