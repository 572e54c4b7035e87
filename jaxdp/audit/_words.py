"""A sampler as a function of its one random word: what it draws, which bits of the word it reads, and its run on words.

A JAX random-number generator is defined whose key IS the word: its random bits are the key's data, and splitting or
folding gives the same key again. So an unchanged sampler (key, summary) -> output runs on every word in turn, as long
as it draws one word; the program is looked at first, and one that draws more is turned down.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from typing import Any

import jax
import jax.extend.core
import jax.extend.random
import jax.numpy as jnp
import numpy as np

__all__ = ["used_bits", "word_key"]

_UNSIGNED = {8: np.uint8, 16: np.uint16, 32: np.uint32}
_KEYS = ("random_bits", "random_split", "random_fold_in", "random_clone")
_MOVES = ("broadcast_in_dim", "reshape", "squeeze", "copy", "slice", "transpose", "expand_dims")


@functools.cache
def _generator() -> Any:
    return jax.extend.random.define_prng_impl(
        key_shape=(1,),
        seed=lambda seed: jnp.asarray(seed).astype(jnp.uint32).reshape(1),
        split=lambda key, shape: jnp.broadcast_to(key, (*shape, 1)),
        fold_in=lambda key, data: key,
        random_bits=lambda key, width, shape: jnp.broadcast_to(key[0].astype(_UNSIGNED[width]), shape),
        name="one_word",
        tag="word",
    )


def word_key(word: Any) -> jax.Array:
    """The key (one typed key) whose random bits are `word` (uint32); traced words allowed."""
    return jax.random.wrap_key_data(jnp.reshape(word, (1,)), impl=_generator())


def used_bits(sample: Callable, summary: Any) -> tuple[int, int]:
    """Width of the one word that a sampler draws, and how many of its low bits it provably ignores.

    The proof is read off the traced program: the word reaches nothing but logical shifts to the right by constants.

    Raises:
        ValueError: The sampler draws no word, more than one, a word of 64 bits, or reads its key in another way.
    """
    key = word_key(np.uint32(0))
    try:
        closed = jax.make_jaxpr(sample)(key, summary)
    except Exception as error:
        reason = f"got {type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}"
        raise ValueError(f"sample must draw one random word from its key with jax.random, {reason}") from error
    reader = _Reader(key.dtype)
    words = reader.words(closed.jaxpr)
    if words != 1:
        raise ValueError(f"sample must draw one random word, got {_spell(words)} words: its seeds cannot be enumerated")
    if reader.width not in _UNSIGNED:
        raise ValueError(f"sample must draw a word of at most 32 bits, got {reader.width} bits")
    leaving = reader.follow(closed.jaxpr, frozenset())
    return reader.width, 0 if leaving or reader.shift == math.inf else min(int(reader.shift), reader.width - 1)


class _Reader:
    """Walks through a program, for draws from keys of one type."""

    def __init__(self, dtype: Any):
        self.dtype, self.width, self.shift = dtype, 0, math.inf

    def words(self, jaxpr: Any) -> float:
        """Number of words drawn; inf where a loop of unknown length draws."""
        total = 0.0
        for eqn in jaxpr.eqns:
            name, inner = eqn.primitive.name, [self.words(each) for each in _inner(eqn)]
            if self._ours(eqn) and name == "random_bits":
                self.width = max(self.width, int(eqn.params["bit_width"]))
                total += math.prod(eqn.params["shape"]) * math.prod(eqn.invars[0].aval.shape)
            elif self._ours(eqn) and name.startswith("random_") and name not in _KEYS:
                raise ValueError(f"sample must draw one random word from its key with jax.random, got {name}")
            elif name == "cond":
                total += max(inner, default=0.0)
            elif name == "while":
                total += math.inf if any(inner) else 0.0
            else:
                total += eqn.params.get("length", 1) * sum(inner) if name == "scan" else sum(inner)
        return total

    def follow(self, jaxpr: Any, entering: frozenset[int]) -> frozenset[int]:
        """Positions of the outputs that hold the word, given those of such inputs; `shift` becomes 0 if it is used up.

        Only shifts, moves and calls are understood; anything else that takes the word may read every bit of it.
        """
        held = {jaxpr.invars[position] for position in entering}
        constants: dict[Any, int] = {}
        for eqn in jaxpr.eqns:
            name, inner = eqn.primitive.name, _inner(eqn)
            places = frozenset(j for j, var in enumerate(eqn.invars) if _is(var, held))
            if self._ours(eqn) and name == "random_bits":
                held.add(eqn.outvars[0])
            elif inner:
                call = len(inner) == 1 and len(inner[0].invars) == len(eqn.invars) and name not in ("scan", "while")
                if places and not call:
                    self.shift = 0
                found = [self.follow(each, places if call else frozenset()) for each in inner]
                if call:
                    held |= {eqn.outvars[position] for position in found[0]}
                elif any(found):
                    self.shift = 0
            elif name == "broadcast_in_dim" and isinstance(eqn.invars[0], jax.extend.core.Literal):
                if np.ndim(eqn.invars[0].val) == 0 and np.asarray(eqn.invars[0].val).dtype.kind in "iu":
                    constants[eqn.outvars[0]] = int(eqn.invars[0].val)
            elif places and name == "shift_right_logical" and places == {0}:
                self.shift = min(self.shift, _constant(eqn.invars[1], constants))
            elif places and name in _MOVES:
                held.add(eqn.outvars[0])
            elif places:
                self.shift = 0
        return frozenset(j for j, var in enumerate(jaxpr.outvars) if _is(var, held))

    def _ours(self, eqn: Any) -> bool:
        return bool(eqn.invars) and getattr(eqn.invars[0].aval, "dtype", None) == self.dtype


def _is(var: Any, held: set) -> bool:
    return not isinstance(var, jax.extend.core.Literal) and var in held


def _constant(var: Any, constants: dict) -> int:
    """The number behind an operand, 0 if it is not known."""
    if isinstance(var, jax.extend.core.Literal):
        return int(np.max(var.val)) if np.ndim(var.val) == 0 else 0
    return constants.get(var, 0)


def _inner(eqn: Any) -> list[Any]:
    """Programs inside an equation."""
    kinds = (jax.extend.core.ClosedJaxpr, jax.extend.core.Jaxpr)
    values = [part for value in eqn.params.values() for part in (value if isinstance(value, tuple) else (value,))]
    return [getattr(value, "jaxpr", value) for value in values if isinstance(value, kinds)]


def _spell(words: float) -> str:
    return "an unknown number of" if words == math.inf else f"{words:.0f}"
