"""Markdown and plots of the records that scripts yield."""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.harness import seconds, short

Records = Sequence[dict[str, Any]]


def tables(records: Records, docs: dict[str, str], plots: dict[str, str]) -> Iterator[str]:
    """Lines of Markdown: for each script, in its own words what it compares, then its tables and checks.

    Args:
        records: Of any number of scripts; each names its script as `benchmark`.
        docs: The scripts' docstrings.
        plots: File names of the scripts' plots.
    """
    for name in dict.fromkeys(record["benchmark"] for record in records):
        own = [record for record in records if record["benchmark"] == name]
        first, _, rest = inspect.cleandoc(docs[name]).partition("\n")
        yield f"\n## {name}\n\n{first}\n"
        if rest.strip():
            yield f"{rest.strip()}\n"
        yield f"{_where(own[-1])}\n"
        for title in dict.fromkeys(record["race"] for record in own if "race" in record):
            yield from _race(title, [record for record in own if record.get("race") == title])
        yield from _table(own, "growth", "| what grows | stated cost | exponent | promise | sizes | times |", _growth)
        yield from _table(own, "figure", "| figure | value | beside |", _figure)
        if name in plots:
            yield f"\n![{name}]({plots[name]})"
        if checks := [record for record in own if "check" in record]:
            yield "\nDo they do the same work?\n"
            for row in checks:
                verdict = ("differs as it must" if row["differ"] else "agrees") if row["passed"] else "FAILED"
                yield f"- {row['check']}: {row['found']}: {verdict}"
        for row in own:
            if "error" in row:
                yield f"\nNot measured: {row['error']}"


def _where(record: dict[str, Any]) -> str:
    versions = ", ".join(f"{name} {version}" for name, version in record["versions"].items() if version)
    size = "quick sizes" if record["quick"] else f"scale {record['scale']}"
    place = f"{record['device']}, {record['machine']}; Python {record['python']}, {versions}"
    return f"{place}; {record['commit']}, {record['time'][:10]}; {size}."


def _race(title: str, rows: Records) -> Iterator[str]:
    yield f"\n### {title}\n\nRatio to {rows[0]['reference']}: median (quartiles) of {rows[0]['turns']} turns.\n"
    unit = f"{rows[0]['unit']}s"
    yield f"| contestant | {unit} per second | {unit} a call | a call | CPU | compile | memory | ratio | promise |"
    yield "|---|--:|--:|--:|--:|--:|--:|--:|---|"
    for row in rows:
        ratio = "{} ({} to {})".format(*(short(row["ratio"][name]) for name in ("median", "q25", "q75")))
        times = (seconds(s) for s in (row["wall_s"]["median"], row["cpu_s"]["median"], row["compile_s"]))
        memory = f"{row['peak_bytes'] / 1e6:,.0f} MB"
        cells = (
            row["contestant"],
            short(row["units_per_s"]),
            short(row["units"]),
            *times,
            memory,
            ratio,
            _promise(row),
        )
        yield f"| {' | '.join(cells)} |"


def _promise(row: dict[str, Any]) -> str:
    """What was promised, and whether it was kept: of full sizes only."""
    if "promise" not in row or row["quick"]:
        return row.get("promise", "")
    return f"{row['promise']}: {'kept' if row['kept'] else 'MISSED'}"


def _table(records: Records, kind: str, head: str, line: Any) -> Iterator[str]:
    rows = [record for record in records if kind in record]
    if rows:
        yield f"\n{head}\n{'|---' * (head.count('|') - 1)}|"
        yield from (f"| {' | '.join(line(row))} |" for row in rows)


def _growth(row: dict[str, Any]) -> tuple[str, ...]:
    sizes = f"{row['sizes'][0]:,} to {row['sizes'][-1]:,}"
    times = f"{seconds(row['wall_s'][0])} to {seconds(row['wall_s'][-1])}"
    return row["growth"], row["formula"], f"{row['exponent']:.2f}", _promise(row), sizes, times


def _figure(row: dict[str, Any]) -> tuple[str, ...]:
    failed = "" if row.get("passed", True) else " FAILED"
    return row["figure"], f"{short(row['value'])} {row['unit']}".strip(), f"{row['against']}{failed}"


