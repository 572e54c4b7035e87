"""Runs a second of catalogue mechanisms whose outcomes are only counted, against NumPy's vectorised mechanisms.

All draw outputs of one mechanism on one input and count them: the counts must follow its exact law, and must not follow
that of the neighbouring input. "Scored" also evaluates the exact log likelihood ratio of each output. A whole audit
does that on both inputs and adds a pilot, the choice of the event and the certificate; its units are runs on either.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from benchmarks.harness import Contestant, Size, check, race
from jaxdp.audit import monte_carlo
from jaxdp.audit.catalogue import Entry, catalogue
from jaxdp.audit.catalogue._sparse_law import pattern_masses

_BLOCK, _NUMPY_BLOCK = 2**14, 2**17
"""Runs at once: what the caches of a CPU hold, times --scale; what NumPy is fastest with."""


def run(size: Size) -> Iterator[dict[str, Any]]:
    block, (blocks, parts) = size.of(_BLOCK, _BLOCK), (32, 4) if size.quick else (256, 16)
    entries = {entry.name: entry for entry in catalogue()}
    for number, name in enumerate(("ReportNoisyMax1",) if size.quick else _MECHANISMS):
        if number and size.late:
            break
        (read, numpy, log_p), entry = _MECHANISMS[name], entries[name]
        outcomes, runs = len(log_p(entry, 0)), blocks * block
        counts = {
            "jaxdp, a key for each run": _streamed(entry, read, outcomes, block, blocks, keyed=True),
            "jaxdp, a key for each block": _streamed(entry, read, outcomes, block, blocks, keyed=False),
            "NumPy": lambda entry=entry, numpy=numpy: _numpy_counts(numpy, entry, parts),
        }
        calls = counts | {
            "jaxdp, a key for each block, scored": _scored(entry, block, blocks),
            "jaxdp, a whole audit": _audit(entry, runs),
        }
        units = {"NumPy": parts * _NUMPY_BLOCK, "jaxdp, a whole audit": 2 * runs}
        contestants = [
            Contestant(title, call, units.get(title, runs), reference=title == "NumPy") for title, call in calls.items()
        ]
        yield from race(f"Run {name}", contestants, size=size, turns=7, unit="run", block=block, dtype="float32")
        for title, call in counts.items():
            yield check(f"{name}: {title}", np.asarray(call()), log_p(entry, 0))
        yield check(f"{name}: against the neighbour's law", np.asarray(call()), log_p(entry, 1), differ=True)


def _streamed(entry: Entry, read: Callable, outcomes: int, block: int, blocks: int, keyed: bool) -> Callable:
    """Counts of the outcomes, one block after the other."""
    codes = np.arange(outcomes, dtype=np.int32)

    @jax.jit
    def count(key: jax.Array, x: jax.Array) -> jax.Array:
        def add(total: jax.Array, number: jax.Array) -> tuple[jax.Array, None]:
            found = jax.vmap(read)(_outputs(entry, jax.random.fold_in(key, number), x, block, keyed))
            return total + jnp.sum(found[:, None] == codes, axis=0, dtype=jnp.uint32), None

        return jax.lax.scan(add, jnp.zeros(outcomes, jnp.uint32), jnp.arange(blocks, dtype=jnp.uint32))[0]

    return lambda: count(jax.random.key(0), entry.worst[0])


def _outputs(entry: Entry, key: jax.Array, x: jax.Array, block: int, keyed: bool) -> Any:
    if not keyed:
        return entry.many(key, x, block)
    return jax.vmap(entry.sample, (0, None))(jax.random.split(key, block), x)


def _scored(entry: Entry, block: int, blocks: int) -> Callable:
    """How often the best event happens."""
    score = entry.log_ratio(*entry.worst)
    threshold = np.float32(entry.loss_law(*entry.worst).best_event(blocks * block, 0.1)[0] - 1e-6)

    @jax.jit
    def count(key: jax.Array, x: jax.Array) -> jax.Array:
        def add(total: jax.Array, number: jax.Array) -> tuple[jax.Array, None]:
            scores = jax.vmap(score)(_outputs(entry, jax.random.fold_in(key, number), x, block, keyed=False))
            return total + jnp.sum(scores >= threshold, dtype=jnp.uint32), None

        return jax.lax.scan(add, jnp.uint32(0), jnp.arange(blocks, dtype=jnp.uint32))[0]

    return lambda: count(jax.random.key(0), entry.worst[0])


def _audit(entry: Entry, runs: int) -> Callable:
    settings = dict(epsilon=entry.epsilon, num_samples=runs, confidence=0.9, selection=0.01)
    score = entry.event(runs, 0.1)  # The law has chosen the event: the pilot has nothing left to choose.
    return lambda: monte_carlo(jax.random.key(0), entry.many, *entry.worst, score=score, **settings).hits


def _numpy_counts(numpy: Callable, entry: Entry, parts: int) -> np.ndarray:
    rng = np.random.default_rng(0)
    return sum(numpy(rng, entry.worst[0], _NUMPY_BLOCK) for _ in range(parts))


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
