"""Exponential mechanism and permute-and-flip by number of candidates: on one data set from the law, and on fresh ones.

There are two laws: the exponential mechanism's (jax.random.categorical, NumPy's choice and Gumbel noise, and
diffprivlib's Exponential draw it too) and permute-and-flip's (OpenDP's noisy max with exponential noise, diffprivlib's
PermuteAndFlip). All are checked for 10 candidates, and each of our samplers must fail against the other law. Ratios are
to OpenDP, per release of one index; it is three times faster on a NumPy array than on a list, and gets both. Calls that
make one release are repeated inside a contestant's turn, since a short call dodges the other load of a machine.
jax.random.categorical in its default mode is off at logit gaps that occur here; the high mode is the one that may be
compared. "One data set": each contestant may prepare what it can, ours computes its law in the time. diffprivlib makes
its table of probabilities once there, and anew for each fresh data set; it joins where it can be imported.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import jaxdp
from benchmarks.harness import Size, against_opendp, check, race

_EM, _PF = jaxdp.ExponentialMechanism(1.0, 1.0), jaxdp.PermuteAndFlip(1.0, 1.0)
_exponential, _flip = jax.jit(jax.vmap(_EM.sample)), jax.jit(jax.vmap(_PF.sample))
_PROMISES = {10: (None, None), 1000: (1000.0, 50.0), 100_000: (None, None)}
"""Candidates: promised ratios of the exponential mechanism to OpenDP, on one data set and on fresh ones."""

Calls = dict[str, tuple[Callable[[], Any], int]]


def run(size: Size) -> Iterator[dict[str, Any]]:
    cells = 40_000 if size.quick else 4_000_000  # What NumPy's contestants fill, whatever the device.
    for n, (shared, fresh) in ({10: (None, None)} if size.quick else _PROMISES).items():
        if size.late:
            return
        few = size.of(4_000_000, 40_000) // n
        scores = 5.0 * jax.random.normal(jax.random.key(n), (few, n))
        one, repeats = np.asarray(scores[0]), max(1, min(30 if size.quick else 300, 30_000 // n))
        calls = _shared(one, size.of(1_000_000, 20_000), few, cells // n, repeats)
        yield from _race(f"Select one of {n:,}, one data set", calls, size, n, shared)
        if n == 10:
            yield from _checks(scores, calls, 2_000 if size.quick else 20_000)
        calls = _fresh(scores, cells // n, repeats)
        if size.quick:  # It takes seconds to compile.
            del calls["jax.random.categorical, high mode"]
        yield from _race(f"Select one of {n:,}, fresh data sets", calls, size, n, fresh)


def _race(title: str, calls: Calls, size: Size, n: int, promise: float | None) -> list[dict[str, Any]]:
    promises = {name: promise for name in calls if name.startswith("jaxdp, exponential mechanism, v")}
    contestants = against_opendp(calls, promises)
    facts = {"candidates": n, "epsilon": 1.0, "dtype": "float32"}
    return race(title, contestants, size=size, turns=7 if n <= 1000 else 3, unit="release", **facts)


def _shared(scores: np.ndarray, releases: int, few: int, rows: int, repeats: int) -> Calls:
    key, rng, device = jax.random.key(0), np.random.default_rng(0), jnp.asarray(scores)
    keys = jax.random.split(key, releases)
    categorical = jax.jit(lambda key, scores: jax.random.categorical(key, scores / 2.0, shape=(few,), mode="high"))
    gumbel = (rows, len(scores))

    def choice() -> np.ndarray:
        p = np.exp((scores - scores.max()) / 2.0, dtype=np.float64)
        return rng.choice(len(scores), 20 * rows, p=p / p.sum())

    return {
        "jaxdp, exponential mechanism, vmap(law.sample)": (lambda: jax.vmap(_EM.law(device).sample)(keys), releases),
        "jaxdp, permute-and-flip, vmap(law.sample)": (lambda: jax.vmap(_PF.law(device).sample)(keys), releases),
        "jax.random.categorical, high mode": (lambda: categorical(key, device), few),
        "NumPy, Generator.choice": (choice, 20 * rows),
        "NumPy, Gumbel noise": (lambda: (scores / 2.0 + rng.gumbel(size=gumbel)).argmax(axis=1), rows),
        **_opendp(scores, repeats),
        **{f"diffprivlib, {name}": _repeated(make(scores).randomise, repeats) for name, make in _diffprivlib().items()},
    }


def _fresh(scores: jax.Array, rows: int, repeats: int) -> Calls:
    few, rng, key = len(scores), np.random.default_rng(0), jax.random.key(0)
    keys, some = jax.random.split(key, few), np.asarray(scores[:rows])
    first, rows = some[0], len(some)
    categorical = jax.jit(lambda key, scores: jax.random.categorical(key, scores / 2.0, mode="high"))
    return {
        "jaxdp, exponential mechanism, vmap(sample)": (lambda: _exponential(keys, scores), few),
        "jaxdp, permute-and-flip, vmap(sample)": (lambda: _flip(keys, scores), few),
        "jaxdp, exponential mechanism, one sample": _repeated(lambda: _EM.sample(key, first), repeats),
        "jaxdp, permute-and-flip, one sample": _repeated(lambda: _PF.sample(key, first), repeats),
        "jax.random.categorical, high mode": (lambda: categorical(key, scores), few),
        "NumPy, Gumbel noise": (lambda: (some / 2.0 + rng.gumbel(size=some.shape)).argmax(axis=1), rows),
        **_opendp(first, repeats),
        **{
            f"diffprivlib, {name}": _repeated(lambda make=make: make(first).randomise(), repeats)
            for name, make in _diffprivlib().items()
        },
    }


def _repeated(call: Callable[[], Any], repeats: int) -> tuple[Callable[[], Any], int]:
    return lambda: [call() for _ in range(repeats)], repeats


def _opendp(scores: np.ndarray, repeats: int) -> Calls:
    if importlib.util.find_spec("opendp") is None:
        return {}
    import opendp.prelude as dp

    dp.enable_features("contrib")
    space = dp.vector_domain(dp.atom_domain(T=float, nan=False)), dp.linf_distance(T=float)
    measure = dp.m.make_noisy_max(*space, dp.max_divergence(), scale=2.0)
    array, values = scores.astype(float), scores.astype(float).tolist()
    return {
        "OpenDP, make_noisy_max on an array": _repeated(lambda: measure(array), repeats),
        "OpenDP, make_noisy_max on a list": _repeated(lambda: measure(values), repeats),
    }


def _diffprivlib() -> dict[str, Callable[[np.ndarray], Any]]:
    """Its mechanisms as functions of scores; none where it cannot be imported: 0.6 needs scikit-learn < 1.6."""
    try:
        from diffprivlib import mechanisms
    except ImportError:
        return {}
    public = {"epsilon": 1.0, "sensitivity": 1.0}
    return {
        name: lambda scores, kind=kind: kind(**public, utility=scores.astype(float).tolist())
        for name, kind in {"Exponential": mechanisms.Exponential, "PermuteAndFlip": mechanisms.PermuteAndFlip}.items()
    }


def _checks(fresh: jax.Array, shared: Calls, releases: int) -> Iterator[dict[str, Any]]:
    """For all that share a data set, and for `sample` as fresh data sets use it."""
    scores, same = np.asarray(fresh[0]), jnp.tile(fresh[0], (len(fresh), 1))
    laws = {mechanism: np.asarray(mechanism.law(scores).log_p) for mechanism in (_EM, _PF)}
    keys = jax.random.split(jax.random.key(1), len(same))
    calls = shared | {
        "jaxdp, exponential mechanism, sample": (lambda: _exponential(keys, same), len(keys)),
        "jaxdp, permute-and-flip, sample": (lambda: _flip(keys, same), len(keys)),
    }
    for name, (call, units) in calls.items():
        flips = "permute" in name or "OpenDP" in name or "PermuteAndFlip" in name
        drawn = np.concatenate([np.asarray(call()) for _ in range(-(-releases // units))])
        counts = np.bincount(drawn, minlength=len(scores))
        yield check(f"Select one of 10: {name}", counts, laws[_PF if flips else _EM])
        if name.startswith("jaxdp"):
            yield check(f"Select one of 10: {name}, as the other law", counts, laws[_EM if flips else _PF], differ=True)