def summary(records: Records) -> Iterator[str]:
    """A short table: of each race the fastest contestant of jaxdp, curves' exponents, headlines, and what failed."""
    yield "| benchmark | what | best | ratio | promise |\n|---|---|--:|--:|---|"
    for name, title in dict.fromkeys((r["benchmark"], r["race"]) for r in records if "race" in r):
        rows = [r for r in records if r.get("race") == title and r["benchmark"] == name]
        promised = [r for r in rows if "promise" in r]
        ours = [r for r in rows if r["contestant"].startswith("jaxdp")]
        for row in promised or [max(ours or rows, key=_speed)]:
            rate = f"{short(row['units_per_s'])} {row['unit']}s/s"
            ratio = f"{short(row['ratio']['median'])} to {row['reference']}{_other(rows)}"
            yield f"| {name} | {title}: {row['contestant']} | {rate} | {ratio} | {_promise(row)} |"
    for row in records:
        if "growth" in row:
            cost = f"time ~ ({row['formula']})^{row['exponent']:.2f}"
            last = f"{seconds(row['wall_s'][-1])} at {row['sizes'][-1]:,}"
            yield f"| {row['benchmark']} | {row['growth']}: {cost} | {last} | | {_promise(row)} |"
        if "headline" in row:
            value = f"{short(row['value'])} {row['unit']}".strip()
            yield f"| {row['benchmark']} | {row['figure']} | {value} | {row['headline']} | |"
        if "error" in row:
            yield f"| {row['benchmark']} | not measured: {row['error']} | | | |"
        elif not row.get("passed", True):
            yield f"| {row['benchmark']} | {row.get('check') or row.get('figure')} | | | FAILED |"


def _other(rows: Records) -> str:
    """The fastest of the others, where it is not what ratios are taken to."""
    others = [r for r in rows if not r["contestant"].startswith("jaxdp")]
    best = max(others, key=_speed, default=rows[0])
    if not others or best["contestant"] == best["reference"]:
        return ""
    return f" ({best['contestant']}: {short(_speed(best))})"


def _speed(row: dict[str, Any]) -> float:
    return row["ratio"]["median"]


def plot(records: Records, path: Path) -> bool:
    """Draws one script's curves (log-log), or else its races as bars of ratios; False where it has neither."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot as plt

    curves = [record for record in records if "growth" in record]
    titles = list(dict.fromkeys(record["race"] for record in records if "race" in record))
    if not curves and not titles:
        return False
    if curves:
        figure = _panels(plt, curves)
    else:
        heights = [1.0 + 0.3 * sum(r.get("race") == title for r in records) for title in titles]
        size = (8.0, sum(heights))
        figure, grid = plt.subplots(len(titles), 1, figsize=size, height_ratios=heights, squeeze=False)
        for axes, title in zip(grid[:, 0], titles, strict=True):
            _bars(axes, title, [record for record in records if record.get("race") == title])
    figure.tight_layout()
    figure.savefig(path, dpi=110)
    plt.close(figure)
    return True


def _panels(plt: Any, curves: Records) -> Any:
    """A figure with a panel for each kind of n, its curves and, dotted, how they should grow from their last point."""
    kinds = list(dict.fromkeys(curve.get("panel", "n") for curve in curves))
    columns = min(len(kinds), 2)
    rows = -(-len(kinds) // columns)
    figure, grid = plt.subplots(rows, columns, figsize=(6.0 * columns, 4.0 * rows), squeeze=False)
    for axes, kind in zip(grid.flat, kinds, strict=False):
        for curve in (curve for curve in curves if curve.get("panel", "n") == kind):
            label = f"{curve['growth']}: ({curve['formula']})^{curve['exponent']:.2f}"
            (line,) = axes.loglog(curve["sizes"], curve["wall_s"], marker="o", label=label)
            stated = curve["wall_s"][-1] * (np.array(curve["cost"]) / curve["cost"][-1]) ** curve["promised"]
            axes.loglog(curve["sizes"], stated, ":", color=line.get_color(), lw=1.0)
        low, high = axes.get_ylim()
        if high < 10.0 * low:  # A flat curve is to look flat.
            axes.set_ylim(low / 3.0, high * 3.0)
        axes.set(xlabel=kind, ylabel="seconds")
        axes.legend(fontsize=7, loc="lower left", bbox_to_anchor=(0.0, 1.0))  # above the panel, over no point
    for axes in grid.flat[len(kinds) :]:
        axes.remove()
    return figure


def _bars(axes: Any, title: str, rows: Records) -> None:
    names = [row["contestant"] for row in rows]
    low, median, high = ([row["ratio"][name] for row in rows] for name in ("q25", "median", "q75"))
    errors = np.maximum([np.subtract(median, low), np.subtract(high, median)], 0.0)
    ours = [row["contestant"].startswith("jaxdp") or "promise" in row for row in rows]
    colors = ["tab:blue" if own else "tab:gray" for own in ours]
    wide = max(median) > 4.0 * min(median)
    # Bars start at the reference where the axis has no zero.
    start = 1.0 if wide else 0.0
    axes.barh(names, np.array(median) - start, left=start, xerr=errors, color=colors, error_kw={"lw": 0.8})
    axes.set_xscale("log" if wide else "linear")
    axes.axvline(1.0, color="black", lw=0.8)
    axes.invert_yaxis()
    axes.tick_params(labelsize=7)
    axes.set_title(f"{title}\nspeed relative to {rows[0]['reference']}", fontsize=8)
