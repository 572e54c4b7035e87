"""Races: the same work done by several contestants in turn, so that a ratio survives a noisy machine.

Every contestant first runs once, which compiles it. Then they take turns, A B C A B C ..., and ratios are taken
inside a turn before their median: a burst of other load hits neighbours alike. Results are waited for. CPU time, of
all threads, is kept beside wall time: on a busy machine it is the steadier of the two.

What a script yields are records (dictionaries): of races, of growth curves, of single figures, and of checks that the
contestants did the same work. Each is one JSON line and one line of a table.
"""

from __future__ import annotations

import dataclasses
import math
import os
import sys
import time
from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np
from scipy import stats

from benchmarks import machine


@dataclasses.dataclass(frozen=True)
class Size:
    """How much to do: `python -m benchmarks` makes one of its options.

    Attributes:
        quick: Small sizes and few turns, which show that a script runs.
        scale: Factor on the sizes of batches, for devices that normal sizes do not fill.
        deadline: Where `time.monotonic()` passes this, races take no more turns than two.
    """

    quick: bool = False
    scale: int = 1
    deadline: float = math.inf

    def of(self, normal: int, quick: int) -> int:
        """Size of a batch."""
        return quick if self.quick else normal * self.scale

    def turns(self, normal: int) -> int:
        """Turns of a race."""
        return min(normal, 2) if self.quick else normal

    def share(self, parts: int) -> Size:
        """The same with an even share of the time that is left: for the first of `parts` parts still to come."""
        now = time.monotonic()
        return dataclasses.replace(self, deadline=now + (self.deadline - now) / parts)

    @property
    def late(self) -> bool:
        """Whether the time is up."""
        return time.monotonic() > self.deadline


@dataclasses.dataclass(frozen=True)
class Contestant:
    """One way to do the work.

    Attributes:
        name: What the table calls it.
        call: Does the work once; what it returns is waited for.
        units: Releases (draws, words) that one call makes.
        reference: Ratios are taken against the fastest contestant with this mark.
        at_least: The ratio that is promised.
        at_most: The seconds per call that are promised.
        calls: Timed calls in a turn, of which the median counts; for calls of microseconds.
    """

    name: str
    call: Callable[[], Any]
    units: float = 1
    reference: bool = False
    at_least: float | None = None
    at_most: float | None = None
    calls: int = 1


def against_opendp(
    calls: dict[str, tuple[Callable[[], Any], float]], promises: dict[str, float | None]
) -> list[Contestant]:
    """Contestants from calls and their units; OpenDP is the reference, NumPy where it is not installed.

    Promises, by contestants' names, are about OpenDP, and optional as it is.
    """
    opendp = any(name.startswith("OpenDP") for name in calls)
    return [
        Contestant(
            name,
            call,
            units,
            reference=name.startswith("OpenDP" if opendp else "NumPy"),
            at_least=promises.get(name) if opendp else None,
        )
        for name, (call, units) in calls.items()
    ]


def race(
    title: str, contestants: Sequence[Contestant], *, size: Size, turns: int, unit: str = "call", **facts: Any
) -> list[dict[str, Any]]:
    """Runs the contestants in turn; one record each.

    Args:
        title: Heading of the table.
        contestants: At least one of them a reference.
        size: Bounds the turns.
        turns: Turns of a normal run.
        unit: What `units` counts.
        facts: Shapes, dtypes, parameters: they go into every record.
    """
    first = {}
    for contestant in contestants:
        print(f"  {title}: first call of {contestant.name}", file=sys.stderr)
        first[contestant.name], _ = _timed(contestant.call)
    wall: dict[str, list] = {c.name: [] for c in contestants}
    cpu: dict[str, list] = {c.name: [] for c in contestants}
    peak = {}
    for turn in range(size.turns(turns)):
        if turn >= 2 and size.late:
            break
        for c in contestants:
            with machine.Peak() as memory:
                times = np.median([_timed(c.call) for _ in range(c.calls)], axis=0)
            peak[c.name] = max(peak.get(c.name, 0), memory.bytes)
            wall[c.name].append(times[0])
            cpu[c.name].append(times[1])
    units = {c.name: c.units for c in contestants}
    walls, cpus = ({name: np.array(times) for name, times in part.items()} for part in (wall, cpu))
    each = {name: walls[name] / units[name] for name in walls}
    references = [c.name for c in contestants if c.reference]
    best = min(references, key=lambda name: np.median(each[name]))
    return [
        {
            "race": title,
            "contestant": c.name,
            "units": c.units,
            "unit": unit,
            "turns": len(walls[c.name]),
            "first_call_s": first[c.name],
            "compile_s": max(0.0, first[c.name] - float(np.median(walls[c.name]))),
            "wall_s": spread(walls[c.name]),
            "cpu_s": spread(cpus[c.name]),
            "units_per_s": c.units / float(np.median(walls[c.name])),
            "peak_bytes": peak[c.name],
            "reference": best,
            "ratio": spread(each[best] / each[c.name]),
            "cpu_ratio": spread(cpus[best] / np.maximum(cpus[c.name], 1e-9) * c.units / units[best]),
            **_verdict(c, each[best] / each[c.name], walls[c.name]),
            **facts,
            "load": os.getloadavg()[0],
        }
        for c in contestants
    ]


def _timed(call: Callable[[], Any]) -> tuple[float, float]:
    wall, cpu = time.perf_counter(), time.process_time()
    jax.block_until_ready(call())
    return time.perf_counter() - wall, time.process_time() - cpu


