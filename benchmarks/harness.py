"""Races: the same work done by several contestants in turn, so that a ratio survives a noisy machine.

Every contestant first runs once, which compiles it. Then they take turns, A B C A B C ..., and ratios are taken
inside a turn before their median: a burst of other load hits neighbours alike. Results are waited for. CPU time, of
all threads, is kept beside wall time: on a busy machine it is the steadier of the two.
"""

from __future__ import annotations

import dataclasses
import datetime
import os
import platform
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from importlib import metadata
from typing import Any

import jax
import numpy as np
from scipy import stats


@dataclasses.dataclass(frozen=True)
class Contestant:
    """One way to do the work.

    Attributes:
        name: What the table calls it.
        call: Does the work once; what it returns is waited for.
        units: Releases (draws) that one call makes.
        reference: Ratios are taken against the fastest contestant with this mark.
        at_least: The ratio that is promised.
        at_most: The seconds per call that are promised.
        calls: Timed calls in a turn, of which the median counts; for calls of microseconds.
    """

    name: str
    call: Callable[[], Any]
    units: int = 1
    reference: bool = False
    at_least: float | None = None
    at_most: float | None = None
    calls: int = 1


def race(title: str, contestants: Sequence[Contestant], *, turns: int, **facts: Any) -> list[dict[str, Any]]:
    """Runs the contestants in turn; one record each. `facts` (shapes, dtypes, parameters) go into every record."""
    first = {}
    for contestant in contestants:
        print(f"  {title}: first call of {contestant.name}", file=sys.stderr)
        first[contestant.name], _ = _timed(contestant.call)
    wall = {c.name: np.empty(turns) for c in contestants}
    cpu = {c.name: np.empty(turns) for c in contestants}
    for turn in range(turns):
        for c in contestants:
            times = np.array([_timed(c.call) for _ in range(c.calls)])
            wall[c.name][turn], cpu[c.name][turn] = np.median(times, axis=0)
    units = {c.name: c.units for c in contestants}
    each = {name: wall[name] / units[name] for name in wall}
    references = [c.name for c in contestants if c.reference]
    best = min(references, key=lambda name: np.median(each[name]))
    return [
        {
            "race": title,
            "contestant": c.name,
            "units": c.units,
            "turns": turns,
            "first_call_s": first[c.name],
            "compile_s": max(0.0, first[c.name] - float(np.median(wall[c.name]))),
            "wall_s": _spread(wall[c.name]),
            "cpu_s": _spread(cpu[c.name]),
            "units_per_s": c.units / float(np.median(wall[c.name])),
            "reference": best,
            "ratio": _spread(each[best] / each[c.name]),
            "cpu_ratio": _spread(cpu[best] / cpu[c.name] * c.units / units[best]),
            **_verdict(c, each[best] / each[c.name], wall[c.name]),
            **facts,
            "load": os.getloadavg()[0],
        }
        for c in contestants
    ]


def _timed(call: Callable[[], Any]) -> tuple[float, float]:
    wall, cpu = time.perf_counter(), time.process_time()
    jax.block_until_ready(call())
    return time.perf_counter() - wall, time.process_time() - cpu


def _spread(values: np.ndarray) -> dict[str, float]:
    names = {"min": 0.0, "q25": 0.25, "median": 0.5, "q75": 0.75, "max": 1.0}
    return {name: float(np.quantile(values, prob)) for name, prob in names.items()}


def _verdict(contestant: Contestant, ratio: np.ndarray, wall: np.ndarray) -> dict[str, Any]:
    if contestant.at_least is not None:
        return {"promise": f"≥ {contestant.at_least:g}x", "kept": bool(np.median(ratio) >= contestant.at_least)}
    if contestant.at_most is not None:
        return {"promise": f"≤ {_seconds(contestant.at_most)}", "kept": bool(np.median(wall) <= contestant.at_most)}
    return {}


