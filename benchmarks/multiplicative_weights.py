"""Private multiplicative weights: time and largest error on three-way marginals, against independent Laplace answers.

The data are correlated yes/no attributes; a marginal is the share of records that have three attributes. NumPy's
textbook loop does the same rounds and replays with continuous noise.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any

import jax
import numpy as np

import jaxdp
from benchmarks.harness import Contestant, race

_N, _EPSILON = 10_000, 1.0


def run(*, quick: bool) -> Iterator[dict[str, Any]]:
    attributes, number, turns, seeds = (10, 100, 2, 3) if quick else (16, 500, 3, 8)
    counts, matrix = _data(attributes, number)
    queries, size = jax.numpy.asarray(matrix), 2**attributes
    truth = np.asarray(jaxdp.answer(counts, queries))
    rounds = jaxdp.MultiplicativeWeights.rounds_for(_N, size, number, _EPSILON)
    mechanism = jaxdp.MultiplicativeWeights(_EPSILON, rounds=rounds)
    laplace = jaxdp.Laplace(float(number), _EPSILON, max_changed=number)
    whole = np.rint(truth * _N).astype(np.int32)
    numbers = matrix.astype(np.float32)

    def release(seed: int = 0) -> jax.Array:
        return mechanism.sample(jax.random.key(seed), (counts, queries)).weights

    def independent(seed: int = 0) -> np.ndarray:
        return np.asarray(laplace.sample(jax.random.key(seed), whole)) / _N

    def textbook(seed: int = 0) -> np.ndarray:
        return _numpy(np.random.default_rng(seed), truth, numbers, mechanism)

    contestants = [
        Contestant("jaxdp, MultiplicativeWeights.sample", release, at_most=30.0),
        Contestant("NumPy, the textbook's loop", textbook, reference=True),
        Contestant("jaxdp, independent Laplace answers", independent),
    ]
    facts = {"universe": size, "queries": number, "n": _N, "epsilon": _EPSILON, "rounds": rounds}
    title = f"A synthetic database for {number} three-way marginals, universe of {size:,}, {rounds} rounds"
    records = race(title, contestants, turns=turns, **facts)
    yield from records

    errors = {
        "jaxdp": [float(jaxdp.max_error(release(seed), counts, queries)) for seed in range(seeds)],
        "numpy": [float(np.abs(numbers @ textbook(seed) - truth).max()) for seed in range(min(seeds, 2))],
        "laplace": [float(np.abs(independent(seed) - truth).max()) for seed in range(seeds)],
    }
    if quick:
        passed = np.mean(errors["jaxdp"]) < np.mean(errors["laplace"])
    else:
        passed = max(errors["jaxdp"]) < min(errors["laplace"]) and records[0]["first_call_s"] < 30.0
    yield {
        "accuracy": title,
        "errors": errors,
        "first_call_s": records[0]["first_call_s"],
        "passed": bool(passed),
        **facts,
    }


def _data(attributes: int, number: int) -> tuple[np.ndarray, np.ndarray]:
    """A histogram of records with three common factors, and the marginals (|Q|, |X|)."""
    rng = np.random.default_rng(0)
    scores = rng.normal(size=(_N, 3)) @ rng.normal(size=(3, attributes)) + rng.normal(size=(_N, attributes))
    universe = jaxdp.binary_universe(attributes)
    triples = list(itertools.combinations(range(attributes), 3))
    chosen = rng.permutation(len(triples))[:number]
    matrix = np.stack([universe[:, list(triples[i])].all(axis=1) for i in chosen])
    return jaxdp.histogram(scores + 0.7 * rng.normal(size=attributes) > 0.0, universe), matrix


def _numpy(rng: np.random.Generator, truth: np.ndarray, matrix: np.ndarray, mechanism: Any) -> np.ndarray:
    select = mechanism.epsilon * (1.0 - mechanism.measure_share) / mechanism.rounds
    measure = mechanism.epsilon * mechanism.measure_share / mechanism.rounds
    weights, measured = np.full(matrix.shape[1], 1.0 / matrix.shape[1], np.float32), []
    for _ in range(mechanism.rounds):
        scores = select / 2.0 * _N * np.abs(matrix @ weights - truth)
        index = int(np.argmax(scores + rng.gumbel(size=len(scores))))
        measured.append((index, float(np.clip(truth[index] + rng.laplace(scale=1.0 / measure) / _N, 0.0, 1.0))))
        for index, answer in [measured[-1], *measured * mechanism.replays]:
            weights *= np.exp(matrix[index] * np.float32((answer - matrix[index] @ weights) / 2.0))
            weights /= weights.sum()
    return weights
