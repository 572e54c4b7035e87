"""Runs a second of catalogue mechanisms whose outcomes are only counted, against NumPy's vectorised mechanisms.

"Scored" also evaluates the exact log likelihood ratio of each output, as an audit does.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from benchmarks.harness import Contestant, check, race
from jaxdp.audit.catalogue import Entry, catalogue
from jaxdp.audit.catalogue._sparse_law import pattern_masses

_BLOCK = 2**14


def run(*, quick: bool) -> Iterator[dict[str, Any]]:
    blocks, turns = (32, 3) if quick else (512, 10)
    entries = {entry.name: entry for entry in catalogue()}
    for name, (read, numpy, log_p) in _MECHANISMS.items():
        entry = entries[name]
        size = len(log_p(entry, 0))
        counts = {
            "jaxdp, a key for each run": _streamed(entry, read, size, blocks, keyed=True),
            "jaxdp, a key for each block": _streamed(entry, read, size, blocks, keyed=False),
            "NumPy": lambda entry=entry, numpy=numpy: _numpy_counts(numpy, entry, blocks),
        }
        calls = counts | {"jaxdp, a key for each block, scored": _scored(entry, blocks)}
        contestants = [
            Contestant(title, call, blocks * _BLOCK, reference=title.startswith("NumPy"))
            for title, call in calls.items()
        ]
        yield from race(f"Run {name}", contestants, turns=turns, block=_BLOCK, dtype="float32")
        for title, call in counts.items():
            yield check(f"{name}: {title}", np.asarray(call()), log_p(entry, 0))
        yield check(f"{name}: against the neighbour's law", np.asarray(call()), log_p(entry, 1), differ=True)


def _streamed(entry: Entry, read: Callable, size: int, blocks: int, keyed: bool) -> Callable:
    """Counts of the outcomes, one block after the other."""

    @jax.jit
    def count(key: jax.Array, x: jax.Array) -> jax.Array:
        def block(total: jax.Array, number: jax.Array) -> tuple[jax.Array, None]:
            outcomes = jax.vmap(read)(_outputs(entry, jax.random.fold_in(key, number), x, keyed))
            return total + jnp.sum(outcomes[:, None] == np.arange(size, dtype=np.int32), axis=0, dtype=jnp.uint32), None

        return jax.lax.scan(block, jnp.zeros(size, jnp.uint32), jnp.arange(blocks, dtype=jnp.uint32))[0]

    return lambda: count(jax.random.key(0), entry.worst[0])


def _outputs(entry: Entry, key: jax.Array, x: jax.Array, keyed: bool) -> Any:
    if not keyed:
        return entry.many(key, x, _BLOCK)
    return jax.vmap(entry.sample, (0, None))(jax.random.split(key, _BLOCK), x)


def _scored(entry: Entry, blocks: int) -> Callable:
    """How often the best event happens."""
    score = entry.log_ratio(*entry.worst)
    threshold = np.float32(entry.loss_law(*entry.worst).best_event(blocks * _BLOCK, 0.1)[0] - 1e-6)

    @jax.jit
    def count(key: jax.Array, x: jax.Array) -> jax.Array:
        def block(total: jax.Array, number: jax.Array) -> tuple[jax.Array, None]:
            scores = jax.vmap(score)(_outputs(entry, jax.random.fold_in(key, number), x, keyed=False))
            return total + jnp.sum(scores >= threshold, dtype=jnp.uint32), None

        return jax.lax.scan(block, jnp.uint32(0), jnp.arange(blocks, dtype=jnp.uint32))[0]

    return lambda: count(jax.random.key(0), entry.worst[0])


def _numpy_counts(numpy: Callable, entry: Entry, blocks: int) -> np.ndarray:
    rng = np.random.default_rng(0)
    return sum(numpy(rng, entry.worst[0], 8 * _BLOCK) for _ in range(blocks // 8))


def _laplace(rng: np.random.Generator, x: np.ndarray, runs: int) -> np.ndarray:
    return np.bincount(x + rng.laplace(0.0, 10.0, runs) >= 1.0, minlength=2)


def _noisy_max(rng: np.random.Generator, x: np.ndarray, runs: int) -> np.ndarray:
    return np.bincount(np.argmax(x + rng.laplace(0.0, 20.0, (runs, len(x))), axis=1), minlength=len(x))


def _sparse_vector(rng: np.random.Generator, x: np.ndarray, runs: int) -> np.ndarray:
    noisy = x + rng.laplace(0.0, 40.0, (runs, len(x)))
    above = noisy >= 0.5 + rng.laplace(0.0, 20.0, (runs, 1))
    return np.bincount(np.where(above.any(axis=1), above.argmax(axis=1), len(x)), minlength=len(x) + 1)


def _halt(tags: jax.Array) -> jax.Array:
    """The place of the query above, or their number."""
    return jnp.sum(tags == 0, dtype=jnp.int32)


def _laplace_law(entry: Entry, side: int) -> np.ndarray:
    below = 0.5 * np.exp(-abs(1.0 - float(entry.worst[side])) / 10.0)
    return np.log([below, 1.0 - below])


def _noisy_max_law(entry: Entry, side: int) -> np.ndarray:
    return np.log(entry.sample.__self__.masses(*entry.worst[:: 1 - 2 * side]))


def _sparse_vector_law(entry: Entry, side: int) -> np.ndarray:
    rules = entry.sample.__self__.rules
    panels = rules.panels(np.stack(entry.worst))
    _, rows = pattern_masses(rules, entry.worst[side], panels)
    # In the order of their codes: no query above, the first one, the second one ...
    return np.roll(np.log(panels.integrate(rows).sum(axis=1)), -1)


_MECHANISMS = {
    "LaplaceMechanism": (lambda y: (y >= np.float32(1.0)).astype(jnp.int32), _laplace, _laplace_law),
    "ReportNoisyMax1": (lambda index: index, _noisy_max, _noisy_max_law),
    "SVT1": (_halt, _sparse_vector, _sparse_vector_law),
}
