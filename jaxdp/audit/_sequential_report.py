"""The result of a sequential audit: predictions and counts, and everything that follows from them."""

from __future__ import annotations

import dataclasses
import functools
import json
import math
from typing import Any

import numpy as np

from jaxdp.audit import _betting
from jaxdp.audit._betting import Stage

__all__ = ["SequentialReport"]


@dataclasses.dataclass(frozen=True)
class SequentialReport:
    """What a sequential audit certified on one pair of inputs, and the way there.

    Only the claim, the confidence, the predictions and the counts are stored; wealth, certificates and the verdict
    are computed from them, so that a report can be certified again from its JSON alone.

    Attributes:
        mechanism: Name of what was audited.
        epsilon: The claimed epsilon.
        delta: The claimed delta.
        confidence: Probability with which all certificates of the path hold together, whatever the mechanism is.
        max_samples: Most runs that were allowed, of both sides together.
        stopped: Why the audit ended: "refuted", "futile" or "max_samples".
        predictions: (2, pairs) log odds that were predicted for the outputs of each pair before its side was looked
            at, in units of 2^-12: outputs of the summary first, then those of the neighbour.
        evidence: What the predictions were made from, in words.
        stages: Events that were frozen and counted afterwards, with the counts of each call.
        devices: Number and kind of devices.
        seconds_compile: Time of the first call of each compiled program; zero if all had been used before.
        seconds_run: All other time of the audit.
    """

    mechanism: str
    epsilon: float
    delta: float
    confidence: float
    max_samples: int
    stopped: str
    predictions: tuple[tuple[int, ...], tuple[int, ...]]
    evidence: str
    stages: tuple[Stage, ...] = ()
    devices: str = ""
    seconds_compile: float = 0.0
    seconds_run: float = 0.0

    @functools.cached_property
    def epsilons(self) -> np.ndarray:
        """Values of epsilon that were tested, ascending; the claim is one of them."""
        return _betting.grid(self.epsilon)

    @functools.cached_property
    def _wealth(self) -> tuple[np.ndarray, np.ndarray]:
        """Runs (times,) and log wealth (times, epsilons)."""
        path = [_betting.run_bets(np.array(self.predictions), self.epsilons, self.delta)]
        runs = [2 * np.arange(len(path[0]))]
        for stage in self.stages:
            counts = np.array(stage.calls, np.int64).reshape(len(stage.calls), 2, -1)
            pairs = counts[:, 0].sum(axis=1)
            runs.append(runs[-1][-1:] + 2 * (stage.pilot + np.cumsum(pairs)))
            growths = _betting.stage_bets(stage, self.epsilons, self.delta)
            # Added one after the other, as the audit did, so that every sum is rounded alike.
            path.append(np.cumsum(np.concatenate([path[-1][-1:], growths]), axis=0)[1:])
            if not len(pairs):
                runs[-1], path[-1] = runs[-2][-1:] + 2 * stage.pilot, path[-2][-1:]
        return np.concatenate(runs), np.concatenate(path)

    @functools.cached_property
    def path(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Runs of both sides, log wealth against the claim, and certified epsilon, each (times,)."""
        runs, wealth = self._wealth
        rejected = np.maximum.accumulate(wealth, axis=0) >= -math.log(1.0 - self.confidence)
        prefix = np.sum(np.cumprod(rejected, axis=1), axis=1)
        return runs, wealth[:, self._claim], np.concatenate([[0.0], self.epsilons])[prefix]

    @property
    def _claim(self) -> int:
        return int(np.searchsorted(self.epsilons, self.epsilon))

    @property
    def runs(self) -> int:
        """Runs of the mechanism that were used, both sides together, pilots included."""
        return int(self._wealth[0][-1])

    @property
    def epsilon_lower(self) -> float:
        """Certified: the mechanism is not (e, delta)-DP for any e below this, at the stated confidence."""
        return float(self.path[2][-1])

    @functools.cached_property
    def p_value(self) -> float:
        """Anytime-valid p-value of the claim: one over the largest wealth so far."""
        return math.exp(-max(0.0, float(np.max(self.path[1]))))

    @property
    def refuted(self) -> bool:
        """Whether the claim is refuted at the stated confidence: it and all smaller epsilons tested are rejected."""
        wealth = self._wealth[1][:, : self._claim + 1]
        return bool(np.all(np.max(wealth, axis=0) >= -math.log(1.0 - self.confidence)))

    @property
    def event(self) -> str:
        """The event counted last, or what the predictions were made from."""
        return self.stages[-1].event if self.stages else self.evidence

    @property
    def verdict(self) -> str:
        """One sentence. A claim is never said to hold: other inputs and events may lose more."""
        at = f" at delta {self.delta:.6g}" if self.delta else ""
        found = (
            f"certified epsilon >= {self.epsilon_lower:.6g}{at}, claimed {self.epsilon:.6g}, after {self.runs:,} runs"
        )
        if self.refuted:
            return f"refuted at confidence {self.confidence:.12g}: {found}"
        return f"not refuted: {found}" + (" (more runs were unlikely to change it)" if self.stopped == "futile" else "")

    def to_json(self) -> str:
        """The report as a JSON object: the stored fields, and what follows from them."""
        facts: dict[str, Any] = dataclasses.asdict(self)
        derived = ("runs", "epsilon_lower", "p_value", "refuted", "verdict")
        return json.dumps(facts | {name: getattr(self, name) for name in derived}, allow_nan=False)

    @classmethod
    def from_json(cls, text: str) -> SequentialReport:
        """The report of `to_json`. All that is derived is computed again from predictions and counts, not read.

        Raises:
            ValueError: The text is no JSON object with the fields of a report.
        """
        found = json.loads(text)
        names = [field.name for field in dataclasses.fields(cls)]
        missing = [name for name in names if not isinstance(found, dict) or name not in found]
        if missing:
            raise ValueError(f"the report lacks {', '.join(missing)}")
        stored = {name: found[name] for name in names}
        try:
            stored["predictions"] = _tuples(stored["predictions"])
            stored["stages"] = tuple(Stage(**{**stage, "calls": _tuples(stage["calls"])}) for stage in stored["stages"])
        except (KeyError, TypeError) as error:
            raise ValueError(f"the report's predictions or stages are malformed: {error}") from None
        return cls(**stored)

    def __str__(self) -> str:
        rows = {
            "mechanism": self.mechanism,
            "claimed": f"epsilon {self.epsilon:.6g}, delta {self.delta:.6g}",
            "certified": f"epsilon >= {self.epsilon_lower:.6g} (anytime-valid p-value of the claim {self.p_value:.3g})",
            "evidence": self.event,
            "runs": f"{self.runs:,} of at most {self.max_samples:,}, stopped: {self.stopped}",
            "time": f"{self.seconds_run:.3g} s on {self.devices}, compilation {self.seconds_compile:.3g} s",
            "verdict": self.verdict,
        }
        return "\n".join(f"{name:10} {text}" for name, text in rows.items())


def _tuples(nested: Any) -> Any:
    return tuple(_tuples(each) for each in nested) if isinstance(nested, list | tuple) else nested
