"""Runs benchmarks: python -m benchmarks [NAME ... | all] [--quick] [--json FILE]; no name lists the scripts."""

from __future__ import annotations

import argparse
import importlib
import json
import pkgutil
import sys
from pathlib import Path

from benchmarks import harness

_TOOLS = ("__main__", "harness")


def main(arguments: list[str] | None = None) -> int:
    """Runs scripts; exit status 1 if contestants turned out to do different work, 2 for bad usage."""
    found = pkgutil.iter_modules([str(Path(__file__).parent)])
    names = [entry.name for entry in found if entry.name not in _TOOLS and not entry.ispkg]  # Packages have their own.
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description="Benchmarks of jaxdp, as ratios.")
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"{', '.join(names)}, or all; none lists them")
    parser.add_argument("--quick", action="store_true", help="small sizes and few turns: shows that it runs")
    parser.add_argument("--json", type=Path, metavar="FILE", help="append one JSON line for each figure")
    options = parser.parse_args(arguments)
    chosen = names if "all" in options.names else options.names
    if unknown := [name for name in chosen if name not in names]:
        parser.error(f"no benchmark named {unknown[0]!r}: choose from {', '.join(names)}, all")
    scripts = {name: importlib.import_module(f"benchmarks.{name}") for name in chosen or names}
    if not chosen:
        print("\n".join(f"{name:18} {script.__doc__.splitlines()[0]}" for name, script in scripts.items()))
        return 0
    machine, records = harness.machine(), []
    for name, script in scripts.items():
        new = [{"benchmark": name, "quick": options.quick, **record} for record in script.run(quick=options.quick)]
        records += new
        if options.json:
            with options.json.open("a") as lines:
                lines.writelines(json.dumps({**record, **machine}) + "\n" for record in new)
    print("\n".join(harness.tables(records, machine)))
    return 0 if all(record.get("passed", True) for record in records) else 1


if __name__ == "__main__":
    sys.exit(main())
