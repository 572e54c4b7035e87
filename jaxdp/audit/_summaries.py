"""Summaries as arguments of compiled programs, so that both sides of an audit share one.

JAX rounds 64-bit NumPy values and Python numbers to 32 bits when they become arguments in 32-bit mode. A leaf that
would change is therefore kept as a constant of the program: exact, at the price of one compilation for each value.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Hashable
from typing import Any

import jax
import numpy as np

__all__ = ["Summary"]


@dataclasses.dataclass(frozen=True)
class Summary:
    """A pytree cut into arguments and constants.

    Attributes:
        treedef: its structure.
        constants: position and value of the leaves that are compiled in.
        arguments: the other leaves, in order.
        signature: what a compiled program depends on.
    """

    treedef: Any
    constants: tuple[tuple[int, Any], ...]
    arguments: tuple[jax.Array, ...]
    signature: Hashable

    @classmethod
    def of(cls, summary: Any, place: Callable[[Any], jax.Array]) -> Summary:
        """Cuts a summary; `place` puts an argument onto the devices."""
        leaves, treedef = jax.tree_util.tree_flatten(summary)
        constants, arguments, signature = [], [], []
        for index, leaf in enumerate(leaves):
            passed = _argument(leaf)
            if passed is None:
                constants.append((index, leaf))
                signature.append(_identity(leaf))
            else:
                array = place(passed)
                arguments.append(array)
                signature.append((array.shape, array.dtype, getattr(array, "weak_type", False)))
        return cls(treedef, tuple(constants), tuple(arguments), (treedef, tuple(signature)))

    def join(self, arguments: tuple[Any, ...]) -> Any:
        """The summary again, from its constants and (traced) arguments."""
        leaves = list(arguments)
        for index, leaf in self.constants:
            leaves.insert(index, leaf)
        return jax.tree_util.tree_unflatten(self.treedef, leaves)

    @property
    def size(self) -> int:
        """Scalars in the summary."""
        return sum(np.size(leaf) for leaf in self.arguments) + sum(np.size(leaf) for _, leaf in self.constants)


def _argument(leaf: Any) -> Any:
    """The leaf as an argument that loses nothing, or None."""
    wide = jax.config.jax_enable_x64
    if isinstance(leaf, jax.Array):
        return leaf
    if isinstance(leaf, np.generic | np.ndarray):
        if leaf.dtype.kind not in "biuf":
            return None
        if wide or leaf.dtype.itemsize <= 4:
            return np.asarray(leaf)
        with np.errstate(over="ignore"):
            narrow = np.asarray(leaf).astype(jax.dtypes.canonicalize_dtype(leaf.dtype))
        # Converted back in the wide type, where rounding and wrapping show.
        return narrow if np.array_equal(narrow.astype(leaf.dtype), leaf, equal_nan=leaf.dtype.kind == "f") else None
    if isinstance(leaf, bool):
        return leaf
    if isinstance(leaf, int):
        return leaf if -(2**31) <= leaf < 2**31 or (wide and -(2**63) <= leaf < 2**63) else None
    if isinstance(leaf, float):
        with np.errstate(over="ignore"):
            return leaf if wide or leaf != leaf or float(np.float32(leaf)) == leaf else None
    return None


def _identity(leaf: Any) -> Hashable:
    """What tells constants apart: the bits of numbers, the value or the identity of anything else."""
    if isinstance(leaf, np.generic | np.ndarray) and leaf.dtype.kind != "O":
        return (type(leaf), leaf.dtype, leaf.shape, leaf.tobytes())
    try:
        hash(leaf)
    except TypeError:
        return (type(leaf), id(leaf))
    return (type(leaf), leaf)
