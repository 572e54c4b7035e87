"""The whole audit of a claim: screen, exact losses, the best pair of inputs, certification."""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np

from jaxdp import _check
from jaxdp.audit import _arguments
from jaxdp.audit._session import Session
from jaxdp.audit.claims import Claim
from jaxdp.audit.exact import exact
from jaxdp.audit.learned import learned_score
from jaxdp.audit.monte_carlo import monte_carlo
from jaxdp.audit.report import AuditReport
from jaxdp.audit.screen import Finding, screen
from jaxdp.audit.targets import Foreign

__all__ = ["Examination", "examine"]

_ARITHMETIC = 1e-9
# Runs on each input that a score is learned from, beside the audit's own.
_LEAST_LEARNED, _MOST_LEARNED = 2**14, 2**20


@dataclasses.dataclass(frozen=True)
class Examination:
    """What `examine` found.

    Attributes:
        claim: The claim in words.
        findings: What the screen saw.
        exact: The exact loss of each pair of inputs, where the laws are known; else empty.
        predicted: The certificate that a pilot predicted for each pair; empty where the exact losses chose.
        pair: Number of the pair that was certified, from 0.
        report: Its certificate.
        curve_refuted: Whether the report's counts refute a Gaussian or f-DP claim.
        learned: Whether the events of the report are thresholds on a learned score.
    """

    claim: str
    findings: tuple[Finding, ...]
    exact: tuple[float, ...]
    predicted: tuple[float, ...]
    pair: int
    report: AuditReport
    curve_refuted: bool = False
    learned: bool = False

    @property
    def refuted(self) -> bool:
        """Whether an exact loss or the certificate contradicts the claim; what a screen sees is only a hint."""
        return self._above or self.report.refuted or self.curve_refuted

    @property
    def _above(self) -> bool:
        return any(loss > self.report.epsilon * (1.0 + _ARITHMETIC) for loss in self.exact)

    @property
    def verdict(self) -> str:
        """One sentence; a claim is never said to hold."""
        if self.report.refuted:
            return self.report.verdict
        if self._above:
            found = f"epsilon {max(self.exact):.6g} on pair {self.pair}, claimed {self.report.epsilon:.6g}"
            return f"refuted by the exact law: {found}"
        if self.curve_refuted:
            return (
                f"refuted at confidence {self.report.confidence:.12g}: the counts lie below the claimed trade-off curve"
            )
        if self.exact:
            loss = f"the exact loss is {max(self.exact):.6g}, claimed {self.report.epsilon:.6g}"
            return f"exactly verified for these inputs, others may lose more: {loss}; {self.report.verdict}"
        return self.report.verdict

    def to_json(self) -> str:
        """The examination as a JSON object; `report` as in AuditReport.to_json."""
        facts: dict[str, Any] = {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}
        facts["findings"] = [dataclasses.asdict(finding) for finding in self.findings]
        facts["report"] = json.loads(self.report.to_json())
        for name in ("exact", "predicted"):
            facts[name] = [value if math.isfinite(value) else str(value) for value in facts[name]]
        return json.dumps(facts | {"refuted": self.refuted, "verdict": self.verdict}, allow_nan=False)

    def __str__(self) -> str:
        rows = [f"claim      {self.claim}"]
        rows += [f"screen     {finding.text}" for finding in self.findings] or ["screen     nothing found"]
        for name, values in (("exact", self.exact), ("predicted", self.predicted)):
            if values:
                shown = ", ".join(f"{max(value, 0.0):.6g}" for value in values[:8]) + ", ..." * (len(values) > 8)
                rows.append(f"{name:10} {shown}")
        rows += [f"pair       {self.pair}", *str(self.report).splitlines()[:-1], f"verdict    {self.verdict}"]
        return "\n".join(rows)


