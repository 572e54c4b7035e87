"""`python -m jaxdp audit --target module:function --inputs FILE`: a function of the user's."""

from __future__ import annotations

import argparse
import importlib
import json
import os
import sys
from collections.abc import Callable
from typing import Any

import jax
import numpy as np

from jaxdp._progress import Progress
from jaxdp.audit import Claim, Foreign, examine
from jaxdp.audit.targets import one_line

__all__ = ["KINDS", "run"]

KINDS = ("jax", "python", "numpy", "numpy-batched")
_KEYS = {"pairs", "epsilon", "delta", "neighbours", "sensitivity"}


def run(args: argparse.Namespace) -> int:
    """Audits the function; returns 1 if its claim was refuted, else 0."""
    function, inputs = _load(args.target), _inputs(args.inputs)
    foreign = {
        "python": Foreign(function),
        "numpy": Foreign(function, seeded=True),
        "numpy-batched": Foreign(function, seeded=True, batched=True),
    }
    pairs = inputs["pairs"]
    if args.kind == "jax":
        pairs = [tuple(_arrays(side) for side in pair) for pair in pairs]
    neighbours = inputs.get("neighbours", "the pairs of the file")
    claim = Claim.approximate(inputs["epsilon"], inputs.get("delta", 0.0), neighbours=neighbours)
    progress = Progress(1, len(args.target))
    try:
        found = examine(
            jax.random.key(args.seed),
            foreign.get(args.kind, function),
            claim,
            pairs,
            num_samples=args.samples,
            confidence=args.confidence,
            sensitivity=inputs.get("sensitivity"),
            progress=lambda share: progress.show(args.target, share),
        )
    except Exception as error:
        progress.clear()
        hint = "; for Python code that is not JAX see --kind" if args.kind == "jax" else ""
        text = str(error) if isinstance(error, ValueError) else one_line(error)
        raise ValueError(f"--target {args.target}: {text}{hint}") from error
    progress.clear()
    print(f"target     {args.target}\n{found}")
    print(f"inputs     {json.dumps(inputs['pairs'][found.pair])[:200]}")
    print(f"confidence {args.confidence:g}")
    if args.json:
        with open(args.json, "w", encoding="utf-8") as file:
            file.write(found.to_json())
    return 1 if found.refuted else 0


def _load(path: str) -> Callable:
    """The function behind "module:function"; modules of the working directory are found too."""
    module, colon, name = path.partition(":")
    if not colon or not module or not name:
        raise ValueError(f"--target must be module:function, got {path!r}")
    if os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())
    try:
        found: Any = importlib.import_module(module)
    except Exception as error:
        raise ValueError(f"--target: cannot import {module!r} ({one_line(error)})") from error
    for part in name.split("."):
        if not hasattr(found, part):
            raise ValueError(f"--target: {module!r} has no {name!r}")
        found = getattr(found, part)
    if not callable(found):
        raise ValueError(f"--target must be a function, got {found!r}")
    return found


def _inputs(path: str) -> dict[str, Any]:
    """The contents of the file, checked."""
    try:
        with open(path, encoding="utf-8") as file:
            inputs = json.load(file)
    except json.JSONDecodeError as error:
        raise ValueError(f"--inputs: {path} is not JSON ({error})") from error
    if not isinstance(inputs, dict) or not {"pairs", "epsilon"} <= set(inputs) <= _KEYS:
        found = sorted(inputs) if isinstance(inputs, dict) else inputs
        raise ValueError(f"--inputs must be an object with pairs, epsilon and of {sorted(_KEYS)}, got {found!r}")
    return inputs


def _arrays(value: Any) -> Any:
    """Numbers and nested lists of numbers as arrays; objects by their entries."""
    if isinstance(value, dict):
        return {name: _arrays(entry) for name, entry in value.items()}
    array = np.asarray(value)
    if array.dtype.kind not in "bif":
        raise ValueError(f"inputs must be numbers and lists of numbers of one shape, got {value!r}")
    narrow = {"b": array.dtype, "i": np.dtype(np.int32), "f": np.dtype(np.float32)}[array.dtype.kind]
    return array if jax.config.jax_enable_x64 else array.astype(narrow)
