"""Exponential mechanism and permute-and-flip by number of candidates: on one data set from the law, and on fresh ones.

There are two laws: the exponential mechanism's (jax.random.categorical, NumPy's choice and Gumbel noise draw it too)
and permute-and-flip's (OpenDP's noisy max with exponential noise). jax.random.categorical in its default mode is off
at logit gaps that occur here; the high mode is the one that may be compared. All are checked for 10 candidates.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Iterator
from typing import Any

import jax
import numpy as np

import jaxdp
from benchmarks.harness import Contestant, check, race

_EM, _PF = jaxdp.ExponentialMechanism(1.0, 1.0), jaxdp.PermuteAndFlip(1.0, 1.0)
_PROMISES = {1000: (1000.0, 50.0)}
"""Candidates: promised ratios of the exponential mechanism to OpenDP, on one data set and on fresh ones."""


def run(*, quick: bool) -> Iterator[dict[str, Any]]:
    releases, cells, turns = (100_000, 400_000, 3) if quick else (1_000_000, 4_000_000, 10)
    for n in (10, 1000, 100_000):
        few = cells // n
        scores = np.random.default_rng(n).normal(scale=5.0, size=(few, n)).astype(np.float32)
        shared, fresh = _PROMISES.get(n, (None, None))
        for title, promise, contestants in (
            ("one data set", shared, _shared(scores[0], releases, few)),
            ("fresh data sets", fresh, _fresh(scores)),
        ):
            calls = [
                Contestant(
                    name,
                    call,
                    units,
                    reference=name.startswith("OpenDP" if _has_opendp() else "jax.random"),
                    at_least=promise if _has_opendp() and name.startswith("jaxdp, exponential mechanism, v") else None,
                    calls=50 if units == 1 and n <= 1000 else 1,
                )
                for name, (call, units) in contestants.items()
            ]
            yield from race(
                f"Select one of {n}, {title}", calls, turns=turns, candidates=n, epsilon=1.0, dtype="float32"
            )
        if n == 10:
            yield from _checks(scores[0], 1000 if quick else 20_000)


def _shared(scores: np.ndarray, releases: int, few: int) -> dict[str, tuple[Callable, int]]:
    key = jax.random.key(0)
    keys = jax.jit(lambda key: jax.random.split(key, releases))(key)
    rng = np.random.default_rng(0)
    categorical = jax.jit(lambda key, scores: jax.random.categorical(key, scores / 2.0, shape=(few,), mode="high"))

    def choice() -> np.ndarray:
        p = np.exp((scores - scores.max()) / 2.0, dtype=np.float64)
        return rng.choice(len(scores), releases, p=p / p.sum())

    def law(mechanism: Any) -> Callable:
        return lambda: jax.vmap(mechanism.law(scores).sample)(keys)

    return {
        "jaxdp, exponential mechanism, vmap(law.sample)": (law(_EM), releases),
        "jaxdp, permute-and-flip, vmap(law.sample)": (law(_PF), releases),
        "jax.random.categorical, high mode": (lambda: categorical(key, scores), few),
        "NumPy, Generator.choice": (choice, releases),
        "NumPy, Gumbel noise": (lambda: (scores / 2.0 + rng.gumbel(size=(few, len(scores)))).argmax(axis=1), few),
    } | _opendp(scores)


def _fresh(scores: np.ndarray) -> dict[str, tuple[Callable, int]]:
    few, rng, key = len(scores), np.random.default_rng(0), jax.random.key(0)
    keys = jax.jit(lambda key: jax.random.split(key, few))(key)
    exponential, flip = jax.jit(jax.vmap(_EM.sample)), jax.jit(jax.vmap(_PF.sample))
    categorical = jax.jit(lambda key, scores: jax.random.categorical(key, scores / 2.0, mode="high"))
    return {
        "jaxdp, exponential mechanism, vmap(sample)": (lambda: exponential(keys, scores), few),
        "jaxdp, permute-and-flip, vmap(sample)": (lambda: flip(keys, scores), few),
        "jaxdp, exponential mechanism, one sample": (lambda: _EM.sample(key, scores[0]), 1),
        "jaxdp, permute-and-flip, one sample": (lambda: _PF.sample(key, scores[0]), 1),
        "jax.random.categorical, high mode": (lambda: categorical(key, scores), few),
        "NumPy, Gumbel noise": (lambda: (scores / 2.0 + rng.gumbel(size=scores.shape)).argmax(axis=1), few),
    } | _opendp(scores[0])


def _has_opendp() -> bool:
    return importlib.util.find_spec("opendp") is not None


def _opendp(scores: np.ndarray) -> dict[str, tuple[Callable, int]]:
    if not _has_opendp():
        return {}
    import opendp.prelude as dp

    dp.enable_features("contrib")
    space = dp.vector_domain(dp.atom_domain(T=float, nan=False)), dp.linf_distance(T=float)
    measure, values = dp.m.make_noisy_max(*space, dp.max_divergence(), scale=2.0), scores.astype(float).tolist()
    return {"OpenDP, make_noisy_max": (lambda: measure(values), 1)}


def _checks(scores: np.ndarray, calls: int) -> Iterator[dict[str, Any]]:
    laws = {mechanism: np.asarray(mechanism.law(scores).log_p) for mechanism in (_EM, _PF)}
    shared = _shared(scores, 50 * calls, 50 * calls)
    keys = jax.random.split(jax.random.key(1), 50 * calls)
    shared["jaxdp, exponential mechanism, sample"] = lambda: jax.vmap(_EM.sample, (0, None))(keys, scores), 1
    shared["jaxdp, permute-and-flip, sample"] = lambda: jax.vmap(_PF.sample, (0, None))(keys, scores), 1
    for name, (call, _) in shared.items():
        flips = "permute" in name or "OpenDP" in name
        drawn = [call() for _ in range(calls)] if "OpenDP" in name else np.asarray(call())
        counts = np.bincount(drawn, minlength=len(scores))
        yield check(f"Select one of 10: {name}", counts, laws[_PF if flips else _EM])
        if name.startswith("jaxdp, permute-and-flip, v"):
            yield check(f"Select one of 10: {name}, as the other law", counts, laws[_EM], differ=True)
