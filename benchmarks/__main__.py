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

_TOOLS = ("__main__", "harness", "machine", "report", "gpu")


def main(arguments: list[str] | None = None) -> int:
    """Runs scripts; exit status 1 if one failed or contestants did different work, 2 for bad usage."""
    found = pkgutil.iter_modules([str(Path(__file__).parent)])
    names = [entry.name for entry in found if entry.name not in _TOOLS and not entry.ispkg]  # Packages have their own.
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
    scripts = {name: importlib.import_module(f"benchmarks.{name}") for name in chosen or names}
    docs = {name: script.__doc__ or "" for name, script in scripts.items()}
    if not chosen:
        print("\n".join(f"{name:24} {doc.splitlines()[0]}" for name, doc in docs.items()))
        return 0
    records = list(_run(scripts, options))
    print("\n".join(report.tables(records, docs, {})))
    if options.out:
        _write(records, options.out)
    print("\n".join(["", *report.summary(records)]))
    return 0 if all(record.get("passed", True) and "error" not in record for record in records) else 1


def _run(scripts: dict[str, ModuleType], options: argparse.Namespace) -> Iterator[dict[str, Any]]:
    """Records of the scripts, each of which gets an even share of the time that is left."""
    end = time.monotonic() + 60.0 * options.minutes if options.minutes else float("inf")
    facts = machine.facts() | {"quick": options.quick, "scale": options.scale}
    for number, (name, script) in enumerate(scripts.items()):
        start = time.monotonic()
        if start > end:
            yield {"benchmark": name, "error": "no time was left", **facts}
            continue
        share = (end - start) / (len(scripts) - number)
        try:
            for record in script.run(Size(options.quick, options.scale, start + share)):
                yield {"benchmark": name, **record, **facts}
        except Exception as error:  # One failure, say of a device's memory, must not cost the other figures.
            yield {"benchmark": name, "error": f"{type(error).__name__}: {error}".splitlines()[0], **facts}
        print(f"{name}: {time.monotonic() - start:.0f} s", file=sys.stderr)


def _write(records: list[dict[str, Any]], folder: Path) -> None:
    """Replaces these scripts' results in a folder: results.jsonl, README.md and a plot for each script."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "results.jsonl"
    new = {record["benchmark"] for record in records}
    old = [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []
    records = sorted([*(r for r in old if r["benchmark"] not in new), *records], key=lambda r: r["benchmark"])
    path.write_text("".join(f"{json.dumps(record)}\n" for record in records))
    names = dict.fromkeys(record["benchmark"] for record in records)
    docs = {name: importlib.import_module(f"benchmarks.{name}").__doc__ or "" for name in names}
    plots = {}
    for name in names:
        if report.plot([record for record in records if record["benchmark"] == name], folder / f"{name}.png"):
            plots[name] = f"{name}.png"
    head = [
        "# Benchmarks",
        "",
        "Written by `python -m benchmarks`; the figures with their spread are in results.jsonl.",
    ]
    lines = [*head, "", *report.summary(records), *report.tables(records, docs, plots)]
    (folder / "README.md").write_text("\n".join(lines) + "\n")


if __name__ == "__main__":
    sys.exit(main())