def spread(values: Any) -> dict[str, float]:
    """Quartiles and extremes."""
    names = {"min": 0.0, "q25": 0.25, "median": 0.5, "q75": 0.75, "max": 1.0}
    return {name: float(np.quantile(values, prob)) for name, prob in names.items()}


def _verdict(contestant: Contestant, ratio: np.ndarray, wall: np.ndarray) -> dict[str, Any]:
    if contestant.at_least is not None:
        return {"promise": f"≥ {contestant.at_least:g}x", "kept": bool(np.median(ratio) >= contestant.at_least)}
    if contestant.at_most is not None:
        return {"promise": f"≤ {seconds(contestant.at_most)}", "kept": bool(np.median(wall) <= contestant.at_most)}
    return {}


def growth(
    title: str,
    calls: dict[int, Callable[[], Any]],
    *,
    size: Size,
    turns: int,
    cost: Callable[[int], float],
    formula: str,
    promised: float = 1.0,
    tolerance: float = 0.15,
    **facts: Any,
) -> dict[str, Any]:
    """Times calls of growing sizes, in turn, and fits time ~ cost(n)^exponent: 1 where the cost is as stated.

    Where n must not matter, the cost is n and the promised exponent 0.

    Args:
        title: What grows.
        calls: The work for each n. Sizes should be so large that the cost of starting a call does not matter.
        size: Bounds the turns.
        turns: Turns of a normal run.
        cost: The stated cost, up to a factor.
        formula: The stated cost in words.
        promised: The promised exponent.
        tolerance: How far from it the exponent may be.
        facts: They go into the record.
    """
    for n, call in calls.items():
        print(f"  {title}: first call for {n:,}", file=sys.stderr)
        _timed(call)
    taken = []
    for turn in range(size.turns(turns)):
        if turn >= 2 and size.late:
            break
        taken.append([_timed(call) for call in calls.values()])
    median, cpu = np.median(taken, axis=0).T
    exponent = float(np.polyfit(np.log([cost(n) for n in calls]), np.log(median), 1)[0])
    return {
        "growth": title,
        "sizes": list(calls),
        "wall_s": median.tolist(),
        "cpu_s": cpu.tolist(),
        "turns": len(taken),
        "formula": formula,
        "cost": [cost(n) for n in calls],
        "exponent": exponent,
        "promised": promised,
        "promise": f"{promised:g} ± {tolerance:g}",
        "kept": bool(abs(exponent - promised) <= tolerance),
        **facts,
    }


def figure(
    title: str, value: float, unit: str, *, against: str = "", passed: bool | None = None, **facts: Any
) -> dict[str, Any]:
    """A single number, what it is compared with, and whether it is as it must be (else the run fails)."""
    verdict = {} if passed is None else {"passed": bool(passed)}
    return {"figure": title, "value": float(value), "unit": unit, "against": against, **verdict, **facts}


def check(title: str, counts: Any, log_p: Any, *, differ: bool = False) -> dict[str, Any]:
    """Chi-square test, at level 1e-9, that counts of outcomes follow a law; a negative control must differ."""
    counts, expected = np.asarray(counts, float), np.sum(counts) * np.exp(np.asarray(log_p, float))
    starts = _bins(expected)
    if len(starts) < 2:
        raise ValueError(f"{int(counts.sum()):,} releases are too few to check: {title}")
    seen, ideal = np.add.reduceat(counts, starts), np.add.reduceat(expected, starts)
    statistic = float(np.sum((seen - ideal) ** 2 / ideal))
    p = float(stats.chi2.sf(statistic, len(seen) - 1))
    found = f"{int(counts.sum()):,} releases on {len(seen)} bins, chi-square {statistic:,.0f}, p = {p:.2g}"
    return {"check": title, "found": found, "p": p, "differ": differ, "passed": (p < 1e-9) == differ}


def _bins(expected: np.ndarray) -> list[int]:
    """Where bins start: neighbours share one until 30 are expected, so that the statistic is close to its law."""
    starts, inside, rest = [0], 0.0, float(np.sum(expected))
    for i, mass in enumerate(expected):
        if inside >= 30.0 and rest >= 30.0:
            starts.append(i)
            inside = 0.0
        inside, rest = inside + mass, rest - mass
    return starts


def agree(title: str, ours: Any, theirs: Any, *, within: float) -> dict[str, Any]:
    """Checks that results (trees of arrays) differ by at most `within`, relative to the largest entry of an array."""
    worst = 0.0
    for one, other in zip(jax.tree.leaves(ours), jax.tree.leaves(theirs), strict=True):
        one, other = np.asarray(one, float), np.asarray(other, float)
        if one.shape != other.shape:
            raise ValueError(f"arrays of shapes {one.shape} and {other.shape} cannot agree: {title}")
        # Infinite entries must be the same, and NaN is like nothing.
        with np.errstate(invalid="ignore"):
            gap = np.where(one == other, 0.0, np.abs(one - other))
        gap = np.where(np.isnan(gap), np.inf, gap)
        largest = np.max(np.abs(np.where(np.isfinite(other), other, 0.0)))
        worst = max(worst, float(np.max(gap) / (largest or 1.0)))
    found = f"largest difference {worst:.2g} of the largest entry, at most {within:.2g} allowed"
    return {"check": title, "found": found, "difference": worst, "differ": False, "passed": worst <= within}


def short(value: float) -> str:
    """Three digits, or all those before the point."""
    return f"{value:,.0f}" if value >= 100.0 else f"{value:.3g}"


def seconds(value: float) -> str:
    """A time with its unit."""
    for unit, size in (("s", 1.0), ("ms", 1e-3)):
        if value >= size:
            return f"{value / size:.3g} {unit}"
    return f"{value * 1e6:.3g} us"
