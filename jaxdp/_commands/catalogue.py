"""`python -m jaxdp audit --catalogue`: the published benchmarks, beside the figures of other tools."""

from __future__ import annotations

import argparse
import dataclasses
import json
import time
from typing import Any

import jax

from jaxdp import __version__
from jaxdp._commands._lines import devices, line
from jaxdp._progress import Progress
from jaxdp.audit import AuditReport, monte_carlo
from jaxdp.audit.catalogue import Entry, catalogue

__all__ = ["run"]

_HEADS = ["mechanism", "claimed", "exact", "expected", "certified", "DP-Sniper", "StatDP", "s", "their s", "verdict"]


def run(args: argparse.Namespace) -> int:
    """Audits the catalogue; returns 1 if a sound claim was refuted or an unsound one was not, else 0."""
    entries = _chosen(args.mechanism)
    width = max(len(entry.name) for entry in entries) + 1
    confidence = 1.0 - (1.0 - args.confidence) / len(entries)
    print(
        f"{args.samples:,} samples an input; all {len(entries)} certificates hold together with confidence "
        f"{args.confidence:g}.\nDP-Sniper (the better of its two classifiers) and StatDP (the better of two runs): 2e8 "
        "samples an input, confidence 0.9 each, on about twenty cores.\n" + line(_HEADS, width)
    )
    progress, rows, wrong = Progress(len(entries), width), [], []
    for index, entry in enumerate(entries):
        progress.show(entry.name, 0.0)
        key = jax.random.fold_in(jax.random.key(args.seed), index)
        show = lambda share, name=entry.name: progress.show(name, share)  # noqa: E731
        started = time.perf_counter()
        report = audit_entry(key, entry, num_samples=args.samples, confidence=confidence, progress=show)
        seconds = time.perf_counter() - started
        law = None if entry.loss_law is None else entry.loss_law(*entry.worst)
        progress.done += 1
        progress.clear()
        cells = [f"{entry.epsilon:g}", "-", "-", f">={report.epsilon_lower:.4f}", *_published(entry, seconds)]
        if law is not None:
            cells[1:3] = f"{law.epsilon:.4f}", f"{law.certificate(args.samples, 1.0 - confidence):.4f}"
        print(line([entry.name, *cells, "REFUTED" if report.refuted else "not refuted"], width), flush=True)
        if entry.private and report.refuted:
            wrong.append(entry.name)
        exact = {} if law is None else {"exact": law.epsilon}
        rows.append(dict(json.loads(report.to_json()), name=entry.name, seconds=seconds, **exact))
    print(f"{devices()}.")
    if args.json:
        with open(args.json, "w", encoding="utf-8") as file:
            json.dump(dict(version=__version__, confidence=args.confidence, audits=rows), file, indent=1)
    return 1 if wrong else 0


def audit_entry(key: jax.Array, entry: Entry, *, num_samples: int, confidence: float, **options: Any) -> AuditReport:
    """The audit of a benchmark on its worst pair: by the best event of its law, or by its log ratio, where known."""
    if entry.loss_law is not None:
        # The law has chosen the event: there is nothing left for a pilot.
        options |= dict(score=entry.event(num_samples, 1.0 - confidence), selection=0.01)
    elif entry.log_ratio is not None:
        options |= dict(score=entry.log_ratio(*entry.worst))
    settings = dict(epsilon=entry.epsilon, num_samples=num_samples, confidence=confidence)
    report = monte_carlo(key, entry.many, *entry.worst, **settings, **options)
    return dataclasses.replace(report, mechanism=entry.name)


def _chosen(names: list[str] | None) -> list[Entry]:
    entries = list(catalogue())
    if not names:
        return entries
    wanted = tuple(name.lower() for name in names)
    for name in wanted:
        if not any(entry.name.lower().startswith(name) for entry in entries):
            known = ", ".join(entry.name for entry in entries)
            raise ValueError(f"--mechanism: nothing is called {name!r}; there are {known}")
    return [entry for entry in entries if entry.name.lower().startswith(wanted)]


def _published(entry: Entry, seconds: float) -> list[str]:
    """Their certificates, our time and theirs."""
    theirs = entry.published
    if theirs is None:
        return ["-", "-", f"{seconds:.1f}", "-"]
    statdp = "-" if theirs.statdp is None else f"{max(theirs.statdp):.4f}"
    return [f"{max(theirs.logistic, theirs.network):.4f}", statdp, f"{seconds:.1f}", f"{theirs.seconds_logistic:.1f}"]
