"""The result of a Monte-Carlo audit: counts, and everything that follows from them."""

from __future__ import annotations

import dataclasses
import functools
import json
import math
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from jaxdp.audit import _binomial, _certificates

__all__ = ["AuditReport"]

_COUNTS = ("hits", "runs", "other_hits", "other_runs")


@dataclasses.dataclass(frozen=True)
class AuditReport:
    """What an audit certified, on one pair of inputs and for one event that was fixed before the counted runs.

    Only the claim, the confidence and the counts are stored; limits, certificates and the verdict are computed from
    them, so that a report can be certified again from its JSON alone.

    Attributes:
        mechanism: Name of what was audited.
        epsilon: The claimed epsilon.
        delta: The claimed delta.
        confidence: Probability with which the certificate holds, whatever the mechanism is.
        num_samples: Runs on each input, selection included.
        event: The event, in words. "output" is what the mechanism returns.
        direction: "summary over neighbour" if the event is more likely on the summary, or the reverse. The first
            is called the one, the second the other input below.
        hits: Certification runs on the one input in which the event happened.
        runs: Certification runs on the one input.
        other_hits: Certification runs on the other input in which the event happened.
        other_runs: Certification runs on the other input.
        nested_hits: Hits on the one input of the nested events of `profile`, the main event among them.
        nested_other_hits: Hits on the other input of the same events.
        devices: Number and kind of devices.
        seconds_compile: Time of the first call of each compiled program; zero if all had been used before.
        seconds_run: All other time of the audit.
        test: "label" (the runs' inputs were drawn by fair coins) or "clopper-pearson".
    """

    mechanism: str
    epsilon: float
    delta: float
    confidence: float
    num_samples: int
    event: str
    direction: str
    hits: int
    runs: int
    other_hits: int
    other_runs: int
    nested_hits: tuple[int, ...] = ()
    nested_other_hits: tuple[int, ...] = ()
    devices: str = ""
    seconds_compile: float = 0.0
    seconds_run: float = 0.0
    test: str = _certificates.CLOPPER_PEARSON

    @functools.cached_property
    def limits(self) -> tuple[float, float]:
        """Lower limit of the event's probability on the one input, upper limit on the other, half of alpha each."""
        return _certificates.limits(*self.counts.values(), self._alpha)

    @functools.cached_property
    def epsilon_lower(self) -> float:
        """Certified: the mechanism is not (e, delta)-DP for any e below this, at the stated confidence."""
        return _certificates.certified(self.test, *self.counts.values(), alpha=self._alpha, delta=self.delta)

    @property
    def epsilon_estimate(self) -> float:
        """The same without allowance for chance; inf if the event was never seen on the other input."""
        return _log_ratio(self.hits / self.runs - self.delta, self.other_hits / self.other_runs)

    @property
    def delta_lower(self) -> float:
        """Certified: the mechanism is not (epsilon, d)-DP for any d below this, at the claimed epsilon."""
        return max(0.0, self.limits[0] - _exp(self.epsilon) * self.limits[1])

    @property
    def cap(self) -> float:
        """The certificate that no hit at all on the other input would have given: more was out of reach."""
        none = (self.hits, self.runs, 0, self.other_runs)
        return _certificates.certified(self.test, *none, alpha=self._alpha, delta=self.delta)

    @functools.cached_property
    def detectable(self) -> float:
        """The loss on this event from which on such an audit refutes the claim with probability 0.9 or more."""
        known = dict(alpha=self._alpha, delta=self.delta, epsilon=self.epsilon)
        return _certificates.detectable(self.test, *self.counts.values(), **known)

    @property
    def _alpha(self) -> float:
        return 1.0 - self.confidence

    @property
    def refuted(self) -> bool:
        """Whether the claim is refuted at the stated confidence."""
        return self.epsilon_lower > self.epsilon

    @property
    def verdict(self) -> str:
        """One sentence. A claim is never said to hold: other inputs and events may lose more."""
        at = f" at delta {self.delta:.6g}" if self.delta else ""
        found = f"certified epsilon >= {self.epsilon_lower:.6g}{at}, claimed {self.epsilon:.6g}"
        if self.refuted:
            return f"refuted at confidence {self.confidence:.12g}: {found}"
        caught = f"; on this event a loss above {self.detectable:.4g} would be refuted with 90 % power"
        return f"not refuted: {found}" + caught * math.isfinite(self.detectable)

    @property
    def counts(self) -> dict[str, int]:
        """Hits and runs of certification on both inputs."""
        return {name: getattr(self, name) for name in _COUNTS}

    @property
    def samples_per_second(self) -> float:
        """Runs on both inputs, selection included, over `seconds_run`."""
        return 2.0 * self.num_samples / self.seconds_run if self.seconds_run else math.nan

    def profile(self, epsilons: ArrayLike) -> tuple[np.ndarray, np.ndarray]:
        """Privacy profile of this pair of inputs in this direction: delta as a function of epsilon.

        The lower band holds at all epsilons together at the stated confidence: each of the K nested events has
        its limits at level alpha / (2 K).

        Args:
            epsilons: Any shape, nonnegative.

        Returns:
            (lower, estimate), float64 arrays of that shape: the certified lower band and the plain estimate.

        Raises:
            ValueError: An epsilon is negative or NaN.
        """
        wanted = np.asarray(epsilons, np.float64)
        if not np.all(wanted >= 0.0):
            raise ValueError(f"epsilons must be nonnegative, got {epsilons!r}")
        lower, upper = self.band
        # Past e^700 the product overflows; the bound is zero long before.
        factor = np.exp(np.minimum(wanted, 700.0))[..., None]
        one, other = np.array(self._nested, np.float64) / np.array([[self.runs], [self.other_runs]], np.float64)
        certified = np.max(lower - factor * upper, axis=-1)
        estimate = np.max(one - factor * other, axis=-1)
        return np.maximum(certified, 0.0), np.maximum(estimate, 0.0)

    @functools.cached_property
    def band(self) -> tuple[np.ndarray, np.ndarray]:
        """Limits of all nested events, which hold together: lower on the one input, upper on the other."""
        one, other = self._nested
        level = self._alpha / (2.0 * len(one))
        lower = _binomial.lower_limit(one, self.runs, level)
        return lower, _binomial.upper_limit(other, self.other_runs, level)

    @property
    def _nested(self) -> tuple[tuple[int, ...], tuple[int, ...]]:
        if not self.nested_hits:
            return (self.hits,), (self.other_hits,)
        return self.nested_hits, self.nested_other_hits

    def to_json(self) -> str:
        """The report as a JSON object: the stored fields, and what follows from them. An infinite value is "inf"."""
        derived = ("epsilon_lower", "epsilon_estimate", "delta_lower", "cap", "detectable", "refuted", "verdict")
        facts: dict[str, Any] = dataclasses.asdict(self)
        facts |= {name: getattr(self, name) for name in (*derived, "samples_per_second")}
        odd = {name: str(value) for name, value in facts.items() if _is_odd(value)}
        return json.dumps(facts | odd, allow_nan=False)

    @classmethod
    def from_json(cls, text: str) -> AuditReport:
        """The report of `to_json`. All that is derived is computed again from the counts, not read.

        Raises:
            ValueError: The text is no JSON object with the fields of a report.
        """
        found = json.loads(text)
        fields = dataclasses.fields(cls)
        needed = [field.name for field in fields if field.default is dataclasses.MISSING]
        missing = [name for name in needed if not isinstance(found, dict) or name not in found]
        if missing:
            raise ValueError(f"the report lacks {', '.join(missing)}")
        stored = {field.name: found[field.name] for field in fields if field.name in found}
        for name in ("nested_hits", "nested_other_hits"):
            if not isinstance(stored.get(name, []), list):
                raise ValueError(f"{name} must be a list, got {stored[name]!r}")
            stored[name] = tuple(stored.get(name, ()))
        report = cls(**stored)
        _require_possible(report)
        return report

    def __str__(self) -> str:
        rows = {
            "mechanism": self.mechanism,
            "claimed": f"epsilon {self.epsilon:.6g}, delta {self.delta:.6g}",
            "certified": f"epsilon >= {self.epsilon_lower:.6g} (estimate {self.epsilon_estimate:.6g}, "
            f"at most {self.cap:.4g} in {self.runs:,} runs)",
            "event": f"{self.event} ({self.direction})",
            "hits": f"{self.hits:,} of {self.runs:,} over {self.other_hits:,} of {self.other_runs:,}",
            "speed": f"{self.samples_per_second:.3g} samples/s on {self.devices}",
            "verdict": self.verdict,
        }
        return "\n".join(f"{name:10} {text}" for name, text in rows.items())


