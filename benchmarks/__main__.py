"""Runs benchmarks: python -m benchmarks [NAME ... | all] [--quick] [--scale N]; no name lists the scripts."""

from __future__ import annotations

import argparse
import importlib
import json
import pkgutil
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

from benchmarks import machine, report
from benchmarks.harness import Size

_HEAD = """# Benchmarks

Written by `python -m benchmarks`; the spread of each figure is in results.jsonl. The first table has, of each race,
the contestants that something was promised of, else the fastest one of jaxdp, and in brackets the fastest of the others
where ratios are taken to another one.

Contestants take turns; a ratio is taken inside each turn, per unit of work, and its median (quartiles) given: above 1
is faster. "A call" is the wall time of one call, "CPU" that of all threads, "compile" what the first call took more,
"memory" what a call added to the resident memory of the process (on an accelerator: the peak so far). A promise is a
least ratio, a longest time or an exponent that this project set itself. In plots jaxdp is blue, lines are quartiles.
"""

_TOOLS = ("__main__", "harness", "machine", "report", "gpu")


def main(arguments: list[str] | None = None) -> int:
    """Runs scripts; exit status 1 if one failed or contestants did different work, 2 for bad usage."""
    names = _names()
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description="Benchmarks of jaxdp, as ratios.")
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"{', '.join(names)}, or all; none lists them")
    parser.add_argument("--quick", action="store_true", help="small sizes and few turns: shows that it runs")
    parser.add_argument("--scale", type=int, default=1, metavar="N", help="larger batches, for larger devices")
    parser.add_argument("--minutes", type=float, metavar="M", help="stop after about M minutes")
    parser.add_argument(
        "--out", type=Path, metavar="FOLDER", help="write JSON lines, a table and plots, or update them"
    )
    options = parser.parse_args(arguments)
    chosen = names if "all" in options.names else options.names
    if unknown := [name for name in chosen if name not in names]:
        parser.error(f"no benchmark named {unknown[0]!r}: choose from {', '.join(names)}, all")
    if options.scale < 1:
        parser.error(f"--scale must be at least 1, got {options.scale}")
    if options.minutes is not None and not options.minutes > 0.0:
        parser.error(f"--minutes must be positive, got {options.minutes}")
    if options.out:
        try:
            options.out.mkdir(parents=True, exist_ok=True)
            _load(options.out)
        except (OSError, ValueError) as error:
            parser.error(f"--out must be a folder with results or none, got {options.out}: {error}")
    scripts = {name: importlib.import_module(f"benchmarks.{name}") for name in chosen or names}
    docs = {name: script.__doc__ or "" for name, script in scripts.items()}
    if not chosen:
        print("\n".join(f"{name:24} {doc.splitlines()[0]}" for name, doc in docs.items()))
        return 0
    records: list[dict[str, Any]] = []
    for new in _run(scripts, options):
        records += new
        if options.out:  # One after the other: what has been measured is not lost if a later one ends badly.
            _save(new, options.out)
    print("\n".join(report.tables(records, docs, {})))
    if options.out:
        _render(options.out)
    print("\n".join(["", *report.summary(records)]))
    return 0 if all(record.get("passed", True) and "error" not in record for record in records) else 1


def _names() -> list[str]:
    found = pkgutil.iter_modules([str(Path(__file__).parent)])
    return [entry.name for entry in found if entry.name not in _TOOLS and not entry.ispkg]  # Packages have their own.


def _run(scripts: dict[str, ModuleType], options: argparse.Namespace) -> Iterator[list[dict[str, Any]]]:
    """Records of each script, which get even shares of the time that is left."""
    end = time.monotonic() + 60.0 * (options.minutes or float("inf"))
    facts = machine.facts() | {"quick": options.quick, "scale": options.scale}
    for number, (name, script) in enumerate(scripts.items()):
        start, records = time.monotonic(), []
        share = (end - start) / (len(scripts) - number)
        try:
            if share <= 0.0:
                raise TimeoutError("no time was left")
            for record in script.run(Size(options.quick, options.scale, start + share)):
                records.append({"benchmark": name, **record, **facts})
        except Exception as error:  # One failure, say of a device's memory, must not cost the other figures.
            failure = f"{type(error).__name__}: {error}".splitlines()[0]
            records.append({"benchmark": name, "error": failure, **facts})
        print(f"{name}: {time.monotonic() - start:.0f} s", file=sys.stderr)
        yield records


def _load(folder: Path) -> list[dict[str, Any]]:
    path = folder / "results.jsonl"
    records = [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []
    if not all(isinstance(record, dict) and isinstance(record.get("benchmark"), str) for record in records):
        raise ValueError(f"{path} has lines that are no results")
    # Of scripts that are no more nothing can be said.
    return [record for record in records if record["benchmark"] in _names()]


def _save(records: list[dict[str, Any]], folder: Path) -> None:
    """Replaces these scripts' records in results.jsonl."""
    new = {record["benchmark"] for record in records}
    kept = [record for record in _load(folder) if record["benchmark"] not in new]
    lines = sorted([*kept, *records], key=lambda record: record["benchmark"])
    part = folder / "results.jsonl.part"
    part.write_text("".join(f"{json.dumps(record)}\n" for record in lines))
    part.replace(folder / "results.jsonl")


def _render(folder: Path) -> None:
    """Writes README.md and a plot for each script from results.jsonl."""
    records, docs, plots = _load(folder), {}, {}
    for name in dict.fromkeys(record["benchmark"] for record in records):
        docs[name] = importlib.import_module(f"benchmarks.{name}").__doc__ or ""
        if report.plot([record for record in records if record["benchmark"] == name], folder / f"{name}.png"):
            plots[name] = f"{name}.png"
    lines = [_HEAD, *report.summary(records), *report.tables(records, docs, plots)]
    (folder / "README.md").write_text("\n".join(lines) + "\n")


if __name__ == "__main__":
    sys.exit(main())
