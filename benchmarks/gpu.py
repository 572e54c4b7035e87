"""The whole set on one GPU in under six minutes: python -m benchmarks.gpu [--quick] [--out FOLDER]; a short table last.

Batches are sixteen times as large as on a CPU. `--quick` shows, on any device, that everything runs.
"""

from __future__ import annotations

import argparse
import sys

import jax

from benchmarks.__main__ import main

_SCALE, _MINUTES = 16, 5.5


def arguments(given: list[str] | None = None) -> list[str]:
    """What `python -m benchmarks` is to be called with."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.gpu", description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="small sizes, on any device")
    parser.add_argument("--out", type=str, help="folder of the results, by default benchmarks/results/gpu")
    options = parser.parse_args(given)
    platform = jax.devices()[0].platform
    if options.quick:
        return ["all", "--quick", "--minutes", str(_MINUTES), *(["--out", options.out] if options.out else [])]
    if platform != "gpu":
        parser.error(f"this needs a GPU that JAX can use, found {platform}; --quick runs anywhere")
    return ["all", "--scale", str(_SCALE), "--minutes", str(_MINUTES), "--out", options.out or "benchmarks/results/gpu"]


if __name__ == "__main__":
    sys.exit(main(arguments()))