def _require_possible(report: AuditReport) -> None:
    """Refuses what no audit can have written: a forged or damaged file must not be certified."""
    for name, low, high in (("confidence", 0.0, 1.0), ("delta", 0.0, 1.0), ("epsilon", 0.0, math.inf)):
        value = getattr(report, name)
        good = isinstance(value, int | float) and not isinstance(value, bool) and low <= value < high
        if not good or (name == "confidence" and not 0.0 < 1.0 - value < 1.0):
            raise ValueError(f"{name} must be a number in [{low:g}, {high:g}), got {value!r}")
    if report.test not in _certificates.TESTS:
        raise ValueError(f"test must be one of {', '.join(_certificates.TESTS)}, got {report.test!r}")
    for name, total, hits in (
        ("hits", report.runs, (report.hits, *report.nested_hits)),
        ("other_hits", report.other_runs, (report.other_hits, *report.nested_other_hits)),
    ):
        counts = (total, *hits)
        if not all(isinstance(count, int) and not isinstance(count, bool) and 0 <= count <= total for count in counts):
            raise ValueError(f"{name} must be whole numbers from 0 to the number of runs, got {hits!r} of {total!r}")
    if len(report.nested_hits) != len(report.nested_other_hits):
        lengths = len(report.nested_hits), len(report.nested_other_hits)
        raise ValueError(f"nested_hits and nested_other_hits must be equally long, got {lengths}")
    both = report.runs + report.other_runs
    # Nine standard deviations of fair coins.
    if report.test == _certificates.LABEL and abs(report.runs - report.other_runs) > 9.0 * math.sqrt(both):
        raise ValueError(
            f"runs must be shared by fair coins for the label test, got {report.runs} and {report.other_runs}"
        )


def _log_ratio(one: float, other: float) -> float:
    """log(one / other), at least zero; zero if nothing is left of the first."""
    if one <= 0.0:
        return 0.0
    return math.inf if other <= 0.0 else max(0.0, math.log(one / other))


def _exp(number: float) -> float:
    return math.exp(min(number, 700.0))


def _is_odd(value: Any) -> bool:
    return isinstance(value, float) and not math.isfinite(value)
