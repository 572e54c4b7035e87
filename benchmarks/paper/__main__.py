"""Runs the study: python -m benchmarks.paper [NAME ...] [--quick] [--data DIR] [--out DIR] [--fresh] [--list].

Finished cells are kept, so that an interrupted run goes on where it stopped.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from benchmarks.paper import data, runner
from benchmarks.paper.study import Settings


def main(arguments: list[str] | None = None) -> int:
    """Exit status 0 if all parts ran, 2 for bad usage or missing packages."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.paper", description=__doc__.splitlines()[0])
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"{', '.join(runner.PARTS)}; none: all")
    parser.add_argument("--quick", action="store_true", help="small: under two minutes, for CI")
    parser.add_argument("--data", type=Path, metavar="DIR", help=f"folder with data sets (or {data.VARIABLE})")
    parser.add_argument("--out", type=Path, metavar="DIR", help="where results go")
    parser.add_argument("--fresh", action="store_true", help="forget finished cells of the chosen parts")
    parser.add_argument("--list", action="store_true", help="list the parts")
    options = parser.parse_args(arguments)
    if options.list:
        print("\n".join(f"{name:12} {runner.module(name).__doc__.splitlines()[0]}" for name in runner.PARTS))
        return 0
    if unknown := [name for name in options.names if name not in runner.PARTS]:
        parser.error(f"no part named {unknown[0]!r}: choose from {', '.join(runner.PARTS)}")
    try:
        settings = Settings.of(data.directory(options.data), quick=options.quick)
        runner.run(options.names or list(runner.PARTS), settings, out=options.out, fresh=options.fresh)
    except (data.DataMissing, ImportError) as error:
        print(f"{parser.prog}: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
