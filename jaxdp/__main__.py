"""The command line: `python -m jaxdp audit` audits mechanisms, `recertify` reads a report again."""

from __future__ import annotations

import argparse
import math
import os
import sys
from collections.abc import Callable
from typing import Any, NoReturn

import jax

from jaxdp import __version__
from jaxdp._commands import catalogue, mechanisms, recertify, target


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        self.exit(2, f"{self.prog}: {message}\n")


def _number(kind: Callable, good: Callable[[Any], bool], wanted: str) -> Callable[[str], Any]:
    def parse(text: str) -> Any:
        try:
            value = kind(text)
        except ValueError:
            value = None
        if value is None or not good(value):
            raise argparse.ArgumentTypeError(f"must be {wanted}, got {text!r}")
        return value

    return parse


def _parser() -> argparse.ArgumentParser:
    parser = _Parser(prog="jaxdp", description="Differential-privacy mechanisms in JAX.")
    parser.add_argument("--version", action="version", version=f"jaxdp {__version__}")
    commands = parser.add_subparsers(dest="command", required=True, metavar="{audit,recertify}")
    command = commands.add_parser("audit", help="audit mechanisms and print what was certified")
    add, one = command.add_argument, command.add_mutually_exclusive_group().add_argument
    add("--mechanism", action="append", metavar="NAME", help="only those whose name starts so (may be repeated)")
    one("--all", action="store_true", help="all variants, not the first of each mechanism only (twice as long)")
    one("--broken", action="store_true", help="audit the catalogue of deliberately broken mechanisms instead")
    one("--catalogue", action="store_true", help="audit the 20 benchmarks of DP-Sniper, beside published figures")
    one("--target", metavar="MODULE:FUNCTION", help="audit a function of yours on the inputs of --inputs")
    add("--inputs", metavar="FILE", help="with --target: JSON with pairs, epsilon, and optionally delta, neighbours")
    kinds = "with --target: python (input), numpy (generator, input) or numpy-batched (generator, input, n), not jax"
    add("--kind", choices=target.KINDS, default="jax", help=kinds)
    positive = _number(float, lambda x: 0.0 < x < math.inf, "positive and finite")
    add("--epsilon", type=positive, default=1.0, help="total budget of each mechanism (default 1)")
    count = _number(int, lambda x: x >= 1000, "an integer of at least 1000")
    add("--samples", type=count, default=2**21, help="samples an input and mechanism (default 2097152)")
    add("--seed", type=_number(int, lambda x: 0 <= x < 2**32, "an integer in [0, 2^32)"), default=0)
    share = _number(float, lambda x: 0.0 < x < 1.0, "in (0, 1)")
    add("--confidence", type=share, default=0.99, help="of ALL certificates of the run together (default 0.99)")
    add("--json", metavar="FILE", help="write the reports as JSON")
    add("--plot", metavar="FILE", help="draw the privacy profiles (needs matplotlib)")
    again = commands.add_parser("recertify", help="certify again from the counts in a JSON file")
    again.add_argument("file", metavar="FILE", help="what --json wrote, or a report's to_json()")
    return parser


def _command(args: argparse.Namespace) -> Callable[[argparse.Namespace], int]:
    if args.command == "recertify":
        return recertify.run
    if (args.target is None) != (args.inputs is None):
        raise ValueError("--target and --inputs go together")
    if args.target is None:
        return catalogue.run if args.catalogue else mechanisms.run
    return target.run


def main(argv: list[str] | None = None) -> int:
    """Runs the command line; returns the exit status: 0, 1 if a claim was refuted, 2 for bad usage."""
    args = _parser().parse_args(argv)
    try:
        return _command(args)(args)
    except (ValueError, ImportError, OSError) as error:
        print(f"jaxdp: {error}", file=sys.stderr)
        return 2


if __name__ == "__main__":
    # One device a core, which the audit shards its blocks over; it has to be said before JAX starts.
    jax.config.update("jax_num_cpu_devices", os.cpu_count() or 1)
    sys.exit(main())