def check(title: str, counts: Any, log_p: Any, *, differ: bool = False) -> dict[str, Any]:
    """Chi-square test, at level 1e-9, that counts of outcomes follow a law; a negative control must differ."""
    counts, expected = np.asarray(counts, float), np.sum(counts) * np.exp(np.asarray(log_p, float))
    # Rare outcomes share one bin, so that the statistic is close to its asymptotic law.
    common = expected >= 30.0
    seen = np.append(counts[common], counts[~common].sum())
    ideal = np.append(expected[common], max(np.sum(counts) - expected[common].sum(), 0.0))
    if ideal[-1] < 1.0:  # Too little for a bin: it joins the rarest of the others.
        rare = np.argmin(ideal[:-1])
        seen[rare], ideal[rare] = seen[rare] + seen[-1], ideal[rare] + ideal[-1]
        seen, ideal = seen[:-1], ideal[:-1]
    statistic = float(np.sum((seen - ideal) ** 2 / ideal))
    p = float(stats.chi2.sf(statistic, len(seen) - 1))
    result = {"releases": int(counts.sum()), "bins": len(seen), "chi2": statistic, "p": p, "differ": differ}
    return {"check": title, **result, "passed": (p < 1e-9) == differ}


def machine() -> dict[str, Any]:
    """Where and with what the figures were measured."""
    packages = ("jax", "jaxlib", "numpy", "scipy", "opendp")
    device = jax.devices()[0]
    return {
        "time": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "device": f"{len(jax.devices())} x {device.platform} ({device.device_kind})",
        "machine": f"{_processor()}, {os.cpu_count()} cores",
        "python": platform.python_version(),
        "versions": {name: _version(name) for name in packages},
        "commit": _commit(),
    }


def _version(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def _processor() -> str:
    try:
        with open("/proc/cpuinfo") as lines:
            return next(line.split(":")[1].strip() for line in lines if line.startswith("model name"))
    except (OSError, StopIteration):
        return platform.processor() or platform.machine()


def _commit() -> str | None:
    """The commit, with a star where the working tree differs from it."""
    command = ["git", "-C", os.path.dirname(__file__)]
    try:
        head = subprocess.run([*command, "rev-parse", "--short", "HEAD"], capture_output=True, text=True, check=True)
        changed = subprocess.run([*command, "diff", "--quiet", "HEAD"], check=False).returncode
    except (OSError, subprocess.CalledProcessError):
        return None
    return head.stdout.strip() + "*" * changed


def tables(records: Sequence[dict[str, Any]], machine: dict[str, Any]) -> Iterator[str]:
    """Markdown: the machine, a table for each race, and the checks."""
    versions = ", ".join(f"{name} {version}" for name, version in machine["versions"].items() if version)
    yield f"{machine['device']}, {machine['machine']}; Python {machine['python']}, {versions}; {machine['commit']}"
    for title in dict.fromkeys(record["race"] for record in records if "race" in record):
        rows = [record for record in records if record.get("race") == title]
        yield f"\n### {title}\n\nRatio to {rows[0]['reference']}: median (quartiles) of {rows[0]['turns']} turns.\n"
        yield "| contestant | per second | a call | CPU time | compile | ratio | promise |"
        yield "|---|--:|--:|--:|--:|--:|---|"
        for row in rows:
            ratio = "{} ({} to {})".format(*(_short(row["ratio"][name]) for name in ("median", "q25", "q75")))
            times = (_seconds(s) for s in (row["wall_s"]["median"], row["cpu_s"]["median"], row["compile_s"]))
            promise = f"{row['promise']}: {'kept' if row['kept'] else 'MISSED'}" if "promise" in row else ""
            cells = (row["contestant"], _short(row["units_per_s"]), *times, ratio, promise)
            yield f"| {' | '.join(cells)} |"
    if checks := [record for record in records if "check" in record]:
        yield "\n### Do they do the same work?\n"
        for row in checks:
            facts = f"{row['releases']:,} releases on {row['bins']} bins, chi-square {row['chi2']:,.0f}"
            verdict = ("differs as it must" if row["differ"] else "agrees") if row["passed"] else "FAILED"
            yield f"- {row['check']}: {facts}, p = {row['p']:.2g}: {verdict}"


def _short(value: float) -> str:
    return f"{value:,.0f}" if value >= 100.0 else f"{value:.3g}"


def _seconds(value: float) -> str:
    for unit, size in (("s", 1.0), ("ms", 1e-3)):
        if value >= size:
            return f"{value / size:.3g} {unit}"
    return f"{value * 1e6:.3g} us"