def examine(
    key: jax.Array,
    mechanism: Any,
    claim: Claim | None = None,
    pairs: Sequence[tuple[Any, Any]] | None = None,
    *,
    num_samples: int = 2**20,
    confidence: float = 0.95,
    sensitivity: float | None = None,
    log_ratio: Callable[[Any, Any], Callable] | None = None,
    selection: float = 0.2,
    learn: bool | None = None,
    devices: Sequence[Any] | None = None,
    progress: Callable[[float], Any] | None = None,
) -> Examination:
    """Audits a claim on several pairs of inputs: screen, exact losses, choice of the pair, certification.

    Which pair is certified is decided before the certification, by the exact loss where the laws are known and by the
    certificate that a pilot of half of the selection predicts where they are not; so no correction for the number of
    pairs is due, and the one certificate holds at the stated confidence. Each pair's pilot, and the certification, run
    on keys of their own. So does the learning of a score for that pair, which is used if a pilot predicts a higher
    certificate for its thresholds than for the events of `monte_carlo`; this too is decided before the certification.

    Args:
        key: One typed key. Consumed.
        mechanism: As in `monte_carlo`.
        claim: The claim; by default that of `mechanism.privacy()`.
        pairs: (summary, neighbour) of neighbouring inputs in the claim's sense; by default `mechanism.worst_case()`.
        num_samples: Runs of the certified pair on each input, its selection included.
        confidence: Of the certificate.
        sensitivity: For the screen, see `screen`.
        log_ratio: (summary, neighbour) -> score, see `monte_carlo`, of known laws; by default from the mechanism's law
            where a release is a vector of lattice values or a mask.
        selection: Share of the runs that chooses the event, and half as much again for each pair.
        learn: Whether to learn a score (`learned_score`), which sees evidence in combinations of several numbers: a
            difference of two sums, a vector's weak shifts. It takes seconds, and about num_samples / 8 runs (2^14 to
            2^20) beside the others. By default where no law or log_ratio is given and an output is more than one
            number; never for `Foreign` functions.
        devices: As in `monte_carlo`.
        progress: Called with the share of the work done.

    Returns:
        An Examination.

    Raises:
        ValueError: An argument is out of range, or the mechanism cannot be run.

    Example:
        A noisy sum that forgot how far one record can move it:

        >>> import jax
        >>> def noisy_sum(key, records):
        ...     return jax.numpy.sum(records) + jax.random.laplace(key)
        >>> pairs = [(np.float32([0, 1, 1]), np.float32([1, 1, 1])), (np.float32([0, 1, 1]), np.float32([2, 1, 1]))]
        >>> claim = jaxdp.audit.Claim.pure(1.0, neighbours="one record in [0, 2] is replaced")
        >>> found = examine(jax.random.key(0), noisy_sum, claim, pairs, sensitivity=1.0)
        >>> found.pair, found.refuted, found.findings[0].text
        (1, True, 'with the same noise the outputs differ by 2, the declared sensitivity is 1')
    """
    _check.key(key)
    claim, pairs = _claim(mechanism, claim), _pairs(mechanism, pairs)
    share = _arguments.check_share("selection", selection)
    certification, screening, pilots = (jax.random.fold_in(key, number) for number in range(3))
    findings: dict[str, Finding] = {}
    for pair in pairs[:16]:
        for finding in screen(screening, mechanism, *pair, sensitivity=sensitivity):
            findings.setdefault(finding.check, finding)
    losses = [exact(mechanism, *pair, delta=claim.delta) for pair in pairs] if _has_law(mechanism) else []
    predicted: list[float] = []
    settings: dict[str, Any] = dict(epsilon=claim.epsilon, delta=claim.delta, devices=devices)
    if losses:
        best = int(np.argmax(losses))
    elif len(pairs) == 1:
        best = 0
    else:
        for number, pair in enumerate(pairs):
            pilot_key = jax.random.fold_in(pilots, number)
            session = _pilot(pilot_key, mechanism, pair, None, devices)
            predicted.append(_predicted(session, num_samples, confidence, share / 2.0, claim))
            if progress is not None:
                progress(0.5 * (number + 1) / len(pairs))
        best = int(np.argmax(predicted))
    score = _score(mechanism, pairs[best], log_ratio)
    learned = None
    if learn or (learn is None and score is None and not losses):
        planned = (num_samples, confidence, share / 2.0)
        learned = _learned(jax.random.fold_in(key, 3), mechanism, pairs[best], score, learn, *planned, claim, devices)
    started = 0.5 * (len(predicted) > 0)
    report = monte_carlo(
        certification,
        mechanism,
        *pairs[best],
        num_samples=num_samples,
        confidence=confidence,
        selection=selection,
        score=score if learned is None else learned,
        progress=None if progress is None else lambda done: progress(started + (1.0 - started) * done),
        **settings,
    )
    curve = claim.kind in ("gaussian", "f-dp") and claim.refuted_by(report)
    return Examination(
        str(claim),
        tuple(findings.values()),
        tuple(losses),
        tuple(predicted),
        best,
        report,
        curve_refuted=curve,
        learned=learned is not None,
    )


