"""`python -m jaxdp audit`: every mechanism of the library, or the broken ones, in one table."""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable
from typing import Any

import jax
import numpy as np

from jaxdp import __version__, _mechanism, audit
from jaxdp._commands._lines import devices, line
from jaxdp._progress import Progress
from jaxdp.audit import _plot

__all__ = ["run"]

_ARITHMETIC = 1e-9
"""Relative rounding allowed in an exact loss before it counts as above the claim."""


def _targets(args: argparse.Namespace) -> list[dict[str, Any]]:
    """What to audit: name, target of audit.monte_carlo, pair of inputs, claim, and the record where there is one."""
    targets, seen = [], set()
    if args.broken:
        for entry in audit.broken(args.epsilon):
            pair, claim = (entry.summary, entry.neighbour), (entry.epsilon, 0.0)
            loss = entry.loss
            targets.append(dict(name=entry.name, target=entry.sample, pair=pair, claim=claim, loss=loss, record=None))
    else:
        for name, record in _mechanism.examples(args.epsilon):
            if type(record) not in seen or args.all or args.mechanism:
                privacy = record.privacy()
                claim = (privacy.epsilon, privacy.delta)
                targets.append(dict(name=name, target=record, pair=record.worst_case(), claim=claim, record=record))
            seen.add(type(record))
    if args.mechanism:
        wanted = tuple(name.lower() for name in args.mechanism)
        for name in wanted:
            if not any(target["name"].lower().startswith(name) for target in targets):
                known = ", ".join(target["name"] for target in targets)
                raise ValueError(f"--mechanism: nothing is called {name!r}; there are {known}")
        targets = [target for target in targets if target["name"].lower().startswith(wanted)]
    return targets


def _audit(target: dict[str, Any], key: jax.Array, args: argparse.Namespace, confidence: float, show: Callable) -> dict:
    epsilon, delta = target["claim"]
    report = audit.monte_carlo(
        key,
        target["target"],
        *target["pair"],
        num_samples=args.samples,
        confidence=confidence,
        epsilon=epsilon,
        delta=delta,
        progress=show,
    )
    if target["record"] is None:  # The catalogue's losses are known beforehand: only the samples may refute.
        return dict(name=target["name"], report=report, exact=target["loss"], refuted=report.refuted)
    loss = audit.exact(target["record"], *target["pair"])
    above = loss > epsilon * (1.0 + _ARITHMETIC)
    return dict(name=target["name"], report=report, exact=loss, refuted=bool(report.refuted or above))


def _profile(target: dict[str, Any], row: dict[str, Any]) -> dict[str, Any]:
    epsilon, delta = target["claim"]
    epsilons = np.linspace(0.0, 1.5 * epsilon, 61)
    lower, estimate = row["report"].profile(epsilons)
    exact = None
    if target["record"] is not None:
        exact = audit.privacy_profile(*map(target["record"].law, target["pair"]), epsilons)
    return dict(
        name=row["name"], epsilon=epsilon, delta=delta, epsilons=epsilons, exact=exact, lower=lower, estimate=estimate
    )


def run(args: argparse.Namespace) -> int:
    """Audits the library's mechanisms, or the broken ones; returns the exit status."""
    if args.plot:
        _plot.require_matplotlib()
    targets = _targets(args)
    width = max(len(target["name"]) for target in targets) + 1
    confidence = 1.0 - (1.0 - args.confidence) / len(targets)
    print(
        f"{args.samples:,} samples an input; all {len(targets)} certificates hold together with confidence "
        f"{args.confidence:g}.\n"
        + line(["mechanism", "claimed", "delta", "exact", "certified", "samples/s", "verdict"], width)
    )
    progress, rows, start = Progress(len(targets), width), [], time.perf_counter()
    for index, target in enumerate(targets):
        progress.show(target["name"], 0.0)
        key = jax.random.fold_in(jax.random.key(args.seed), index)
        row = _audit(target, key, args, confidence, lambda share, name=target["name"]: progress.show(name, share))
        rows.append(row)
        progress.done += 1
        progress.clear()
        report, (epsilon, delta) = row["report"], target["claim"]
        verdict = "REFUTED" if row["refuted"] else "not refuted"
        numbers = [f"{epsilon:g}", f"{delta:.1e}", f"{row['exact']:.6f}", f">={report.epsilon_lower:.4f}"]
        print(line([row["name"], *numbers, f"{report.samples_per_second:.2g}", verdict], width), flush=True)
    refuted = [row["name"] for row in rows if row["refuted"]]
    print(f"{len(refuted)} of {len(rows)} claims refuted; {time.perf_counter() - start:.1f} s on {devices()}.")
    if args.json:
        documents = [dict(json.loads(row["report"].to_json()), name=row["name"], exact=row["exact"]) for row in rows]
        with open(args.json, "w", encoding="utf-8") as file:
            json.dump(dict(version=__version__, confidence=args.confidence, audits=documents), file, indent=1)
    if args.plot:
        _plot.plot_profiles([_profile(target, row) for target, row in zip(targets, rows, strict=True)], args.plot)
    return 1 if refuted else 0
