"""Hints that need no statistics: keys used twice, no noise, non-finite outputs, sensitivity by replay."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable
from typing import Any

import jax
import numpy as np

from jaxdp import _check
from jaxdp.audit.targets import Batched, Foreign, one_line

__all__ = ["Finding", "screen"]

_RUNS = 2**11
_ROUNDING = 1e-5


@dataclasses.dataclass(frozen=True)
class Finding:
    """One thing that a screen saw: a reason to look, never a refutation.

    Attributes:
        check: "keys", "noise", "finite" or "sensitivity".
        text: What was seen, in one sentence.
    """

    check: str
    text: str


def screen(
    key: jax.Array, mechanism: Any, summary: Any, neighbour: Any, *, sensitivity: float | None = None
) -> tuple[Finding, ...]:
    """Looks for bugs that show without statistics, in a few thousand runs.

    keys         a key is consumed twice (JAX's key-reuse checker; an `rng` twice is correlated noise);
    noise        the output is the same for every key;
    finite       NaN or infinite outputs, and whether their share depends on the input;
    sensitivity  replay: the same keys on both inputs. Where the outputs differ by a constant, the mechanism adds noise
                 to a value, and the constant is how far the value moved: in L1 norm, and in the units of the output,
                 which is compared with the declared sensitivity.

    None of this contradicts a claim by itself: a value may be scaled after the noise, noise may be rare, a sensitivity
    may be meant in another norm. That takes laws or counts.

    Args:
        key: One typed key. Consumed.
        mechanism: As in `monte_carlo`.
        summary: What the mechanism reads on the one input.
        neighbour: The same on the neighbouring input.
        sensitivity: Declared L1 sensitivity; by default the mechanism's attribute of that name, if it has one.

    Returns:
        The findings; an empty tuple says nothing about the claim either.

    Raises:
        ValueError: The mechanism cannot be run.

    Example:
        >>> import jax
        >>> def doubled(key, value):
        ...     return value * 2.0 + jax.random.laplace(key)
        >>> [finding.text for finding in jaxdp.audit.screen(jax.random.key(0), doubled, 0.0, 1.0, sensitivity=1.0)]
        ['with the same noise the outputs differ by 2, the declared sensitivity is 1']
    """
    _check.key(key)
    if sensitivity is None:
        sensitivity = getattr(mechanism, "sensitivity", None)
    one, other = (_outputs(key, mechanism, each, side) for side, each in enumerate((summary, neighbour)))
    found = _constant(one, other) + _nonfinite(one, other)
    if not isinstance(mechanism, Foreign):
        found += _reused_keys(key, mechanism, summary) + _replayed(one, other, sensitivity)
    return tuple(found)


def _run(mechanism: Any) -> Callable:
    return mechanism if isinstance(mechanism, Batched) else getattr(mechanism, "sample", mechanism)


def _reused_keys(key: jax.Array, mechanism: Any, summary: Any) -> list[Finding]:
    run = _run(mechanism)
    arguments = (key, summary, 2) if isinstance(mechanism, Batched) else (key, summary)
    try:
        with jax.debug_key_reuse(True):
            jax.eval_shape(jax.jit(lambda key: run(key, *arguments[1:])), jax.random.clone(key))
    except jax.errors.KeyReuseError as error:
        return [Finding("keys", f"a key is consumed twice, so that noise repeats ({one_line(error)})")]
    return []


def _outputs(key: jax.Array, mechanism: Any, summary: Any, side: int) -> list[np.ndarray]:
    """Leaves (runs, ...) of outputs; the same keys whatever the summary."""
    if isinstance(mechanism, Foreign):
        from jaxdp.audit._foreign import ForeignEngine

        engine = ForeignEngine(mechanism, (summary, summary), key)
        return jax.tree_util.tree_leaves(engine.outputs(summary, side, _RUNS // 8))
    run = _run(mechanism)
    try:
        if isinstance(mechanism, Batched):
            tree = jax.jit(lambda key: run(key, summary, _RUNS))(key)
        else:
            tree = jax.jit(jax.vmap(lambda key: run(key, summary)))(jax.random.split(key, _RUNS))
    except (TypeError, jax.errors.JAXTypeError, jax.errors.JAXIndexError) as error:
        raise ValueError(f"mechanism must be a pure JAX function that vmaps over keys ({one_line(error)})") from error
    return [np.asarray(leaf) for leaf in jax.tree_util.tree_leaves(tree)]


def _constant(one: list[np.ndarray], other: list[np.ndarray]) -> list[Finding]:
    if not all(np.array_equal(leaf[1:], leaf[:-1], equal_nan=leaf.dtype.kind == "f") for leaf in one + other):
        return []
    if all(np.array_equal(a[0], b[0], equal_nan=a.dtype.kind == "f") for a, b in zip(one, other, strict=True)):
        return [Finding("noise", "the output was the same in all runs on both inputs: nothing can be learned")]
    return [Finding("noise", "the output was the same in all runs, and another on the other input: little or no noise")]


def _nonfinite(one: list[np.ndarray], other: list[np.ndarray]) -> list[Finding]:
    shares = []
    for leaves in (one, other):
        bad = [~np.isfinite(leaf.reshape(len(leaf), -1)).all(axis=1) for leaf in leaves if leaf.dtype.kind == "f"]
        shares.append(float(np.mean(np.any(bad, axis=0))) if bad else 0.0)
    if not any(shares):
        return []
    text = f"{shares[0]:.2%} of the outputs on the summary and {shares[1]:.2%} on the neighbour are NaN or infinite"
    return [Finding("finite", text)]


def _replayed(one: list[np.ndarray], other: list[np.ndarray], sensitivity: Any) -> list[Finding]:
    """Whether the same keys give outputs that differ by a constant, which is then the change of the noised value."""
    pairs = [(a, b) for a, b in zip(one, other, strict=True) if a.dtype.kind in "fi"]
    if sensitivity is None or not pairs or np.size(sensitivity) != 1:
        return []
    distance = 0.0
    for a, b in pairs:
        first, second = a.astype(np.float64), b.astype(np.float64)
        gap = (first - second).reshape(len(a), -1)
        if not np.all(np.isfinite(gap)):
            return []
        slack = _ROUNDING * (1.0 + np.max(np.abs(first)) + np.max(np.abs(second)))
        if np.max(np.ptp(gap, axis=0)) > slack:
            return []
        distance += float(np.sum(np.abs(np.median(gap, axis=0))))
    declared = float(sensitivity)
    if not math.isfinite(declared) or distance <= declared * (1.0 + 1e-3):
        return []
    text = f"with the same noise the outputs differ by {distance:.6g}, the declared sensitivity is {declared:.6g}"
    return [Finding("sensitivity", text)]
