"""Time to a certificate on DP-Sniper's benchmarks, against the published times of DP-Sniper and StatDP.

Both sides audit the same mechanism on the same inputs and certify a lower bound of its privacy loss that holds with
probability 0.9 (DP-Sniper: 0.95 a side). The goal is the largest certificate that another tool published and that the
law says is in reach of as many runs as their last step makes, 2 10^8 on either input. The fewest runs that reach it
with a margin of two standard deviations are made, once, on fresh keys: one in forty misses its goal. Their times are
those of their searches (for DP-Sniper with the final runs), published for about twenty cores and not measured here; "on
two cores" are times of DP-Sniper from its measured rates on such a machine, with 10^6 training runs. They learn the
event from runs: "by its law" is told it, "black box" learns it too. Compilation is left out on our side.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

import jax
import numpy as np

from benchmarks.harness import Size, figure
from jaxdp.audit import AuditReport, _certificates, learned_score, monte_carlo
from jaxdp.audit.catalogue import Entry, LossLaw, catalogue

_RUNS, _ALPHA = 2 * 10**8, 0.1
_BLACK_BOX_RUNS = {"LaplaceMechanism": 2**24, "PrefixSum": 2**21}
_NAMES = ("LaplaceMechanism", "ReportNoisyMax3", "SVT1", "SVT3", "SVT6", "PrefixSum")
_TWO_CORES = {
    "LaplaceMechanism": (0.0958, 446.0 + 48.0),
    # 16 pairs of inputs with 5 10^6 runs each, then 4 10^8, by the rates of the search and of the final runs.
    "ReportNoisyMax3": (0.2489, 8e7 / 1.06e6 + 4e8 / 7.9e6),
    "SVT1": (0.0552, 8e7 / 5.4e5 + 4e8 / 1.8e6),
    "SVT6": (0.2721, 8e7 / 9.1e5 + 4e8 / 5.5e6),
    "PrefixSum": (0.4974, 8e7 / 5.8e5 + 4e8 / 4.6e6),
}
"""DP-Sniper (logistic) on two cores: certificate and seconds."""


def run(size: Size) -> Iterator[dict[str, Any]]:
    entries = {entry.name: entry for entry in catalogue()}
    for number, name in enumerate(("LaplaceMechanism",) if size.quick else _NAMES):
        if number and size.late:
            return
        yield from _row(f"{name}, by its law", entries[name], _by_law(entries[name], quick=size.quick))
    for name in () if size.quick or size.late else _BLACK_BOX_RUNS:
        yield from _row(f"{name}, black box", entries[name], _black_box(entries[name]))


def _row(title: str, entry: Entry, found: tuple[float, AuditReport, float]) -> Iterator[dict[str, Any]]:
    spent, report, goal = found
    certified, compared, ratios = report.epsilon_lower, [], {}
    for tool, (certificate, needed) in _theirs(entry).items():
        if certificate <= certified:
            ratios[tool] = needed / spent
        ratio = f"{ratios[tool]:.3g}x" if tool in ratios else "more than ours"
        compared.append(f"{tool} {certificate:.4f} in {needed:,.0f} s ({ratio})")
    exact, missed = entry.loss_law(*entry.worst).epsilon, "" if certified >= goal else " MISSED"
    yield figure(
        f"{title}: time to a certificate of {certified:.4f}",
        spent,
        "s",
        against=f"{report.num_samples:.2g} runs an input, goal {goal:.4f}{missed}; {'; '.join(compared)}",
        certificate=certified,
        goal=goal,
        exact=exact,
        runs=report.num_samples,
        compile_s=report.seconds_compile,
        ratios=ratios,
        headline=", ".join(f"{ratio:.3g} times as fast as {tool}" for tool, ratio in ratios.items())
        or "none certified less",
    )
    scatter = (1.0 / max(report.hits, 1) + 1.0 / max(report.other_hits, 1)) ** 0.5
    yield {
        "check": f"{title}: the certificate does not exceed the exact loss",
        "found": f"certified {certified:.4f}, exact {exact:.4f}; a tenth may exceed it, by about {scatter:.2g}",
        "differ": False,
        # A tenth of all certificates may exceed the loss, by a little.
        "passed": bool(certified <= exact + 3.0 * scatter),
    }


def _theirs(entry: Entry) -> dict[str, tuple[float, float]]:
    """Certificates and seconds of other tools."""
    published = entry.published
    found = {
        "DP-Sniper (logistic)": (published.logistic, published.seconds_logistic),
        "DP-Sniper (network)": (published.network, published.seconds_network),
    }
    if published.statdp:
        found["StatDP"] = max(zip(published.statdp, published.seconds_statdp, strict=True))
    if entry.name in _TWO_CORES:
        found["DP-Sniper (logistic, on two cores)"] = _TWO_CORES[entry.name]
    return found


def _by_law(entry: Entry, *, quick: bool) -> tuple[float, AuditReport, float]:
    """Seconds, the audit and its goal, with the event that the law of the loss says is best."""
    law, started = entry.loss_law(*entry.worst), time.perf_counter()
    published = entry.published
    goals = {published.logistic, published.network, *(published.statdp or ())}
    goal = max(goal for goal in goals if goal <= _reach(law, _RUNS))
    goal = 0.9 * goal if quick else goal
    runs = _fewest(law, goal)
    score = entry.event(runs, _ALPHA)
    chosen = time.perf_counter() - started
    report = _audit(entry, runs, score=score, selection=0.01)
    return chosen + report.seconds_run, report, goal


def _black_box(entry: Entry) -> tuple[float, AuditReport, float]:
    """The same without the law; outputs of several numbers need a learned score."""
    spent, score, several = 0.0, None, np.ndim(jax.eval_shape(entry.sample, jax.random.key(0), entry.worst[0])) > 0
    for seed in (1, 2) if several else ():  # The first compiles.
        started = time.perf_counter()
        score = learned_score(jax.random.key(seed), entry.many, *entry.worst)
        spent = time.perf_counter() - started
    report = _audit(entry, _BLACK_BOX_RUNS[entry.name], score=score)
    return spent + report.seconds_run, report, entry.published.logistic


def _audit(entry: Entry, runs: int, **options: Any) -> AuditReport:
    options |= dict(epsilon=entry.epsilon, num_samples=runs, confidence=1.0 - _ALPHA)
    key = jax.random.fold_in(jax.random.key(0), runs)  # Not the same noise in every row.
    return monte_carlo(key, entry.many, *entry.worst, **options)


def _reach(law: LossLaw, runs: int) -> float:
    """What the label test certifies with the best event, less two standard deviations of its certificate."""
    inside = law.values >= law.best_event(runs, _ALPHA)[0]
    p, q = float(np.sum(law.masses[inside])), float(np.sum(law.other_masses[inside]))
    expected = _certificates.predicted("label", np.float64(p), np.float64(q), runs, alpha=_ALPHA, delta=0.0)
    return float(expected) - 2.0 * float(np.sqrt((1.0 / p + 1.0 / max(q, 1e-300)) / runs))


def _fewest(law: LossLaw, goal: float) -> int:
    """Runs an input that reach the goal, to five per cent; at most _RUNS."""
    low, high = 1e4, float(_RUNS)
    while high > 1.05 * low:
        middle = (low * high) ** 0.5
        low, high = (low, middle) if _reach(law, int(middle)) >= goal else (middle, high)
    return int(high)