def _pilot(key: jax.Array, mechanism: Any, pair: tuple[Any, Any], score: Any, devices: Any) -> Session:
    run, devices = _arguments.sampler_of(mechanism), _arguments.check_devices(devices)
    return Session(key, run, pair, devices, total=1, progress=None, score=score)


def _predicted(session: Session, num_samples: int, confidence: float, share: float, claim: Claim) -> float:
    """The certificate that a pilot of a share of the runs predicts for the events of a session."""
    pilot = max(round(share * num_samples), 64)
    test = _arguments.check_test(None, claim.delta, num_samples, 1.0 - confidence)
    plan: dict[str, Any] = dict(alpha=1.0 - confidence, epsilon=claim.epsilon, delta=claim.delta, test=test)
    return session.select(pilot, num_samples, **plan).predicted


def _learned(
    key: jax.Array,
    mechanism: Any,
    pair: tuple[Any, Any],
    score: Callable | None,
    learn: bool | None,
    num_samples: int,
    confidence: float,
    share: float,
    claim: Claim,
    devices: Any,
) -> Callable | None:
    """A learned score for a pair, if its pilot predicts more than one of the other events."""
    if isinstance(mechanism, Foreign):
        return None
    keys = [jax.random.fold_in(key, number) for number in range(3)]
    plain = _pilot(keys[0], mechanism, pair, score, devices)
    if learn is None and plain.layout.size == 1:
        return None
    runs = min(max(num_samples // 8, _LEAST_LEARNED), _MOST_LEARNED)
    learned = learned_score(keys[1], mechanism, *pair, num_samples=runs)
    sessions = plain, _pilot(keys[2], mechanism, pair, learned, devices)
    without, within = (_predicted(session, num_samples, confidence, share, claim) for session in sessions)
    return learned if within > without else None


def _claim(mechanism: Any, claim: Any) -> Claim:
    if claim is None:
        if not hasattr(mechanism, "privacy"):
            raise ValueError("claim must be given for a mechanism without privacy(), got None")
        return Claim.of(mechanism)
    if not isinstance(claim, Claim):
        raise ValueError(f"claim must be a Claim, such as Claim.pure(1.0, neighbours=...), got {claim!r}")
    return claim


def _pairs(mechanism: Any, pairs: Any) -> list[tuple[Any, Any]]:
    if pairs is None:
        if not hasattr(mechanism, "worst_case"):
            raise ValueError("pairs must be given for a mechanism without worst_case(), got None")
        return [mechanism.worst_case()]
    pairs = list(pairs)
    if not pairs or not all(isinstance(pair, tuple | list) and len(pair) == 2 for pair in pairs):
        raise ValueError(f"pairs must be a sequence of (summary, neighbour), at least one, got {pairs!r}")
    return [tuple(pair) for pair in pairs]


def _has_law(mechanism: Any) -> bool:
    return hasattr(mechanism, "law") and hasattr(mechanism, "privacy")


def _score(mechanism: Any, pair: tuple[Any, Any], log_ratio: Callable | None) -> Callable | None:
    """The log-likelihood ratio of an output, where the law is known and the output is more than one number."""
    if log_ratio is not None:
        return log_ratio(*pair)
    if isinstance(mechanism, Foreign) or not _has_law(mechanism):
        return None
    laws = [mechanism.law(side) for side in pair]
    if not all(hasattr(law, "location") and np.ndim(law.location) for law in laws):
        return None

    def score(output: Any) -> jax.Array:
        with jax.enable_x64(True):
            one, other = (law.log_prob(output) for law in laws)
            return (one - other).astype(np.float32)

    return score
